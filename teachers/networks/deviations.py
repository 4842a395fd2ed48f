"""The deviations of Gaussian policies, before the squash: three ways in which SB3 has them.

Each module maps the actor's last hidden layer `[batch, latent]` to log-deviations
`[batch, actions]`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from qpd.errors.codes import ErrorCode
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.networks.layers import linear, parameter

_LEAST_VARIANCE = 1e-6  # SB3's `epsilon` of gSDE, and of expln
_LOG_BOUNDS = (-20.0, 2.0)  # SB3's LOG_STD_MIN and LOG_STD_MAX of SAC and TQC


class ConstantDeviations(nn.Module):
    """One number for each action, whatever the state: PPO, A2C and TRPO."""

    def __init__(self, log_std: nn.Parameter) -> None:
        """Take log-deviations `[actions]`."""
        super().__init__()
        self.log_std = log_std

    def forward(self, latent: Tensor) -> Tensor:
        """Return the same for each state."""
        return self.log_std.expand(len(latent), -1)


class PredictedDeviations(nn.Module):
    """A linear layer of the state, within SB3's bounds: SAC and TQC."""

    def __init__(self, layer: nn.Linear) -> None:
        """Take the layer."""
        super().__init__()
        self.layer = layer

    def forward(self, latent: Tensor) -> Tensor:
        """Return the layer's outputs, clamped."""
        found: Tensor = self.layer(latent).clamp(*_LOG_BOUNDS)
        return found


class GsdeDeviations(nn.Module):
    """Generalized state-dependent exploration (gSDE, Raffin et al. 2020).

    Noise is the last hidden layer times a random matrix, drawn anew every `sde_sample_freq` steps.
    Of one state it is Gaussian: these are its deviations, as SB3's log-probabilities have them.
    """

    def __init__(self, log_std: nn.Parameter, num_actions: int, use_expln: bool) -> None:
        """Take log-deviations of the matrix, `[latent, actions]` or `[latent, 1]`."""
        super().__init__()
        self.log_std = log_std
        self.num_actions = num_actions
        self.use_expln = use_expln

    def forward(self, latent: Tensor) -> Tensor:
        """Return log sqrt(sum of latent^2 sigma^2)."""
        # full_std=False: one column for all actions.
        matrix = self._matrix_deviations().square().expand(-1, self.num_actions)
        variance = latent.square() @ matrix
        return 0.5 * (variance + _LEAST_VARIANCE).log()

    def _matrix_deviations(self) -> Tensor:
        log_std = self.log_std
        if not self.use_expln:
            return log_std.exp()
        # log1p + 1 above 0, so that they do not explode; clamped, as exp of what is not chosen may.
        above = (log_std.clamp(min=0.0) + _LEAST_VARIANCE).log1p() + 1.0
        return torch.where(log_std > 0.0, above, log_std.clamp(max=0.0).exp())


def deviations(
    tensors: Mapping[str, Tensor], num_actions: int, num_latent: int, *, use_expln: bool
) -> nn.Module:
    """Make the module that `log_std` among an actor's tensors stands for.

    Raises TeacherError where it is missing, or does not fit `num_actions` and `num_latent`.
    """
    if "log_std.weight" in tensors:
        layer = linear(tensors, "log_std")
        _check("log_std.weight", tuple(layer.weight.shape), ((num_actions, num_latent),))
        return PredictedDeviations(layer)
    log_std = parameter(tensors, "log_std")
    per_action, per_state = (num_actions,), (num_latent, num_actions)
    _check("log_std", tuple(log_std.shape), (per_action, per_state, (num_latent, 1)))
    if log_std.dim() == 1:
        return ConstantDeviations(log_std)
    return GsdeDeviations(log_std, num_actions, use_expln)


def _check(name: str, shape: tuple[int, ...], expected: tuple[tuple[int, ...], ...]) -> None:
    if shape not in expected:
        raise TeacherError(
            f"'{name}' has shape {shape}; expected {' or '.join(map(str, expected))}",
            ErrorCode.TEACHER_DAMAGED,
        )
