"""Signals at random moments of every phase; afterwards the run ends with the same numbers."""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.faults.experiment import PLACES, Experiment, outcome, place
from tests.faults.processes import Process, Starter, run_to_end, wait

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# What a signal that is handled makes of a process; a bare -15 or -2 is a death before qpd's main.
CODES = {signal.SIGKILL: {-9}, signal.SIGTERM: {143, -15}, signal.SIGINT: {130, -2}}


@dataclass
class Tally:
    """Kills by (place, signal, starter), and everything that was not as it should be."""

    kills: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Count the processes that were killed."""
        return sum(self.kills.values())


def undisturbed(experiment: Experiment, starter: Starter) -> dict[str, float]:
    """Run the experiment through; seconds spent in each place."""
    log = experiment.whole.with_suffix(".log")
    process = starter.start(["run", experiment.recipe_file, "-o", experiment.whole], log)
    seconds = dict.fromkeys(PLACES, 0.0)
    before = time.monotonic()
    while process.poll() is None:
        time.sleep(0.005)
        now = time.monotonic()
        seconds[place(experiment.whole)] += now - before
        before = now
    assert wait(process) == 0, process.errors()
    return seconds


def kill_one_run(
    experiment: Experiment,
    starters: list[Starter],
    seconds: dict[str, float],
    rng: np.random.Generator,
    tally: Tally,
    kills_per_place: int,
) -> None:
    """One run directory, killed some times in each place, then let to its end and compared."""
    path = experiment.whole.parent / "killed"
    shutil.rmtree(path, ignore_errors=True)
    for target in PLACES[:-1]:
        for _ in range(kills_per_place):
            starter = starters[int(rng.integers(len(starters)))]
            number = SIGNALS[int(rng.integers(len(SIGNALS)))]
            delay = float(rng.uniform(0.0, 0.01 + 0.8 * seconds[target]))
            _kill(experiment, path, starter, target, number, delay, tally)
    log = path.with_suffix(".log")
    code, errors = run_to_end(starters[0], ["run", experiment.recipe_file, "-o", path], log)
    if code != 0 or "Traceback" in errors:
        tally.findings.append(f"not resumed, exit code {code}: {errors}")
    elif outcome(path) != outcome(experiment.whole):
        tally.findings.append("resumed to other numbers")
        shutil.copytree(path, path.with_name(f"other-{len(tally.findings)}"))


def _kill(
    experiment: Experiment,
    path: Path,
    starter: Starter,
    target: str,
    number: signal.Signals,
    delay: float,
    tally: Tally,
) -> None:
    """Start the run, and send the signal some seconds after it came to the target itself."""
    before = _manifest_version(path)
    process = starter.start(["run", experiment.recipe_file, "-o", path], path.with_suffix(".log"))
    while target != "start" and process.poll() is None and _manifest_version(path) == before:
        time.sleep(0.002)  # every process begins by writing the manifest
    wait_for(path, process, target)
    time.sleep(delay)
    if process.poll() is not None:  # it was faster
        if process.poll() != 0:
            tally.findings.append(f"ended alone, code {process.poll()}: {process.errors()}")
        return
    process.send(number)
    code = wait(process)
    if code == 0:  # as good as done
        return
    landed = place(path)
    tally.kills[landed, number.name, starter.name] += 1
    if code not in CODES[number] or "Traceback" in process.errors():
        tally.findings.append(
            f"{number.name} in {landed} ({starter.name}), exit code {code}: {process.errors()}"
        )


def _manifest_version(path: Path) -> int:
    file = path / "manifest.json"
    return file.stat().st_mtime_ns if file.exists() else 0


def wait_for(path: Path, process: Process, target: str) -> None:
    """Until the run is at the target or past it, or the process has ended."""
    while process.poll() is None and PLACES.index(place(path)) < PLACES.index(target):
        time.sleep(0.002)
