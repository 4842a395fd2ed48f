"""Escaping of text from files, so that Markdown shows it literally and it starts nothing."""

from __future__ import annotations

import re

from qpd.errors.terminal_text import printable

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#!|~&$@:])")


def escape(text: str) -> str:
    """Return `text` on one line, escaping what Markdown, HTML or the hub would interpret."""
    line = printable(" ".join(text.split()))
    return _SPECIAL.sub(lambda match: _entity(match[1]), line)


def _entity(character: str) -> str:
    """Return a backslash escape, or an entity for HTML's characters, links and mentions."""
    # The hub's renderer turns @names and addresses into links even behind a backslash, and $ into
    # formulas.
    if character in "<>&@:|$":
        return f"&#{ord(character)};"
    return "\\" + character


def code(text: str) -> str:
    """Return `text` on one line as a code span that also works in a table.

    Backquotes and bars are replaced: nothing escapes them inside a code span.
    """
    # One line: a line break would end the table row or the list entry.
    line = printable(" ".join(text.split())).replace("`", "'").replace("|", "/")
    return f"`{line or '?'}`"
