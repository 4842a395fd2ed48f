"""Rounding float32 to formats, beside the baseline, `x.half().float()`: microseconds and ratios.

One thread. `python -m benchmarks.precision.rounding`
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch

from qpd.numerics.float_format import FloatFormat

FORMATS = ("fp16", "bf16", "e5m7", "e4m3", "e6m9", "e8m5")
SIZES = (4096, 65_536, 1_048_576)


def best_us(call: Callable[[], object], repeats: int = 300) -> float:
    """Return the least of many times, in microseconds: other work on the machine only adds."""
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return 1e6 * best


def _round_trip(x: torch.Tensor) -> torch.Tensor:
    return x.half().float()


def main() -> None:
    """Print a table: a row a format, a column a size."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    numbers = {size: torch.randn(size) for size in SIZES}
    baseline = {size: best_us(partial(_round_trip, x)) for size, x in numbers.items()}
    print("| format | " + " | ".join(f"{size:,} numbers" for size in SIZES) + " |")
    print("|---|" + "---|" * len(SIZES))
    shown = [f"{baseline[size]:,.1f} us" for size in SIZES]
    print("| baseline: half round trip | " + " | ".join(shown) + " |")
    for name in FORMATS:
        form = FloatFormat.parse(name)
        ratios = [best_us(partial(form.round, x)) / baseline[n] for n, x in numbers.items()]
        print(f"| {name} | " + " | ".join(f"{each:.1f} times" for each in ratios) + " |")


if __name__ == "__main__":
    main()
