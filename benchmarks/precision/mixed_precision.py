"""Time DQN's update on Pong's frames in mixed precision, over float32: QuaRL's policies A, B, C.

python -m benchmarks.precision.mixed_precision [--policies A,B,C] [--batch 32] \
    [--threads 2] [--device cuda] [--results FILE]

Table 9 of QuaRL (arXiv 1910.01055) trains three networks in fp16 with float32 master weights. Here
it is bfloat16 on a CPU, as `qpd train` learns on Atari where the hardware has it: autocast, float32
weights and optimizer. On a GPU it is fp16 with a loss scale. Baseline: the same update in float32,
in turns; medians of the ratios. Wall clock is what one waits for; the paper's is user + sys, which
the last column but one has. `--results` keeps the numbers as JSON.
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
GPU_UPDATES = 50  # a turn: one is over before a clock has ticked


def main() -> None:
    """Print one row for each policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", default="A,B,C")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    half = "bf16" if arguments.device == "cpu" else "fp16"
    print(f"| policy | parameters | fp32, ms | {half}, ms | speedup | of CPU time | the paper's |")
    print("|---|---|---|---|---|---|---|")
    found = {}
    for name in arguments.policies.split(","):
        network = _network(*POLICIES[name]).to(arguments.device)
        found[name] = row = _compared(network, arguments.batch, half)
        print(f"| {name} | {row['parameters'] / 1e6:.1f} M | {row['fp32_ms']:,.4g} | "
              f"{row[f'{half}_ms']:,.4g} | {row['speedup']:.2f}x | {row['cpu_speedup']:.2f}x | "
              f"{PAPER[name]:.2f}x |", flush=True)  # fmt: skip
    if arguments.results is not None:
        file = arguments.results
        known = json.loads(file.read_text()) if file.exists() else {}
        name = "updates" if arguments.device == "cpu" else "updates_on_gpu"
        write_json(file, known | {name: known.get(name, {}) | found})


def _compared(network: nn.Module, batch: int, half: str) -> dict[str, float]:
    """Return a policy's size, both times, and the speedup by wall and processor time."""
    update, dtype = _update(network, batch), torch.bfloat16 if half == "bf16" else torch.float16
    updates = 1 if half == "bf16" else GPU_UPDATES
    timed = []
    for turn in range(TURNS + 1):  # the first is not counted
        pair = _timed(update, None, updates), _timed(update, dtype, updates)
        timed += [pair] if turn else []
    full, few = (1e3 * statistics.median(pair[which][0] for pair in timed) for which in (0, 1))
    wall, cpu = (statistics.median(one[k] / two[k] for one, two in timed) for k in (0, 1))
    return {
        "parameters": sum(each.numel() for each in network.parameters()),
        "fp32_ms": full,
        f"{half}_ms": few,
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
    device = next(network.parameters()).device
    frames = torch.randint(0, 256, (batch, 4, 84, 84), dtype=torch.uint8, device=device)
    frames = frames.contiguous(memory_format=torch.channels_last)
    actions = torch.randint(0, ACTIONS, (batch, 1), device=device)
    targets = torch.randn(batch, 1, device=device)
    scaler = torch.amp.GradScaler(device.type)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)

    def update(dtype: torch.dtype | None) -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
            values = network(frames / 255.0)
        loss = F.smooth_l1_loss(values.float().gather(1, actions), targets)
        if dtype == torch.float16:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()

    return update


def _timed(
    update: Callable[[torch.dtype | None], None], dtype: torch.dtype | None, updates: int
) -> tuple[float, float]:
    """Return wall and processor seconds of one of `updates`."""
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(updates):
        update(dtype)
    if dtype != torch.bfloat16 and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return (time.perf_counter() - wall) / updates, (time.process_time() - processor) / updates


if __name__ == "__main__":
    main()
