"""One update of SAC, and one of TD3 or DDPG, as Stable-Baselines3 makes them.

Haarnoja et al. (arXiv 1812.05905); Fujimoto et al. (arXiv 1802.09477); Lillicrap et al. (arXiv
1509.02971). The order of steps and of random draws is Stable-Baselines3's. Between the draws and
the optimizers' steps are functions of tensors alone, which can be compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from qpd.machine.compiled_graph import StagedFunctions
from qpd.teachers.off_policy.actor import Actor
from qpd.teachers.off_policy.critics import Critics
from qpd.teachers.off_policy.squashed_gaussian import SquashedSample, squashed_sample


class Transitions(NamedTuple):
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


class SacUpdate:
    """SAC's update of alpha, critics and actor."""

    def __init__(self, actor: Actor, critics: Critics, compiles: bool) -> None:
        self._actor, self._critics = actor, critics
        self._compiles = compiles
        self._parts = StagedFunctions(self._to_critics, self._to_actor)

    def __call__(self, temperature: Temperature, batch: Transitions) -> dict[str, float]:
        """Make it; return losses by Stable-Baselines3's names."""
        noise, next_noise = (torch.randn_like(batch.actions) for _ in range(2))
        first, second = self._parts.at(self._actor.stage if self._compiles else None)
        outputs, kept = _outside(self._actor, batch.states, batch.next_states)
        alpha = temperature.value()
        weight = torch.tensor(alpha)
        loss, log_prob, gradients, *rest = first(*batch, noise, next_noise, weight, *outputs)
        told, mean_log_prob = {"ent_coef": alpha}, float(log_prob)
        if (of_alpha := temperature.learn(mean_log_prob)) is not None:
            told["ent_coef_loss"] = of_alpha
        told["critic_loss"] = float(loss)
        self._critics.step(gradients)
        value, gradient = second(batch.states, weight, *rest)
        told["actor_loss"] = alpha * mean_log_prob - float(value)
        _step(self._actor, gradient, kept)
        return told

    def _to_critics(
        self,
        states: Tensor,
        actions: Tensor,
        rewards: Tensor,
        next_states: Tensor,
        discounts: Tensor,
        noise: Tensor,
        next_noise: Tensor,
        alpha: Tensor,
        *outputs: Tensor,
    ) -> list[Tensor]:
        """Return loss, mean log-probability, the critics' gradients, and what `_to_actor` takes."""
        found, kept = _inside(self._actor, outputs, states, next_states)
        own, after = squashed_sample(found[0], noise), squashed_sample(found[1], next_noise)
        value = self._critics.least_target(next_states, after.actions) - alpha * after.log_probs
        wanted = torch.addcmul(rewards, discounts, value)
        loss, gradients = self._critics.regression(states, actions, wanted, 0.5)
        return [loss, own.log_probs.mean(), gradients, *own, *kept]

    def _to_actor(self, states: Tensor, alpha: Tensor, *given: Tensor) -> list[Tensor]:
        """Return the mean value and the actor's gradients, or those of its outputs."""
        count = len(SquashedSample._fields)
        own, kept, size = SquashedSample(*given[:count]), given[count:], len(states)
        values, by_actions = self._critics.least(states, own.actions)
        gradient = own.gradient(by_actions / -size, alpha / size)
        if kept:
            gradient = self._actor.gradients(gradient, kept)
        return [values.mean(), gradient]


class Td3Update:
    """TD3's and DDPG's updates of critics and actor, the latter by the first critic."""

    def __init__(self, actor: Actor, target: Actor, critics: Critics, compiles: bool) -> None:
        self._actor, self._target, self._critics = actor, target, critics
        self._compiles = compiles
        self._parts = StagedFunctions(self._to_critics, self._to_actor)

    def of_critics(self, batch: Transitions, deviation: float, clip: float) -> float:
        """Move the critics; return their loss.

        The target's actions get noise of a `deviation`, within +-`clip`: target policy smoothing.
        """
        noise = torch.empty_like(batch.actions).normal_(0, deviation).clamp_(-clip, clip)
        first, _ = self._parts.at(self._actor.stage if self._compiles else None)
        outputs, _ = _outside(self._target, batch.next_states)
        loss, gradients = first(*batch, noise, *outputs)
        self._critics.step(gradients)
        return float(loss)

    def of_actor(self, batch: Transitions) -> float:
        """Move the actor; return its loss."""
        _, second = self._parts.at(self._actor.stage if self._compiles else None)
        outputs, kept = _outside(self._actor, batch.states)
        value, gradient = second(batch.states, *outputs)
        _step(self._actor, gradient, kept)
        return -float(value)

    def _to_critics(
        self,
        states: Tensor,
        actions: Tensor,
        rewards: Tensor,
        next_states: Tensor,
        discounts: Tensor,
        noise: Tensor,
        *outputs: Tensor,
    ) -> list[Tensor]:
        """Return the loss and the critics' gradients."""
        ((found, *_), _) = _inside(self._target, outputs, next_states)
        next_actions = (torch.tanh(found) + noise).clamp(-1, 1)
        value = self._critics.least_target(next_states, next_actions)
        wanted = torch.addcmul(rewards, discounts, value)
        return list(self._critics.regression(states, actions, wanted, 1.0))

    def _to_actor(self, states: Tensor, *outputs: Tensor) -> list[Tensor]:
        """Return the mean value and the actor's gradients, or those of its outputs."""
        ((found, *_), kept) = _inside(self._actor, outputs, states)
        actions = torch.tanh(found)
        values, by_actions = self._critics.first(states, actions)
        gradient = by_actions * (1.0 - actions * actions) / -len(states)
        if kept:
            gradient = self._actor.gradients(gradient, kept)
        return [values.mean(), gradient]


def _outside(actor: Actor, *states: Tensor) -> tuple[list[Tensor], Sequence[Tensor]]:
    """Return the outputs of an actor that cannot be compiled; others' are made `_inside`."""
    return ([], []) if actor.stage is not None else actor.outputs(*states)


def _inside(
    actor: Actor, outputs: Sequence[Tensor], *states: Tensor
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    return (outputs, []) if outputs else actor.outputs(*states)


def _step(actor: Actor, gradient: Tensor, kept: Sequence[Tensor]) -> None:
    """Move an actor along its own gradients, or those of outputs that were made `_outside`."""
    actor.step(actor.gradients(gradient, kept) if kept else gradient)
