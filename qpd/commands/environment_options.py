"""`--env`, `--env-kwargs`, `--wrapper`, `--frame-stack`: a wish, or settings of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError

if TYPE_CHECKING:
    from qpd.runs.played_environment import EnvironmentWish


def environment_wish(
    env: str | None,
    env_kwargs: Sequence[str] | None,
    wrappers: Sequence[str] | None,
    frame_stack: int | None,
) -> EnvironmentWish:
    """Return what the options ask for. Raises TargetError or EnvironmentConfigError."""
    from qpd.environments.source import check_plain, wrappers_of
    from qpd.runs.played_environment import EnvironmentWish

    kwargs = _arguments(env_kwargs)
    check_plain(kwargs, "--env-kwargs")
    named = None if wrappers is None else wrappers_of(_values(wrappers))
    return EnvironmentWish(env, kwargs, named, frame_stack)


def environment_overrides(
    env: str | None,
    env_kwargs: Sequence[str] | None,
    wrappers: Sequence[str] | None,
    frame_stack: int | None,
) -> list[str]:
    """Return the options as assignments of a recipe's keys. Raises TargetError."""
    from qpd.environments.source import check_plain
    from qpd.recipe.loading import value_text

    check_plain(_arguments(env_kwargs), "--env-kwargs")
    lines = [] if env is None else [f"teacher.env={value_text(env)}"]
    lines += [
        f"environment.kwargs.{key}={value_text(value)}"
        for key, value in _arguments(env_kwargs).items()
    ]
    if wrappers is not None:
        lines.append(f"environment.wrappers={value_text(_values(wrappers))}")
    return lines if frame_stack is None else [*lines, f"environment.frame_stack={frame_stack}"]


def _arguments(found: Sequence[str] | None) -> dict[str, Any]:
    """Read KEY:VALUE as the RL Zoo spells it; the value is YAML, never Python."""
    from qpd.recipe.yaml_text import parse_value

    arguments = {}
    for text in found or ():
        key, colon, value = text.partition(":")
        if not colon or not key.strip().isidentifier():
            raise TargetError(
                f"--env-kwargs {text}: expected KEY:VALUE, such as gravity:9.81",
                ErrorCode.COMMAND_LINE,
            )
        try:
            arguments[key.strip()] = parse_value(value.strip())
        except ValueError as error:
            raise TargetError(f"--env-kwargs {text}: {error}", ErrorCode.COMMAND_LINE) from error
    return arguments


def _values(wrappers: Sequence[str]) -> list[Any]:
    from qpd.recipe.yaml_text import parse_value

    try:
        return [parse_value(text) for text in wrappers]
    except ValueError as error:
        raise TargetError(f"--wrapper: {error}", ErrorCode.COMMAND_LINE) from error
