"""A disk that fills up or turns read-only while a run writes on it; then it is mended."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.experiment import Experiment, outcome
from tests.faults.kills import wait_for
from tests.faults.processes import Starter, run_to_end, wait


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of this size at `folder`. Raises PermissionError where mounting is not permitted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        folder.rmdir()
        raise PermissionError(done.stderr.strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def fill_disk(
    experiment: Experiment, disk: Path, phase: str, delay: float, starter: Starter
) -> str:
    """Fill the disk while a run is in `phase`, make room again, resume; what is wrong, or ''."""
    path, log = disk / "run", disk.with_suffix(".log")
    shutil.rmtree(path, ignore_errors=True)
    process = starter.start(["run", experiment.recipe_file, "-o", path], log)
    wait_for(path, process, phase)
    time.sleep(delay)
    filler = disk / "filler"
    _write_until_full(filler)
    code, errors = wait(process), process.errors()
    filler.unlink()
    if code != 0:  # it may have needed no more space
        problem = _refusal_problem(code, errors, "No space left on device", disk)
        if problem:
            return problem
    return _resumed_problem(experiment, path, starter, log)


def forbid_writing(
    experiment: Experiment, folder: Path, phase: str, delay: float, starter: Starter
) -> str:
    """Take the write permission away while a user's run is in `phase`; what is wrong, or ''.

    The starter's runs must be stopped by that, as root's are not.
    """
    folder.mkdir()
    path, log = folder / "run", folder.with_suffix(".log")
    process = starter.start(["run", experiment.recipe_file, "-o", path], log)
    wait_for(path, process, phase)
    time.sleep(delay)
    folders = [path, *(item for item in path.rglob("*") if item.is_dir())]
    assert path.is_dir(), process.errors()
    for item in folders:
        item.chmod(0o555)
    code, errors = wait(process), process.errors()
    problem = "" if code == 0 else _refusal_problem(code, errors, "Permission denied", folder)
    again, errors = run_to_end(starter, ["run", experiment.recipe_file, "-o", path], log)
    if again != 0:
        problem = problem or _refusal_problem(again, errors, "Permission denied", folder)
    for item in folders:
        if item.exists():
            item.chmod(0o755)
    return problem or _resumed_problem(experiment, path, starter, log)


def remount_read_only(experiment: Experiment, disk: Path, phase: str, starter: Starter) -> str:
    """Kill a run in `phase`, mount its disk read-only, try, mount it for writing, resume."""
    import signal

    path, log = disk / "run", disk.with_suffix(".log")
    shutil.rmtree(path, ignore_errors=True)
    process = starter.start(["run", experiment.recipe_file, "-o", path], log)
    wait_for(path, process, phase)
    process.send(signal.SIGKILL)
    wait(process)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    try:
        code, errors = run_to_end(starter, ["run", experiment.recipe_file, "-o", path], log)
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    problem = _refusal_problem(code, errors, "Read-only file system", disk)
    return problem or _resumed_problem(experiment, path, starter, log)


def _refusal_problem(code: int, errors: str, reason: str, folder: Path) -> str:
    """'' if stderr ends with one line that names a file below `folder` and the reason."""
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    named = re.escape(str(folder)) + r"/\S+: .*" + re.escape(reason)
    if code == 2 and "Traceback" not in errors and len(lines) == 1 and re.search(named, lines[0]):
        return ""
    return f"exit code {code}: {errors}"


def _resumed_problem(experiment: Experiment, path: Path, starter: Starter, log: Path) -> str:
    code, errors = run_to_end(starter, ["run", experiment.recipe_file, "-o", path], log)
    if code != 0 or "Traceback" in errors:
        return f"not resumed, exit code {code}: {errors}"
    return "" if outcome(path) == outcome(experiment.whole) else "resumed to other numbers"


def _write_until_full(filler: Path) -> None:
    block = b"x" * 4096
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(block)
        except OSError:
            return
