"""Arithmetic per training sample, its share of the machine's peak, and where the rest goes.

python -m benchmarks.distillation.roofline [--sizes XXS S XL] [--batch 256] \
    [--threads 2] [--profile XXS]

A multiplication and an addition count as two operations. A step is the forward pass, plus twice
that for the backward pass, less the gradient of the input, which nobody needs. QPD multiplies once
what observations share: the operations that it does are counted beside those of the two ordinary
convolutions. The peak is the best of several square bfloat16 matrix products on the same threads,
float32 without bfloat16 units.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.breakout_play import RECIPE_MEMORY, teacher_play
from benchmarks.distillation.training import QpdTraining
from benchmarks.timing import interleave, parse_arguments, print_rates
from qpd.numerics.precision import compute_precision
from qpd.students import architecture_for
from qpd.students.shared_background import SharedFrames
from qpd.students.shared_background.block_tables import BLOCKS1, BLOCKS2
from qpd.students.shared_background.plan import BackgroundPlan
from qpd.students.size_grid import SIZE_GRID


def training_operations(size: str, plan: BackgroundPlan | None = None) -> float:
    """Return the floating-point operations of one sample's forward and backward pass.

    With the `plan` of a batch, what is multiplied once for all of it counts once.
    """
    shapes = architecture_for(size, (4, 84, 84), 4).layer_shapes()
    macs = {shape.name: float(shape.num_macs) for shape in shapes}
    if plan is not None:  # a block's products are as many as a result's: four corners, a quarter
        conv1, conv2 = (prod(shape.weight_shape) for shape in shapes[:2])
        macs["conv1"] = conv1 * (plan.num_blocks1) / plan.batch
        macs["conv2"] = conv2 * plan.num_blocks2 / plan.batch
    critic = shapes[-1].weight_shape[1]
    # Conv 1 has two passes and not three: no gradient is taken of the observations.
    return 2 * (3 * (sum(macs.values()) + critic) - macs["conv1"])


def matmul_peak(dtype: torch.dtype, rounds: int = 5) -> float:
    """Return the best operations per second of square matrix products."""
    best = 0.0
    # Several sizes, as the best one depends on the caches.
    for extent in (512, 1024, 2048):
        a, b = torch.randn(extent, extent).to(dtype), torch.randn(extent, extent).to(dtype)
        for _ in range(rounds):
            began = time.perf_counter()
            a @ b
            best = max(best, 2 * extent**3 / (time.perf_counter() - began))
    return best


def main() -> None:
    """Measure, and print a table of sizes and one of operators."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=list(SIZE_GRID), choices=list(SIZE_GRID))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", default="XXS", choices=list(SIZE_GRID))
    arguments = parse_arguments(parser)
    dtype = compute_precision("auto", torch.device("cpu"))
    peak = matmul_peak(dtype)
    with tempfile.TemporaryDirectory() as folder:
        _, stream = teacher_play(Path(folder), RECIPE_MEMORY)
        stream.fill()
        programs = {
            size: QpdTraining(size, stream, arguments.batch, False)
            for size in dict.fromkeys([*arguments.sizes, arguments.profile])
        }
        rates = interleave(
            {name: partial(run.steps, 4) for name, run in programs.items()},
            arguments.rounds,
        )
        rows = []
        profiled = programs[arguments.profile]
        # One batch's plan stands for all: the share of blocks that differ is a property of the
        # memory.
        drawn = profiled.draw(next(profiled.batches)).inputs
        plan = drawn.plan if isinstance(drawn, SharedFrames) else None
        for size in arguments.sizes:
            operations = training_operations(size, plan)
            achieved = rates[size] * operations
            rows.append(
                [
                    size,
                    f"{training_operations(size) / 1e6:.1f}",
                    f"{operations / 1e6:.1f}",
                    f"{rates[size]:,.0f}",
                    f"{achieved / 1e9:,.0f}",
                    f"{achieved / peak:.0%}",
                ]
            )
        title = f"Phase 1, batches of {arguments.batch}; peak {peak / 1e9:,.0f} GFLOP/s ({dtype})"
        if plan is not None:
            own1 = plan.num_own1 / (BLOCKS1 * plan.batch)
            own2 = plan.num_own2 / (BLOCKS2 * plan.batch)
            title += f"\nDiffering blocks: {own1:.0%} of conv 1's, {own2:.0%} of conv 2's"
        headers = ["student", "MFLOP/sample", "done", "samples/s", "GFLOP/s", "of the peak"]
        print_rates(title, headers, rows)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            # Twenty steps: microseconds / 2e4 below are milliseconds a step.
            profiled.steps(20)
        stream.close()
    events = profiler.key_averages()
    whole = sum(event.self_cpu_time_total for event in events)
    # By the operator's own time: its children have rows of their own.
    events = sorted(events, key=lambda event: -event.self_cpu_time_total)[:12]
    rows = [
        [e.key, f"{e.self_cpu_time_total / whole:.1%}", f"{e.self_cpu_time_total / 2e4:.2f}"]
        for e in events
    ]
    print_rates(f"Where a step of {arguments.profile} goes", ["operator", "share", "ms"], rows)


if __name__ == "__main__":
    main()
