"""Milliseconds of an update of phase 1 by precision; the baseline is fp32.

Two hidden layers of 256, a batch of 256, 17 features, 6 outputs; one thread.
`python -m benchmarks.precision.distillation_step`
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

from benchmarks.distillation.training import training_plan
from benchmarks.precision.rounding import best_us
from qpd.actions import Discrete
from qpd.recipe.training_phases import DistillSettings
from qpd.replay.sample import ReplaySample
from qpd.students import Student, architecture_for
from qpd.training.optimizer import make_optimizer
from qpd.training.step import TrainStep

PRECISIONS = ("fp32", "bf16", "fp16", "e8m7", "e5m7", "e8m5")
BATCH, FEATURES, OUTPUTS = 256, 17, 6


def main() -> None:
    """Print a table: a row a precision."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    none = torch.zeros(0)
    observations = torch.rand(BATCH, FEATURES)
    sample = ReplaySample(
        observations, torch.randn(BATCH, OUTPUTS), torch.randn(BATCH), none, none, none
    )
    baseline = 0.0
    print("| precision | ms an update | of fp32 |")
    print("|---|---|---|")
    for precision in PRECISIONS:
        student = Student(architecture_for("mlp-256-256", (FEATURES,), OUTPUTS), 0)
        settings = DistillSettings(precision=precision, compile="off", lr=1e-4)
        plan = training_plan(settings, 3.0, Discrete(OUTPUTS))
        step = TrainStep(plan, student, make_optimizer(student, settings))
        needed = best_us(partial(step, sample), 200) / 1000
        baseline = baseline or needed
        print(f"| {precision} | {needed:.2f} | {needed / baseline:.2f} |", flush=True)


if __name__ == "__main__":
    main()
