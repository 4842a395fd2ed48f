"""Text from files, made safe for a terminal: it cannot move the cursor or hide what follows."""

from __future__ import annotations

import unicodedata

MAX_LINE = 2000

# Control, format (direction overrides, zero width), surrogates, private use, line separators.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def printable(text: str) -> str:
    """Return `text` as one line of at most `MAX_LINE` characters, an escape written as `\\x1b`."""
    if len(text) > MAX_LINE:
        text = text[: MAX_LINE - 3] + "..."
    # Nearly every message: the table of categories is looked up a character at a time.
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def visible(text: str) -> str:
    """Return `text`, its lines as they are, without hidden characters: an escape as `\\x1b`."""
    return "\n".join("".join(map(_shown, line)) for line in text.split("\n"))


def _shown(character: str) -> str:
    if unicodedata.category(character) in _HIDDEN:
        return character.encode("unicode_escape").decode("ascii")
    return character
