"""Plain values: what YAML and JSON hold alike, within bounds. Arguments of environments are these.

Apart from the schema, so that worker processes need not import pydantic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

Algorithm = Literal["ppo", "a2c", "trpo", "ars", "dqn", "qrdqn", "sac", "tqc", "ddpg", "td3"]
MOST_VALUES = 1000
PLAIN = (
    f"finite numbers, text, true, false, null, or lists and mappings of them, at most {MOST_VALUES}"
    " in all"
)
_MOST_CHARACTERS = 10_000
_MOST_DEPTH = 8


def is_plain(value: Any) -> bool:
    """Tell whether all of `value` is `PLAIN`; mappings' keys are text."""
    return _count(value, 0) <= MOST_VALUES


def _count(value: Any, depth: int) -> int:
    """Count the values; where one is not plain, more than are allowed."""
    if depth > _MOST_DEPTH:
        return MOST_VALUES + 1
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) and len(key) <= _MOST_CHARACTERS for key in value):
            return MOST_VALUES + 1
        return 1 + sum(_count(item, depth + 1) for item in value.values())
    if isinstance(value, list | tuple):
        return 1 + sum(_count(item, depth + 1) for item in value)
    if isinstance(value, float) and not math.isfinite(value):
        return MOST_VALUES + 1
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        return MOST_VALUES + 1
    return 1 if value is None or type(value) in (bool, int, float, str) else MOST_VALUES + 1
