"""Seconds until `qpd` answers, beside what Python and PyTorch take by themselves.

    python -m benchmarks.distillation.start_up --rounds 9

Programs take turns, so that a busy moment hits all of them; the median counts. The first round
fills the disk cache and does not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from statistics import median

_QPD = [sys.executable, "-m", "qpd.cli"]
PROGRAMS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    'python -c "import torch"': [sys.executable, "-c", "import torch"],
    "qpd --help": [*_QPD, "--help"],
    "qpd recipes": [*_QPD, "recipes"],
    "qpd teacher info --episodes 0": [*_QPD, "teacher", "info", "embedded", "--episodes", "0"],
}


def measure(rounds: int) -> dict[str, float]:
    """Return the median wall-clock seconds of each program."""
    seconds: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for number in range(rounds + 1):
        for name, command in PROGRAMS.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            if number:
                seconds[name].append(time.perf_counter() - began)
    return {name: median(values) for name, values in seconds.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    found = measure(parser.parse_args().rounds)
    torch = found['python -c "import torch"']
    print("| program | median s | of import torch |\n|---|--:|--:|")
    for name, value in found.items():
        print(f"| `{name}` | {value:.2f} | {value / torch:.2f} |")


if __name__ == "__main__":
    main()
