"""Count how often the 95% interval of a mean return covers the truth, by numbers of games.

python -m benchmarks.statistics.interval_coverage \
    runs-reference/breakout-ppo-{s,xxs,xxs-4bit,6kb,2kb}

Games are drawn from those that a run recorded, whose mean is the truth. Beside the interval that
QPD prints stand the percentile interval and Student's t.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from qpd.evaluation.games import bootstrap_interval
from qpd.evaluation.studentized import student_t_quantile
from qpd.runs.run_directory import RunDirectory

SAMPLES, RESAMPLES = 1000, 1000
COUNTS = (16, 30, 100)


def covered(returns: np.ndarray, games: int, rng: np.random.Generator) -> np.ndarray:
    """Return the shares of samples of `games` whose interval covers, for the three methods."""
    truth, found = returns.mean(), np.zeros(3)
    far = student_t_quantile(0.975, games - 1.0)
    for seed in range(SAMPLES):
        drawn = rng.choice(returns, games)
        means = drawn[rng.integers(games, size=(RESAMPLES, games))].mean(axis=1)
        half = far * drawn.std(ddof=1) / np.sqrt(games)
        ends = [
            bootstrap_interval(drawn, resamples=RESAMPLES, seed=seed),
            tuple(np.quantile(means, [0.025, 0.975])),
            (drawn.mean() - half, drawn.mean() + half),
        ]
        found += [low <= truth <= high for low, high in ends]
    return found / SAMPLES


def main() -> None:
    """Print a row for each run and number of games."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    parser.add_argument("--policy", default="qat", help="teacher, distilled, ptq or qat")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    print("run                             games  ours   percentile  Student's t")
    rows: dict[int, list[np.ndarray]] = {count: [] for count in COUNTS}
    for path in arguments.runs:
        evaluations = RunDirectory.open(path, read_only=True).manifest.evaluations
        returns = np.array(evaluations[arguments.policy]["returns"], dtype=float)
        for count in COUNTS:
            rows[count].append(covered(returns, count, rng))
            _print(path.name, count, rows[count][-1])
    for count in COUNTS:
        _print("mean", count, np.mean(rows[count], axis=0))


def _print(name: str, games: int, shares: np.ndarray) -> None:
    ours, percentile, student = shares
    print(f"{name:30s}  {games:5d}  {ours:.3f}  {percentile:.3f}       {student:.3f}")


if __name__ == "__main__":
    main()
