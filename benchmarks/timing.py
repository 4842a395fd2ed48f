"""The method of every benchmark here: cases in turn, several rounds, medians, ratios."""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from qpd.machine.allocator import keep_freed_memory

MEETINGS: list[float] = []  # seconds from `threads_meet`, one for each round so far


def interleave(cases: Mapping[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Measure median items per second of each case; a case returns how many items it handled.

    All cases run once unmeasured, then in turn in every round, so that whatever else the machine
    does affects all of them alike.
    """
    for case in cases.values():
        case()
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            began = time.perf_counter()
            items = case()
            rates[name].append(items / (time.perf_counter() - began))
        # After every round: the machine's state belongs to the numbers of that very round.
        MEETINGS.append(threads_meet())
    return {name: statistics.median(values) for name, values in rates.items()}


def threads_meet(tries: int = 300) -> float:
    """Measure the median seconds of a short operation that PyTorch's threads share.

    The cores of a rented machine may share a cache at one time and not at another: then this takes
    longer, and so does anything that hands many small results from thread to thread.
    """
    numbers, seconds = torch.ones(40_000), []
    for _ in range(tries):
        began = time.perf_counter()
        torch.add(numbers, 1)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def parse_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, apply its --threads, and keep freed memory as `qpd` does."""
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    return arguments


def machine() -> str:
    """Return the machine and packages that the numbers belong to, in one line.

    It includes how long `threads_meet` took if cases were interleaved.
    """
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    threads = torch.get_num_threads()
    met = ""
    if MEETINGS and threads > 1:
        least, most = (f"{1e6 * bound:.1f}" for bound in (min(MEETINGS), max(MEETINGS)))
        met = f"; small parallel operation: {1e6 * statistics.median(MEETINGS):.1f} us"
        met += f" ({least} to {most})"
    return f"{model}, {threads} threads{gpu}, torch {torch.__version__}, {platform.system()}{met}"


def print_rates(title: str, headers: list[str], rows: list[list[str]]) -> None:
    """Print a table that can be pasted into a README."""
    table = Table(title=f"{title}\n{machine()}", title_justify="left")
    for index, header in enumerate(headers):
        table.add_column(header, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)
