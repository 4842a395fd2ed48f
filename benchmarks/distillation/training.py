"""Samples per second of a training step (gather, forward, backward, update), for every size.

python -m benchmarks.distillation.training [--sizes XXS XS S] [--batch 256] \
    [--rounds 5] [--threads 2]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.baseline import PlainTraining
from benchmarks.breakout_play import RECIPE_MEMORY, stacked_observations, teacher_play
from benchmarks.timing import interleave, parse_arguments, print_rates
from qpd.actions import ActionSpace, Discrete
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.recipe.training_phases import DistillSettings, FinetuneSettings, TrainingPhase
from qpd.replay.play_stream import PlayStream
from qpd.students import Student, architecture_for
from qpd.students.size_grid import SIZE_GRID
from qpd.training.compiled_backward import LEAST_UPDATES
from qpd.training.optimizer import make_optimizer
from qpd.training.plan import PhasePlan
from qpd.training.step import TrainStep

BREAKOUT = Discrete(4)


class QpdTraining:
    """Phase 1 or phase 3 of QPD on the memory of `stream`."""

    def __init__(
        self,
        size: str,
        stream: PlayStream,
        batch_size: int,
        quantized: bool,
        actions: ActionSpace = BREAKOUT,
        shared: bool = True,
        **settings_of: Any,
    ) -> None:
        self.memory, self.batch_size = stream.memory, batch_size
        shape = stream.env.spec.observation_shape
        self.module: torch.nn.Module = Student(
            architecture_for(size, shape, actions.num_outputs), 0
        )
        settings: TrainingPhase = DistillSettings(batch_size=batch_size, **settings_of)
        if quantized:
            settings = FinetuneSettings(batch_size=batch_size, **settings_of)
            self.module = QuantizedStudent(self.module, QuantizationConfig())
        optimizer = make_optimizer(self.module, settings, 1.0)
        plan = training_plan(settings, 3.0, actions)
        self.step = TrainStep(plan, self.module, optimizer, updates=LEAST_UPDATES)
        self.draw = self.memory.start_drawing(shared=shared and self.step.reads_shared_frames)
        self.batches = self._endless(np.random.default_rng(0))

    def _endless(self, rng: np.random.Generator) -> Iterator[torch.Tensor]:
        while True:
            # Whole batches only: a smaller last one would be timed as if it were full.
            full = len(self.memory) // self.batch_size * self.batch_size
            yield from self.memory.shuffled(self.batch_size, rng, full)

    def steps(self, count: int) -> int:
        """Take `count` optimizer steps; return the number of samples used."""
        # Shuffling is drawn before the steps, as an epoch does it once for thousands of them.
        batches = list(islice(self.batches, count))
        for rows in batches:
            self.step(self.draw(rows))
        return count * self.batch_size


def training_plan(
    settings: TrainingPhase, temperature: float, actions: ActionSpace = BREAKOUT
) -> PhasePlan:
    """Return the plan of a phase that takes steps and never plays."""
    weight = settings.actor_weight_for(has_critic=True)
    return PhasePlan(
        "distill", settings, actions, weight, temperature, 1.0, 1, _unused, _unused, "return"
    )


def _unused() -> Any:
    raise AssertionError("this benchmark does not play")


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=list(SIZE_GRID), choices=list(SIZE_GRID))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parse_arguments(parser)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        teacher, stream = teacher_play(Path(folder), RECIPE_MEMORY)
        stream.fill()
        observations = stacked_observations(stream)
        for size in arguments.sizes:
            batch = arguments.batch
            own = {
                "phase 1": QpdTraining(size, stream, batch, False),
                "phase 3": QpdTraining(size, stream, batch, True),
            }
            programs: dict[str, PlainTraining | QpdTraining] = {
                "baseline": PlainTraining(size, observations, teacher, batch),
                "without teacher": PlainTraining(size, observations, None, batch),
                **own,
            }
            # Fewer steps for large students and batches: a turn takes seconds for all of them.
            count = max(1, {"L": 16, "XL": 16, "XXL": 8}.get(size, 32) * 256 // batch)
            # QPD takes more steps in a turn, so that turns are of similar length: a turn begins
            # with cold caches, and training does not.
            cases = {
                name: partial(run.steps, 4 * count if name in own else count)
                for name, run in programs.items()
            }
            rates = interleave(cases, arguments.rounds)
            base = rates["baseline"]
            cells = [f"{rate:,.0f} ({rate / base:.1f}x)" for rate in list(rates.values())[1:]]
            rows.append([size, f"{base:,.0f}", *cells])
        stream.close()
    headers = ["student", "baseline", "its student alone", "QPD phase 1", "QPD phase 3"]
    print_rates(f"Training, samples/s, batches of {arguments.batch}", headers, rows)


if __name__ == "__main__":
    main()
