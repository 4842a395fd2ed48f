"""kill -9 at a random time of every command that writes; then the same command again.

Afterwards it has ended well, nothing half-written or hidden is left, and what it made equals what
an undisturbed one makes.
"""

from __future__ import annotations

import csv
import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.faults.experiment import STUDENTS
from tests.faults.processes import ForkStarter, PlainStarter, Starter, run_to_end, wait
from tests.tiny_run import recipe_of

TAKEN = "[Q604]"  # a new folder that is complete already
_ALLOWED_HIDDEN = {".lock"}

Outcome = Callable[[Path], Any]


@dataclass(frozen=True)
class Command:
    """A command line; `{}` is the folder it works in. `outcome` is what no kill may change.

    `is_new` where the output must be a new folder: a repetition may find it complete.
    """

    line: str
    outcome: Outcome
    is_new: bool = False
    own_process: bool = False  # Ray does not live in a fork

    def arguments(self, folder: Path) -> list[str]:
        """The words, for this folder."""
        return [word.replace("{}", str(folder)) for word in self.line.split()]


def run_of(name: str) -> Outcome:
    """Students byte for byte; metrics and evaluations but for times."""

    def outcome(folder: Path) -> Any:
        path = folder / name
        manifest = json.loads((path / "manifest.json").read_bytes())
        rows: list[dict[str, str]] = []
        if (path / "metrics.csv").is_file():
            with (path / "metrics.csv").open() as file:
                rows = [{**row, "samples_per_second": ""} for row in csv.DictReader(file)]
        timeless = {
            policy: {**result, "seconds": None, "date": None}
            for policy, result in manifest["evaluations"].items()
        }
        states = {phase: record["state"] for phase, record in manifest["phases"].items()}
        students = {file: (path / file).read_bytes() for file in STUDENTS if (path / file).exists()}
        return rows, timeless, states, students

    return outcome


def files_of(name: str, *, bytes_too: bool) -> Outcome:
    """The files of a folder, and what is in them where that does not depend on the time."""

    def outcome(folder: Path) -> Any:
        path = folder / name
        files = sorted(file for file in path.rglob("*") if file.is_file())
        assert all(file.stat().st_size for file in files), files
        return {
            str(file.relative_to(path)): file.read_bytes() if bytes_too else None for file in files
        }

    return outcome


def _device_rows(folder: Path) -> Any:
    rows = json.loads((folder / "device.json").read_bytes())["rows"]
    return [(row["model"], row["runtime"], row["status"]) for row in rows]


def _sweep(folder: Path) -> Any:
    return [run_of(f"sweep/{cell}")(folder) for cell in _cells(folder)]


def _cells(folder: Path) -> list[str]:
    manifests = sorted((folder / "sweep").rglob("manifest.json"))
    found = [str(file.parent.relative_to(folder / "sweep")) for file in manifests]
    assert found
    return found


FINISHED, DISTILLED, QUANTIZED = "finished", "distilled", "quantized"
COMMANDS = {
    "run": Command("run {}/recipe.yaml -o {}/new", run_of("new")),
    "distill": Command("distill {}/recipe.yaml -o {}/new", run_of("new")),
    "quantize": Command("quantize {}/distilled", run_of(DISTILLED)),
    "quantize -o": Command(
        "quantize {}/distilled -o {}/new --set quantize.weight_bits=3", run_of("new")
    ),
    "quantize -o without a memory": Command("quantize {}/finished -o {}/new", run_of("new")),
    "finetune": Command("finetune {}/quantized --set finetune.epochs=6", run_of(QUANTIZED)),
    "evaluate": Command("evaluate {}/quantized", run_of(QUANTIZED)),
    "export c": Command("export {}/finished --format c", run_of(FINISHED)),
    "export c -o": Command(
        "export {}/finished --format c -o {}/new", files_of("new", bytes_too=True)
    ),
    "export onnx": Command(
        "export {}/finished --format onnx -o {}/new", files_of("new", bytes_too=True)
    ),
    "export litert": Command(
        "export {}/finished --format litert -o {}/new", files_of("new", bytes_too=True)
    ),
    "export sb3": Command(
        "export {}/finished --format sb3 -o {}/new", files_of("new", bytes_too=False)
    ),
    "report": Command(
        "report {}/finished --no-umap --no-video", files_of("finished/report", bytes_too=False)
    ),
    "push": Command(
        "push {}/finished me/x --dry-run -o {}/new --formats c,sb3",
        files_of("new", bytes_too=False),
        is_new=True,
    ),
    "teacher card": Command(
        "teacher card {}/agent.zip -o {}/new --episodes 20 --half --env CartPole-v1",
        files_of("new", bytes_too=False),
        is_new=True,
    ),
    "bench": Command(
        "bench {}/finished --runtimes torch --rounds 1 --seconds 0.01 -o {}/device.json",
        _device_rows,
    ),
    "sweep": Command("sweep {}/grid.yaml -o {}/sweep", _sweep, own_process=True),
}
SLOW = ("sweep",)  # one kill of theirs for ten of each other


@dataclass
class CommandTally:
    """Kills by command, and everything that was not as it should be."""

    kills: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


class CommandKills:
    """A folder with all that the commands need; each kill works in a copy of it."""

    def __init__(self, folder: Path, teacher: Path, forked: ForkStarter) -> None:
        self.folder, self._forked, self._plain = folder, forked, PlainStarter()
        self._template = folder / "template"
        self._template.mkdir(parents=True)
        shutil.copyfile(teacher, self._template / "agent.zip")
        recipe = recipe_of(teacher, evaluation={"episodes": 20})
        text = yaml.safe_dump(recipe.model_dump(mode="json"))
        (self._template / "recipe.yaml").write_text(text)
        (self._template / "grid.yaml").write_text(
            f"base: {folder / 'template' / 'recipe.yaml'}\naxes: {{seed: [0, 1]}}\n"
        )
        for line in (
            "run {}/recipe.yaml -o {}/finished",
            "distill {}/recipe.yaml -o {}/distilled",
            "distill {}/recipe.yaml -o {}/quantized",
            "quantize {}/quantized",
        ):
            self._to_end(Command(line, lambda _: None), self._template)
        self._wanted: dict[str, tuple[float, Any]] = {}
        self._usual_hidden: set[str] = set()

    def kill(self, name: str, rng: np.random.Generator, tally: CommandTally) -> None:
        """Start the command, kill it at a random time (sometimes twice), and let it end."""
        command = COMMANDS[name]
        seconds, wanted = self._undisturbed(name)
        folder = self._copy("killed")
        for _ in range(int(rng.integers(1, 3))):
            process = self._starter(command).start(command.arguments(folder), self._log)
            time.sleep(float(rng.uniform(0.0, 1.05 * seconds)))
            if process.poll() is None:
                process.send(signal.SIGKILL)
                tally.kills[name] += 1
            wait(process)
        problem = self._repeated(command, folder, wanted)
        if problem:
            tally.findings.append(f"{name}: {problem}")
            kept = self.folder / f"finding-{len(tally.findings)}"
            shutil.copytree(folder, kept, symlinks=True)

    def _repeated(self, command: Command, folder: Path, wanted: Any) -> str:
        """Say what is wrong after the same command again, '' if nothing."""
        code, errors = run_to_end(self._starter(command), command.arguments(folder), self._log)
        is_taken = command.is_new and code == 2 and TAKEN in errors
        if "Traceback" in errors or (code != 0 and not is_taken):
            return f"exit code {code}: {errors}"
        try:
            if command.outcome(folder) != wanted:
                return "another outcome"
        except (OSError, ValueError, KeyError, AssertionError) as error:
            return f"half an outcome: {error!r}"
        # A refused command has written nothing, so what a killed one left is there still.
        hidden = [] if is_taken else sorted({*hidden_files(folder)} - self._usual_hidden)
        return f"left behind: {hidden}" if hidden else ""

    def _undisturbed(self, name: str) -> tuple[float, Any]:
        """Seconds and outcome of the command; measured once."""
        if name not in self._wanted:
            command, folder = COMMANDS[name], self._copy("whole")
            began = time.monotonic()
            self._to_end(command, folder)
            self._wanted[name] = time.monotonic() - began, command.outcome(folder)
            hidden = hidden_files(folder)
            assert hidden == [] or name == "sweep", hidden
            self._usual_hidden |= set(hidden)  # a sweep's own folder
        return self._wanted[name]

    def _to_end(self, command: Command, folder: Path) -> None:
        code, errors = run_to_end(self._starter(command), command.arguments(folder), self._log)
        assert code == 0, (command.line, errors)

    def _starter(self, command: Command) -> Starter:
        return self._plain if command.own_process else self._forked

    @property
    def _log(self) -> Path:
        return self.folder / "stderr.log"

    def _copy(self, name: str) -> Path:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return Path(shutil.copytree(self._template, self.folder / name))


def hidden_files(folder: Path) -> list[str]:
    """List files that a user would not see, locks apart."""
    found = [path for path in folder.rglob(".*") if path.name not in _ALLOWED_HIDDEN]
    return sorted(str(path.relative_to(folder)) for path in found)


def kill_commands(
    work: CommandKills, kills: int, rng: np.random.Generator, tally: CommandTally
) -> None:
    """Kill the commands in turn until there were so many kills."""
    turn = 0
    while tally.kills.total() < kills:
        for name in COMMANDS:
            if (name not in SLOW or turn % 10 == 9) and tally.kills.total() < kills:
                work.kill(name, rng, tally)
        turn += 1
