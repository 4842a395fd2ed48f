"""The reward term of phase 3, beyond the paper: PPO on the student's own games.

Imitation stops about where the teacher is. With a reward term the quantized student also learns
from what its own actions earned, the teacher's critic as the baseline and Eq. 2 beside it: proximal
policy distillation (Spigler 2024), through the quantizers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PolicyChange(NamedTuple):
    """Hold how far a policy is from the one that acted, as Stable-Baselines3's PPO logs it."""

    approx_kl: float
    clip_fraction: float


def clipped_objective(
    logits: Tensor, actions: Tensor, log_probs: Tensor, advantages: Tensor, clip: float
) -> Tensor:
    """Compute PPO's clipped surrogate (Schulman et al. 2017, Eq. 7) as a loss per state, `[batch]`.

    logits float `[batch, num_actions]`; actions int64, log_probs (of the policy that acted) and
    advantages float, all `[batch]`.
    """
    ratio = _log_ratio(logits, actions, log_probs).exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def policy_change(logits: Tensor, actions: Tensor, log_probs: Tensor, clip: float) -> PolicyChange:
    """Estimate KL(acting || new) in nats, and the share of ratios beyond the clip.

    Arguments as in `clipped_objective`. The KL is the mean of r - 1 - ln r (Schulman 2020, "k3").
    """
    log_ratio = _log_ratio(logits.float(), actions, log_probs)
    ratio = log_ratio.exp()
    beyond = (ratio - 1.0).abs() > clip
    return PolicyChange(float((ratio - 1.0 - log_ratio).mean()), float(beyond.float().mean()))


def _log_ratio(logits: Tensor, actions: Tensor, log_probs: Tensor) -> Tensor:
    """Return the logarithm of new over acting probability, `[batch]`."""
    chosen = torch.log_softmax(logits, dim=-1).gather(1, actions.unsqueeze(1)).squeeze(1)
    # log_probs are the acting policy's, whose softmax had the rule's sharpness; logits must too.
    return chosen - log_probs
