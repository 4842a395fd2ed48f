"""Cores of the five networks of Kresse and Lampert's Table 3, beside those of FINN and Vivado.

python -m benchmarks.device.controller_cores [--tasks Hopper,...] \
    [--device ecp5-25k] [--multipliers 64]

Weights are random, a quarter to a half of them 0; Verilator checks what a core does with them on
random observations. The paper's cycles are its latency at 100 MHz, from quantized inputs to
accumulators: compare the columns of the layers, from the first level and from the last; levels come
one a clock, and the first layer is computed as they come. Ours is the fastest folding that fits, or
what `--multipliers` says, for each task or one for all.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.random_students import random_student
from qpd.actions import Box
from qpd.errors.user_error import UserError
from qpd.export.bundle import ExportSource
from qpd.export.systemverilog.code import multipliers_of
from qpd.fpga.devices import DEVICES
from qpd.fpga.flow import build_core
from qpd.students import StudentArchitecture

# Features, actions, width, core bits, input bits; the paper's cycles, LUTs, block RAMs and DSPs.
TASKS = {
    "Hopper": (11, 3, 16, 2, 6, "21; 2.4k, 0, 45"),
    "Ant": (27, 8, 64, 2, 3, "230; 2.7k, 3, 45"),
    "Humanoid": (376, 17, 16, 3, 4, "1,540; 2.3k, 1.5, 45"),
    "Walker2d": (17, 6, 128, 2, 3, "16,220; 1.9k, 2, 4"),
    "HalfCheetah": (17, 6, 256, 3, 8, "24,320; 4.3k, 15, 11"),
}


def main() -> None:
    """Build and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--device", default="xc7a15t", choices=DEVICES)
    parser.add_argument("--multipliers", default=None)
    parser.add_argument("--observations", type=int, default=1000)
    arguments = parser.parse_args()
    tasks = arguments.tasks.split(",")
    for task in tasks:
        if task not in TASKS:
            parser.error(f"--tasks {task}: one of {', '.join(TASKS)}")
    asked = [None] if arguments.multipliers is None else arguments.multipliers.split(",")
    if len(asked) not in (1, len(tasks)):
        parser.error(f"--multipliers {arguments.multipliers}: one, or one for each task")
    device = DEVICES[arguments.device]
    print(f"{device.title}: {device.luts:,} LUTs, {device.block_rams} block RAMs\n")
    print(
        "| network | layers | LUTs | flip-flops | block RAMs | DSPs | cycles "
        "| of the layers from first level | from last | fmax, MHz "
        "| the paper's: cycles; LUTs, block RAMs, DSPs | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for task, multipliers in zip(tasks, asked * (len(tasks) // len(asked)), strict=True):
        features, actions, width, core, inputs, paper = TASKS[task]
        box = Box((-1.0,) * actions, (1.0,) * actions, "tanh")
        student = random_student(
            StudentArchitecture((features,), actions, (), (width, width)),
            core, 0, core, box, 8, inputs, has_zero_weight=True,
        )  # fmt: skip
        rng = np.random.default_rng(0)
        observations = rng.normal(0.5, 1.0, (arguments.observations, features))
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            try:
                found = build_core(
                    ExportSource(student, {}, task), device, multipliers_of(multipliers),
                    "block-ram",
                    observations.astype(np.float32), Path(folder) / "core", lambda _: None,
                ).to_json()  # fmt: skip
            except UserError as error:
                print(f"| {task} {width}, {core}, {inputs} | {error} |", flush=True)
                continue
            seconds = time.perf_counter() - start
        fmax = "-" if found["fmax_mhz"] is None else f"{found['fmax_mhz']:.0f}"
        print(
            f"| {task} {width}, {core}, {inputs} | {found['folding']} | {found['luts']:,} "
            f"| {found['flip_flops']:,} | {found['block_rams']:g} | {found['dsps']} "
            f"| {found['cycles']:,} | {found['layer_cycles'] + features - 1:,} "
            f"| {found['layer_cycles']:,} | {fmax} | {paper} "
            f"| {seconds:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
