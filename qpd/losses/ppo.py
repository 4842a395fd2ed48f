"""The reward term of phase 3, beyond the paper: PPO on the student's own games.

Imitation stops about where the teacher is. With a reward term the quantized student also learns
from what its own actions earned, the teacher's critic as the baseline and Eq. 2 beside it: proximal
policy distillation (Spigler 2024), through the quantizers.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_objective(
    logits: Tensor, actions: Tensor, log_probs: Tensor, advantages: Tensor, clip: float
) -> Tensor:
    """Compute PPO's clipped surrogate (Schulman et al. 2017, Eq. 7) as a loss per state, `[batch]`.

    logits float `[batch, num_actions]`; actions int64, log_probs (of the policy that acted) and
    advantages float, all `[batch]`.
    """
    chosen = torch.log_softmax(logits, dim=-1).gather(1, actions.unsqueeze(1)).squeeze(1)
    # log_probs are the acting policy's, whose softmax had the rule's sharpness; logits must too.
    ratio = (chosen - log_probs).exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -torch.minimum(ratio * advantages, clipped * advantages)
