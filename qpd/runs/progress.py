"""Progress of a run: who is told what, and the display that the terminal shows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from qpd.errors.terminal_text import printable
from qpd.runs.epoch_report import EpochReport
from qpd.runs.time_left import TimeLeft, WorkAhead


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

    def warning(self, text: str) -> None:
        """Hear of something that is probably wrong, in one line."""


@runtime_checkable
class HearsSteps(Protocol):
    """A progress display that also shows the training of an agent, which has no epochs."""

    def training(self, name: str, total_steps: int, first_step: int) -> None:
        """Hear that a training begins, or resumes after `first_step` agent steps."""

    def steps(self, done: int, total: int, episode_return: float | None, is_line: bool) -> None:
        """Hear of agent steps done, and of the mean return of the last 100 episodes, if any.

        `is_line` where it is worth a line.
        """


class SilentProgress:
    """Says nothing but warnings, as Python's: the default of the Python API."""

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

    def warning(self, text: str) -> None:
        """Warn of it, as Python code is used to: it can be filtered, or made an error."""
        warnings.warn(text, stacklevel=2)


class TerminalProgress:
    """Live bars in a terminal, one line per epoch elsewhere.

    Shows phase, epoch, loss, samples per second and the time left, of the phase and, once
    `work_ahead` has been told, of the whole run; use it with `with`. On a quiet console it shows
    warnings alone, on stderr.
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
        self._time_left: TimeLeft | None = None
        self._games, self._games_began = ("", 0), 0.0
        self._last_heard = time.monotonic()

    def __enter__(self) -> TerminalProgress:
        """Begin to draw."""
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Take the bars away."""
        if self._console.is_terminal:
            self._bar.stop()

    def work_ahead(self, work: WorkAhead) -> None:
        """Show the time left of the whole run from now on."""
        self._time_left = TimeLeft(work)

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
        status = (
            f"epoch {self._epoch + 1}/{self._epochs}  loss {loss:.4f}  "
            f"{samples_per_second:,.0f} samples/s  {self._left(done / total)}"
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
        if report.approx_kl is not None:
            line += f", KL {report.approx_kl:.3f}"
        if report.validation is not None:
            line += f", return {report.validation.mean:,.1f} {report.validation.shown_interval()}"
        if report.divergence is not None:
            line += f", divergence {report.divergence:.4f}"
        if self._time_left is not None and not label:
            line += f"; {self._left(0.0)}"
        self.note(line)

    def episodes(self, what: str, done: int, total: int) -> None:
        """Show finished episodes."""
        now = time.monotonic()
        if self._games[0] != what or done <= self._games[1]:  # other games have begun
            self._games_began = self._last_heard
        self._games = (what, done)
        status = f"{done} / {total} episodes"
        if self._time_left is not None:
            left = self._time_left.in_games(what, done, total, now - self._games_began)
            status += "" if left is None else f"  {_clock(left)} left"
        self._show(what, done, total, status)

    def training(self, name: str, total_steps: int, first_step: int) -> None:
        """Begin to show a training."""
        self._name, self._first_epoch, self._began = name, first_step, time.monotonic()
        if first_step:
            self.note(f"{name}: resumed after {first_step:,} of {total_steps:,} steps")

    def steps(self, done: int, total: int, episode_return: float | None, is_line: bool) -> None:
        """Show how far a training is."""
        total = max(total, done)  # the last rollout is played to its end
        seconds = max(time.monotonic() - self._began, 1e-9)
        speed = (done - self._first_epoch) / seconds
        status = f"{speed:,.0f} steps/s  {_clock(max(total - done, 0) / max(speed, 1e-9))} left"
        if episode_return is not None:
            status = f"return {episode_return:.1f}  {status}"
        if is_line and not self._console.is_terminal:
            self.note(f"{self._name} {done:,}/{total:,}: {status.replace('  ', ', ')}")
        self._show(self._name, done, total, f"{done:,}/{total:,}  {status}")

    def note(self, text: str) -> None:
        """Print one line."""
        self._last_heard = time.monotonic()
        _print(self._console, text)

    def warning(self, text: str) -> None:
        """Print one line that begins with `warning:`, also if the console is quiet."""
        if self._console.quiet:
            _print(Console(stderr=True), f"warning: {text}")
        else:
            self.note(f"warning: {text}")

    def _left(self, share: float) -> str:
        """Say how much time is left when this epoch is done to `share`."""
        done = self._epoch - self._first_epoch + share
        per_epoch = (time.monotonic() - self._began) / max(done, 1e-9)
        epochs_left = self._epochs - self._first_epoch - done
        phase = f"{_clock(epochs_left * per_epoch)} left"
        if self._time_left is None:
            return phase
        whole = self._time_left.in_training(self._name, self._epochs, epochs_left, per_epoch)
        return f"{phase} in this phase, {_clock(whole)} in all"

    def _show(self, name: str, done: float, total: float, status: str) -> None:
        self._last_heard = time.monotonic()
        if not self._console.is_terminal:
            return
        if self._task is None:
            self._task = self._bar.add_task(name, total=total, status=status)
        self._bar.update(self._task, description=name, completed=done, total=total, status=status)


def _print(console: Console, text: str) -> None:
    with suppress(OSError):  # a log on a full disk: what it cannot hold is lost, the run is not
        console.print(printable(text), highlight=False, soft_wrap=True, markup=False)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


ProgressChoice = Progress | bool | None


@contextmanager
def shown(choice: ProgressChoice) -> Iterator[Progress]:
    """Give the progress that was chosen; the terminal's is started and stopped here.

    True is the terminal's, False or None a silent one.
    """
    if choice is True:
        choice = TerminalProgress()
    if isinstance(choice, TerminalProgress):
        with choice:
            yield choice
    else:
        yield choice or SilentProgress()
