"""The actions of an agent: from its archive's plain data, else from its environment."""

from __future__ import annotations

from dataclasses import replace

from qpd.actions import ActionSpace, Box, Discrete, MultiBinary, MultiDiscrete
from qpd.environments.interface import EnvironmentConfigError
from qpd.errors.codes import ErrorCode
from qpd.teachers.archive.algorithm import (
    ACTOR_CRITIC_ALGORITHMS,
    GAUSSIAN_ALGORITHMS,
    Q_ALGORITHMS,
    SEARCH_ALGORITHM,
)
from qpd.teachers.archive.errors import TeacherError, one_line
from qpd.teachers.archive.plain_data import read_int, read_policy_option
from qpd.teachers.archive.sb3_archive import Sb3Archive
from qpd.teachers.archive.stored_actions import StoredActions
from qpd.teachers.networks.build import squash

IN_PYTHON = ", or num_actions in Python"


def choose_actions(
    archive: Sb3Archive, algo: str, env_id: str | None, num_actions: int | None, num_outputs: int
) -> ActionSpace:
    """Return the actions of an agent, and what the labels of its network mean.

    `num_outputs` are those of the actor's last layer; `num_actions` is the caller's word for
    Discrete actions, or None. Raises TeacherError where nothing tells the actions, where two
    sources contradict each other, and for bounds that are infinite.
    """
    space = _space(archive, algo, env_id, num_actions, num_outputs)
    if isinstance(space, Box):
        is_gaussian = algo in (*ACTOR_CRITIC_ALGORITHMS, *GAUSSIAN_ALGORITHMS)
        labels = "gaussian" if is_gaussian else "deterministic"
        space = replace(space, squash=squash(archive, algo), labels=labels)  # type: ignore[arg-type]
    elif isinstance(space, Discrete):
        # ARS' numbers are no logits, either: nothing has ever drawn from them.
        has_values = algo in (*Q_ALGORITHMS, SEARCH_ALGORITHM)
        space = replace(space, labels="q_values" if has_values else "logits")
    if num_actions is not None and not isinstance(space, Discrete):
        raise TeacherError(
            f"the agent has {space}; num_actions is for Discrete actions",
            ErrorCode.TEACHER_WRONG_ENVIRONMENT,
        )
    return space


def _space(
    archive: Sb3Archive, algo: str, env_id: str | None, num_actions: int | None, num_outputs: int
) -> ActionSpace:
    kind = archive.actions.kind
    is_continuous = any(key.startswith(("log_std", "actor.")) for key in archive.state_dict)
    if algo in Q_ALGORITHMS:
        _check_kind(algo, archive.actions, "discrete")
        return Discrete(_num_actions(archive, algo, env_id, num_actions, num_outputs))
    if is_continuous:
        _check_kind(algo, archive.actions, "box")
        space: ActionSpace = _box(archive.actions, env_id)
    elif kind == "box" and algo in ACTOR_CRITIC_ALGORITHMS:
        raise TeacherError(
            "tensor 'log_std' is missing; a policy of continuous actions has it",
            ErrorCode.TEACHER_DAMAGED,
        )
    elif kind == "box":
        space = _box(archive.actions, env_id)
    elif kind in ("multi_discrete", "multi_binary"):
        space = _multi(archive.actions, env_id)
    else:
        found = _environment_space(env_id) if kind == "unknown" and num_actions is None else None
        # Without a word of the archive or of an environment, logits are those of one choice.
        if isinstance(found, MultiDiscrete | MultiBinary) or (found and algo == SEARCH_ALGORITHM):
            space = found
        else:
            return Discrete(_num_actions(archive, algo, env_id, num_actions, num_outputs))
    if space.num_outputs != num_outputs:
        raise TeacherError(
            f"the network has {num_outputs} outputs, its action space {space} needs"
            f" {space.num_outputs}",
            ErrorCode.TEACHER_WRONG_ENVIRONMENT,
        )
    return space


def _check_kind(algo: str, stored: StoredActions, expected: str) -> None:
    if stored.kind not in (expected, "unknown"):
        raise TeacherError(
            f"its tensors are those of {algo} with {expected} actions, its action space is"
            f" {stored.kind}",
            ErrorCode.TEACHER_DAMAGED,
        )


def _box(stored: StoredActions, env_id: str | None) -> Box:
    if not stored.low or not stored.high:
        found = _needed_space("the bounds of its actions are", env_id)
        if not isinstance(found, Box):
            raise TeacherError(
                f"has continuous actions, {env_id} has {found}", ErrorCode.TEACHER_WRONG_ENVIRONMENT
            )
        return found
    try:
        return Box(stored.low, stored.high, shape=stored.shape)
    except ValueError as error:
        raise TeacherError(f"its action space has {error}") from error


def _multi(stored: StoredActions, env_id: str | None) -> ActionSpace:
    if not stored.sizes:
        found = _needed_space("the numbers of its choices are", env_id)
        if found.kind != stored.kind:
            raise TeacherError(
                f"has actions of kind {stored.kind}, {env_id} has {found}",
                ErrorCode.TEACHER_WRONG_ENVIRONMENT,
            )
        return found
    try:
        if stored.kind == "multi_binary":
            return MultiBinary(stored.sizes[0])
        return MultiDiscrete(stored.sizes)
    except ValueError as error:
        raise TeacherError(f"its action space has {error}") from error


def _num_actions(
    archive: Sb3Archive, algo: str, env_id: str | None, asked: int | None, num_outputs: int
) -> int:
    """Return the number of Discrete actions that `num_outputs` outputs stand for.

    Only QR-DQN, which has several outputs per action, has to look it up.
    """
    stored = archive.actions.num_actions
    if algo != "qrdqn":
        actions: int | None = num_outputs
    else:
        actions = stored or asked
        if actions is None:
            # An attribute of the agent, or one of its policy_kwargs.
            quantiles = read_int(archive.data, "n_quantiles") or _int_option(archive, "n_quantiles")
            if quantiles:
                actions = num_outputs // quantiles
            else:
                found = _needed_space("the number of actions is", env_id, IN_PYTHON)
                actions = found.n if isinstance(found, Discrete) else None
    if actions is None:
        raise TeacherError(
            f"the number of actions is not stored; give --env{IN_PYTHON}",
            ErrorCode.TEACHER_UNCLEAR,
        )
    for name, expected in (("num_actions", asked), ("the archive's action space", stored)):
        if expected is not None and expected != actions:
            raise TeacherError(
                f"the network has {actions} actions, {name} says {expected}",
                ErrorCode.TEACHER_WRONG_ENVIRONMENT,
            )
    if actions < 1 or num_outputs % actions:
        raise TeacherError(
            f"{num_outputs} outputs cannot be divided among {actions} actions",
            ErrorCode.TEACHER_WRONG_ENVIRONMENT,
        )
    return actions


def _int_option(archive: Sb3Archive, name: str) -> int | None:
    text = read_policy_option(archive.data, name)
    return int(text) if text is not None and text.isdecimal() else None


def _needed_space(what: str, env_id: str | None, otherwise: str = "") -> ActionSpace:
    """Return the actions of the environment; TeacherError, which says `what` is not stored."""
    if env_id is None:
        raise TeacherError(f"{what} not stored; give --env{otherwise}", ErrorCode.TEACHER_UNCLEAR)
    try:
        return _made_space(env_id)
    except EnvironmentConfigError as error:
        raise TeacherError(
            f"{what} not stored and {env_id} cannot be made ({one_line(error)}); give --env"
            f"{otherwise}",
            ErrorCode.TEACHER_UNCLEAR,
        ) from error


def _environment_space(env_id: str | None) -> ActionSpace | None:
    """Return the actions of the environment, None where it is unknown or cannot be made."""
    try:
        return None if env_id is None else _made_space(env_id)
    except EnvironmentConfigError:
        return None


def _made_space(env_id: str) -> ActionSpace:
    """Make the environment and return its actions, whatever it observes.

    Raises EnvironmentConfigError.
    """
    import gymnasium

    import qpd.environments.registry  # noqa: F401 (registers ALE's games)
    from qpd.environments.action_spaces import actions_of

    # gymnasium.make imports the module that an id such as `module:Name-v0` names, and such an id
    # may come from an args.yml: only what is registered already is made.
    if env_id not in gymnasium.registry:
        raise EnvironmentConfigError(f"gymnasium knows no environment {env_id}")
    try:
        env = gymnasium.make(env_id, disable_env_checker=True)
    except (gymnasium.error.Error, ImportError) as error:
        raise EnvironmentConfigError(one_line(error)) from error
    try:
        return actions_of(env.action_space, env_id)
    finally:
        env.close()
