"""Text from files as a terminal may show it: nothing in it moves the cursor or hides the rest."""

from __future__ import annotations

import unicodedata

MAX_LINE = 2000

# Control, format (direction overrides, zero width), surrogates, private use, line separators.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def printable(text: str) -> str:
    """`text` in one line of at most `MAX_LINE` characters, with `\\x1b` written for an escape."""
    if len(text) > MAX_LINE:
        text = text[: MAX_LINE - 3] + "..."
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if unicodedata.category(character) in _HIDDEN:
        return character.encode("unicode_escape").decode("ascii")
    return character
