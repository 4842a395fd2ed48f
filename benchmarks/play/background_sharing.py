"""Samples/s of phase 1 with background sharing and without, on the games of any Atari agents.

python -m benchmarks.play.background_sharing AGENT... [--sizes XXS S] \
    [--capacity 50000] [--rounds 5]

AGENT is one that `qpd run` takes. Each agent's own play fills a memory; the training steps of the
cases differ only in how they draw from it.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.distillation.training import QpdTraining
from benchmarks.timing import interleave, parse_arguments, print_rates
from qpd.phases.preparation import prepare
from qpd.recipe.loading import load_recipe
from qpd.replay.play_stream import PlayStream

BATCH = 256


def measure(agent: str, sizes: list[str], capacity: int, rounds: int) -> list[list[str]]:
    """Return a row for each size: game, size, shares that are multiplied, rates and their ratio."""
    recipe = load_recipe("agent/atari", [f"teacher.source={agent}", f"replay.capacity={capacity}"])
    prepared = prepare(recipe, "cpu")  # where sharing is
    teacher, source = prepared.teacher, prepared.environment
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        stream = PlayStream(recipe, teacher, source, Path(folder) / "replay.bin")
        stream.fill()
        for size in sizes:
            cases = {
                way: QpdTraining(size, stream, BATCH, False, teacher.actions, way == "with")
                for way in ("without", "with")
            }
            turns = {way: partial(case.steps, 64) for way, case in cases.items()}
            rates = interleave(turns, rounds)
            blocks = stream.memory.multiplied_blocks(BATCH)
            shares = "-" if blocks is None else f"{blocks.conv1:.0%}, {blocks.conv2:.0%}"
            ratio = f"{rates['with'] / rates['without']:.2f}x"
            counts = [f"{rate:,.0f}" for rate in rates.values()]
            rows.append([source.env_id, size, shares, *counts, ratio])
        stream.close()
    return rows


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="+", metavar="AGENT")
    parser.add_argument("--sizes", nargs="+", default=["XXS", "S"])
    parser.add_argument("--capacity", type=int, default=50_000, help="transitions")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parse_arguments(parser)
    rows = []
    for agent in arguments.agents:
        rows += measure(agent, arguments.sizes, arguments.capacity, arguments.rounds)
    headers = ["game", "student", "blocks of conv 1, 2", "without", "with", "ratio"]
    print_rates(f"Phase 1, samples/s, batches of {BATCH}", headers, rows)


if __name__ == "__main__":
    main()
