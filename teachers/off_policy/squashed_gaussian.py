"""SAC's policy: a Gaussian through a tanh, its log-probability, and both gradients.

Haarnoja et al., Soft Actor-Critic (arXiv 1812.05905), appendix C, as Stable-Baselines3 has it: the
log-deviation is clamped to [-20, 2], and 1e-6 keeps the logarithm of 1 - a^2 finite.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LEAST_LOG_DEVIATION, MOST_LOG_DEVIATION = -20.0, 2.0
_EPSILON = 1e-6
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


class SquashedSample(NamedTuple):
    """Actions a = tanh(mean + deviation * noise), and what their gradients need.

    All are `[batch, actions]` but `log_probs`, `[batch]`, in nats.
    """

    actions: Tensor
    log_probs: Tensor
    slopes: Tensor
    drawn: Tensor
    is_free: Tensor

    def gradient(self, of_actions: Tensor, of_log_probs: float | Tensor) -> Tensor:
        """Return the gradient of the outputs (mean, log-deviation), `[batch, 2 * actions]`.

        `of_actions` `[batch, actions]` is the loss's gradient by the actions, `of_log_probs` that
        by each log-probability. The noise is fixed: (u - mean) / deviation does not change.
        """
        by_u = of_actions * self.slopes
        by_u += (2.0 * of_log_probs) * (self.actions * self.slopes / (self.slopes + _EPSILON))
        by_log_deviation = (by_u * self.drawn - of_log_probs) * self.is_free
        return torch.cat([by_u, by_log_deviation], 1)


def squashed_actions(outputs: Tensor, noise: Tensor) -> Tensor:
    """Return the actions of `squashed_sample` alone."""
    means, raw = outputs.chunk(2, 1)
    log_deviations = raw.clamp(LEAST_LOG_DEVIATION, MOST_LOG_DEVIATION)
    return torch.tanh(means + log_deviations.exp() * noise)


def squashed_sample(outputs: Tensor, noise: Tensor) -> SquashedSample:
    """Sample actions of a policy's outputs `[batch, 2 * actions]`: means, then log-deviations.

    `noise` `[batch, actions]` is standard normal.
    """
    means, raw = outputs.chunk(2, 1)
    log_deviations = raw.clamp(LEAST_LOG_DEVIATION, MOST_LOG_DEVIATION)
    drawn = log_deviations.exp() * noise  # u - mean
    actions = torch.tanh(means + drawn)
    slopes = 1.0 - actions * actions
    each = -0.5 * noise * noise - log_deviations - torch.log(slopes + _EPSILON)
    log_probs = each.sum(1) - outputs.shape[1] // 2 * _HALF_LOG_2_PI
    return SquashedSample(actions, log_probs, slopes, drawn, log_deviations == raw)
