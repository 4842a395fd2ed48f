"""An archive's algorithm and its number of actions: proofs first, hints last."""

import re
from collections.abc import Mapping

from qpd.errors.codes import ErrorCode
from qpd.teachers.archive.errors import TeacherError, continuous_actions, one_line
from qpd.teachers.archive.plain_data import read_int, read_policy_option
from qpd.teachers.archive.sb3_archive import Sb3Archive

ACTOR_CRITIC_ALGORITHMS = ("ppo", "a2c", "trpo")
Q_ALGORITHMS = ("dqn", "qrdqn")
_KNOWN = (*ACTOR_CRITIC_ALGORITHMS, *Q_ALGORITHMS)
CONTRIB_ALGORITHMS = ("qrdqn", "trpo")  # in the package sb3_contrib

_NAMES = {"ppo": "PPO", "a2c": "A2C", "trpo": "TRPO", "dqn": "DQN", "qrdqn": "QR-DQN"}
_EXPECTED = "expected PPO, A2C, TRPO, DQN or QR-DQN"


def algorithm_name(algo: str) -> str:
    """Return an algorithm's usual spelling: `qrdqn` -> `QR-DQN`."""
    return _NAMES.get(algo, algo.upper())


def agent_name(algo: str, env_id: str | None) -> str:
    """Return what a run is called that was given an agent and no recipe: `ppo-CartPole-v1`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{algo}-{env_id or 'unknown'}")[:100]


def library_name(algo: str) -> str:
    """Return the library that an algorithm's agents come from: `qrdqn` -> `sb3-contrib`."""
    return "sb3-contrib" if algo in CONTRIB_ALGORITHMS else "Stable-Baselines3"


def refuse_unsupported(archive: Sb3Archive, hint: str | None) -> None:
    """Raise TeacherError for an agent that cannot be imitated, and say what it is.

    `hint` is the algorithm that its args.yml or its name gives. `read_sb3_archive` has refused
    action spaces that are not supported.
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
    if hint is not None and archive.algo is None and hint not in _KNOWN:
        raise TeacherError(f"is an agent of {hint.upper()} by its args.yml or name; {_EXPECTED}")
    # log_std: PPO, A2C and TRPO with a Gaussian policy; actor.: SAC, TD3 and DDPG.
    if any(key.startswith(("log_std", "actor.")) for key in archive.state_dict):
        raise continuous_actions(archive.path)


def choose_algo(archive: Sb3Archive, asked: str | None, hint: str | None) -> str:
    """Return the algorithm: proven by the archive, else `asked`, else the name's `hint`.

    Raises TeacherError if `asked` contradicts the archive, or the algorithm is unknown.
    """
    asked = asked.lower() if asked else None
    if asked is not None and asked not in _KNOWN:
        raise TeacherError(f"algorithm '{asked}' is unknown; expected one of {', '.join(_KNOWN)}")
    # PPO, A2C and TRPO save the same tensors: only `data` or a name tells the two apart.
    is_actor_critic = any(key.startswith("action_net.") for key in archive.state_dict)
    if archive.algo is None and not is_actor_critic:
        first = next(iter(archive.state_dict))
        raise TeacherError(
            f"tensors such as '{first}' belong to no supported agent; expected action_net and"
            " value_net (PPO, A2C, TRPO), q_net (DQN) or quantile_net (QR-DQN)"
        )
    if asked is not None and archive.algo is not None and asked != archive.algo:
        raise TeacherError(
            f"this is an agent of {archive.algo}, not of {asked} as requested",
            ErrorCode.TEACHER_UNCLEAR,
        )
    family = ACTOR_CRITIC_ALGORITHMS if is_actor_critic else Q_ALGORITHMS
    # The file name comes last: people rename files.
    choice = archive.algo or asked or hint
    if choice is None or choice not in family:
        raise TeacherError(
            "nothing says which actor-critic algorithm this is; give algo='ppo', 'a2c' or 'trpo'",
            ErrorCode.TEACHER_UNCLEAR,
        )
    return choice


def choose_num_actions(
    archive: Sb3Archive, algo: str, env_id: str | None, asked: int | None, num_outputs: int
) -> int:
    """Return the number of actions that `num_outputs` outputs stand for.

    Only QR-DQN, which has several outputs per action, has to look it up. Raises
    TeacherError if it is unknown, or if two sources contradict each other.
    """
    if algo != "qrdqn":
        actions: int | None = num_outputs
    else:
        actions = archive.action_space.num_actions or asked
        if actions is None:
            # An attribute of the agent, or one of its policy_kwargs.
            quantiles = read_int(archive.data, "n_quantiles") or _int_option(archive, "n_quantiles")
            actions = num_outputs // quantiles if quantiles else _environment_actions(env_id)
    if actions is None:
        raise TeacherError(
            "the number of actions is not stored; give num_actions or env_id",
            ErrorCode.TEACHER_UNCLEAR,
        )
    stored = archive.action_space.num_actions
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


def _environment_actions(env_id: str | None) -> int | None:
    """Make the environment and return its number of actions; None if they are not discrete.

    Raises TeacherError if it cannot be made.
    """
    if env_id is None:
        return None
    import gymnasium

    try:
        import ale_py

        gymnasium.register_envs(ale_py)
    except ImportError:
        pass  # then only gymnasium's own environments are known
    try:
        environment = gymnasium.make(env_id)
    except (gymnasium.error.Error, ImportError) as error:
        raise TeacherError(
            f"the number of actions is not stored and {env_id} cannot be made"
            f" ({one_line(error)}); give num_actions",
            ErrorCode.TEACHER_UNCLEAR,
        ) from error
    space = environment.action_space
    environment.close()
    return int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else None
