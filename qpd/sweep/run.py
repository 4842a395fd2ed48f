"""A running sweep: its jobs, their order, and the state of each cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from qpd.errors.codes import ErrorCode
from qpd.files.atomic import remove_leftovers, write_text
from qpd.recipe.schema import RecipeError
from qpd.runs.run_directory import LOG_NAME
from qpd.sweep.cells import Cell, CellProgress, cell_progress
from qpd.sweep.grid import CellResources
from qpd.sweep.sharing import SHARED_FOLDER, Batch, drop_memories, needed_keys
from qpd.sweep.worker import INTERRUPTED, STARTED, Job

_POLL_SECONDS = 1.0
_RECIPES = ".recipes"


class JobPool(Protocol):
    """A runner of jobs; see `qpd.sweep.ray_pool.Pool`."""

    def submit(self, job: Job) -> None:
        """Queue a job."""

    def wait(self, seconds: float) -> list[tuple[Job, int, str]]:
        """Return jobs that ended within `seconds`, with exit code and what befell the worker."""

    def stop(self) -> None:
        """Interrupt all jobs."""


@dataclass
class Status:
    """The state of a cell, or of a batch that distils for several cells.

    `state` is waiting, interrupted (begun in an earlier sweep), running, done or failed; `progress`
    is that of the run directory `watched`; `starts` counts its processes in this sweep.
    """

    name: str
    folder: Path
    watched: Path
    state: str = "waiting"
    progress: CellProgress = CellProgress()
    error: str = ""
    starts: int = 0
    log_size: int = 0

    @classmethod
    def of(cls, name: str, folder: Path, watched: Path) -> Status:
        """Read the state that the folder is in before the sweep begins."""
        status = cls(name, folder, watched, progress=cell_progress(watched))
        # The log grows over several sweeps; only this one's lines count starts and name errors.
        status.log_size = len(status.read_log())
        if status.progress.finished:
            status.state = "done"
        elif status.progress.phase:
            status.state = "interrupted"
        return status

    @property
    def log(self) -> Path:
        """The file into which the job's processes print."""
        return self.folder / LOG_NAME

    def read_log(self) -> bytes:
        """Return what this sweep's processes have printed; the first `log_size` bytes are older."""
        return self.log.read_bytes()[self.log_size :] if self.log.is_file() else b""

    def look(self) -> None:
        """Update state and progress from the job's log and run directory."""
        self.starts = self.read_log().count(STARTED.encode())
        if self.starts:
            self.state = "running"
            progress = cell_progress(self.watched)
            if not progress.finished:  # else its process is about to end
                self.progress = progress

    def end(self, code: int, reason: str) -> None:
        """Record that the job ended with exit code `code`; `reason` is its worker's, if any."""
        self.progress = cell_progress(self.watched)
        self.starts = self.read_log().count(STARTED.encode())
        if code == 0:
            self.state, self.progress = "done", CellProgress(finished=True)
        elif code == INTERRUPTED:
            self.state = "interrupted"
        else:
            self.state, self.error = "failed", reason or self._last_words(code)

    def _last_words(self, code: int) -> str:
        if code < 0:
            return f"killed by signal {-code} repeatedly; too little memory?"
        lines = self.read_log().decode(errors="replace").splitlines()
        # The command's own one-line error beats whatever else was printed last.
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        said = [line.strip() for line in lines if line.strip() and not line.startswith(STARTED)]
        return [f"exit code {code}", *said[-1:], *errors[:1]][-1]


class Sweep:
    """All cells of a grid in one output folder; `run` works on the unfinished ones."""

    def __init__(
        self, cells: Sequence[Cell], batches: Sequence[Batch], output: Path, wants: CellResources
    ) -> None:
        self.output = output.resolve()
        self.wants = wants
        self._cells = {cell.name: cell for cell in cells}
        self._batches = {batch.name: batch for batch in batches}
        self._batch_of = {name: batch for batch in batches for name in batch.cells}
        self.cells = {
            name: Status.of(name, self.output / name, self.output / name) for name in self._cells
        }
        self.batches = {
            name: Status.of(name, batch.folder, batch.folder / next(iter(batch.members)))
            for name, batch in self._batches.items()
        }

    @property
    def statuses(self) -> list[Status]:
        """The states of all batches, then of all cells."""
        return [*self.batches.values(), *self.cells.values()]

    def run(self, pool: JobPool, changed: Callable[[Sweep], None]) -> None:
        """Work until every cell is done or has failed; call `changed` about every second.

        An interrupt interrupts all jobs; what they have saved is kept.
        """
        self._write_recipes()
        left = self._begin(pool)
        try:
            changed(self)
            while left:
                for job, code, reason in pool.wait(_POLL_SECONDS):
                    left += self._ended(pool, job, code, reason) - 1
                for status in self.statuses:
                    if status.state in ("waiting", "interrupted", "running"):
                        status.look()
                changed(self)
        # Also for Ctrl-C and SystemExit, which are no Exceptions.
        except BaseException:
            pool.stop()
            raise
        if all(status.state == "done" for status in self.cells.values()):
            drop_memories(self.output, self.output / _RECIPES)

    def _write_recipes(self) -> None:
        # Temporary files of processes that were killed while they wrote; nobody else is at work
        # here now.
        remove_leftovers(self._games)
        # Workers may be on other machines: they find their recipes where the runs are.
        (self.output / _RECIPES).mkdir(exist_ok=True)
        for name, cell in self._cells.items():
            write_text(self._recipe_file(name), cell.recipe.to_yaml())
        for batch in self._batches.values():
            batch.write_recipes()

    @property
    def _games(self) -> Path:
        return self.output / SHARED_FOLDER / "games"

    def _recipe_file(self, name: str) -> Path:
        return self.output / _RECIPES / f"{name}.yaml"

    def _begin(self, pool: JobPool) -> int:
        """Queue what can begin at once; return the number of jobs."""
        count = 0
        for name, batch in self._batches.items():
            if batch.is_distilled():
                self.batches[name].state = "done"
                count += self._submit_cells(pool, batch)
            else:
                pool.submit(self._job(self.batches[name], "sweep-group", str(batch.folder)))
                count += 1
        for name, status in self.cells.items():
            if status.state != "done" and name not in self._batch_of:
                count += self._submit_cell(pool, name)
        return count

    def _submit_cells(self, pool: JobPool, batch: Batch) -> int:
        return sum(self._submit_cell(pool, name) for name in batch.cells)

    def _submit_cell(self, pool: JobPool, name: str) -> int:
        status, batch = self.cells[name], self._batch_of.get(name)
        arguments = [str(self._recipe_file(name)), "-o", str(status.folder)]
        arguments += ["--games", str(self._games)]
        if batch is not None:
            member = batch.folder / batch.cells[name]
            arguments += ["--distilled", str(member), "--memory", str(batch.stream)]
        pool.submit(self._job(status, "sweep-cell", *arguments))
        return 1

    def _job(self, status: Status, *arguments: str) -> Job:
        # Recipes may name files relative to where the sweep was started.
        here, wants = Path.cwd(), self.wants
        return Job(status.name, arguments, status.watched, status.log, here, wants.cpus, wants.gpus)

    def _ended(self, pool: JobPool, job: Job, code: int, reason: str) -> int:
        """Record the end of a job and queue what it made possible; return the number queued."""
        if job.name in self.cells:
            self.cells[job.name].end(code, reason)
            self._drop_memory_if_last(job.name)
            return 0
        status, batch = self.batches[job.name], self._batches[job.name]
        status.end(code, reason)
        if status.state == "done":
            return self._submit_cells(pool, batch)
        # Without their distilled student the cells of a batch cannot begin: they share its fate.
        for name in batch.cells:
            self.cells[name].state = status.state
            self.cells[name].error = status.error
        return 0

    def _drop_memory_if_last(self, name: str) -> None:
        batch = self._batch_of.get(name)
        if batch is None or any(self.cells[n].state != "done" for n in batch.cells):
            return
        if batch.key not in needed_keys(self.output, self.output / _RECIPES):
            batch.drop_memory()


@contextmanager
def open_output(output: Path) -> Iterator[Path]:
    """Create the sweep's folder and lock other sweeps out; RecipeError if that fails."""
    if (output / "manifest.json").exists():
        raise RecipeError(
            [f"{output}: is a run directory; a sweep needs a folder of its own"],
            ErrorCode.OUTPUT_TAKEN,
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecipeError(
            [f"{output}: cannot be made: {error.strerror}"], ErrorCode.RUN_UNWRITABLE
        ) from error
    try:
        with FileLock(output / ".sweep.lock", timeout=0):
            yield output
    except Timeout:
        raise RecipeError(
            [f"{output}: another sweep is working in it"], ErrorCode.RUN_IN_USE
        ) from None
