"""One update of SAC, and one of TD3 or DDPG, as Stable-Baselines3 makes them.

Haarnoja et al. (arXiv 1812.05905); Fujimoto et al. (arXiv 1802.09477); Lillicrap et al. (arXiv
1509.02971). The order of steps and of random draws is Stable-Baselines3's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from qpd.teachers.off_policy.actor import Actor
from qpd.teachers.off_policy.critics import Critics
from qpd.teachers.off_policy.squashed_gaussian import squashed_sample


@dataclass(frozen=True)
class Transitions:
    """A batch. States `[batch, features]`, actions `[batch, n]`, -1 to 1; the rest `[batch]`.

    `discounts` are those of the next state's value: 0 where the episode terminated.
    """

    states: Tensor
    actions: Tensor
    rewards: Tensor
    next_states: Tensor
    discounts: Tensor


class Temperature(Protocol):
    """SAC's entropy coefficient alpha."""

    def value(self) -> float:
        """Return alpha."""

    def learn(self, mean_log_prob: float) -> float | None:
        """Take a step; return the loss, or None where alpha is fixed."""


def sac_update(
    actor: Actor, critics: Critics, temperature: Temperature, batch: Transitions
) -> dict[str, float]:
    """Make SAC's update of alpha, critics and actor; return losses by Stable-Baselines3's names."""
    noise, next_noise = (torch.randn_like(batch.actions) for _ in range(2))
    outputs, next_outputs = actor.outputs(batch.states, batch.next_states)
    own, after = squashed_sample(outputs, noise), squashed_sample(next_outputs, next_noise)
    alpha = temperature.value()
    mean_log_prob = float(own.log_probs.mean())
    told = {"ent_coef": alpha}
    if (loss := temperature.learn(mean_log_prob)) is not None:
        told["ent_coef_loss"] = loss
    value = critics.least_target(batch.next_states, after.actions) - alpha * after.log_probs
    wanted = torch.addcmul(batch.rewards, batch.discounts, value)
    told["critic_loss"] = critics.regress(batch.states, batch.actions, wanted, 0.5)
    values, by_actions = critics.least(batch.states, own.actions)
    told["actor_loss"] = alpha * mean_log_prob - float(values.mean())
    size = len(values)
    actor.learn(own.gradient(by_actions / -size, alpha / size))
    return told


def td3_critic_update(
    target: Actor, critics: Critics, batch: Transitions, deviation: float, clip: float
) -> float:
    """Make TD3's update of the critics; return their loss.

    The target's actions get noise of a `deviation`, within +-`clip`: target policy smoothing.
    """
    noise = torch.empty_like(batch.actions).normal_(0, deviation).clamp_(-clip, clip)
    (outputs,) = target.outputs(batch.next_states)
    actions = (torch.tanh(outputs) + noise).clamp_(-1, 1)
    value = critics.least_target(batch.next_states, actions)
    wanted = torch.addcmul(batch.rewards, batch.discounts, value)
    return critics.regress(batch.states, batch.actions, wanted, 1.0)


def td3_actor_update(actor: Actor, critics: Critics, batch: Transitions) -> float:
    """Make TD3's update of the actor, by the first critic; return its loss."""
    (outputs,) = actor.outputs(batch.states)
    actions = torch.tanh(outputs)
    values, by_actions = critics.first(batch.states, actions)
    actor.learn(by_actions * (1.0 - actions * actions) / -len(values))
    return -float(values.mean())
