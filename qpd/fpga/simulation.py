"""The core in Verilator, on observations of real play, against the integer engine."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qpd.actions import ActionSpace
from qpd.environments.policy import Policy
from qpd.export.systemverilog.code import SOURCES
from qpd.fpga.tools import FpgaError, run_tool
from qpd.runs.progress import Progress
from qpd.runs.target import Target, play

_BENCH = (
    "--binary", "-Wno-fatal", "--top-module", "qpd_test", "-O3",
    "qpd_golden.sv", *SOURCES, "qpd_test.sv",
)  # fmt: skip
GAMES = 10  # at a time, until there are enough observations


class _Recorder:
    """A policy that keeps every observation it is asked about."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.seen: list[np.ndarray] = []

    @property
    def actions(self) -> ActionSpace:
        return self._policy.actions

    def __call__(self, observations: np.ndarray, /) -> np.ndarray:
        self.seen.append(np.array(observations, np.float32))
        return self._policy(observations)


def played_observations(target: Target, count: int, progress: Progress) -> np.ndarray:
    """Return `count` observations of a student's own games, in order, float32 `[count, features]`.

    Raises TargetError where its environment cannot be made.
    """
    recorder = _Recorder(target.policy)
    recording, seed = replace(target, policy=recorder), target.seed
    while sum(map(len, recorder.seen)) < count:
        play(recording, progress, episodes=GAMES, seed=seed)
        seed += 1
    return np.concatenate(recorder.seen)[:count]


@dataclass(frozen=True)
class Clocks:
    """From the first feature to the last output, and from the last level to all accumulators."""

    all: int
    layers: int


def simulate(folder: Path) -> Clocks:
    """Play the golden vectors in `folder` (an export) in Verilator; return the clocks of one.

    Raises FpgaError where any output differs from the engine's.
    """
    run_tool("verilator", _BENCH, folder)
    said = run_tool(str(folder.resolve() / "obj_dir" / "Vqpd_test"), (), folder)
    found = re.search(r"PASS: \d+ vectors, (\d+) clocks each, (\d+) of them", said)
    if found is None:
        raise FpgaError(f"the simulation did not end: {said.strip()[-200:]}")
    return Clocks(int(found[1]), int(found[2]))
