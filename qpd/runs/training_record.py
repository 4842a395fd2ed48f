"""Record a training in its run directory while it goes: numbers, episodes, how far it is.

Everything after the checkpoint from which a training resumes is dropped when it resumes, so that
the files are those of an uninterrupted one.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from qpd.errors.codes import ErrorCode
from qpd.files.atomic import errors_name, write_bytes
from qpd.files.bounded_read import read_file
from qpd.numerics.gradient_exponents import GradientExponents
from qpd.runs.counted_gradients import (
    CountedGradients,
    PhaseGradients,
    gradient_columns,
    gradient_histograms,
    gradient_scalars,
)
from qpd.runs.metrics_log import KEY_COLUMNS, MetricsLog, read_lines
from qpd.runs.progress import HearsSteps, Progress
from qpd.runs.run_folder import RunDirectoryError
from qpd.runs.sinks import tensorboard_sink
from qpd.runs.training_run import TrainingRun

PHASE = "train"
_COLUMNS = ("timesteps", "seconds", "steps_per_second", "episodes", "episode_return",
            "episode_length")  # fmt: skip
# Stable-Baselines3's names; what it says of time and steps stands in columns of our own.
_RENAMED = {
    "rollout/ep_rew_mean": "episode_return",
    "rollout/ep_len_mean": "episode_length",
    "time/fps": "steps_per_second",
}
_WINDOW = 100  # episodes, as SB3's own mean
_LINES = 20  # of progress, where there is no terminal
_SECONDS_BETWEEN = 0.2  # updates of the display


class TrainingRecord:
    """A TrainingListener (`qpd.teachers.training.segments`) for a run directory; use `with`."""

    def __init__(
        self, run: TrainingRun, total: int, progress: Progress, marks: Mapping[str, Any] | None
    ) -> None:
        """Go on from a checkpoint's `marks`, or begin anew where there are none.

        Raises RunDirectoryError where marks and files do not fit; OSError.
        """
        self._run, self._total = run, total
        self._display = progress if isinstance(progress, HearsSteps) else None
        self._note, self._warn = progress.note, progress.warning
        found = dict(marks or {})
        try:
            self._rows = int(found.get("metrics_rows", 0))
            self._episodes = int(found.get("episodes", 0))
            self._seconds_before = float(found.get("seconds", 0.0))
            self._returns = deque(map(float, found.get("returns", ())), maxlen=_WINDOW)
            monitor_bytes = int(found.get("monitor_bytes", 0))
            # Of gradients, for the next row.
            self._untold = {str(k): float(v) for k, v in dict(found.get("untold", {})).items()}
        except (TypeError, ValueError) as error:
            raise RunDirectoryError(
                [f"{run.checkpoints_folder}: holds a checkpoint of something else"],
                ErrorCode.RUN_CHECKPOINT,
            ) from error
        self._episodes_saved, self._has_warned = self._episodes, False
        self._began = time.time()
        self._next_line, self._shown_at = 0, 0.0
        self._timesteps = 0
        known = run.recipe.precision.format or "fp32"
        # A training's bf16 is simulated, a student's is PyTorch's autocast.
        self._arithmetic = "e8m7" if known == "bf16" else known
        self._gradients: list[CountedGradients] = []
        self._metrics = self._open_metrics(self._known_columns())
        self._monitor_began, self._monitor = self._open_monitor(monitor_bytes)
        self._events = None
        if run.recipe.save.tensorboard:
            self._events = tensorboard_sink(run.tensorboard_folder, run.recipe)

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close all files."""
        self._metrics.close()
        with errors_name(self._run.monitor_file):
            self._monitor.close()
        if self._events is not None:
            self._events.close()
        self._write_gradients()

    def begin(self, timesteps: int) -> None:
        """Show that the training begins, or resumes, after so many steps."""
        before = PhaseGradients.read(self._run.exponents_file) if timesteps else None
        known = [] if before is None else before.epochs
        self._gradients = [each for each in known if each.epoch <= timesteps]
        self._timesteps = timesteps
        self._next_line = self._line_after(timesteps)
        if self._display is not None:
            self._display.training(self._run.recipe.name, self._total, timesteps)

    def stepped(self, timesteps: int) -> None:
        """Show it, now and then."""
        self._timesteps = timesteps
        is_line = timesteps >= self._next_line
        now = time.monotonic()
        if self._display is None or not (is_line or now - self._shown_at >= _SECONDS_BETWEEN):
            return
        self._shown_at = now
        if is_line:
            self._next_line = self._line_after(timesteps)
        self._display.steps(timesteps, self._total, self.episode_return, is_line)

    def game(self, game_return: float, length: int) -> None:
        """Write an episode's line."""
        self._episodes += 1
        self._returns.append(game_return)
        seconds = time.time() - self._monitor_began
        with errors_name(self._run.monitor_file):
            self._monitor.write(f"{game_return!r},{length},{seconds:.6f}\n".encode())

    def logged(self, timesteps: int, values: Mapping[str, float]) -> None:
        """Write a row of numbers; a name that is new makes the table wider."""
        row: dict[str, float | int] = {"timesteps": timesteps, "seconds": self.seconds}
        row["episodes"] = self._episodes
        for name, value in values.items():
            if name in _RENAMED or not name.startswith("time/"):
                row[_RENAMED.get(name, name)] = value
        told, self._untold = self._untold, {}
        cells = row | told
        new = [name for name in cells if name not in self._columns]
        if new:
            self._metrics.close()
            self._metrics = self._open_metrics((*self._columns, *new))
        self._rows += 1
        self._metrics.write(self._rows, cells)
        if self._events is not None:
            scalars = {name: float(value) for name, value in row.items() if name != "timesteps"}
            self._events.epoch(PHASE, timesteps, scalars, {})

    def counted(
        self,
        timesteps: int,
        loss_scale: float,
        weights: GradientExponents,
        activations: GradientExponents,
    ) -> None:
        """Keep counted gradients, by the agent steps that were done."""
        found = CountedGradients(timesteps, loss_scale, weights, activations)
        self._gradients.append(found)
        form = PhaseGradients(self._arithmetic, [found]).form
        cells = gradient_columns(found, form)
        self._untold = {name: value for name, value in cells.items() if value is not None}
        if self._events is not None:
            scalars, histograms = gradient_scalars(found, form), gradient_histograms(found)
            self._events.epoch(PHASE, timesteps, scalars, histograms)

    def marks(self) -> dict[str, Any]:
        """Return where all files stand, which are then on the disk."""
        self._write_gradients()
        with errors_name(self._run.monitor_file):
            self._monitor.flush()
            os.fsync(self._monitor.fileno())
        return {
            "metrics_rows": self._rows,
            "episodes": self._episodes,
            "seconds": self.seconds,
            "returns": list(self._returns),
            "monitor_bytes": self._monitor.tell(),
            "untold": self._untold,
        }

    def saved(self, timesteps: int) -> None:
        """Record how far the training is; warn once where no episode has ended since the last."""
        if self._episodes == self._episodes_saved and not self._has_warned:
            self._has_warned = True
            self._warn(
                f"{self._run.recipe.name}: no episode has ended between two checkpoints, which "
                "abandon those under way: expected a larger train.checkpoint_every, or fewer n_envs"
            )
        self._episodes_saved = self._episodes
        self._run.set_phase(timesteps=timesteps, **self.measured())

    def resumed(self, timesteps: int, has_replay: bool) -> None:
        """Record from where, and with what, it goes on."""
        phase = self._run.phase
        changes: dict[str, Any] = {"resumed_at": (*phase.resumed_at, timesteps)}
        if not has_replay:
            changes["refilled_at"] = (*phase.refilled_at, timesteps)
            self._note(
                f"{self._run.recipe.name}: its replay buffer was not kept (too large, or of a "
                "Dict's or hindsight's): filled anew by its agent's play; the agent will not be "
                "that of an uninterrupted training"
            )
        self._run.set_phase(**changes)

    def measured(self) -> dict[str, Any]:
        """Return what the manifest holds of the play so far."""
        return {
            "seconds": self.seconds,
            "episodes": self._episodes,
            "episode_return": self.episode_return,
        }

    @property
    def timesteps(self) -> int:
        """Agent steps done."""
        return self._timesteps

    @property
    def seconds(self) -> float:
        """Seconds of training, those of earlier processes included."""
        return self._seconds_before + time.time() - self._began

    @property
    def episode_return(self) -> float | None:
        """Mean return of the last 100 episodes."""
        return sum(self._returns) / len(self._returns) if self._returns else None

    def _write_gradients(self) -> None:
        if self._gradients:
            file = self._run.exponents_file
            PhaseGradients(self._arithmetic, self._gradients).write(file)

    def _line_after(self, timesteps: int) -> int:
        between = max(1, self._total // _LINES)
        return (timesteps // between + 1) * between

    def _known_columns(self) -> tuple[str, ...]:
        """Return the columns that metrics.csv has, or those that every training begins with."""
        file = self._run.metrics_file
        lines = read_lines(file) if self._rows and file.is_file() else []
        if not lines:
            file.unlink(missing_ok=True)
            self._rows = 0
            return _COLUMNS
        header = lines[0].rstrip("\n").split(",")
        return tuple(header[len(KEY_COLUMNS) :])

    def _open_metrics(self, columns: tuple[str, ...]) -> MetricsLog:
        self._columns = columns
        file = self._run.metrics_file
        return MetricsLog(file, columns, phase=PHASE, resume_epoch=self._rows)

    def _open_monitor(self, size: int) -> tuple[float, io.BufferedWriter]:
        """Open the episodes' file without those after `size` bytes; return also when it began."""
        file = self._run.monitor_file
        content = read_file(file, None)[:size] if size and file.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        try:
            began = float(json.loads(whole.split(b"\n", 1)[0].lstrip(b"#"))["t_start"])
        except (ValueError, LookupError, TypeError):
            began, whole = self._began, b""
        if len(whole) < size:
            self._warn(f"{file}: was cut off or damaged; episodes of before are missing in it")
        header = {"t_start": began, "env_id": self._run.recipe.train.env, "unit": "agent steps"}
        write_bytes(file, whole or f"#{json.dumps(header)}\nr,l,t\n".encode())
        return began, file.open("ab")
