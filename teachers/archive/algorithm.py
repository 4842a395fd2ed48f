"""An agent's algorithm, as far as its tensors and plain data prove it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

ACTOR_CRITIC_ALGORITHMS = ("ppo", "a2c", "trpo")
Q_ALGORITHMS = ("dqn", "qrdqn")
GAUSSIAN_ALGORITHMS = ("sac", "tqc")
DETERMINISTIC_ALGORITHMS = ("td3", "ddpg")
SEARCH_ALGORITHM = "ars"
OFF_POLICY_ALGORITHMS = (*Q_ALGORITHMS, *GAUSSIAN_ALGORITHMS, *DETERMINISTIC_ALGORITHMS)
CONTRIB_ALGORITHMS = ("qrdqn", "trpo", "tqc", "ars")  # in the package sb3_contrib
SUPPORTED_ALGORITHMS = (
    *ACTOR_CRITIC_ALGORITHMS, SEARCH_ALGORITHM, *OFF_POLICY_ALGORITHMS,
)  # fmt: skip


def proven_algorithm(state_dict: Mapping[str, Tensor], data: Mapping[str, Any]) -> str | None:
    """Return the algorithm, or None: the family from tensor names, the label from plain data."""
    if _any_key(state_dict, "quantile_net."):
        return "qrdqn"
    if _any_key(state_dict, "q_net."):
        return "dqn"
    if _any_key(state_dict, "actor."):
        return _continuous(state_dict, data)
    if not _any_key(state_dict, "action_net."):
        return None
    label = actor_critic_label(data)
    # Only ARS has no more than this; a PPO agent that lost its critic has settings of its own.
    rest = [key for key in state_dict if not key.startswith("action_net.")]
    return SEARCH_ALGORITHM if label is None and not rest else label


def actor_critic_label(data: Mapping[str, Any]) -> str | None:
    """Return `ppo`, `a2c` or `trpo` for an actor-critic's plain data, None if they say neither.

    Only the names of training settings tell them apart: their policies are the same class.
    """
    # PPO's keys are a superset of A2C's, so A2C comes last.
    if "clip_range" in data or "n_epochs" in data:
        return "ppo"
    if "cg_max_steps" in data:
        return "trpo"
    if "gae_lambda" in data or "vf_coef" in data:
        return "a2c"
    return None


def _continuous(state_dict: Mapping[str, Tensor], data: Mapping[str, Any]) -> str:
    # Only the actors of SAC and TQC are stochastic.
    if _any_key(state_dict, "actor.log_std") or _any_key(state_dict, "actor.latent_pi."):
        sizes = [
            len(tensor)
            for key, tensor in state_dict.items()
            if key.startswith("critic.qf0.") and key.endswith(".weight") and tensor.dim()
        ]
        # TQC's critics return quantiles, SAC's one value.
        return "tqc" if "top_quantiles_to_drop_per_net" in data or sizes[-1:] > [1] else "sac"
    # DDPG is SB3's TD3 without its tricks; old archives lack their settings.
    if "policy_delay" in data and "target_noise_clip" in data:
        without = data["policy_delay"] == 1 and data["target_noise_clip"] == 0
        return "ddpg" if without else "td3"
    return "td3" if _any_key(state_dict, "critic.qf1.") else "ddpg"


def _any_key(state_dict: Mapping[str, Tensor], prefix: str) -> bool:
    return any(key.startswith(prefix) for key in state_dict)
