"""A run's numbers in Weights & Biases: one run there for a run directory, however often resumed."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from qpd.errors.codes import ErrorCode
from qpd.files.atomic import write_text
from qpd.runs.metric_sinks import HISTOGRAM_BINS, SinkError
from qpd.runs.run_directory import RunDirectory

_EPOCH_PHASES = ("distill", "finetune")


def check_wandb() -> None:
    """Raise SinkError where wandb is not installed, or would have to ask for a key."""
    if find_spec("wandb") is None:
        raise SinkError(
            'save.wandb: needs the package wandb: pip install "qpd[wandb]"',
            ErrorCode.PACKAGE_MISSING,
        )
    import wandb

    if wandb.setup().settings.mode != "online":  # WANDB_MODE=offline or disabled: no key is needed
        return
    if not wandb.login(prompt=False, verify=False):
        raise SinkError(
            "save.wandb: no API key of Weights & Biases: `wandb login`, or WANDB_MODE=offline"
        )


class WandbSink:
    """Steps are epochs, one axis a phase: `distill/...` over `distill/epoch`, and so on.

    The W&B run's id is kept in the run directory's `wandb/run-id`. An epoch that is trained again
    after an interruption is sent again, with the same values.
    """

    def __init__(self, run: RunDirectory, project: str) -> None:
        """Begin, or go on with, the W&B run of this run directory; raises SinkError."""
        import wandb  # slow to import

        self._wandb = wandb
        try:
            self._run: Any = wandb.init(
                project=project,
                id=_run_id(run),
                name=run.recipe.name,
                dir=str(run.path),
                config=run.recipe.model_dump(mode="json"),
                allow_val_change=True,  # `qpd finetune --set` changes the recipe of a later phase
                resume="allow",
                reinit="create_new",  # students that share a stream run side by side
                settings=wandb.Settings(console="off", quiet=True),
            )
        except wandb.errors.Error as error:
            reason = " ".join(str(error).split())
            raise SinkError(f"save.wandb: Weights & Biases does not begin: {reason}") from error
        for phase in _EPOCH_PHASES:
            self._run.define_metric(f"{phase}/epoch", hidden=True)
            self._run.define_metric(f"{phase}/*", step_metric=f"{phase}/epoch")

    def epoch(
        self,
        phase: str,
        epoch: int,
        scalars: Mapping[str, float],
        histograms: Mapping[str, np.ndarray],
    ) -> None:
        """Send one epoch; W&B's own process uploads it."""
        row: dict[str, Any] = {f"{phase}/{tag}": value for tag, value in scalars.items()}
        for tag, values in histograms.items():
            counted = np.histogram(values, bins=HISTOGRAM_BINS)
            row[f"{phase}/{tag}"] = self._wandb.Histogram(np_histogram=counted)
        self._run.log({f"{phase}/epoch": epoch, **row})

    def evaluated(self, scalars: Mapping[str, float]) -> None:
        """Send the final returns: they become the run's summary, by which W&B sorts its table."""
        self._run.summary.update(dict(scalars))

    def close(self) -> None:
        """End; the run counts as failed where an exception is on its way."""
        self._run.finish(exit_code=0 if sys.exc_info()[0] is None else 1)


def _run_id(run: RunDirectory) -> str:
    """The id in the run directory, made by the first process that asks."""
    file = run.path / "wandb" / "run-id"
    if file.is_file():
        return file.read_text(encoding="utf-8").strip()
    made = secrets.token_hex(8)
    file.parent.mkdir(exist_ok=True)
    write_text(file, made + "\n")
    return made
