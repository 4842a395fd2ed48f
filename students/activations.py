"""Name what follows a hidden layer: ReLU, or a function that integers have as a table.

Of each function this says how it is computed in float, and what a table needs to know: the range
of its values, where it comes so close to either end that nothing changes beyond, and how steep it
is. `qpd.quantization.activation_table` makes the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

_SELU_SCALE, _SELU_LOW = 1.0507009873554805, -1.7580993408473766


@dataclass(frozen=True)
class Activation:
    """One function of hidden layers.

    `module` is PyTorch's, with its default arguments, as agents have it. `low` and `high` end the
    range of its values; None is an end that calibration sets: `high`, and `low` where that follows
    from it. `slope` is the largest |derivative|. `left` maps an error t to an x, at or below
    which the function is within t of what it comes to, or None where that is where the calibrated
    range ends; `right` maps `high` and t to an x at or above which it is within t of `high`, or
    beyond it. Both take and return float64
    tensors.
    """

    module: type[nn.Module]
    low: float | None
    high: float | None
    slope: float
    left: Callable[[Tensor], Tensor] | None
    right: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the function to a tensor of any shape."""
        result: Tensor = self._function(x)
        return result

    @cached_property
    def _function(self) -> nn.Module:
        return self.module()

    def lowest(self, high: Tensor) -> Tensor:
        """Return the low end of the range whose high end is `high`, in its shape and dtype."""
        # Without a lower bound the range is as wide on the left as on the right of 0.
        return torch.full_like(high, self.low) if self.low is not None else self(-high)


def _fixed(x: float) -> Callable[[Tensor], Tensor]:
    return lambda error: torch.full_like(error, x)


def _exponential(factor: float) -> Callable[[Tensor], Tensor]:
    """Return the solution x <= 0 of `factor * e^x = t`."""
    return lambda error: (error / factor).log().clamp_max(0.0)


def _linear_times_exponential(error: Tensor) -> Tensor:
    """Solve `-x e^x = t` for x <= -1, by its fixed point x = ln t - ln(-x)."""
    logarithm = error.log().clamp_max(-1.0)
    x = logarithm
    for _ in range(8):
        x = logarithm - (-x).log()
    return x


def _gelu_tail(error: Tensor) -> Tensor:
    # |x| P(z < x) is below the normal density at x, as P(z < x) is below the density / |x|.
    return -(2.0 * (1.0 / (error.clamp_max(0.2) * math.sqrt(2.0 * math.pi))).log()).sqrt()


def _atanh_left(error: Tensor) -> Tensor:
    return -torch.atanh(1.0 - error)


def _mirrored(left: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda high, error: -left(error)


def _above(margin: float, scale: float = 1.0) -> Callable[[Tensor, Tensor], Tensor]:
    """Return `high / scale + margin`: the function is at least `scale * (x - margin)`."""
    return lambda high, error: high / scale + margin


def _softplus_inverse(high: Tensor, error: Tensor) -> Tensor:
    return high + (-torch.expm1(-high)).log()


ACTIVATIONS: dict[str, Activation] = {
    # In integers ReLU needs no table: saturation at level 0 is the function.
    "relu": Activation(nn.ReLU, 0.0, None, 1.0, _fixed(0.0), _above(0.0)),
    "tanh": Activation(nn.Tanh, -1.0, 1.0, 1.0, _atanh_left, _mirrored(_atanh_left)),
    "sigmoid": Activation(
        nn.Sigmoid, 0.0, 1.0, 0.25, _exponential(1.0), _mirrored(_exponential(1.0))
    ),
    "elu": Activation(nn.ELU, -1.0, None, 1.0, _exponential(1.0), _above(0.0)),
    "selu": Activation(
        nn.SELU, _SELU_LOW, None, -_SELU_LOW, _exponential(-_SELU_LOW), _above(0.0, _SELU_SCALE)
    ),
    # From 0 on these are below x by no more than the depth of their minimum, Mish by 0.1403.
    "silu": Activation(
        nn.SiLU, -0.2784645427610738, None, 1.1, _linear_times_exponential, _above(0.2785)
    ),
    "gelu": Activation(nn.GELU, -0.1699712074703455, None, 1.13, _gelu_tail, _above(0.17)),
    "mish": Activation(
        nn.Mish, -0.30884341301725, None, 1.09, _linear_times_exponential, _above(0.1404)
    ),
    "softplus": Activation(nn.Softplus, 0.0, None, 1.0, _exponential(1.0), _softplus_inverse),
    "leaky_relu": Activation(nn.LeakyReLU, None, None, 1.0, None, _above(0.0)),
    "relu6": Activation(nn.ReLU6, 0.0, None, 1.0, _fixed(0.0), _above(0.0)),
    "hardtanh": Activation(nn.Hardtanh, -1.0, 1.0, 1.0, _fixed(-1.0), _above(0.0)),
    "hardsigmoid": Activation(nn.Hardsigmoid, 0.0, 1.0, 1 / 6, _fixed(-3.0), _above(2.0)),
    "hardswish": Activation(nn.Hardswish, -0.375, None, 1.5, _fixed(-3.0), _above(0.375)),
}


def activation_of_module(name: str) -> str | None:
    """Return the activation of PyTorch's module called `name`, such as `Tanh`; None if unknown."""
    # With alpha = 1, its default, CELU is ELU.
    modules = {entry.module.__name__: key for key, entry in ACTIVATIONS.items()}
    return modules.get("ELU" if name == "CELU" else name)
