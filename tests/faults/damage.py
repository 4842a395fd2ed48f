"""Files of a run directory that are damaged between two processes: noticed, or without effect."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.faults.experiment import Experiment, outcome, place
from tests.faults.processes import Starter, run_to_end

Damage = Callable[[Path, np.random.Generator], None]


def _flip(path: Path, rng: np.random.Generator) -> None:
    data = bytearray(path.read_bytes())
    data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)


def _flip_near_the_start(path: Path, rng: np.random.Generator) -> None:
    data = bytearray(path.read_bytes())
    data[int(rng.integers(min(64, len(data))))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)


def _append(path: Path, rng: np.random.Generator) -> None:
    with path.open("ab") as file:
        file.write(rng.bytes(37))


def _overwrite(path: Path, rng: np.random.Generator) -> None:
    data = path.read_bytes()
    path.write_bytes(rng.bytes(len(data)))


DAMAGES: dict[str, Damage] = {
    "bit flipped": _flip,
    "bit flipped in the first 64 bytes": _flip_near_the_start,
    "emptied": lambda path, rng: path.write_bytes(b"") and None,
    "cut to half": lambda path, rng: (
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]) and None
    ),
    "deleted": lambda path, rng: path.unlink(),
    "garbage appended": _append,
    "overwritten": _overwrite,
}


@dataclass
class DamageTally:
    """Outcomes by (state, file), as (same numbers, refused), and what was not as it should be."""

    same: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    messages: dict[tuple[str, str], str] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)


def files_of(snapshot: Path) -> Iterator[Path]:
    """Every file of a run directory, relative to it."""
    for file in sorted(snapshot.rglob("*")):
        if file.is_file():
            yield file.relative_to(snapshot)


def damage_and_resume(
    experiment: Experiment,
    snapshot: Path,
    file: Path,
    damage: str,
    starter: Starter,
    rng: np.random.Generator,
    tally: DamageTally,
) -> None:
    """Damage `file` in a copy of `snapshot` and go on: the same numbers, or one line that helps."""
    path = experiment.whole.parent / "damaged"
    _copy(snapshot, path)
    if (path / file).stat().st_size == 0 and damage != "deleted":
        damage = "garbage appended"
    DAMAGES[damage](path / file, rng)
    key = (place(snapshot), file.name if file.parts[0] != "tensorboard" else "tensorboard/")
    problem, message = _resume(experiment, path, starter)
    if problem:
        tally.findings.append(f"{key}: {damage}: {problem}")
    elif message is None:
        tally.same[key] += 1
    else:
        tally.refused[key] += 1
        tally.messages[key] = message
        _copy(snapshot, path)  # "put a copy of it back"
        problem = _resume(experiment, path, starter) != ("", None) and "a copy put back: not well"
        _copy(snapshot, path)
        DAMAGES[damage](path / file, rng)
        problem = problem or follow(message, experiment, path, starter)
        if problem:
            tally.findings.append(f"{key}: {damage}: {message}: {problem}")


def _resume(experiment: Experiment, path: Path, starter: Starter) -> tuple[str, str | None]:
    """Return what is wrong ('' if nothing), and the line that refused the run, if one did."""
    log = path.with_suffix(".log")
    code, errors = run_to_end(starter, ["run", experiment.recipe_file, "-o", path], log)
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    if "Traceback" in errors or code not in (0, 2) or len(lines) != (code == 2):
        return f"exit code {code}: {errors}", None
    if code == 2:
        return "", lines[0]
    return ("" if outcome(path) == outcome(experiment.whole) else "other numbers"), None


def follow(message: str, experiment: Experiment, path: Path, starter: Starter) -> str:
    """Do as the message says (but for copies); what went wrong, '' if nothing."""
    log = path.with_suffix(".log")
    folder = re.search(r"delete the folder (\S+)", message)
    if folder is not None:
        shutil.rmtree(folder[1])
    if "choose a new folder" in message:
        shutil.rmtree(path)
    commands = re.findall(r"`qpd (quantize|finetune) ([^`]*)`", message)
    if not commands:
        advised = folder is not None or "choose a new folder" in message
        problem, again = _resume(experiment, path, starter)
        return problem or (again or "") if advised else "no advice that can be followed"
    new = path.with_name("new")
    shutil.rmtree(new, ignore_errors=True)
    for command, rest in commands:
        arguments = [command, *rest.replace("NEW", str(new)).split()]
        code, errors = run_to_end(starter, arguments, log)
        if code != 0 or "Traceback" in errors:
            return f"qpd {' '.join(arguments)}: exit code {code}: {errors}"
    return "" if place(new) == "evaluate" else f"{new} is not finetuned"


def _copy(snapshot: Path, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(snapshot, path)
