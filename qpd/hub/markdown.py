"""Text from files, made safe to stand in Markdown: it shows as it is and starts nothing."""

from __future__ import annotations

import re

from qpd.errors.terminal_text import printable

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#!|~&$@:])")


def escape(text: str) -> str:
    """`text` on one line, with all that Markdown, HTML or the hub would read specially escaped."""
    line = printable(" ".join(text.split()))
    return _SPECIAL.sub(lambda match: _entity(match[1]), line)


def _entity(character: str) -> str:
    """A backslash does for most; HTML's, and those that make links or mentions, become entities."""
    if character in "<>&@:|$":
        return f"&#{ord(character)};"
    return "\\" + character


def code(text: str) -> str:
    """`text` on one line as a code span, also in a table; backquotes and bars are replaced."""
    line = printable(" ".join(text.split())).replace("`", "'").replace("|", "/")
    return f"`{line or '?'}`"
