"""The arithmetic that a phase trained in, in words and in bytes by parameter."""

from __future__ import annotations

from dataclasses import dataclass

from qpd.numerics.float_format import FloatFormat
from qpd.numerics.precision import simulated_format
from qpd.recipe.training_phases import TrainingPhase

_SINGLE = 4  # bytes of float32
# Numbers that the optimizer keeps for each parameter.
_MOMENTS = {"adam": 2, "adamw": 2, "rmsprop": 1, "sgd": 1}


def arithmetic_text(phase: TrainingPhase) -> str:
    """Return a phase's format, masters and loss scale, such as `fp16, S dynamic`."""
    parts = [phase.precision]
    if not phase.master_weights:
        parts.append("no masters")
    scale = phase.loss_scale
    if scale == "auto":
        scale = "dynamic" if phase.precision == "fp16" else "none"
    if scale == "none":
        # Of formats that keep float32's exponents nobody expects a scale.
        parts += ["S = 1"] if simulated_format(phase.precision) is not None else []
    else:
        parts.append(f"S {scale}" if isinstance(scale, str) else f"S = {scale:g}")
    return ", ".join(parts)


@dataclass(frozen=True)
class ParameterBytes:
    """Bytes that training keeps for each parameter, were each number stored in its format."""

    weight: float
    gradient: float
    master: float
    moments: float

    @classmethod
    def of(cls, phase: TrainingPhase) -> ParameterBytes:
        """Count by a phase's settings; QPD itself keeps float32 carriers, 4 bytes a number.

        Masters and the optimizer's moments are float32; under autocast weights and gradients, too.
        """
        form = simulated_format(phase.precision)
        size = _SINGLE if form is None else stored_bytes(form)
        has_masters = form is not None and phase.master_weights
        return cls(size, size, _SINGLE if has_masters else 0.0, _SINGLE * _MOMENTS[phase.optimizer])

    @property
    def total(self) -> float:
        """Return the sum."""
        return self.weight + self.gradient + self.master + self.moments


def stored_bytes(form: FloatFormat) -> float:
    """Return the bytes of a number: sign, exponent and mantissa."""
    return (1 + form.exponent + form.mantissa) / 8
