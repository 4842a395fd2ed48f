"""Markdown for the generated pages: tables, written or found in existing files, and numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose cells are Markdown; a `|` in a cell is text."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def find_table(markdown: str, first_cell: str) -> str:
    """Return the table of `markdown` whose header begins with `first_cell`.

    Raises ValueError, with one line, where there is none.
    """
    lines = markdown.splitlines()
    begin = next((i for i, line in enumerate(lines) if _begins_with(line, first_cell)), None)
    if begin is None:
        raise ValueError(f"no table's header begins with {first_cell!r}")
    end = begin
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    return "\n".join(lines[begin:end])


def _begins_with(line: str, cell: str) -> bool:
    return line.startswith("|") and line.split("|")[1].strip() == cell


# Non-breaking spaces stay: they hold a sign and its number together.
def _cell(text: str) -> str:
    return re.sub(r"[ \t\n]+", " ", text).strip().replace("|", "\\|")


def number_text(value: float) -> str:
    """Format a number: `1e-3`, `0.75`, `4096`, and large powers as `10^6` and `2^31 - 1`."""
    if value != int(value):
        return _fraction(value)
    whole = int(value)
    if whole >= 100_000 and whole == 10 ** (len(str(whole)) - 1):
        return f"10^{len(str(whole)) - 1}"
    if whole >= 1 << 20:
        for number, text in ((whole, ""), (whole + 1, "\u00a0-\u00a01")):
            if number & (number - 1) == 0:
                return f"2^{number.bit_length() - 1}{text}"
    return str(whole)


def _fraction(value: float) -> str:
    if 0 < abs(value) < 1e-2:
        mantissa, exponent = f"{value:e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:g}"
