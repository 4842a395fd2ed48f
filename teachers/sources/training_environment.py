"""Read how the RL Zoo made an agent's environment, as its args.yml and config.yml say it.

Names and plain values only: nothing here is imported, and no text is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qpd.errors.codes import ErrorCode
from qpd.teachers.archive.errors import TeacherError

_CLASS = re.compile(r"[A-Za-z_][\w.]{0,199}")
_MOST_PARTS = 1000  # of a list as argument


@dataclass(frozen=True)
class EnvironmentWrapper:
    """A wrapper by its class, such as `sb3_contrib.common.wrappers.TimeFeatureWrapper`."""

    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        short = self.name.rsplit(".", 1)[-1]
        given = ", ".join(f"{key}={value!r}" for key, value in self.kwargs.items())
        return f"{short}({given})" if given else short


@dataclass(frozen=True)
class TrainingEnvironment:
    """Hold what an environment needs to be as it was in training.

    Attributes:
        env_kwargs: arguments of `gymnasium.make`.
        env_wrapper: wrappers around each environment, the innermost first.
        vec_env_wrapper: wrappers around all of them together, the innermost first.
        frame_stack: observations that the agent sees at once.
        normalize: whether observations were normalized (VecNormalize).
    """

    env_kwargs: dict[str, Any] = field(default_factory=dict)
    env_wrapper: tuple[EnvironmentWrapper, ...] = ()
    vec_env_wrapper: tuple[EnvironmentWrapper, ...] = ()
    frame_stack: int = 1
    normalize: bool = False

    def __str__(self) -> str:
        said = [str(wrapper) for wrapper in (*self.env_wrapper, *self.vec_env_wrapper)]
        said += [f"{self.frame_stack} frames"] if self.frame_stack > 1 else []
        said += [f"{key}={value!r}" for key, value in self.env_kwargs.items()]
        return ", ".join(said) or "none"


def training_environment(
    args: Mapping[str, Any], config: Mapping[str, Any], path: Path
) -> TrainingEnvironment:
    """Read the settings of an environment; `path` is the agent's, for errors.

    Raises TeacherError for values that are not what the zoo writes.
    """
    # Both may hold arguments: what was typed is on top of the hyperparameters.
    kwargs = _mapping(config, "env_kwargs", path) | _mapping(args, "env_kwargs", path)
    frame_stack = config.get("frame_stack")
    if frame_stack is None:
        frame_stack = 1
    if type(frame_stack) is not int or frame_stack < 1:
        raise _wrong(path, "frame_stack", frame_stack, "a whole number above 0")
    return TrainingEnvironment(
        kwargs,
        _wrappers(config, "env_wrapper", path),
        _wrappers(config, "vec_env_wrapper", path),
        frame_stack,
        _normalizes_observations(config.get("normalize")),
    )


def _mapping(settings: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = settings.get(key)
    # The zoo writes an empty text or null for none.
    if not value:
        return {}
    if not _are_plain_arguments(value):
        raise _wrong(path, key, value, "names and plain values, such as `continuous: true`")
    return dict(value)


def _wrappers(settings: Mapping[str, Any], key: str, path: Path) -> tuple[EnvironmentWrapper, ...]:
    """Read the zoo's three ways: a name, {name: arguments}, or a list of either."""
    value = settings.get(key)
    if not value:
        return ()
    found: list[EnvironmentWrapper] = []
    for entry in value if isinstance(value, list) else [value]:
        pairs = entry.items() if isinstance(entry, dict) else [(entry, None)]
        for name, kwargs in pairs:
            given = kwargs or {}
            named = type(name) is str and _CLASS.fullmatch(name)
            if not named or not _are_plain_arguments(given):
                raise _wrong(path, key, value, "a wrapper's class, with plain arguments or without")
            found.append(EnvironmentWrapper(name, dict(given)))
    return tuple(found)


def _are_plain_arguments(value: object) -> bool:
    """Tell names with numbers, texts or flat lists of them: deeper ones may share without end."""
    if not isinstance(value, dict) or not all(type(name) is str for name in value):
        return False
    for argument in value.values():
        parts = argument if type(argument) is list else [argument]
        plain = all(x is None or type(x) in (bool, int, float, str) for x in parts[:_MOST_PARTS])
        if not plain or len(parts) > _MOST_PARTS:
            return False
    return True


def _wrong(path: Path, key: str, value: object, expected: str) -> TeacherError:
    shown = repr(value[:100] if isinstance(value, str) else type(value).__name__)
    return TeacherError(
        f"{path}: its settings say {key} {shown}; expected {expected}", ErrorCode.TEACHER_SETTINGS
    )


def _normalizes_observations(setting: object) -> bool:
    """Interpret the zoo's `normalize`: a bool, a mapping or the text of a dict, never evaluated."""
    if isinstance(setting, dict):
        return bool(setting.get("norm_obs", True))
    if isinstance(setting, str):
        return not re.search(r"norm_obs['\"]?\s*[:=]\s*False", setting)
    return bool(setting)
