"""Markdown tables: written for the generated pages, and found in files that have them already."""

from __future__ import annotations

import re
from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells are Markdown; a `|` in a cell is text."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def find_table(markdown: str, first_cell: str) -> str:
    """The table of `markdown` whose header begins with `first_cell`.

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


def _cell(text: str) -> str:
    return re.sub(r"[ \t\n]+", " ", text).strip().replace("|", "\\|")  # non-breaking spaces stay
