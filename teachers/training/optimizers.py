"""The optimizers of a Stable-Baselines3 policy, with the network that each one learns."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def optimizers_of(policy: Any) -> list[tuple[nn.Module, torch.optim.Optimizer]]:
    """Return each network that has an optimizer, and that: the critic first, as it learns first.

    Of PPO, A2C, DQN and QR-DQN it is the policy; of SAC, TQC, TD3 and DDPG critic and actor.
    """
    if isinstance(getattr(policy, "optimizer", None), torch.optim.Optimizer):
        return [(policy, policy.optimizer)]
    return [(network, network.optimizer) for network in (policy.critic, policy.actor)]


def skipped_updates(policy: Any) -> int:
    """Return how many updates of a policy's networks were skipped; 0 where none ever is."""
    owners = (policy, getattr(policy, "critic", None), getattr(policy, "actor", None))
    optimizers = [getattr(each, "optimizer", None) for each in owners]
    groups = [its.param_groups[0] for its in optimizers if isinstance(its, torch.optim.Optimizer)]
    return sum(int(each.get("skipped_updates", each.get("skipped", 0))) for each in groups)
