"""What phase 3 makes of an 8-bit head where its scale learns as fast as its weights, and slower.

python -m benchmarks.distillation.head_scale RUN [--bits 8,6,4,3,2] [--epochs 6] \
    [-o runs/head-scale]

A head that learns at a multiple of the learning rate (a temperature folded into it) had its weight
scale in the same group of the optimizer, which is the way `fast` here; today the scale learns at
the rate of all scales, `now`. The other layers and activations have the bits named, the first and
the last layer 8. RUN holds a distilled student; each way and width begins with it, in a run of its
own below the folder, so that an interrupted table goes on. The divergence is that of the acting
policy from the teacher on the states of validation games, of the epoch that is kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import qpd
from qpd.phases import runner
from qpd.recipe.training_phases import TrainingPhase
from qpd.runs.metrics_log import read_metrics
from qpd.runs.run_directory import RunDirectory
from qpd.student_files.quantized import load_integer_student

WAYS = ("fast", "now")
# As in runs-reference: few bits move in large steps.
RATES = {8: 3e-4, 6: 3e-4, 4: 1e-3, 3: 2e-3, 2: 2e-3}


@contextmanager
def _fast_head_scale() -> Iterator[None]:
    """Put the head's weight scale into the head's group of every optimizer made meanwhile."""
    make = runner.make_optimizer

    def made(module: nn.Module, settings: TrainingPhase) -> torch.optim.Optimizer:
        optimizer = make(module, settings)
        groups = {group["name"]: group for group in optimizer.param_groups}
        scale = dict(module.named_parameters()).get("weight_scales.actor")
        if scale is not None:
            its = groups["quantizers"]["params"]
            groups["quantizers"]["params"] = [each for each in its if each is not scale]
            groups["head"]["params"].append(scale)
        return optimizer

    runner.make_optimizer = made  # type: ignore[assignment]
    try:
        yield
    finally:
        runner.make_optimizer = make


def _finetuned(run: Path, bits: int, way: str, epochs: int, folder: Path) -> RunDirectory:
    output = folder / f"{bits}-{way}-{epochs}"
    if not output.exists():
        qpd.quantize(
            run,
            weight_bits=bits,
            activation_bits=bits,
            overrides={
                "quantize.first_layer_bits": 8,
                "quantize.last_layer_bits": 8,
                "finetune.epochs": epochs,
                "finetune.lr": RATES[bits],
                "evaluation.validate_every": epochs,
            },
            output=output,
        )
    if way == "now":
        return qpd.finetune(output)
    with _fast_head_scale():
        return qpd.finetune(output)


def _row(run: RunDirectory) -> dict[str, Any]:
    head = load_integer_student(run.quantized_file).layers[-1]
    at_ends = np.abs(head.weight) >= 2**head.bits - 2
    rows = [row for row in read_metrics(run.metrics_file) if row["phase"] == "finetune"]
    found = [float(row["validation_divergence"]) for row in rows if row["validation_divergence"]]
    return {"at_ends": at_ends.mean(), "divergence": min(found), "loss": float(rows[-1]["loss"])}


def main() -> None:
    """Make the students that are not there yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--bits", default="8,6,4,3,2")
    parser.add_argument("--epochs", type=int, default=6, help="of phase 3")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/head-scale"))
    arguments = parser.parse_args()
    print("| bits | head's scale | head's weights at the ends | loss at the end | divergence |")
    print("|---|---|---|---|---|")
    for bits in (int(each) for each in arguments.bits.split(",")):
        for way in WAYS:
            found = _row(_finetuned(arguments.run, bits, way, arguments.epochs, arguments.output))
            print(
                f"| {bits} | {way} | {found['at_ends']:.0%} | {found['loss']:.4f} "
                f"| {found['divergence']:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
