"""Phase 3 with other steps of ranges and scales, on one memory and as many samples.

python -m benchmarks.distillation.finetuning RUN [--bits 8,6,4,3,2] [--samples 2400000] \
    [--steps absolute,3]

RUN holds a distilled student of Breakout; each row begins with it, quantized anew. The baseline
`absolute` is what phase 3 once did: Adam's steps of ranges and scales are as long as the learning
rate, whatever their size. A number is how many times the learning rate they move by as shares of
their size (`qpd.training.relative_steps`), which phase 3 does today. With fewer bits than 4 the
first and the last layer have 8. The table shows, on transitions that no row has seen, Eq. 1, the
KL to the policy that the student stands for, how often both prefer the same action, and how many
of the head's weights are the largest or the least integer.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.breakout_play import RECIPE_MEMORY, teacher_play
from benchmarks.distillation.settings import HELD_OUT, take_steps
from benchmarks.distillation.training import training_plan
from benchmarks.timing import parse_arguments
from qpd.actions import Discrete
from qpd.phases.quantize import quantization_config
from qpd.quantization.calibration import calibrate
from qpd.quantization.dorefa import largest_integer
from qpd.quantization.equalization import equalize
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.recipe.loading import override_recipe
from qpd.recipe.schema import Recipe
from qpd.replay.memory import ReplayMemory
from qpd.runs.results import distilled_student
from qpd.runs.run_directory import RunDirectory
from qpd.training.optimizer import QUANTIZER_FACTOR, make_optimizer
from qpd.training.step import TrainStep

ACTIONS, TAU = Discrete(4), 3.0
# As in runs-reference: few bits move in large steps.
RATES = {8: 3e-4, 6: 3e-4, 4: 1e-3, 3: 2e-3, 2: 2e-3}


def _recipe(run: RunDirectory, bits: int, lr: float) -> Recipe:
    ends = "null" if bits >= 4 else "8"
    return override_recipe(
        run.recipe,
        [
            *(f"quantize.{name}_bits={bits}" for name in ("weight", "activation")),
            *(f"quantize.{name}_layer_bits={ends}" for name in ("first", "last")),
            f"finetune.lr={lr:g}",
            "finetune.lr_schedule=cosine",
        ],
    )


def _quantized(run: RunDirectory, recipe: Recipe, observations: torch.Tensor) -> QuantizedStudent:
    network = distilled_student(run)
    equalize(network, observations, recipe.quantize.equalization)
    simulation = QuantizedStudent(network, quantization_config(recipe))
    calibrate(simulation, observations, recipe.quantize.calibration_percentile)
    return simulation


def _trained(
    simulation: QuantizedStudent,
    recipe: Recipe,
    steps_of_scales: str,
    memory: ReplayMemory,
    rows: np.ndarray,
    samples: int,
) -> None:
    settings = recipe.finetune
    tau = recipe.distill.temperature or TAU
    fold = ACTIONS.fold(tau, recipe.student.sharpness)
    factor = ACTIONS.output_scale(memory.labels(), tau) * fold
    optimizer = make_optimizer(simulation, settings, factor)
    group = next(each for each in optimizer.param_groups if each["name"] == "quantizers")
    is_relative = steps_of_scales != "absolute"
    group |= {
        "is_relative": is_relative,
        "lr_factor": float(steps_of_scales) if is_relative else 1.0,
    }
    plan = dataclasses.replace(
        training_plan(settings, tau),
        student_temperature=fold,
        after_update=simulation.keep_ranges_positive,
    )
    take_steps(TrainStep(plan, simulation, optimizer), settings, memory, rows, samples)


@torch.no_grad()
def _judged(
    simulation: QuantizedStudent, recipe: Recipe, memory: ReplayMemory, rows: np.ndarray
) -> list[str]:
    sample, sharpness = memory.gather(torch.from_numpy(rows)), recipe.student.sharpness
    tau = recipe.distill.temperature or TAU
    logits, _ = simulation(sample.observations)
    found = ACTIONS.divergence(sample.labels, logits, tau, ACTIONS.fold(tau, sharpness)).mean()
    acting = ACTIONS.divergence(sharpness * sample.labels, logits, 1.0, 1.0).mean()
    agree = (logits.argmax(1) == sample.labels.argmax(1)).float().mean()
    last = len(simulation.bits) - 1
    most = largest_integer(simulation.bits[last], has_zero=simulation.config.has_zero_weight)
    at_ends = (simulation.integer_weight(last)[0].abs() > most - 2).float().mean()
    return [f"{found:.4f}", f"{acting:.3f}", f"{agree:.1%}", f"{at_ends:.0%}"]


def main() -> None:
    """Train all students, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--bits", default="8,6,4,3,2")
    parser.add_argument("--steps", default=f"absolute,{QUANTIZER_FACTOR:g}")
    parser.add_argument("--samples", type=int, default=2_400_000)
    parser.add_argument("--lr", type=float, help="of weights; as in runs-reference if not given")
    parser.add_argument("--memory", type=int, default=RECIPE_MEMORY)
    arguments = parse_arguments(parser)
    print("| bits | steps | Eq. 1 | KL, acting | same action | head at the ends | seconds |")
    print("|---|---|---|---|---|---|---|")
    with (
        RunDirectory.open(arguments.run, read_only=True) as run,
        tempfile.TemporaryDirectory() as folder,
    ):
        _, stream = teacher_play(Path(folder), arguments.memory)
        stream.fill()
        # Shuffled once: every way holds out the same transitions, from all parts of the play.
        rows = np.random.default_rng(0).permutation(stream.memory.transition_rows())
        held_out, rest = rows[:HELD_OUT], rows[HELD_OUT:]
        observations = stream.memory.gather(torch.from_numpy(rest[:4096])).observations
        for bits in (int(each) for each in arguments.bits.split(",")):
            recipe = _recipe(run, bits, arguments.lr or RATES[bits])
            for way in arguments.steps.split(","):
                began = time.perf_counter()
                simulation = _quantized(run, recipe, observations)
                _trained(simulation, recipe, way, stream.memory, rest, arguments.samples)
                cells = _judged(simulation, recipe, stream.memory, held_out)
                seconds = f"{time.perf_counter() - began:.0f}"
                print(f"| {' | '.join([str(bits), way, *cells, seconds])} |", flush=True)
        stream.close()


if __name__ == "__main__":
    main()
