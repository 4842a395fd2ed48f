"""Eq. 1 of the QPD paper for yes-or-no choices: KL divergences of Bernoulli policies.

Logits are those of `yes`, as SB3's are; divergences are sums over the choices, which are
independent.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def kl_bernoulli(of_logits: Tensor, from_logits: Tensor) -> Tensor:
    """Compute KL(of || from) per state, in nats; logits float `[batch, choices]` -> `[batch]`."""
    likely = torch.sigmoid(of_logits)
    # log p = logsigmoid(x) and log(1 - p) = logsigmoid(-x): finite where p is 0 or 1 in float32.
    yes = likely * (F.logsigmoid(of_logits) - F.logsigmoid(from_logits))
    no = (1.0 - likely) * (F.logsigmoid(-of_logits) - F.logsigmoid(-from_logits))
    return (yes + no).sum(-1)


def kl_bernoulli_gradients(of_logits: Tensor, from_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the derivatives of `kl_bernoulli` by both logits, `[batch, choices]` each.

    By `from_logits` it is q - p; by `of_logits` p (1 - p) (of - from).
    """
    p, q = torch.sigmoid(of_logits), torch.sigmoid(from_logits)
    return p * (1.0 - p) * (of_logits - from_logits), q - p
