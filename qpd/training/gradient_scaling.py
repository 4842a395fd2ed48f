"""The loss scale of a phase, and what was counted of its gradients: a checkpoint keeps both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from qpd.numerics.gradient_exponents import NONE_COUNTED, GradientExponents
from qpd.numerics.loss_scale import LossScale
from qpd.numerics.precision import simulated_format
from qpd.recipe.training_phases import TrainingPhase
from qpd.runs.counted_gradients import CountedGradients


@dataclass
class GradientScaling:
    """Progress of a phase whose loss is scaled or whose gradients are counted.

    `updates` are those tried, skipped ones included; every `count_every`-th is counted.
    """

    loss_scale: LossScale
    count_every: int | None = None
    updates: int = 0
    epochs: list[CountedGradients] = field(default_factory=list)
    weights: GradientExponents = NONE_COUNTED
    activations: GradientExponents = NONE_COUNTED

    @classmethod
    def of(cls, settings: TrainingPhase) -> GradientScaling | None:
        """Begin, as a recipe says; None where losses and gradients are taken as they are."""
        scale = settings.loss_scale
        if scale == "auto":
            scale = "dynamic" if settings.precision == "fp16" else "none"
        is_plain = scale == "none" and simulated_format(settings.precision) is None
        if is_plain and settings.gradient_exponents is None:
            return None
        return cls(LossScale.parse(str(scale)), settings.gradient_exponents)

    @property
    def is_due(self) -> bool:
        """Tell whether the next update's gradients are to be counted."""
        return self.count_every is not None and self.updates % self.count_every == 0

    @property
    def can_fall(self) -> bool:
        """Tell whether skipped updates still lower the scale."""
        return self.loss_scale.is_dynamic and self.loss_scale.after(False).scale < (
            self.loss_scale.scale
        )

    def count(self, weights: Iterable[Tensor], activations: Iterable[Tensor]) -> None:
        """Count an update's gradients, any shapes, of the scaled loss."""
        scale = self.loss_scale.scale
        self.weights += GradientExponents.of(each.float() / scale for each in weights)
        self.activations += GradientExponents.of(each.float() / scale for each in activations)

    def end_epoch(self, epoch: int) -> None:
        """File what was counted since the epoch before."""
        if self.count_every is not None:
            self.epochs.append(
                CountedGradients(epoch, self.loss_scale.scale, self.weights, self.activations)
            )
            self.weights = self.activations = NONE_COUNTED

    def to_json(self) -> dict[str, Any]:
        """Return plain data, as it is between two epochs."""
        return {
            "loss_scale": asdict(self.loss_scale),
            "updates": self.updates,
            "epochs": [each.to_json() for each in self.epochs],
        }

    def load_json(self, found: Any) -> None:
        """Restore what `to_json` returned. Raises ValueError, TypeError or KeyError."""
        self.loss_scale = LossScale(**found["loss_scale"])
        self.updates = int(found["updates"])
        self.epochs = [CountedGradients.from_json(each) for each in found["epochs"]]
