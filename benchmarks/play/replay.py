"""The cost of the replay memory: a gather beside a training step, and bytes at full size.

python -m benchmarks.play.replay [--capacity 540000] [--batch 512] [--threads 2]

The baseline of the gather is NumPy's fancy indexing over 8,192 stacked observations, a third of the
bytes that QPD's memory takes here. A step on a CPU draws instead of gathering. `--capacity` is the
size of the memory that is filled (with real frames, repeated) to measure resident memory.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.breakout_play import RECIPE_MEMORY, stacked_observations, teacher_play
from benchmarks.distillation.training import QpdTraining
from benchmarks.timing import interleave, parse_arguments, print_rates
from qpd.actions import Discrete
from qpd.environments.transition import TransitionBatch
from qpd.replay.memory import ReplayMemory


def resident_bytes() -> int:
    """Return the resident bytes of this process, mapped files included (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096  # in pages


def fill(memory: ReplayMemory, rows: int, observations: np.ndarray, num_envs: int) -> None:
    """Add vector steps of real frames to `memory` until `rows` are written."""
    # Age 3: every stack is whole, so that no zero frame stands in for one before the game's start.
    streams, ages = np.arange(num_envs), np.full(num_envs, 3)
    logits, values = torch.zeros(num_envs, 4), torch.zeros(num_envs)
    chunks = len(observations) // num_envs
    step = 0
    while memory.num_added < rows:
        chunk = observations[step % chunks * num_envs :][:num_envs]
        memory.add(TransitionBatch(chunk, ages, streams, logits, values))
        step += 1


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, default=540_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parse_arguments(parser)
    with tempfile.TemporaryDirectory() as folder:
        _, stream = teacher_play(Path(folder), RECIPE_MEMORY)
        stream.fill()
        observations = stacked_observations(stream)
        training = QpdTraining("XXS", stream, arguments.batch, False)
        rng = np.random.default_rng(0)
        rows = torch.from_numpy(rng.permutation(stream.memory.transition_rows()))
        # Drawn beforehand: gathering is measured, not the random numbers.
        picks = rng.permutation(len(observations))

        def gather() -> int:
            for batch in rows.split(arguments.batch):
                stream.memory.gather(batch)
            return len(rows)

        draw_shared = stream.memory.start_drawing(shared=True)

        def draw() -> int:
            for batch in rows.split(arguments.batch):
                draw_shared(batch)
            return len(rows)

        def numpy_gather() -> int:
            for start in range(0, len(picks), arguments.batch):
                observations[picks[start : start + arguments.batch]]
            return len(picks)

        rates = interleave(
            {
                "numpy, stacked": numpy_gather,
                "QPD gather, whole observations": gather,
                "QPD draw, where they lie and differ": draw,
                "QPD training step, XXS": lambda: training.steps(8),
            },
            arguments.rounds,
        )
        stream.close()
        step = rates["QPD training step, XXS"]
        table = [
            [name, f"{rate:,.0f}", f"{arguments.batch / rate * 1e3:.2f}", f"{step / rate:.0%}"]
            for name, rate in rates.items()
        ]
        headers = ["batch of " + str(arguments.batch), "samples/s", "ms", "of the training step"]
        print_rates("Replay gather", headers, table)

        before = resident_bytes()
        spare = arguments.capacity // 10 + 64  # what a refresh of 10% asks for
        file = Path(folder) / "full.bin"
        memory = ReplayMemory(arguments.capacity, 64, (4, 84, 84), 4, Discrete(4), file, spare)
        # Past the end once, so that every page of the file has been touched.
        fill(memory, arguments.capacity + spare + 256, observations, 64)
        # The votes on the background are part of what a full memory keeps.
        memory.start_drawing(shared=True)
        # Resident and not allocated: the file is mapped, and pages count once they are touched.
        held = resident_bytes() - before
        # What np.zeros((n, 4, 84, 84), np.uint8) takes, the usual replay buffer.
        stacked = arguments.capacity * 4 * 84 * 84
        table = [
            ["stacked observations", f"{stacked / 1e9:.2f}", "-"],
            ["QPD, computed", f"{memory.num_bytes / 1e9:.2f}", f"{memory.num_bytes / stacked:.0%}"],
            ["QPD, resident when full", f"{held / 1e9:.2f}", f"{held / stacked:.0%}"],
        ]
        title = f"Memory of {arguments.capacity:,} transitions"
        print_rates(title, ["storage", "GB", "of stacked"], table)


if __name__ == "__main__":
    main()
