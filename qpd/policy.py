"""A policy is a function: observations `[batch, ...]` in, logits float32 `[batch, actions]` out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

Policy = Callable[[np.ndarray], np.ndarray]


def network_policy(
    network: nn.Module, logit_factor: float = 1.0, dtype: torch.dtype = torch.float32
) -> Policy:
    """The policy of a teacher or a float student: any module whose outputs have `logits`.

    With `dtype` bfloat16 it computes as training does under autocast.
    """
    device = next(network.parameters()).device
    mixed = dtype != torch.float32

    def policy(observations: np.ndarray) -> np.ndarray:
        with torch.no_grad(), torch.autocast(device.type, dtype, enabled=mixed):
            outputs: Any = network(torch.from_numpy(observations).to(device))
        logits: np.ndarray = outputs.logits.float().cpu().numpy()
        return logits * np.float32(logit_factor)

    return policy
