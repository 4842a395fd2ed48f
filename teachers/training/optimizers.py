"""The optimizers of a Stable-Baselines3 policy, with the network that each one learns."""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import nn
from torch.optim import Adam, RMSprop


def optimizers_of(policy: Any) -> list[tuple[nn.Module, torch.optim.Optimizer]]:
    """Return each network that has an optimizer, and that: the critic first, as it learns first.

    Of PPO, A2C, DQN and QR-DQN it is the policy; of SAC, TQC, TD3 and DDPG critic and actor.
    """
    if isinstance(getattr(policy, "optimizer", None), torch.optim.Optimizer):
        return [(policy, policy.optimizer)]
    return [(network, network.optimizer) for network in (policy.critic, policy.actor)]


def only_skipped(policy: Any) -> int:
    """Return how many updates were skipped if none was ever taken, else 0.

    From the optimizers' states, which checkpoints hold. Those that count no steps have taken some.
    """
    if not hasattr(policy, "critic") and not hasattr(policy, "optimizer"):
        return 0  # ARS
    optimizers = [optimizer for _, optimizer in optimizers_of(policy)]
    if not all(isinstance(each, Adam | RMSprop | RMSpropTFLike) for each in optimizers):
        return 0
    states = [state for each in optimizers for state in each.state.values()]
    if any(float(state.get("step", 0)) > 0 for state in states):
        return 0
    groups = [each.param_groups[0] for each in optimizers]
    return sum(int(each.get("skipped_updates", each.get("skipped", 0))) for each in groups)
