"""Progress of a run: who is told what, and the display that the terminal shows."""

from __future__ import annotations

import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from qpd.errors.terminal_text import printable
from qpd.runs.epoch_report import EpochReport


class Progress(Protocol):
    """Hears what a run is doing; never decides anything."""

    def phase(self, name: str, total_epochs: int, first_epoch: int) -> None:
        """Hear that a training phase begins, or resumes after `first_epoch` epochs."""

    def filling(self, done: int, total: int) -> None:
        """Hear that the memory holds `done` of `total` transitions."""

    def batch(self, done: int, total: int, loss: float, samples_per_second: float) -> None:
        """Hear that this epoch has drawn `done` of `total` samples."""

    def epoch(self, report: EpochReport, label: str = "") -> None:
        """Hear that the student called `label` has finished an epoch."""

    def episodes(self, what: str, done: int, total: int) -> None:
        """Hear that an evaluation has finished `done` of `total` episodes."""

    def note(self, text: str) -> None:
        """Hear of something that is worth one line."""


class SilentProgress:
    """Says nothing: the default of the Python API."""

    def phase(self, name: str, total_epochs: int, first_epoch: int) -> None:
        """Ignore it."""

    def filling(self, done: int, total: int) -> None:
        """Ignore it."""

    def batch(self, done: int, total: int, loss: float, samples_per_second: float) -> None:
        """Ignore it."""

    def epoch(self, report: EpochReport, label: str = "") -> None:
        """Ignore it."""

    def episodes(self, what: str, done: int, total: int) -> None:
        """Ignore it."""

    def note(self, text: str) -> None:
        """Ignore it."""


class TerminalProgress:
    """Live bars in a terminal, one line per epoch elsewhere.

    Shows phase, epoch, loss, samples per second and the time left; use it with `with`.
    """

    def __init__(self, console: Console | None = None) -> None:
        """Show it on `console`; default: stderr."""
        self._console = console = console or Console(stderr=True)
        self._bar = Bars(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[status]}"),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._name, self._epochs, self._epoch = "", 0, 0
        self._first_epoch, self._began = 0, 0.0

    def __enter__(self) -> TerminalProgress:
        """Begin to draw."""
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Take the bars away."""
        if self._console.is_terminal:
            self._bar.stop()

    def phase(self, name: str, total_epochs: int, first_epoch: int) -> None:
        """Begin a training phase."""
        self._name, self._epochs = name, total_epochs
        self._epoch = self._first_epoch = first_epoch
        self._began = time.monotonic()
        if first_epoch and first_epoch < total_epochs:
            self.note(f"{name}: resumed after epoch {first_epoch}")

    def filling(self, done: int, total: int) -> None:
        """Show how full the memory is."""
        self._show("filling the memory", done, total, f"{done:,} / {total:,} transitions")

    def batch(self, done: int, total: int, loss: float, samples_per_second: float) -> None:
        """Show the epoch under way."""
        share = (self._epoch - self._first_epoch) + done / total
        left = (time.monotonic() - self._began) / max(share, 1e-9)
        left *= self._epochs - self._first_epoch - share
        status = (
            f"epoch {self._epoch + 1}/{self._epochs}  loss {loss:.4f}  "
            f"{samples_per_second:,.0f} samples/s  {_clock(left)} left"
        )
        self._show(self._name, self._epoch + done / total, self._epochs, status)

    def epoch(self, report: EpochReport, label: str = "") -> None:
        """Say how the epoch went, for the student called `label` if there are several."""
        self._epoch = report.epoch
        line = f"{label}: " if label else ""
        line += (
            f"{self._name} {report.epoch}/{self._epochs}: loss {report.loss:.4f} "
            f"(actor {report.actor_loss:.4f}, critic {report.critic_loss:.4f}), "
            f"{report.samples_per_second:,.0f} samples/s"
        )
        if report.rollout_return is not None:
            line += f", games played {report.rollout_return:.1f}"
        if report.validation is not None:
            low, high = report.validation.interval()
            line += f", return {report.validation.mean:.1f} [{low:.1f}, {high:.1f}]"
        self.note(line)

    def episodes(self, what: str, done: int, total: int) -> None:
        """Show finished episodes."""
        self._show(what, done, total, f"{done} / {total} episodes")

    def note(self, text: str) -> None:
        """Print one line."""
        self._console.print(printable(text), highlight=False, soft_wrap=True, markup=False)

    def _show(self, name: str, done: float, total: float, status: str) -> None:
        if not self._console.is_terminal:
            return
        if self._task is None:
            self._task = self._bar.add_task(name, total=total, status=status)
        self._bar.update(self._task, description=name, completed=done, total=total, status=status)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
