"""Where a run's numbers go besides metrics.csv: TensorBoard, Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.recipe.schema import Recipe
from qpd.runs.run_directory import RunDirectory

HISTOGRAM_BINS = 64


class SinkError(UserError, ValueError):
    """Numbers cannot go where the recipe sends them; one line says why."""

    code = ErrorCode.LOGGING_SERVICE


class MetricSink(Protocol):
    """Who is told the numbers of a run; implementations draw no random numbers of the run's."""

    def epoch(
        self,
        phase: str,
        epoch: int,
        scalars: Mapping[str, float],
        histograms: Mapping[str, np.ndarray],
    ) -> None:
        """Hear of an epoch: scalars, and flat arrays float32 `[n]` to show as histograms."""

    def evaluated(self, scalars: Mapping[str, float]) -> None:
        """Hear of the returns that end the run."""

    def close(self) -> None:
        """Write what is pending, and end."""


def check_sinks(recipe: Recipe) -> None:
    """Raise SinkError, before any work is done, where `save.wandb` cannot be served."""
    if recipe.save.wandb is not None:
        from qpd.runs.wandb_sink import check_wandb

        check_wandb()


def open_sinks(run: RunDirectory) -> list[MetricSink]:
    """The sinks that the run's recipe asks for; TensorBoard only where it is installed.

    Raises SinkError where Weights & Biases does not begin.
    """
    sinks: list[MetricSink] = []
    if run.recipe.save.tensorboard:
        from qpd.runs.tensorboard_sink import tensorboard_sink

        events = tensorboard_sink(run.tensorboard_folder, run.recipe)
        sinks += [events] if events is not None else []
    if run.recipe.save.wandb is not None:
        from qpd.runs.wandb_sink import WandbSink

        sinks.append(WandbSink(run, run.recipe.save.wandb))
    return sinks
