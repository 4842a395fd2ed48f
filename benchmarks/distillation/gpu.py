"""Student-samples per second on a GPU: one student, and several seeds on one stream.

python -m benchmarks.distillation.gpu [--size XXS] [--seeds 5] \
    [--batch 256 1024 4096] [--device cuda]

The replay is resident on the device in uint8; every batch is gathered there once and goes to all
students; gathering, passes and optimizers are one CUDA graph, with torch.compile's kernels too
under --compile on. The baseline is what a user writes: fp32 NCHW students in eager PyTorch, stacked
uint8 observations in host memory, the teacher's forward pass inside the loop.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.baseline import PlainTraining
from benchmarks.breakout_play import stacked_observations, teacher_play
from benchmarks.distillation.training import training_plan
from benchmarks.play.replay import fill
from benchmarks.timing import interleave, parse_arguments, print_rates
from qpd.actions import Discrete
from qpd.recipe.training_phases import DistillSettings
from qpd.replay.memory import ReplayMemory
from qpd.students import Student, architecture_for
from qpd.training.optimizer import make_optimizer
from qpd.training.step import TrainStep
from qpd.training.updates import Updates

CAPACITY = 65_536


class StudentsTogether:
    """Students of several seeds that train on the same batches."""

    def __init__(
        self, size: str, seeds: int, memory: ReplayMemory, batch_size: int, compiles: str
    ) -> None:
        settings = DistillSettings(batch_size=batch_size).model_copy(update={"compile": compiles})
        self.memory, self.batch_size = memory, batch_size
        steps = []
        for seed in range(seeds):
            student = Student(architecture_for(size, (4, 84, 84), 4), seed).to(memory.device)
            optimizer = make_optimizer(student, settings, 1.0)
            steps.append(TrainStep(training_plan(settings, 3.0), student, optimizer))
        self.updates = Updates(steps)

    def train(self, samples: int) -> int:
        """Train on at least `samples`; return the student-samples, samples times students."""
        rng, drawn = np.random.default_rng(0), 0
        draw = self.memory.start_drawing(shared=self.updates.reads_shared_frames)
        self.updates.begin_epoch(range(len(self.updates.steps)), draw)
        while drawn < samples:
            for rows in self.memory.shuffled(self.batch_size, rng, samples):
                # A CUDA graph is for one shape: a smaller last batch would slow the rate.
                if len(rows) < self.batch_size:
                    break
                self.updates(rows)
                drawn += self.batch_size
        if self.memory.device.type == "cuda":
            # Kernels run on after the call returns; without waiting, only their launch would be
            # timed.
            torch.cuda.synchronize()
        return drawn * len(self.updates.steps)


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="XXS")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--samples", type=int, default=CAPACITY)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", default="auto", choices=["auto", "on", "off"])
    arguments = parse_arguments(parser)
    device = torch.device(arguments.device)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        # Little play, repeated to fill the memory: what frames show does not change a GPU's time.
        teacher, stream = teacher_play(Path(folder), 4096)
        stream.fill()
        observations = stacked_observations(stream)
        stream.close()
        memory = ReplayMemory(CAPACITY, 64, (4, 84, 84), 4, Discrete(4), device=device)
        fill(memory, CAPACITY, observations, 64)
        teacher.to(device)
        for batch in arguments.batch:
            plain = PlainTraining(arguments.size, observations, teacher, batch, device)
            seeds, how = arguments.seeds, arguments.compile
            one = StudentsTogether(arguments.size, 1, memory, batch, how)
            many = StudentsTogether(arguments.size, seeds, memory, batch, how)
            # The baseline takes a quarter of the samples: a rate needs no more, and it is slower.
            count = max(1, arguments.samples // batch // 4)

            def baseline(plain: PlainTraining = plain, count: int = count) -> int:
                done = plain.steps(count)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                return done

            cases: dict[str, Callable[[], int]] = {
                "baseline": baseline,
                "one": lambda one=one: one.train(arguments.samples),  # type: ignore[misc]
                "many": lambda many=many: many.train(arguments.samples),  # type: ignore[misc]
            }
            rates = interleave(cases, arguments.rounds)
            base = rates["baseline"]
            cells = [f"{rate:,.0f} ({rate / base:.1f}x)" for rate in list(rates.values())[1:]]
            rows.append([str(batch), f"{base:,.0f}", *cells])
    headers = ["batch", "baseline", "QPD, one student", f"QPD, {arguments.seeds} seeds together"]
    print_rates(f"{arguments.size}, student-samples/s on {device}", headers, rows)


if __name__ == "__main__":
    main()
