"""QuaRL's claims 9 and 10, on mixed precision and on deployment: what two benchmarks measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qpd.analysis.paper.judged_claims import Found
from qpd.analysis.paper.verdict import Verdict
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError
from qpd.evaluation.games import bootstrap_interval
from qpd.files.json_input import read_json

NAVIGATION, MIXED_PRECISION = "navigation.json", "mixed_precision.json"


@dataclass(frozen=True)
class BenchmarkResults:
    """Hold navigation policies by name; an update's times by policy; returns of trainings by seed.

    `trainings[seed]["fp32"]` and `["bf16"]` are returns of games with the same starts.
    """

    navigation: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    updates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    trainings: Mapping[str, Mapping[str, list[float]]] = field(default_factory=dict)


def read_benchmarks(folder: Path | None) -> BenchmarkResults:
    """Read navigation.json and mixed_precision.json of a folder, either or both.

    Raises TargetError where neither is there, or a file is something else.
    """
    if folder is None:
        return BenchmarkResults()
    navigation = _read(folder / NAVIGATION, "benchmarks.device.navigation", _deployed_line)
    mixed = _read(folder / MIXED_PRECISION, "benchmarks.precision.mixed_precision", _sizes)
    if not navigation and not mixed:
        raise TargetError(
            f"{folder}: holds neither {NAVIGATION} nor {MIXED_PRECISION}; they are written by "
            "`python -m benchmarks.device.navigation AGENT --results FILE` and the like",
            ErrorCode.RUN_NOT_A_RUN,
        )
    trainings = {
        seed: games
        for seed, games in mixed.get("trainings", {}).items()
        if "fp32" in games and "bf16" in games  # else it is still being trained
    }
    return BenchmarkResults(navigation, mixed.get("updates", {}), trainings)


def mixed_precision_gains(results: BenchmarkResults) -> Found:
    """Tell how much faster updates are by size, and how trainings of both kinds end."""
    updates = results.updates
    if not updates:
        return Found(
            "needs --benchmarks: python -m benchmarks.precision.mixed_precision --results FILE"
        )
    said = "an update in bf16 on a CPU: " + ", ".join(
        f"{name} ({each['parameters'] / 1e6:.1f} M) {each['speedup']:.2f}x"
        for name, each in updates.items()
    )
    ends = [
        f"{np.mean(games['fp32']):.1f} and {np.mean(games['bf16']):.1f} ({_change(games)})"
        for games in results.trainings.values()
    ]
    said += "; PPO on Pong in fp32 and bf16: " + ", ".join(ends) if ends else ""
    # The paper's fp16 runs on a GPU, and its policies A, B and C learn to the end.
    return Found(f"{said}; A, B and C were not trained", verdict=Verdict.undecided)


def integers_deployed(results: BenchmarkResults) -> Found:
    """Tell what 8-bit integers gain over float32 in C, by policy."""
    if not results.navigation:
        return Found(
            "needs --benchmarks: python -m benchmarks.device.navigation AGENT --results FILE"
        )
    lines = [_deployed_line(each) for each in results.navigation.values()]
    # A Pi's memory and its processor are not here.
    return Found("; ".join(lines) + "; no Pi was measured", verdict=Verdict.undecided)


def _deployed_line(row: Mapping[str, Any]) -> str:
    size, us = row["bytes"][0] / row["bytes"][1], row["latency_us"][0] / row["latency_us"][1]
    change, low, high = (100 * each for each in row["success_difference"])
    return (
        f"{row['policy']} on {row['machine']} {us:.1f}x faster, {size:.1f}x smaller, "
        f"{change:+.1f} [{low:.1f}, {high:.1f}] points of success"
    )


def _sizes(part: Mapping[str, Mapping[str, Any]]) -> None:
    for each in part.values():
        if "speedup" in each:
            float(each["parameters"]), float(each["speedup"])
        elif "fp32" in each and "bf16" in each:
            _change(each)


def _change(games: Mapping[str, list[float]]) -> str:
    change = np.subtract(games["bf16"], games["fp32"])
    if not len(change):
        raise ValueError("no games")
    low, high = bootstrap_interval(change)
    return f"{change.mean():+.1f} [{low:.1f}, {high:.1f}]"


def _read(file: Path, by: str, check: Callable[[Any], object]) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        content = dict(read_json(file))
        for each in content.values():
            check(each)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise TargetError(
            f"{file}: is no result of `python -m {by}`", ErrorCode.RUN_DAMAGED
        ) from error
    return content
