"""A run's numbers as TensorBoard events: a folder per phase, and one for the final returns."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qpd.recipe.differences import flat_settings
from qpd.recipe.schema import Recipe
from qpd.runs.metric_sinks import HISTOGRAM_BINS

logger = logging.getLogger(__name__)


def tensorboard_sink(folder: Path, recipe: Recipe) -> TensorBoardSink | None:
    """A sink that writes below `folder`; None where tensorboard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # slow to import
    except ImportError:
        logger.debug("no TensorBoard events: pip install tensorboard")
        return None
    return TensorBoardSink(folder, recipe, SummaryWriter)


class TensorBoardSink:
    """Writers open at their first epoch, which replaces it and all later ones of a former process.

    Each phase has a folder of its own: phases then lie over each other as runs of one experiment,
    and a resumed phase discards events of no other.
    """

    def __init__(self, folder: Path, recipe: Recipe, writer_class: Any) -> None:
        self._folder, self._recipe, self._writer_class = folder, recipe, writer_class
        self._writers: dict[str, Any] = {}

    def epoch(
        self,
        phase: str,
        epoch: int,
        scalars: Mapping[str, float],
        histograms: Mapping[str, np.ndarray],
    ) -> None:
        """Write one epoch; it is on the disk on return. The recipe's text goes before the first."""
        first_step = 0 if epoch == 1 else epoch
        writer = self._writer(phase, first_step)
        if first_step == 0:
            writer.add_text("recipe", _indented(self._recipe.to_yaml()), 0)
        for tag, value in scalars.items():
            writer.add_scalar(tag, value, epoch)
        for tag, values in histograms.items():
            writer.add_histogram(tag, values, epoch, bins=HISTOGRAM_BINS)
        writer.flush()

    def evaluated(self, scalars: Mapping[str, float]) -> None:
        """Write the final returns, with the recipe's settings for the tab HPARAMS."""
        settings = flat_settings(self._recipe.model_dump(mode="json"))
        plain = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, value in settings.items()
        }
        writer = self._writer("evaluate", 0)
        # Run name ".": the same folder, not one named after the time.
        writer.add_hparams(plain, dict(scalars), run_name=".", global_step=0)
        writer.flush()

    def close(self) -> None:
        """Close all files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, phase: str, first_step: int) -> Any:
        if phase not in self._writers:
            folder = str(self._folder / phase)
            self._writers[phase] = self._writer_class(log_dir=folder, purge_step=first_step)
        return self._writers[phase]


def _indented(text: str) -> str:
    """Markdown that shows `text` as it is."""
    return "\n".join(f"    {line}" for line in text.splitlines())
