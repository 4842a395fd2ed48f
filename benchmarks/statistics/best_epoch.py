"""Measure what choosing the best of many epochs adds to a return, without any skill.

python -m benchmarks.statistics.best_epoch \
    runs-reference/breakout-ppo-s runs-reference/breakout-ppo-xxs

The paper validates each of 600 epochs by 50 games and reports the best epoch's own games. Here
every epoch is the same student: its 50 games are drawn from the games that the run recorded, whose
mean is the truth. What the best mean exceeds it by is selection alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from qpd.runs.run_directory import RunDirectory

EPOCHS, GAMES, REPETITIONS = 600, 50, 200


def best_of_epochs(
    returns: np.ndarray,
    epochs: int = EPOCHS,
    games: int = GAMES,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> np.ndarray:
    """Return the best mean of `epochs` draws of `games` from `returns`, float `[repetitions]`."""
    rng = np.random.default_rng(seed)
    best = np.empty(repetitions)
    for place in range(repetitions):
        best[place] = returns[rng.integers(len(returns), size=(epochs, games))].mean(axis=1).max()
    return best


def recorded_returns(path: Path, policy: str) -> np.ndarray | None:
    """Return the games of a run's policy, or of a printed evaluation; None if there are none."""
    if path.is_file():
        return np.array(json.loads(path.read_text())["return"]["returns"], dtype=float)
    found = RunDirectory.open(path, read_only=True).manifest.evaluations
    return np.array(found[policy]["returns"], dtype=float) if policy in found else None


def main() -> None:
    """Print a row for each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "runs", nargs="+", type=Path, help="run directories, or what `qpd evaluate --json` printed"
    )
    parser.add_argument("--policy", default="qat", help="teacher, distilled, ptq or qat")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--games", type=int, default=GAMES, help="validation games of an epoch")
    arguments = parser.parse_args()
    print(f"the best of {arguments.epochs} epochs of {arguments.games} games, without any progress")
    print("run                             games  mean return  best epoch's own (2.5% to 97.5%)")
    for path in arguments.runs:
        returns = recorded_returns(path, arguments.policy)
        if returns is None:
            print(f"{path.name:30s}  {arguments.policy}: not evaluated")
            continue
        best = best_of_epochs(returns, arguments.epochs, arguments.games)
        low, high = np.quantile(best, [0.025, 0.975])
        print(
            f"{path.name:30s}  {len(returns):5d}  {returns.mean():11.1f}  "
            f"{best.mean():.1f} ({low:.1f} to {high:.1f})"
        )


if __name__ == "__main__":
    main()
