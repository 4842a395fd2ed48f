"""The progress of a sweep on stderr: a live table in a terminal, a line per change elsewhere."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from qpd.errors.terminal_text import printable
from qpd.sweep.run import Status, Sweep

_ORDER = ("running", "failed", "interrupted", "waiting", "done")
_STYLES = {"running": "bold", "failed": "bold red", "done": "green", "interrupted": "yellow"}
_RESERVED_LINES = 4  # header, caption, and the shell's prompt above


class SweepDisplay:
    """Display of a sweep's changes, to be called with the sweep; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Drawn on every change instead of by a clock: a thread of its own could draw a
        # half-changed sweep.
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._told: dict[str, str] = {}

    def __enter__(self) -> SweepDisplay:
        """Start drawing."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the table."""
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self, sweep: Sweep) -> None:
        """Show the sweep's present state."""
        if self._console.is_terminal:
            self._live.update(self._table(sweep), refresh=True)
            return
        for status in sweep.statuses:
            line = f"{status.name}: {_state(status)}"
            line += f": {status.error}" if status.error else ""
            # A resumed sweep of hundreds of cells does not begin with a line for each that has
            # nothing new.
            first = status.name not in self._told and status.state in ("waiting", "done")
            if not first and self._told.get(status.name) != line:
                self._console.print(printable(line), highlight=False, soft_wrap=True, markup=False)
            self._told[status.name] = line

    def _table(self, sweep: Sweep) -> Table:
        """Build the table, running cells first, as many as the terminal has lines."""
        statuses = sorted(sweep.statuses, key=lambda status: _ORDER.index(status.state))
        room = max(3, self._console.height - _RESERVED_LINES)
        table = Table(box=None, pad_edge=False, caption=_counts(sweep), caption_justify="left")
        for header in ("cell", "state", "epoch"):
            table.add_column(header, overflow="ellipsis", no_wrap=True)
        for status in statuses[:room]:
            epoch = str(status.progress.epoch) if status.progress.epoch else ""
            state = Text(_state(status), style=_STYLES.get(status.state, ""))
            table.add_row(Text(status.name), state, epoch)
        return table


def _state(status: Status) -> str:
    """Return state, phase and restarts, without the epoch, so that a log gets no line per epoch."""
    text = status.state
    if status.state in ("running", "interrupted") and status.progress.phase:
        text += f", {status.progress.phase}"
    if status.starts > 1:
        text += f", started {status.starts} times"
    return text


def _counts(sweep: Sweep) -> str:
    found = Counter(status.state for status in sweep.cells.values())
    parts = [f"{found[state]} {state}" for state in _ORDER if found[state]]
    return f"{len(sweep.cells)} cells: {', '.join(parts)}"
