"""What a sweep shows while it works: a line for each change, or a table in a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from qpd.sweep.cells import make_cells
from qpd.sweep.display import SweepDisplay
from qpd.sweep.grid import load_grid
from qpd.sweep.run import Sweep
from qpd.sweep.worker import STARTED, Job, supervise


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Three cells of one recipe, of which nothing has been done."""
    grid = tmp_path / "grid.yaml"
    grid.write_text("base: quickstart\naxes: {seed: [0, 1, 2]}\n")
    loaded = load_grid(str(grid))
    return Sweep(make_cells(loaded), [], tmp_path / "out", loaded.file.resources)


def test_a_log_gets_a_line_for_each_change_and_none_for_what_is_as_before(sweep: Sweep) -> None:
    written = io.StringIO()
    first, second, _ = sweep.cells.values()
    with SweepDisplay(Console(file=written, width=100)) as show:
        show(sweep)
        assert written.getvalue() == ""
        first.state, first.starts = "running", 2
        show(sweep)
        show(sweep)
        first.state, second.state, second.error = "done", "failed", "it is [bold] bad"
        show(sweep)
    assert written.getvalue().splitlines() == [
        "seed=0: running, started 2 times",
        "seed=0: done, started 2 times",
        "seed=1: failed: it is [bold] bad",
    ]


def test_a_terminal_gets_a_table_with_what_runs_first(sweep: Sweep) -> None:
    written = io.StringIO()
    *_, last = sweep.cells.values()
    console = Console(file=written, width=80, height=7, force_terminal=True, color_system=None)
    with SweepDisplay(console) as show:
        last.state = "running"
        show(sweep)
    shown = written.getvalue()
    assert shown.index("seed=2") < shown.index("seed=0")
    assert "3 cells: 1 running, 2 waiting" in " ".join(shown.split())


def test_a_job_is_a_process_of_its_own_with_its_output_in_the_log(tmp_path: Path) -> None:
    def job(*arguments: str) -> Job:
        return Job("one", arguments, tmp_path, tmp_path / "log" / "sweep.log", tmp_path, 1.0, 0.0)

    assert supervise(job("--version")) == 0
    assert supervise(job("run", "no-such-recipe")) == 2
    log = (tmp_path / "log" / "sweep.log").read_text()
    assert log.count(STARTED) == 2  # an error of the user's is not tried again
    assert "no-such-recipe" in log and "Traceback" not in log
