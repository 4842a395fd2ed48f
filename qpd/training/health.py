"""Detects epochs that went wrong (non-finite losses, spikes, dead students) and undoes them.

A phase then continues from the student as it was before the bad epoch, with half the learning rate.
Nothing bad is ever validated, saved as best, or written.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qpd.actions import ActionSpace
from qpd.training.state import PhaseState

SPIKE = 10.0  # times the largest of the last losses; seen in good runs: below 2
_LEAST_LOSS = 1e-5  # smaller ones are mostly rounding, of which the next may be ten times as much
WORSE = 2.0  # times the loss on the same states before the epoch
ROWS_CHECKED = 256  # few states may well be answered alike in few bits
REMEMBERED = 5  # epochs
LR_FACTOR = 0.5
_SAME = 1e-6  # of outputs, whose differences decide about actions: below this they decide nothing


@dataclass(frozen=True)
class StateCopy:
    """A student and its optimizer as they were."""

    module: dict[str, Tensor]
    optimizer: dict[str, Any]

    @classmethod
    def of(cls, state: PhaseState) -> StateCopy:
        """Copy `state`'s tensors."""
        module = {name: tensor.clone() for name, tensor in state.module.state_dict().items()}
        return cls(module, copy.deepcopy(state.optimizer.state_dict()))

    def restore(self, state: PhaseState) -> None:
        """Make `state` what it was, but for its epoch; it learns half as fast from here on."""
        state.module.load_state_dict(self.module)
        state.optimizer.load_state_dict(self.optimizer)
        # The epoch number stays: the schedule goes on, and a run always ends.
        state.lr_scale *= LR_FACTOR
        state.rollbacks += 1


def diagnose_epoch(
    losses: Tensor,
    recent: Sequence[float],
    module: nn.Module,
    observations: Tensor,
    actions: ActionSpace,
    loss_now: Callable[[], float],
    loss_before: Callable[[], float],
) -> str | None:
    """Say what is wrong with an epoch; None if nothing is.

    `losses`: its means of total, actor and critic loss, `[3]`; `recent`: the totals of good epochs
    before it, none where totals mean nothing (rewards); `observations` `[batch, ...]`: any states,
    `ROWS_CHECKED` or more. The last two give the total loss on these by the student as it is, and
    as it was before the epoch: a mean also jumps where new states enter the memory.
    """
    total, actor, critic = losses.tolist()
    # One NaN anywhere in the epoch makes its sums NaN, so the means are enough to look at.
    if not math.isfinite(total + actor + critic):
        return f"the loss is no longer finite (actor {actor:.3g}, critic {critic:.3g})"
    for name, parameter in module.named_parameters():
        if not parameter.isfinite().all():
            return f"weights are no longer finite ({name})"
    has_jumped = bool(recent) and total > SPIKE * max(*recent, _LEAST_LOSS)
    if has_jumped and loss_now() > WORSE * loss_before():
        usual = statistics.median(recent)
        return f"the loss has jumped from {usual:.3g} to {total:.3g}"
    return _dead(module, observations, actions)


@torch.no_grad()
def _dead(module: nn.Module, observations: Tensor, actions: ActionSpace) -> str | None:
    """Say so if the student tells no states apart, where there are several and a choice."""
    outputs = actions.centred(module(observations)[0].float())
    if len(outputs) < 2 or (outputs.amax(0) - outputs.amin(0)).max() >= _SAME:
        return None
    states_are_alike = isinstance(observations, Tensor) and bool(
        (observations == observations[:1]).all()
    )
    has_choice = actions.centred(torch.eye(actions.num_outputs)).any()
    if states_are_alike or not has_choice:
        return None
    return "the student is dead: it answers every state alike"
