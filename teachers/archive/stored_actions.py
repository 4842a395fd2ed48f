"""The action space of an SB3 archive, as far as its plain data tell.

Bounds are NumPy's text of an array, `[-1. -1.]`, in old archives and new ones; counts are numbers,
or the text of one. Nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from qpd.teachers.archive.plain_data import int_tuple, positive_int, space_fields, space_name

StoredKind = Literal["discrete", "box", "multi_discrete", "multi_binary", "other", "unknown"]
_KINDS: dict[str | None, StoredKind] = {
    "Discrete": "discrete",
    "Box": "box",
    "MultiDiscrete": "multi_discrete",
    "MultiBinary": "multi_binary",
    None: "unknown",
}
_MOST_TEXT = 1 << 16  # of bounds: NumPy shortens arrays of more than 1,000 numbers
_NUMBER = re.compile(r"[-+]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][-+]?\d{1,3})?|[-+]?inf|nan")


@dataclass(frozen=True)
class StoredActions:
    """Hold what the plain data say; empty where they do not.

    `sizes` are the n of `discrete` and `multi_binary`, and the nvec of `multi_discrete`; `shape`,
    `low` and `high` (flat) are a `box`'s.
    """

    kind: StoredKind = "unknown"
    sizes: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def num_actions(self) -> int | None:
        """The n of `discrete`, None where it is unknown."""
        return self.sizes[0] if self.kind == "discrete" and self.sizes else None


def read_stored_actions(data: Mapping[str, Any]) -> StoredActions:
    """Return the action space that the plain data describe, `unknown` if they do not."""
    fields = space_fields(data, "action_space")
    kind = _KINDS.get(space_name(fields), "other")
    if kind == "box":
        dtype = str(fields.get("dtype"))
        shape = int_tuple(fields.get("_shape", fields.get("shape"))) or ()
        low, high = (_bounds(fields.get(name), dtype) for name in ("low", "high"))
        return StoredActions("box", shape=shape, low=low, high=high)
    starts = re.findall(r"[-+]?\d+", str(fields.get("start", "")))
    if any(int(start) for start in starts if len(start) < 20):
        return StoredActions("other")  # SB3 agents emit 0 to n - 1
    if kind == "multi_discrete":
        return StoredActions(kind, sizes=int_tuple(_commas(fields.get("nvec"))) or ())
    num = positive_int(fields.get("n"))
    if kind == "multi_binary":
        # MultiBinary([2, 3]) has several axes, which no SB3 policy supports.
        flat = num is not None or fields.get("n") is None
        return StoredActions(kind, sizes=(num,) if num else ()) if flat else StoredActions("other")
    if kind == "unknown" and num is not None:
        kind = "discrete"
    return StoredActions(kind, sizes=(num,) if kind == "discrete" and num else ())


def _bounds(value: object, dtype: str) -> tuple[float, ...]:
    """Return the numbers of an array's text, rounded to its type; empty where it is no such text.

    NumPy prints up to 8 decimals: what float32 has beyond them is not known.
    """
    text = str(value)
    numbers = re.sub(r"[\[\],]", " ", text).split() if len(text) <= _MOST_TEXT else []
    if not all(_NUMBER.fullmatch(number) for number in numbers):
        return ()
    as_type = np.float32 if dtype == "float32" else np.float64
    with np.errstate(over="ignore"):
        return tuple(float(as_type(number)) for number in numbers)


def _commas(value: object) -> object:
    """Put commas between the numbers of an array's text: `[3 2]` -> `[3,2]`."""
    return re.sub(r"(\d)\s+(?=\d)", r"\1,", value) if isinstance(value, str) else value
