"""The algorithms that `qpd train` takes: their classes, and the actions that each one learns."""

from __future__ import annotations

from typing import Any, get_args

from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean
from qpd.recipe.plain_values import Algorithm
from qpd.teachers.archive.errors import TeacherError, one_line
from qpd.version import pip_install

ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
_DISCRETE, _BOX = ("Discrete",), ("Box",)
_ON_POLICY = ("Discrete", "Box", "MultiDiscrete", "MultiBinary")
# As Stable-Baselines3's own assertions have it.
_ACTIONS: dict[str, tuple[str, ...]] = {
    "ppo": _ON_POLICY, "a2c": _ON_POLICY, "trpo": _ON_POLICY, "ars": ("Discrete", "Box"),
    "dqn": _DISCRETE, "qrdqn": _DISCRETE, "sac": _BOX, "tqc": _BOX, "ddpg": _BOX, "td3": _BOX,
}  # fmt: skip


def check_algorithm(algo: str) -> None:
    """Raise TeacherError unless `algo` can be trained."""
    if algo not in ALGORITHMS:
        raise TeacherError(
            f"algorithm '{algo}' cannot be trained; expected {', '.join(ALGORITHMS)}"
            f"{did_you_mean(algo, ALGORITHMS)}",
            ErrorCode.TEACHER_TRAINING,
        )


def algorithm_class(algo: str) -> Any:
    """Return Stable-Baselines3's class; registers the environments that the RL Zoo knows.

    Raises TeacherError where the extra `train` is missing.
    """
    try:
        import rl_zoo3.import_envs  # noqa: F401 (registers environments)
        from rl_zoo3.utils import ALGOS
    except ImportError as error:
        raise TeacherError(
            f"training needs the RL Zoo ({one_line(error)}); {pip_install('train')}",
            ErrorCode.PACKAGE_MISSING,
        ) from error
    return ALGOS[algo]


def check_actions(algo: str, env_id: str, kind: str) -> None:
    """Raise TeacherError unless `algo` learns actions of a `kind` such as Box."""
    if kind in _ACTIONS[algo]:
        return
    others = [name for name, kinds in _ACTIONS.items() if kind in kinds]
    advice = f"; {', '.join(others)} learn those" if others else ""
    raise TeacherError(
        f"{algo} on {env_id}: {algo.upper()} learns {' or '.join(_ACTIONS[algo])} actions; those "
        f"of {env_id} are {kind}{advice}",
        ErrorCode.TEACHER_TRAINING,
    )
