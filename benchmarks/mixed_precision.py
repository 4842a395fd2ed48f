"""Time DQN's update on Pong's frames in mixed precision, over float32: QuaRL's policies A, B, C.

python -m benchmarks.mixed_precision [--policies A,B,C] [--batch 32] [--threads 2]

Table 9 of QuaRL (arXiv 1910.01055) trains three networks in fp16 with float32 master weights. Here
it is bfloat16 on a CPU, as `qpd train` learns on Atari where the hardware has it: autocast, float32
weights and optimizer. Baseline: the same update in float32, in turns; medians of the ratios. Wall
clock is what one waits for; the paper's is user + sys, which the last column has.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

POLICIES = {"A": (128, 128), "B": (512, 512), "C": (1024, 2048)}  # channels, hidden units
PAPER = {"A": 0.87, "B": 1.04, "C": 1.61}  # speedup of mixed precision
ACTIONS, TURNS = 6, 5


def main() -> None:
    """Print one row for each policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", default="A,B,C")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| policy | parameters | fp32, ms | bf16, ms | speedup | of CPU time | the paper's |")
    print("|---|---|---|---|---|---|---|")
    for name in arguments.policies.split(","):
        network = _network(*POLICIES[name])
        count = sum(each.numel() for each in network.parameters())
        print(f"| {name} | {count / 1e6:.1f} M | {_compared(network, arguments.batch)} | "
              f"{PAPER[name]:.2f}x |", flush=True)  # fmt: skip


def _compared(network: nn.Module, batch: int) -> str:
    """Return the cells of one policy: both times, and the speedup by wall and processor time."""
    update = _update(network, batch)
    timed = []
    for turn in range(TURNS + 1):  # the first is not counted
        pair = _timed(update, None), _timed(update, torch.bfloat16)
        timed += [pair] if turn else []
    full, half = (1e3 * statistics.median(pair[which][0] for pair in timed) for which in (0, 1))
    wall, cpu = (statistics.median(one[k] / two[k] for one, two in timed) for k in (0, 1))
    return f"{full:,.0f} | {half:,.0f} | {wall:.2f}x | {cpu:.2f}x"


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
