"""The log-probability of SAC's squashed Gaussian, in forms that half precision bears or does not.

Bjorck et al., Low-Precision RL: Running SAC in Half Precision (ICML 2021, arXiv 2102.13565),
softplus-fix and normal-fix. With a = tanh(u), u = mu + sigma * eps,

    log pi(a) = sum_i [log N(u_i; mu_i, sigma_i) - log(1 - tanh(u_i)^2)].

All functions work in the dtype that they are given and return one value for each element.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qpd.numerics.float_format import FloatFormat

SOFTPLUS_FROM = -5.0  # in the authors' code: exp(-2u) is taken up to -2u = 10
_LOG_2 = math.log(2.0)
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


def naive_log_normal(u: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Compute log N(u; mean, deviation) from the variance, which underflows in fp16.

    sigma^2 is 0 below sigma = 1.7e-4. Any equal shapes; returns that shape, in nats.
    """
    variance = deviation * deviation
    return -((u - mean) * (u - mean)) / (2.0 * variance) - deviation.log() - _HALF_LOG_2_PI


def log_normal(u: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Compute log N(u; mean, deviation) by dividing before squaring: normal-fix.

    Any equal shapes; returns that shape, in nats.
    """
    standard = (u - mean) / deviation
    return -0.5 * (standard * standard) - deviation.log() - _HALF_LOG_2_PI


def naive_log_slope(u: Tensor) -> Tensor:
    """Compute log(1 - tanh(u)^2) with softplus as log(1 + exp(-2u)), any shape.

    Each operation rounds once: exp(-2u) overflows in fp16 at -2u = 11.09, and the gradient, a
    quotient of two infinities, is NaN. PyTorch's own softplus hides this.
    """
    return 2.0 * (_LOG_2 - u - torch.log1p(torch.exp(-2.0 * u)))


def softplus_threshold(form: FloatFormat) -> float:
    """Return the u below which softplus(-2u) is -2u in a format: -5, as in the authors' code.

    That is fp16's, where exp(-2u) overflows at -2u = 11.09. "It depends on the format": with four
    exponent bits, whose largest number is below 256, it is -2.5.
    """
    return max(SOFTPLUS_FROM, -0.5 * math.floor(math.log(form.largest)))


def log_slope(u: Tensor, softplus_from: float = SOFTPLUS_FROM) -> Tensor:
    """Compute log(1 - tanh(u)^2) with softplus(-2u) = -2u below `softplus_from`: softplus-fix.

    Any shape. In fp16 the difference is below half of the last bit: at -2u = 10 softplus is
    10 + 4.5e-5, and the step there is 2^-7.
    """
    is_linear = u < softplus_from
    # The branch that is not taken must be finite as well: its gradient is multiplied by 0.
    inside = torch.where(is_linear, torch.zeros_like(u), u)
    softplus = torch.where(is_linear, -2.0 * u, torch.log1p(torch.exp(-2.0 * inside)))
    return 2.0 * (_LOG_2 - u - softplus)
