"""A policy is a function: observations `[batch, ...]` in, logits float32 `[batch, actions]` out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

Policy = Callable[[np.ndarray], np.ndarray]


def network_policy(
    network: nn.Module, logit_factor: float = 1.0, dtype: torch.dtype = torch.float32
) -> Policy:
    """Make a policy of a teacher or a float student: any module whose outputs have `logits`.

    The logits are multiplied by `logit_factor`. With `dtype` bfloat16 it computes as training does
    under autocast.
    """
    device = next(network.parameters()).device
    mixed = dtype != torch.float32

    def policy(observations: np.ndarray) -> np.ndarray:
        with torch.no_grad(), torch.autocast(device.type, dtype, enabled=mixed):
            outputs: Any = network(torch.from_numpy(observations).to(device))
        # .float() first: NumPy has no bfloat16.
        logits: np.ndarray = outputs.logits.float().cpu().numpy()
        return logits * np.float32(logit_factor)

    return policy


def shared_policy(policies: Sequence[Policy]) -> Policy:
    """Join several policies into one: each answers for its share of a batch's rows."""
    if len(policies) == 1:
        return policies[0]

    def policy(observations: np.ndarray) -> np.ndarray:
        # Rows are environments, so each policy keeps the same games from step to step.
        shares = np.array_split(observations, len(policies))
        answers = zip(policies, shares, strict=True)
        return np.concatenate([answer(share) for answer, share in answers if len(share)])

    return policy


def uniform_policy(num_actions: int) -> Policy:
    """Make a policy that, sampled, takes every action equally often."""

    def policy(observations: np.ndarray) -> np.ndarray:
        return np.zeros((len(observations), num_actions), np.float32)

    return policy
