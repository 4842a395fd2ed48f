"""Building blocks of a report's sections. No HTML: the template renders and escapes each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Card:
    """One headline number with its label and the notes below it."""

    label: str
    value: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cards:
    """Headline numbers side by side."""

    cards: Sequence[Card]
    kind: ClassVar[str] = "cards"


@dataclass(frozen=True)
class Table:
    """Rows of text; the first `text_columns` columns are left-aligned, the numbers right-aligned.

    The caption may be empty. `last_is_total` sets the last row apart.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    text_columns: int = 1
    last_is_total: bool = False
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    facts: Sequence[tuple[str, str]]
    kind: ClassVar[str] = "facts"


@dataclass(frozen=True)
class Code:
    """Code to copy, under a title."""

    title: str
    code: str
    kind: ClassVar[str] = "code"


@dataclass(frozen=True)
class Folded:
    """A long text, folded behind its title."""

    title: str
    code: str
    kind: ClassVar[str] = "folded"


@dataclass(frozen=True)
class Picture:
    """A figure: its data URI, alternative text and caption."""

    uri: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Pictures:
    """Figures, side by side where there is room, and a table with the same numbers."""

    pictures: Sequence[Picture]
    table: Table | None = None
    kind: ClassVar[str] = "pictures"


@dataclass(frozen=True)
class Player:
    """Games played in step; `data` is the object that `player.js` reads."""

    data: dict[str, Any]
    kind: ClassVar[str] = "player"


Block = Text | Cards | Table | Facts | Code | Folded | Pictures | Player


@dataclass(frozen=True)
class Section:
    """A part of the page; `left_out` is one sentence on why there is nothing to show."""

    key: str
    title: str
    blocks: Sequence[Block] = ()
    left_out: str | None = None
