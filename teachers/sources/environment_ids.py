"""Environment ids from names, and the ids that gymnasium has renamed since."""

import logging
import re
from functools import cache

logger = logging.getLogger(__name__)

ALGORITHM_NAMES = ("ppo", "a2c", "dqn", "qrdqn", "trpo", "sac", "td3", "ddpg", "tqc", "ars",
                   "crossq", "ppo_lstm", "ppo_mask", "her")  # fmt: skip

# old id -> id in gymnasium 1.x, which no longer runs the old one
RENAMED_ENVIRONMENTS = {
    "Pendulum-v0": "Pendulum-v1",
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
    "BipedalWalker-v2": "BipedalWalker-v3",
    "BipedalWalkerHardcore-v2": "BipedalWalkerHardcore-v3",
    "CarRacing-v0": "CarRacing-v3",
    "CarRacing-v2": "CarRacing-v3",
    "FrozenLake-v0": "FrozenLake-v1",
    "CliffWalking-v0": "CliffWalking-v1",
    "Taxi-v3": "Taxi-v4",
}
# -v4 observes and rewards as its predecessors did; -v5 does not. Pusher-v4 runs on old MuJoCo only.
_MUJOCO = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum",
           "InvertedPendulum", "Pusher", "Reacher", "Swimmer", "Walker2d")  # fmt: skip
for _name in _MUJOCO:
    _now = f"{_name}-v5" if _name == "Pusher" else f"{_name}-v4"
    RENAMED_ENVIRONMENTS |= {f"{_name}-v{version}": _now for version in (1, 2, 3)}

_ALGORITHM_PREFIX = re.compile(rf"^({'|'.join(ALGORITHM_NAMES)})-", re.IGNORECASE)
# The zoo numbers repeated runs: CartPole-v1_1, CartPole-v1_2 ...
_ENVIRONMENT_ID = re.compile(r"^([A-Za-z][\w.\-]*-v\d+)(?:_\d+)?$")
# Names of folders and repositories cannot hold the slash of a namespace: the zoo writes a dash.
_NAMESPACES = ("ALE", "seals", "phys2d", "tabular")


def current_environment_id(env_id: str) -> str:
    """Return the id under which gymnasium 1.x knows `env_id`; logs a change, once."""
    current = RENAMED_ENVIRONMENTS.get(env_id, env_id)
    if current != env_id:
        _tell_once(env_id, current)
    return current


@cache  # a run loads its agent more than once
def _tell_once(env_id: str, current: str) -> None:
    logger.warning(
        "environment %s is called %s in this gymnasium; the teacher will play %s",
        env_id, current, current,
    )  # fmt: skip


def environment_id_from_name(name: str) -> str | None:
    """Return the environment id in a file or folder name (without its suffix), or None.

    `ppo-BreakoutNoFrameskip-v4`, `BreakoutNoFrameskip-v4` and `BreakoutNoFrameskip-v4_1`
    all give `BreakoutNoFrameskip-v4`; `ALE-Breakout-v5` gives `ALE/Breakout-v5`.
    """
    found = _ENVIRONMENT_ID.match(_ALGORITHM_PREFIX.sub("", name))
    if not found:
        return None
    env_id = found.group(1)
    for namespace in _NAMESPACES:
        if env_id.startswith(f"{namespace}-"):
            return env_id.replace("-", "/", 1)
    return env_id


def algorithm_from_name(name: str) -> str | None:
    """Return the algorithm in a name: `ppo` (a zoo folder) or `ppo-CartPole-v1`, else None."""
    lower = name.lower()
    if lower in ALGORITHM_NAMES:
        return lower
    found = _ALGORITHM_PREFIX.match(name)
    return found.group(1).lower() if found else None
