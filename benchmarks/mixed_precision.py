"""Time DQN's update on Pong's frames in mixed precision, over float32: QuaRL's policies A, B, C.

python -m benchmarks.mixed_precision [--policies A,B,C] [--batch 32] [--threads 2] [--results FILE]

Table 9 of QuaRL (arXiv 1910.01055) trains three networks in fp16 with float32 master weights. Here
it is bfloat16 on a CPU, as `qpd train` learns on Atari where the hardware has it: autocast, float32
weights and optimizer. Baseline: the same update in float32, in turns; medians of the ratios. Wall
clock is what one waits for; the paper's is user + sys, which the last column but one has.
`--results` keeps the numbers as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from qpd.files.atomic import write_json

POLICIES = {"A": (128, 128), "B": (512, 512), "C": (1024, 2048)}  # channels, hidden units
PAPER = {"A": 0.87, "B": 1.04, "C": 1.61}  # speedup of mixed precision
ACTIONS, TURNS = 6, 5


def main() -> None:
    """Print one row for each policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", default="A,B,C")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| policy | parameters | fp32, ms | bf16, ms | speedup | of CPU time | the paper's |")
    print("|---|---|---|---|---|---|---|")
    found = {}
    for name in arguments.policies.split(","):
        network = _network(*POLICIES[name])
        found[name] = row = _compared(network, arguments.batch)
        print(f"| {name} | {row['parameters'] / 1e6:.1f} M | {row['fp32_ms']:,.0f} | "
              f"{row['bf16_ms']:,.0f} | {row['speedup']:.2f}x | {row['cpu_speedup']:.2f}x | "
              f"{PAPER[name]:.2f}x |", flush=True)  # fmt: skip
    if arguments.results is not None:
        file = arguments.results
        known = json.loads(file.read_text()) if file.exists() else {}
        write_json(file, known | {"updates": known.get("updates", {}) | found})


def _compared(network: nn.Module, batch: int) -> dict[str, float]:
    """Return a policy's size, both times, and the speedup by wall and processor time."""
    update = _update(network, batch)
    timed = []
    for turn in range(TURNS + 1):  # the first is not counted
        pair = _timed(update, None), _timed(update, torch.bfloat16)
        timed += [pair] if turn else []
    full, half = (1e3 * statistics.median(pair[which][0] for pair in timed) for which in (0, 1))
    wall, cpu = (statistics.median(one[k] / two[k] for one, two in timed) for k in (0, 1))
    return {
        "parameters": sum(each.numel() for each in network.parameters()),
        "fp32_ms": full,
        "bf16_ms": half,
        "speedup": wall,
        "cpu_speedup": cpu,
    }


def _network(channels: int, hidden: int) -> nn.Sequential:
    """Return NatureCNN with other widths, and a Q-value for each action."""
    layers = [
        nn.Conv2d(4, channels, 8, 4), nn.ReLU(),
        nn.Conv2d(channels, channels, 4, 2), nn.ReLU(),
        nn.Conv2d(channels, channels, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(49 * channels, hidden), nn.ReLU(),
        nn.Linear(hidden, ACTIONS),
    ]  # fmt: skip
    network = nn.Sequential(*layers)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _update(network: nn.Module, batch: int) -> Callable[[torch.dtype | None], None]:
    """Return DQN's update of a batch of noise; the target's values are given."""
    frames = torch.randint(0, 256, (batch, 4, 84, 84), dtype=torch.uint8)
    frames = frames.contiguous(memory_format=torch.channels_last)
    actions, targets = torch.randint(0, ACTIONS, (batch, 1)), torch.randn(batch, 1)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)

    def update(dtype: torch.dtype | None) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            values = network(frames / 255.0)
        F.smooth_l1_loss(values.float().gather(1, actions), targets).backward()
        optimizer.step()

    return update


def _timed(
    update: Callable[[torch.dtype | None], None], dtype: torch.dtype | None
) -> tuple[float, float]:
    """Return wall and processor seconds of an update."""
    wall, processor = time.perf_counter(), time.process_time()
    update(dtype)
    return time.perf_counter() - wall, time.process_time() - processor


if __name__ == "__main__":
    main()
