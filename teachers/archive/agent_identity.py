"""Tell what an archive is an agent of: proofs first, hints last."""

import itertools
import re
from collections.abc import Collection, Mapping

from qpd.errors.codes import ErrorCode
from qpd.teachers.archive.algorithm import (
    ACTOR_CRITIC_ALGORITHMS,
    CONTRIB_ALGORITHMS,
    SUPPORTED_ALGORITHMS,
)
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.archive.sb3_archive import Sb3Archive

_EXPECTED = "expected PPO, A2C, TRPO, ARS, DQN, QR-DQN, SAC, TQC, TD3 or DDPG"


def algorithm_name(algo: str) -> str:
    """Return an algorithm's usual spelling: `qrdqn` -> `QR-DQN`."""
    return {"qrdqn": "QR-DQN"}.get(algo, algo.upper())


def agent_name(algo: str, env_id: str | None) -> str:
    """Return what a run is called that was given an agent and no recipe: `ppo-CartPole-v1`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{algo}-{env_id or 'unknown'}")[:100]


def free_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, or the first of `name-2`, `name-3` ... that is not `taken`."""
    tried = (f"{name}-{count}" for count in itertools.count(2))
    return name if name not in taken else next(each for each in tried if each not in taken)


def library_name(algo: str) -> str:
    """Return the library that an algorithm's agents come from: `qrdqn` -> `sb3-contrib`."""
    return "sb3-contrib" if algo in CONTRIB_ALGORITHMS else "Stable-Baselines3"


def refuse_unsupported(archive: Sb3Archive, hint: str | None) -> None:
    """Raise TeacherError for an agent that cannot be imitated, and say what it is.

    `hint` is the algorithm that its args.yml or its name gives.
    """
    policy = archive.data.get("policy_class")
    module = str(policy.get("__module__", "")) if isinstance(policy, Mapping) else ""
    if "recurrent" in module or any(key.startswith("lstm_") for key in archive.state_dict):
        raise TeacherError(
            "is a recurrent agent (RecurrentPPO), whose actions depend on past observations;"
            " expected a policy without memory, for example PPO on stacked frames"
        )
    if "maskable" in module or hint == "ppo_mask":
        raise TeacherError(
            "is a MaskablePPO agent: the environment's action masks would be dropped, and it plays"
            f" otherwise without them; {_EXPECTED}"
        )
    if "crossq" in module:
        raise TeacherError(f"is a CrossQ agent, which normalizes batches; {_EXPECTED}")
    if module and module.split(".")[0] not in ("stable_baselines3", "sb3_contrib"):
        raise TeacherError(
            f"its policy is a class of {module}, which may compute otherwise than"
            " Stable-Baselines3's; expected one of these, with settings in policy_kwargs"
        )
    if hint is not None and archive.algo is None and hint not in SUPPORTED_ALGORITHMS:
        raise TeacherError(f"is an agent of {hint.upper()} by its args.yml or name; {_EXPECTED}")


def choose_algo(archive: Sb3Archive, asked: str | None, hint: str | None) -> str:
    """Return the algorithm: proven by the archive, else `asked`, else the name's `hint`.

    Raises TeacherError if `asked` contradicts the archive, or the algorithm is unknown.
    """
    asked = asked.lower() if asked else None
    if asked is not None and asked not in SUPPORTED_ALGORITHMS:
        known = ", ".join(SUPPORTED_ALGORITHMS)
        raise TeacherError(f"algorithm '{asked}' is unknown; expected one of {known}")
    # PPO, A2C and TRPO save the same tensors: only `data` or a name tells them apart.
    is_actor_critic = any(key.startswith("action_net.") for key in archive.state_dict)
    if archive.algo is None and not is_actor_critic:
        first = next(iter(archive.state_dict))
        raise TeacherError(
            f"tensors such as '{first}' belong to no supported agent; expected action_net (PPO,"
            " A2C, TRPO, ARS), q_net (DQN), quantile_net (QR-DQN) or actor (SAC, TQC, TD3, DDPG)"
        )
    if asked is not None and archive.algo is not None and asked != archive.algo:
        raise TeacherError(
            f"this is an agent of {archive.algo}, not of {asked} as requested",
            ErrorCode.TEACHER_UNCLEAR,
        )
    # The file name comes last: people rename files.
    choice = archive.algo or asked or hint
    if choice is None or (archive.algo is None and choice not in ACTOR_CRITIC_ALGORITHMS):
        raise TeacherError(
            "nothing says which actor-critic algorithm this is; give algo='ppo', 'a2c' or 'trpo'",
            ErrorCode.TEACHER_UNCLEAR,
        )
    return choice
