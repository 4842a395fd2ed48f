"""Pendulum-v1 by SAC in float32, in a format as it is, and with the six methods; one seed.

The RL Zoo's settings, shortened. `python -m benchmarks.low_precision_sac --timesteps 4000`
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import qpd
from qpd.errors.user_error import UserError

TRAININGS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "{} plain": {"precision.methods": []},
    "{} six methods": {},
}


def main() -> None:
    """Train three agents, and print how they end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=4000)
    parser.add_argument("--format", default="fp16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hyperparameter", action="append", default=[], metavar="KEY=NUMBER")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    more = {
        key: int(number) for key, number in (each.split("=") for each in arguments.hyperparameter)
    }
    print("| training | mean return of the last 20 episodes | updates skipped | end | seconds |")
    print("|---|---|---|---|---|")
    for title, settings in TRAININGS.items():
        overrides = {"train.timesteps": arguments.timesteps, "save.tensorboard": False, **more}
        if title != "fp32":
            overrides |= {"precision.format": arguments.format, **settings}
        with tempfile.TemporaryDirectory() as folder:
            row = _trained(Path(folder, "run"), overrides, arguments.seed)
        print(f"| {title.format(arguments.format)} | {row} |", flush=True)


def _trained(folder: Path, overrides: dict[str, Any], seed: int) -> str:
    """Return the cells of one training. NaN in the parameters ends it, as an error of PyTorch."""
    began, end, skipped = time.perf_counter(), "finite", "0"
    try:
        run = qpd.train(
            "sac", "Pendulum-v1", overrides=overrides, seed=seed, output=folder, device="cpu"
        )
        rows = list(csv.DictReader(run.metrics_file.read_text().splitlines()))
        skipped = str(int(float(rows[-1].get("train/skipped_updates") or 0)))
    except UserError as error:
        end = f"NaN: {str(error).split(': ', 1)[1].split(':')[0]}"
    lines = (folder / "0.monitor.csv").read_text().splitlines()[2:]
    returns = [float(line.split(",")[0]) for line in lines][-20:]
    mean = f"{np.mean(returns):,.1f} ({len(returns)} episodes)" if returns else "none"
    return f"{mean} | {skipped} | {end} | {time.perf_counter() - began:.0f}"


if __name__ == "__main__":
    main()
