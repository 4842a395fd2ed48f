"""gradient_exponents.PHASE.json: gradients counted by exponent, epoch by epoch.

Of a training (`train`) an entry's `epoch` is the agent steps that were done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.files.atomic import write_json
from qpd.files.json_input import read_json
from qpd.numerics.float_format import FloatFormat
from qpd.numerics.gradient_exponents import LOWEST, GradientExponents
from qpd.numerics.precision import simulated_format

HALF = FloatFormat.parse("fp16")  # what a loss is measured by where training is in float32
_COLUMNS = {  # of metrics.csv, by TensorBoard's tags
    "gradients/lost": "gradients_lost",
    "gradients/subnormal": "gradients_subnormal",
    "gradients/overflow": "gradients_overflow",
    "gradients/fitting_scale": "fitting_scale",
}
GRADIENT_COLUMNS = tuple(_COLUMNS.values())
_SHOWN = 10_000  # values in TensorBoard's histograms, which want values


class GradientCountsError(UserError, ValueError):
    """A file of counted gradients that cannot be read; one line."""

    code = ErrorCode.RUN_DAMAGED


@dataclass(frozen=True)
class CountedGradients:
    """Exponents of an epoch's gradients, over the updates that were looked at.

    Of `weights`, and by what hidden layers return (`activations`), both with the loss scale taken
    off, whose value was `loss_scale` when the epoch ended.
    """

    epoch: int
    loss_scale: float
    weights: GradientExponents
    activations: GradientExponents

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        counted = {"weights": self.weights.to_json(), "activations": self.activations.to_json()}
        return {"epoch": self.epoch, "loss_scale": self.loss_scale, **counted}

    @classmethod
    def from_json(cls, found: Any) -> CountedGradients:
        """Return what `to_json` was called on. Raises ValueError, TypeError or KeyError."""
        kinds = (GradientExponents.from_json(found[name]) for name in ("weights", "activations"))
        return cls(int(found["epoch"]), float(found["loss_scale"]), *kinds)


@dataclass(frozen=True)
class PhaseGradients:
    """Hold what a phase counted, epoch by epoch, while it trained in `precision`."""

    precision: str
    epochs: Sequence[CountedGradients]

    @property
    def form(self) -> FloatFormat:
        """The format whose losses are shown: the phase's, or fp16 where none is simulated."""
        return simulated_format(self.precision) or HALF

    def total(self, kind: str) -> GradientExponents:
        """Return the counts of all epochs; `kind` is `weights` or `activations`."""
        return reduce(add, (getattr(each, kind) for each in self.epochs))

    def write(self, file: Path) -> None:
        """Replace `file`."""
        epochs = [each.to_json() for each in self.epochs]
        write_json(file, {"precision": self.precision, "epochs": epochs})

    @classmethod
    def read(cls, file: Path) -> PhaseGradients | None:
        """Read what `write` wrote; None where there is no such file, or nothing in it.

        Raises GradientCountsError.
        """
        if not file.is_file():
            return None
        try:
            found = read_json(file)
            epochs = [CountedGradients.from_json(each) for each in found["epochs"]]
            read = cls(str(found["precision"]), epochs)
            read.form  # noqa: B018 - refuses what is no format
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise GradientCountsError(f"{file}: holds no counted gradients ({error})") from error
        return read if epochs else None


def gradient_scalars(counted: CountedGradients, form: FloatFormat) -> dict[str, float]:
    """Return the shares of the weights' gradients by where they fall in `form`, by tag.

    Without the loss scale; and the power of two that would fit.
    """
    shares = counted.weights.shares(form)
    found = {f"gradients/{name}": share for name, share in shares.items()}
    return {**found, "gradients/fitting_scale": counted.weights.fitting_scale(form)}


def gradient_columns(counted: CountedGradients, form: FloatFormat) -> dict[str, float | None]:
    """Return the cells of GRADIENT_COLUMNS in metrics.csv, None where nothing was counted."""
    if not counted.weights.total:
        return dict.fromkeys(GRADIENT_COLUMNS)
    scalars = gradient_scalars(counted, form)
    return {column: scalars[tag] for tag, column in _COLUMNS.items()}


def gradient_histograms(counted: CountedGradients) -> dict[str, np.ndarray]:
    """Return exponents as often as they were counted, in proportion: float32 `[about 10,000]`."""
    found = {}
    for kind in ("weights", "activations"):
        counts = np.array(getattr(counted, kind).counts)
        if counts.sum():
            often = np.ceil(counts * (_SHOWN / counts.sum())).astype(int)
            exponents = np.arange(len(counts), dtype=np.float32) + LOWEST
            found[f"gradient_exponents/{kind}"] = np.repeat(exponents, often)
    return found
