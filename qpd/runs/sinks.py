"""Where a run's numbers go besides metrics.csv: TensorBoard, Weights & Biases."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.files.atomic import errors_name, write_text
from qpd.recipe.differences import flat_settings
from qpd.recipe.schema import Recipe
from qpd.recipe.train_schema import TrainRecipe
from qpd.runs.run_directory import RunDirectory
from qpd.version import pip_install

HISTOGRAM_BINS = 64


class SinkError(UserError, ValueError):
    """Numbers cannot go where the recipe sends them; one line says why."""

    code = ErrorCode.LOGGING_SERVICE


class MetricSink(Protocol):
    """Receives the numbers of a run; implementations draw no random numbers of the run's."""

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

    def close(self, failed: bool = False) -> None:
        """Write what is pending, and end; `failed` if an error ended the work."""


def check_sinks(recipe: Recipe) -> None:
    """Raise SinkError, before any work is done, where `save.wandb` cannot be served."""
    if recipe.save.wandb is not None:
        check_wandb()


def open_sinks(run: RunDirectory) -> list[MetricSink]:
    """Open the sinks that the run's recipe asks for; TensorBoard only if it is installed.

    Raises SinkError where Weights & Biases does not begin.
    """
    sinks: list[MetricSink] = []
    if run.recipe.save.tensorboard:
        events = tensorboard_sink(run.tensorboard_folder, run.recipe)
        sinks += [events] if events is not None else []
    if run.recipe.save.wandb is not None:
        sinks.append(WandbSink(run, run.recipe.save.wandb))
    return sinks


logger = logging.getLogger(__name__)


def tensorboard_sink(folder: Path, recipe: Recipe | TrainRecipe) -> TensorBoardSink | None:
    """Make a sink that writes below `folder`; None if tensorboard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # slow to import
    except ImportError:
        logger.debug("no TensorBoard events: pip install tensorboard")
        return None
    return TensorBoardSink(folder, recipe, SummaryWriter)


class TensorBoardSink:
    """Write events; an earlier process's epochs from the first one on are discarded.

    Each phase has a folder of its own: phases then lie over each other as runs of one experiment,
    and a resumed phase discards events of no other.
    """

    def __init__(self, folder: Path, recipe: Recipe | TrainRecipe, writer_class: Any) -> None:
        self._folder, self._recipe, self._writer_class = folder, recipe, writer_class
        self._writers: dict[str, Any] = {}

    def epoch(
        self,
        phase: str,
        epoch: int,
        scalars: Mapping[str, float],
        histograms: Mapping[str, np.ndarray],
    ) -> None:
        """Write one epoch; it is on the disk on return. The recipe's text goes before the first.

        Raises OSError, which names the folder: the writer's own names nothing.
        """
        with errors_name(self._folder):
            self._write_epoch(phase, epoch, scalars, histograms)

    def _write_epoch(
        self,
        phase: str,
        epoch: int,
        scalars: Mapping[str, float],
        histograms: Mapping[str, np.ndarray],
    ) -> None:
        is_new = not any((self._folder / phase).glob("events.*"))
        first_step = 0 if epoch == 1 or is_new else epoch
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
        with errors_name(self._folder):
            # Run name ".": the same folder, not one named after the time.
            writer.add_hparams(plain, dict(scalars), run_name=".", global_step=0)
            writer.flush()

    def close(self, failed: bool = False) -> None:
        """Close all files."""
        with errors_name(self._folder):
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


_EPOCH_PHASES = ("distill", "finetune")


def check_wandb() -> None:
    """Raise SinkError where wandb is not installed, or would have to ask for a key."""
    if find_spec("wandb") is None:
        raise SinkError(
            f"save.wandb: needs the package wandb: {pip_install('wandb')}",
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

    def close(self, failed: bool = False) -> None:
        """End; the W&B run counts as failed where the work has."""
        self._run.finish(exit_code=int(failed))


def _run_id(run: RunDirectory) -> str:
    """Return the id in the run directory, made by the first process that asks."""
    file = run.path / "wandb" / "run-id"
    if file.is_file():
        return file.read_text(encoding="utf-8").strip()
    made = secrets.token_hex(8)
    file.parent.mkdir(exist_ok=True)
    write_text(file, made + "\n")
    return made
