"""Hyperparameters of a training beside the RL Zoo's: `--set n_steps=3`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from qpd.error_codes import ErrorCode
from qpd.nearest_name import did_you_mean
from teachers.errors import TeacherError

_OF_THE_ZOO = ("n_envs", "n_timesteps")
_WORDS = {"true": True, "false": False, "none": None, "null": None}


def read_hyperparameters(assignments: Sequence[str], algorithm: type) -> dict[str, Any]:
    """`["n_steps=3"]` -> `{"n_steps": 3}`, for a class such as Stable-Baselines3's DQN.

    Values are numbers, true, false, none, or text such as the zoo's schedule `lin_2.5e-4`. Raises
    TeacherError for what is no assignment, for names that `algorithm` does not know, and for text
    where it wants a whole number.
    """
    wanted = {name: p.annotation for name, p in inspect.signature(algorithm).parameters.items()}
    known = [*wanted, *_OF_THE_ZOO]
    values: dict[str, Any] = {}
    for text in assignments:
        name, equals, raw = (part.strip() for part in text.partition("="))
        if not equals or not raw:
            raise TeacherError(
                f"--set {text}: must be key=value, for example n_steps=3", ErrorCode.COMMAND_LINE
            )
        if name not in known:
            raise TeacherError(
                f"--set {text}: {algorithm.__name__} has no hyperparameter {name}"
                f"{did_you_mean(name, known)}",
                ErrorCode.COMMAND_LINE,
            )
        value = _value(raw)
        if isinstance(value, float) and value.is_integer() and wanted.get(name, int) is int:
            value = int(value)  # 1e5
        if type(value) is not int and wanted.get(name, int) is int:
            raise TeacherError(f"--set {text}: must be a whole number", ErrorCode.COMMAND_LINE)
        values[name] = value
    return values


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
