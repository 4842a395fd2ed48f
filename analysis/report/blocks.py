"""What sections of a report are made of. No HTML here: the template draws each kind and escapes."""

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
    """One headline number, what it is, and what stands behind it."""

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
    """Rows of texts; the first `text_columns` columns read from the left, numbers from the right.

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
    """Lines to copy, under a title."""

    title: str
    code: str
    kind: ClassVar[str] = "code"


@dataclass(frozen=True)
class Folded:
    """A long text behind a line that opens it."""

    title: str
    code: str
    kind: ClassVar[str] = "folded"


@dataclass(frozen=True)
class Picture:
    """A figure: its data URI, what it shows for those who do not see it, and its caption."""

    uri: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Pictures:
    """Figures side by side where there is room, and a table that says the same in numbers."""

    pictures: Sequence[Picture]
    table: Table | None = None
    kind: ClassVar[str] = "pictures"


@dataclass(frozen=True)
class Player:
    """Games that are played in step; `data` is what `player.js` reads."""

    data: dict[str, Any]
    kind: ClassVar[str] = "player"


Block = Text | Cards | Table | Facts | Code | Folded | Pictures | Player


@dataclass(frozen=True)
class Section:
    """A part of the page. `left_out` says, in one sentence, why there is nothing to show."""

    key: str
    title: str
    blocks: Sequence[Block] = ()
    left_out: str | None = None
