"""JSON from elsewhere: what is ambiguous, endless or not JSON at all is refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

MAX_JSON_BYTES = 8 << 20  # a manifest with 10,000 games takes 0.3 MB


def read_json(path: Path) -> Any:
    """What the JSON file `path` holds. Raises OSError, or ValueError as `parse_json` does."""
    with path.open("rb") as file:
        content = file.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"it is larger than {MAX_JSON_BYTES >> 20} MiB")
    return parse_json(content.decode("utf-8"))


def parse_json(text: str) -> Any:
    """The value of one JSON document.

    Raises ValueError, in one line, for anything else: also for NaN and infinities, numbers beyond
    floats, keys given twice, text that is no Unicode and nesting too deep to read.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=_finite_int,
        )
        if "\\u" in text:  # half of a surrogate pair cannot be written again
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair") from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:80]!r} is given twice")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _finite_int(text: str) -> int:
    value = int(text)
    try:
        float(value)
    except OverflowError:
        raise ValueError(f"{text[:40]}... is beyond a float") from None
    return value


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond a float")
    return value
