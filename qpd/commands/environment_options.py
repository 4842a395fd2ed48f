"""`--env`, `--env-kwargs`, `--wrapper` and `--frame-stack`, read."""

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
    from qpd.runs.played_environment import wish_of

    kwargs = environment_kwargs(env_kwargs)
    return wish_of(env, kwargs, environment_wrappers(wrappers), frame_stack)


def environment_kwargs(found: Sequence[str] | None) -> dict[str, Any]:
    """Read KEY:VALUE as the RL Zoo spells it; the value is YAML, never Python.

    Raises TargetError or EnvironmentConfigError.
    """
    from qpd.environments.source import check_plain
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
    check_plain(arguments, "--env-kwargs")
    return arguments


def environment_wrappers(wrappers: Sequence[str] | None) -> list[Any] | None:
    """Read --wrapper, a name or {name: {KEY: VALUE}} as YAML. Raises TargetError."""
    from qpd.recipe.yaml_text import parse_value

    if wrappers is None:
        return None
    try:
        return [parse_value(text) for text in wrappers]
    except ValueError as error:
        raise TargetError(f"--wrapper: {error}", ErrorCode.COMMAND_LINE) from error
