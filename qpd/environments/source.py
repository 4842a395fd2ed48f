"""Name an environment: by its id, keyword arguments, wrappers, and how many observations stack.

A source is plain data, which a recipe and a worker process can hold; but for one made by a Python
function, which stays in its process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import gymnasium

from qpd.environments.errors import EnvironmentConfigError
from qpd.recipe.plain_values import PLAIN, is_plain

MAX_FRAME_STACK = 64
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")

Maker = Callable[[], "gymnasium.Env[Any, Any]"]


@dataclass(frozen=True, eq=False)
class Wrapper:
    """A wrapper around an environment: `module.Class`, and its keyword arguments, plain data."""

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _CLASS.fullmatch(self.name):
            raise EnvironmentConfigError(
                f"wrapper {self.name!r}: expected module.Class, such as "
                "sb3_contrib.common.wrappers.TimeFeatureWrapper"
            )
        check_plain(self.kwargs, f"wrapper {self.name}")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments as they are given: gymnasium's own ask for tuples, which YAML has not."""
        if not self.name.startswith("gymnasium."):
            return dict(self.kwargs)
        return {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.kwargs.items()
        }

    def to_json(self) -> str | dict[str, Any]:
        """Return the name, or {name: kwargs}, as the RL Zoo's `env_wrapper` has it."""
        return {self.name: dict(self.kwargs)} if self.kwargs else self.name

    def __str__(self) -> str:
        return f"{self.name}({_shown(self.kwargs)})" if self.kwargs else self.name


@dataclass(frozen=True, eq=False)
class EnvironmentSource:
    """An environment to make: hashable, and equal where all that decides it is.

    Attributes:
        env_id: a gymnasium id, or `module:id`, whose module is imported first.
        kwargs: what the environment is made with, plain data.
        wrappers: applied in order, the innermost first.
        frame_stack: observations that the policy sees at once, as SB3's VecFrameStack joins them;
            Atari's own four are not counted.
        maker: a Python function that makes one environment, in place of `env_id`, then a name.
    """

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Wrapper, ...] = ()
    frame_stack: int = 1
    maker: Maker | None = None

    def __post_init__(self) -> None:
        check_plain(self.kwargs, f"{self.env_id}: its keyword arguments")
        if type(self.frame_stack) is not int or not 1 <= self.frame_stack <= MAX_FRAME_STACK:
            raise EnvironmentConfigError(
                f"frame_stack {self.frame_stack!r}: expected 1 to {MAX_FRAME_STACK} observations"
            )
        if self.maker is not None and self.kwargs:
            raise EnvironmentConfigError(f"{self.env_id}: a function takes no keyword arguments")

    @cached_property
    def _identity(self) -> tuple[str, int | None]:
        return json.dumps(self._plain(), sort_keys=True), id(self.maker) if self.maker else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnvironmentSource) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __str__(self) -> str:
        """Tell the id, and all that is done to it, in words."""
        return ", ".join([self.env_id, *self.additions()])

    def additions(self) -> list[str]:
        """Return what makes it more than its id: arguments, wrappers, stacking, in words."""
        found = [f"made with {_shown(self.kwargs)}"] if self.kwargs else []
        found += [f"in {wrapper}" for wrapper in self.wrappers]
        if self.frame_stack > 1:
            found.append(f"{self.frame_stack} observations stacked")
        return found

    def options(self) -> list[str]:
        """Return the words of a command line that ask for it, where its bare id does not."""
        words = ["--env", self.env_id] if set(":/") & set(self.env_id) else []
        for name, value in self.kwargs.items():
            words += ["--env-kwargs", f"{name}:{json.dumps(value)}"]
        for stated in (wrapper.to_json() for wrapper in self.wrappers):
            words += ["--wrapper", stated if isinstance(stated, str) else json.dumps(stated)]
        if self.frame_stack > 1:
            words += ["--frame-stack", str(self.frame_stack)]
        return words

    def _plain(self) -> dict[str, Any]:
        return {
            "env_id": self.env_id,
            "kwargs": dict(self.kwargs),
            "wrappers": [wrapper.to_json() for wrapper in self.wrappers],
            "frame_stack": self.frame_stack,
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain data. Raises EnvironmentConfigError where a function makes it."""
        if self.maker is not None:
            raise EnvironmentConfigError(
                f"{self.env_id} is made by a Python function, which cannot be stored: register it "
                "with gymnasium, and name it module:Env-v0"
            )
        return self._plain()

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> EnvironmentSource:
        """Read what `to_json` returns. Raises EnvironmentConfigError for anything else."""
        if set(found) != {"env_id", "kwargs", "wrappers", "frame_stack"}:
            raise EnvironmentConfigError(f"environment: unexpected keys {sorted(found)}")
        wrappers = wrappers_of(found["wrappers"])
        return cls(str(found["env_id"]), found["kwargs"], wrappers, found["frame_stack"])


def as_source(source: str | EnvironmentSource | Maker) -> EnvironmentSource:
    """Return an id, or a function that makes one environment, as a source."""
    if isinstance(source, EnvironmentSource):
        return source
    if isinstance(source, str):
        return EnvironmentSource(source)
    name = getattr(source, "__qualname__", type(source).__name__)
    return EnvironmentSource(name, maker=source)


def wrappers_of(found: object) -> tuple[Wrapper, ...]:
    """Read wrappers as the RL Zoo writes them: a name, {name: kwargs}, or a list of either.

    Raises EnvironmentConfigError for anything else.
    """
    if found is None:
        return ()
    wrappers = []
    for entry in found if isinstance(found, list | tuple) else [found]:
        name: object = entry
        kwargs: object = {}
        if isinstance(entry, dict) and len(entry) == 1:
            name, kwargs = next(iter(entry.items()))
        if not isinstance(name, str) or not isinstance(kwargs, dict | None):
            raise EnvironmentConfigError(
                f"wrapper {entry!r:.80}: expected module.Class, or {{module.Class: {{key: value}}}}"
            )
        wrappers.append(Wrapper(name, kwargs or {}))
    return tuple(wrappers)


def check_plain(found: object, place: str) -> None:
    """Raise EnvironmentConfigError unless `found` is a mapping of names to plain values."""
    if not isinstance(found, Mapping):
        raise EnvironmentConfigError(f"{place}: expected a mapping of names to values")
    for key, value in found.items():
        if not isinstance(key, str) or not key.isidentifier():
            raise EnvironmentConfigError(f"{place}: {key!r:.60} is no name of an argument")
        if not is_plain(value):
            raise EnvironmentConfigError(f"{place}: {key}: expected {PLAIN}")


def _shown(kwargs: Mapping[str, Any]) -> str:
    text = ", ".join(f"{key}={json.dumps(value)}" for key, value in kwargs.items())
    return text if len(text) <= 200 else text[:197] + "..."
