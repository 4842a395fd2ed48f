"""Hyperparameters of a training beside the RL Zoo's: `--set n_steps=3`."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Sequence
from typing import Any

from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean
from qpd.teachers.archive.errors import TeacherError

# What `qpd teacher train` sets itself, and what the RL Zoo would execute as Python.
_NOT_TO_SET = ("self", "policy", "env", "seed", "device", "verbose", "tensorboard_log",
               "_init_setup_model", "policy_kwargs", "replay_buffer_kwargs",
               "rollout_buffer_kwargs", "replay_buffer_class", "rollout_buffer_class")  # fmt: skip
_OF_THE_ZOO = ("n_envs",)
_WORDS = {"true": True, "false": False, "none": None}
# `lin_2.5e-4` falls linearly to 0; the zoo turns such text into a function.
_SCHEDULE = re.compile(r"lin_[0-9.]+(e-?[0-9]+)?")


def read_hyperparameters(assignments: Sequence[str], algorithm: type) -> dict[str, Any]:
    """Parse `["n_steps=3"]` into `{"n_steps": 3}`, for a class such as Stable-Baselines3's DQN.

    Values are numbers, true, false, none, or the zoo's schedules such as `lin_2.5e-4`. Raises
    TeacherError for anything but an assignment, for names that `algorithm` does not know, and for
    values that its signature rules out.
    """
    wanted = {
        name: parameter.annotation
        for name, parameter in inspect.signature(algorithm).parameters.items()
        if name not in _NOT_TO_SET
    } | dict.fromkeys(_OF_THE_ZOO, int)
    values: dict[str, Any] = {}
    for text in assignments:
        name, equals, raw = (part.strip() for part in text.partition("="))
        if not equals or not raw:
            raise _refused(text, "must be key=value, for example n_steps=3")
        if name not in wanted:
            near = did_you_mean(name, list(wanted))
            raise _refused(text, f"{algorithm.__name__} has no such hyperparameter{near}")
        values[name] = _value(text, raw, wanted[name])
    return values


def is_hyperparameter(value: object) -> bool:
    """Return whether a value of config.yml is one that `read_hyperparameters` may return."""
    if isinstance(value, str):
        return _SCHEDULE.fullmatch(value) is not None
    return value is None or isinstance(value, bool | int | float)


def _value(text: str, raw: str, wanted: object) -> Any:
    # `wanted` is int only where the signature says just that; unions such as float | Schedule take
    # anything that is listed here.
    if raw.lower() in _WORDS and wanted is not int:
        return _WORDS[raw.lower()]
    if _SCHEDULE.fullmatch(raw) and wanted is not int:
        return raw
    try:
        number = float(raw)
    except ValueError:
        expected = "a number, true, false, none, or a schedule such as lin_2.5e-4"
        raise _refused(text, f"must be {'a whole number' if wanted is int else expected}") from None
    if not math.isfinite(number) or (wanted is int and not number.is_integer()):
        raise _refused(text, f"must be a {'whole' if wanted is int else 'finite'} number")
    return int(number) if wanted is int or raw.lstrip("+-").isdigit() else number


def _refused(text: str, why: str) -> TeacherError:
    return TeacherError(f"--set {text}: {why}", ErrorCode.COMMAND_LINE)
