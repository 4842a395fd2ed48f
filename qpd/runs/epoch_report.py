"""An epoch's numbers, and the tags under which sinks log them: loss/, return/, rollout/ ..."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qpd.evaluation.games import EvaluationResult
from qpd.quantization.quantization_error import dequantized_weight, quantization_errors
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.replay.memory import ReplayMemory
from qpd.students import Student

HISTOGRAMS_PER_PHASE = 20
ERROR_SAMPLE = 256  # observations behind the quantization error of the logits


@dataclass(frozen=True)
class EpochReport:
    """Batch means over one epoch: losses in nats and value units, speed, validation if any.

    `divergence` is the validated student's from its teacher, in nats; `rollout_return` the mean
    return of the games that ended in the epoch's rollout, if any did. `skipped_updates`, of the
    phase so far, and `loss_scale` are there where the loss is scaled or gradients are counted;
    `approx_kl`, in nats, and `clip_fraction`, of the policy after the epoch beside the one that
    played it, where it learns from rewards.
    """

    epoch: int
    loss: float
    actor_loss: float
    critic_loss: float
    lr: float
    samples_per_second: float
    validation: EvaluationResult | None
    divergence: float | None = None
    rollout_return: float | None = None
    skipped_updates: int | None = None
    loss_scale: float | None = None
    approx_kl: float | None = None
    clip_fraction: float | None = None


def epoch_scalars(report: EpochReport) -> dict[str, float]:
    """Return losses, learning rate, speed and, if there are any, returns of one epoch, by tag."""
    scalars = {
        "loss/total": report.loss,
        "loss/actor": report.actor_loss,
        "loss/critic": report.critic_loss,
        "train/learning_rate": report.lr,
        "time/samples_per_second": report.samples_per_second,
    }
    if report.validation is not None:
        scalars["return/validation"] = report.validation.mean
        if len(report.validation.returns) > 1:  # one game has no interval
            low, high = report.validation.interval()
            scalars |= {"return/validation_low": low, "return/validation_high": high}
    if report.divergence is not None:
        scalars["divergence/validation"] = report.divergence
    if report.rollout_return is not None:
        scalars["rollout/return"] = report.rollout_return
    if report.approx_kl is not None and report.clip_fraction is not None:
        scalars["train/approx_kl"] = report.approx_kl
        scalars["train/clip_fraction"] = report.clip_fraction
    if report.skipped_updates is not None:
        scalars["train/skipped_updates"] = report.skipped_updates
    if report.loss_scale is not None:
        scalars["train/loss_scale"] = report.loss_scale
    return scalars


def quantization_scalars(module: nn.Module, memory: ReplayMemory) -> dict[str, float]:
    """Measure quantization/... (`quantization_errors`); empty for a student without quantizers.

    The observations lie evenly over the memory: nothing is drawn.
    """
    if not isinstance(module, QuantizedStudent):
        return {}
    rows = memory.transition_rows()
    chosen = rows[np.linspace(0, len(rows) - 1, min(len(rows), ERROR_SAMPLE)).astype(np.int64)]
    device = module.activation_ranges.device
    observations = memory.gather(torch.from_numpy(chosen)).observations.to(device)
    errors = quantization_errors(module, observations, memory.actions)
    return {f"quantization/{name}": value for name, value in errors.items()}


def histograms_due(epoch: int, epochs: int) -> bool:
    """Return whether to log histograms: about 20 times a phase, and after its first epoch."""
    return epoch == 1 or epoch % max(1, epochs // HISTOGRAMS_PER_PHASE) == 0


def weight_histograms(module: nn.Module) -> dict[str, np.ndarray]:
    """Return each layer's weights, float32 `[n]`: weights/LAYER, and weights_quantized/LAYER.

    Quantized weights are in the units of the others.
    """
    student = module.student if isinstance(module, QuantizedStudent) else module
    assert isinstance(student, Student)
    found = {f"weights/{shape.name}": student.layer(shape.name).weight for shape in student.shapes}
    flat = {tag: _finite(weight) for tag, weight in found.items()}
    if isinstance(module, QuantizedStudent):
        for position, shape in enumerate(student.shapes):
            weight = dequantized_weight(module, position)
            flat[f"weights_quantized/{shape.name}"] = _finite(weight)
    return {tag: values for tag, values in flat.items() if len(values)}


def _finite(weight: Tensor) -> np.ndarray:
    values = weight.detach().float().cpu().numpy().reshape(-1)
    return values[np.isfinite(values)]


def final_scalars(evaluations: Mapping[Any, Mapping[str, Any]]) -> dict[str, float]:
    """Return return/POLICY with the ends of its 95% interval, if it has one, for each policy."""
    scalars: dict[str, float] = {}
    for policy, result in evaluations.items():
        scalars[f"return/{policy}"] = result["mean"]
        if result["episodes"] > 1:
            low, high = result["interval"]
            scalars |= {f"return/{policy}_low": low, f"return/{policy}_high": high}
    return scalars
