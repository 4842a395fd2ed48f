"""Phase 1 with different settings, on the same memory and the same number of samples.

python -m benchmarks.distillation.settings "distill.lr=1e-3" "distill.lr=4e-3" \
    "distill.lr=4e-3 student.size=S"

Each argument is one run: overrides of the quickstart recipe, separated by spaces. The baseline is
the quickstart itself. The table shows, on transitions that no run has seen, Eq. 1 at tau 3 and Eq.
3, the KL to the policy that the student stands for (softmax(3 * logits)), and how often both prefer
the same action, and at the end the number of dormant units.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.breakout_play import ENV_ID, teacher_play
from benchmarks.distillation.training import training_plan
from benchmarks.timing import parse_arguments, print_rates
from qpd.actions import Discrete
from qpd.environments.registry import environment_spec
from qpd.losses.distillation import critic_huber
from qpd.phases.preparation import recipe_architecture
from qpd.recipe.loading import load_recipe
from qpd.recipe.schema import Recipe
from qpd.recipe.training_phases import TrainingPhase
from qpd.replay.memory import ReplayMemory
from qpd.students import Student
from qpd.training.dormant_units import dormant_units, recycle_dormant_units
from qpd.training.optimizer import learning_rate, make_optimizer
from qpd.training.step import TrainStep

HELD_OUT = 6000
RECYCLINGS = 10  # all in the first half, as a run of 20 epochs would have them


def train(recipe: Recipe, memory: ReplayMemory, rows: np.ndarray, samples: int) -> Student:
    """Run phase 1 on the transitions at `rows` only."""
    settings = recipe.distill
    student = Student(recipe_architecture(recipe, environment_spec(ENV_ID)), recipe.seed)
    student.set_value_range(*memory.value_moments())
    tau = settings.temperature or 3.0
    optimizer = make_optimizer(student, settings, Discrete(4).output_scale(memory.labels(), tau))
    update = TrainStep(training_plan(settings, tau), student, optimizer)
    # Only in the first half, as in training: units that start anew need time to learn.
    every = max(1, samples // settings.batch_size // (2 * RECYCLINGS))

    def recycle(step: int, steps: int, rng: np.random.Generator) -> None:
        if settings.recycle_dormant and step % every == 0 and 2 * step <= steps:
            some = torch.from_numpy(rng.choice(rows, 4096, replace=False))
            observations = memory.gather(some).observations
            hidden = student.hidden_activations(observations)
            recycle_dormant_units(student, optimizer, hidden, step)

    take_steps(update, settings, memory, rows, samples, recycle)
    return student


def take_steps(
    update: TrainStep,
    settings: TrainingPhase,
    memory: ReplayMemory,
    rows: np.ndarray,
    samples: int,
    after: Callable[[int, int, np.random.Generator], object] | None = None,
) -> None:
    """Train on the transitions at `rows`; `after` hears of each step, of how many, and draws."""
    rng, steps, step = np.random.default_rng(0), samples // settings.batch_size, 0
    draw = memory.start_drawing(shared=update.reads_shared_frames)
    while step < steps:
        for batch in memory.shuffled(settings.batch_size, rng, rows=rows):
            for group in update.optimizer.param_groups:
                # The schedule runs over these samples, however few, as it does over a whole phase.
                group["lr"] = learning_rate(settings, step / steps) * group["lr_factor"]
            update(draw(batch))
            step += 1
            if after is not None:
                after(step, steps, rng)
            if step == steps:
                break


@torch.no_grad()
def judge(student: Student, recipe: Recipe, memory: ReplayMemory, rows: np.ndarray) -> list[str]:
    """Return losses on the transitions at `rows`, and the number of dormant units."""
    sample = memory.gather(torch.from_numpy(rows))
    logits, values = student(sample.observations)
    logits = logits * (recipe.distill.temperature or 3.0)  # the teacher's scale
    dormant = sum(
        int(dormant_units(hidden).sum())
        for hidden in student.hidden_activations(sample.observations)
    )
    agree = (logits.argmax(1) == sample.labels.argmax(1)).float().mean()
    return [
        f"{Discrete(4).divergence(sample.labels, logits, 3.0, 3.0).mean():.4f}",
        f"{critic_huber(sample.values, values).mean():.4f}",
        f"{Discrete(4).divergence(3 * sample.labels, 3 * logits, 1.0).mean():.3f}",
        f"{agree:.1%}",
        str(dormant),
    ]


def main() -> None:
    """Train all variants, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="*")
    parser.add_argument("--samples", type=int, default=1_200_000)
    parser.add_argument("--memory", type=int, default=150_000)
    arguments = parse_arguments(parser)
    recipes = {
        variant or "quickstart": load_recipe("quickstart", variant.split())
        for variant in ["", *arguments.variants]
    }
    table = []
    with tempfile.TemporaryDirectory() as folder:
        _, stream = teacher_play(Path(folder), arguments.memory)
        stream.fill()
        # Shuffled once: every run holds out the same transitions, from all parts of the play.
        rows = np.random.default_rng(0).permutation(stream.memory.transition_rows())
        for name, recipe in recipes.items():
            began = time.perf_counter()
            student = train(recipe, stream.memory, rows[HELD_OUT:], arguments.samples)
            cells = judge(student, recipe, stream.memory, rows[:HELD_OUT])
            table.append([name, *cells, f"{time.perf_counter() - began:.0f}"])
            print(*table[-1], flush=True)
        stream.close()
    headers = ["settings", "KL, tau 3", "Huber", "KL, acting", "same action", "dormant", "s"]
    print_rates(f"Phase 1 after {arguments.samples:,} samples", headers, table)


if __name__ == "__main__":
    main()
