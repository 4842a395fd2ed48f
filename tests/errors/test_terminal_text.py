"""What a terminal may be shown of a file's text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qpd.errors.terminal_text import MAX_LINE, printable


@given(st.text(st.characters(exclude_categories=()), max_size=200))
def test_what_is_printed_moves_no_cursor(text: str) -> None:
    shown = printable(text)
    shown.encode("utf-8")
    assert len(shown.splitlines()) <= 1
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202e\u2066\u200b" for c in shown)
    if text.isascii() and text.isprintable():
        assert shown == text


def test_long_lines_are_cut() -> None:
    assert printable("a" * 5000) == "a" * (MAX_LINE - 3) + "..."
    assert printable("Zürich 日本 \x1b[31m\x9b\u202e") == r"Zürich 日本 \x1b[31m\x9b\u202e"
