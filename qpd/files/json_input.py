"""JSON from outside: anything ambiguous, oversized or not strictly JSON is refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from qpd.files.bounded_read import TooLargeError, read_file

MAX_JSON_BYTES = 8 << 20
MAX_MANIFEST_BYTES = 24 << 20  # five policies of 100,000 games each take 16 MB


def read_json(path: Path, most: int = MAX_JSON_BYTES) -> Any:
    """Return the content of the JSON file `path`. Raises OSError, or ValueError as `parse_json`."""
    try:
        content = read_file(path, most)
    except TooLargeError:
        raise TooLargeError(f"it is larger than {most >> 20} MiB") from None
    return parse_json(content.decode("utf-8"))


def parse_json(text: str, *, any_number: bool = False) -> Any:
    """Return the value of one JSON document.

    Raises ValueError, with a one-line message, for anything else: also for NaN and infinities,
    numbers beyond floats, duplicate keys, invalid Unicode and nesting too deep to read. With
    `any_number` such numbers are read as Python's own reader does: other programs write them.
    """
    strict = {} if any_number else _STRICT_NUMBERS
    try:
        value = json.loads(text, object_pairs_hook=_object, **strict)
        if "\\u" in text:  # half of a surrogate pair cannot be written again
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it contains half of a surrogate pair") from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json.loads keeps the last of two equal keys without a word; readers that keep the first would
    # see another document.
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:80]!r} is given twice")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _finite_int(text: str) -> int:
    # Python integers have no bound, but arrays and other readers do: later code may make a float.
    value = int(text)
    try:
        float(value)
    except OverflowError:
        raise ValueError(f"{text[:40]}... is too large for a float") from None
    return value


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large for a float")
    return value


_STRICT_NUMBERS: dict[str, Any] = {
    "parse_constant": _refuse_constant,
    "parse_float": _finite_float,
    "parse_int": _finite_int,
}
