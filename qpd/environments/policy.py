"""Policies: functions from observations to outputs, with the actions that these mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from qpd.actions import ActionSpace


class Policy(Protocol):
    """A function from observations `[batch, ...]` to outputs, or labels, of `actions`, floats."""

    @property
    def actions(self) -> ActionSpace:
        """The actions, and what the outputs mean."""

    def __call__(self, observations: np.ndarray, /) -> np.ndarray:
        """Return outputs float32 `[batch, num_outputs]`, or a teacher's labels."""


@dataclass(frozen=True)
class FunctionPolicy:
    """A policy made of a function from observations to outputs, and what these mean."""

    outputs: Callable[[np.ndarray], np.ndarray]
    actions: ActionSpace

    def __call__(self, observations: np.ndarray, /) -> np.ndarray:
        """Return the function's outputs."""
        return self.outputs(observations)


def network_policy(
    network: nn.Module,
    actions: ActionSpace,
    factor: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Policy:
    """Make a policy of a teacher or a float student: what such a module returns first.

    A module that `judges_apart`, as teachers may, is asked to `act` alone: critics cost several
    times as much. The outputs are multiplied by `factor`. With `dtype` bfloat16 it computes as
    training does under autocast.
    """
    device = next(network.parameters()).device
    mixed = dtype != torch.float32
    act: Any = network.act if getattr(network, "judges_apart", False) else None

    def outputs(observations: np.ndarray) -> np.ndarray:
        with torch.no_grad(), torch.autocast(device.type, dtype, enabled=mixed):
            seen = torch.from_numpy(observations).to(device)
            first = network(seen)[0] if act is None else act(seen)
        # .float() first: NumPy has no bfloat16.
        found: np.ndarray = first.float().cpu().numpy()
        return found * np.float32(factor)

    return FunctionPolicy(outputs, actions)


def random_policy(actions: ActionSpace, seed: int = 0) -> Policy:
    """Make a policy that, sampled, takes every action equally often."""
    rng = np.random.default_rng(seed)
    return FunctionPolicy(lambda seen: actions.random_outputs(len(seen), rng), actions)
