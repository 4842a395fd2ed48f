"""A step's gradients from a part of the batch, for the loss of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from qpd.losses.objective import Objective
from qpd.replay.sample import ReplaySample

Exchange = Callable[[float, float], tuple[float, float]]
FIRST_LESS = 0.05  # of an equal part: while it draws and plans the others go on, as prepared
LEAST = 68  # observations of an equal part: with fewer there is too little that they share


def alone(actor: float, critic: float) -> tuple[float, float]:
    """The `Exchange` of a part that is the whole batch."""
    return actor, critic


@dataclass(frozen=True)
class Training:
    """What of a phase concerns the gradients: the objective and the dtype of the arithmetic."""

    objective: Objective
    dtype: torch.dtype


def part_sizes(batch_size: int, num_processes: int) -> list[int]:
    """How many of a batch's observations each process takes, in their order.

    The first takes all where the parts would be small (an epoch's last batch).
    """
    if batch_size < LEAST * num_processes:
        return [batch_size] + [0] * (num_processes - 1)
    first = round(batch_size / num_processes * (1.0 - FIRST_LESS))
    edges = first + np.arange(num_processes) * (batch_size - first) // (num_processes - 1)
    return [first, *np.diff(edges).tolist()]


def backward(
    module: nn.Module, sample: ReplaySample, whole: int, training: Training, exchange: Exchange
) -> Tensor:
    """Add the gradients by a part of a batch of `whole`; returns the whole batch's losses, `[3]`.

    Eq. 2 divides by the losses of the whole batch: `exchange` is told this part's shares of the
    actor's and the critic's and tells the sums. The sum of all parts' gradients is the whole's.
    """
    with torch.autocast("cpu", training.dtype, enabled=training.dtype != torch.float32):
        outputs = module(sample.inputs)
    # The losses' derivatives are known: a graph of them would cost as much as a small layer.
    (actors, by_logits), (critics, by_values) = training.objective.gradients(outputs, sample)
    actor, critic = exchange(float(actors.sum()) / whole, float(critics.sum()) / whole)
    slopes = training.objective.slopes(actor, critic)
    given = [
        gradient.mul_(slope / whole)
        for gradient, slope in zip((by_logits, by_values), slopes, strict=False)
    ]
    torch.autograd.backward(outputs[: len(given)], given)
    return torch.tensor([training.objective.total_of(actor, critic), actor, critic])
