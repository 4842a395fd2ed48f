"""Time of cells distilled one by one, each with a play of its own, and on one shared play.

python -m benchmarks.distillation.sweep [--sizes XXS XS S] [--rounds 3] \
    [--capacity 4000] [--epochs 2]

Runs phase 1 of Breakout students of the embedded teacher in this process, as `qpd sweep` does for
each cell, and for a batch with `share_stream`. The pool, starting processes, phases 2 and 3 and
validation games are left out, as they are the same either way.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.timing import parse_arguments, print_rates
from qpd.phases.distill import distill_together
from qpd.phases.student_run import open_students
from qpd.recipe.loading import load_recipe, override_recipe
from qpd.recipe.schema import Recipe
from qpd.runs.progress import SilentProgress


def distil(members: Mapping[str, Recipe], folder: Path) -> dict[str, float]:
    """Run phase 1 of these students together; return seconds in all and those of collecting."""
    quiet = SilentProgress()
    began = time.perf_counter()
    with open_students(members, folder, "cpu", quiet) as (students, play):
        distill_together(students, play, quiet)
        phases = [student.run.phase("distill").metrics["seconds"] for student in students]
    collecting = sum(seconds.get("collect", 0.0) for seconds in phases)
    return {"all": time.perf_counter() - began, "collecting": collecting}


def main() -> None:
    """Measure both in turn, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["XXS", "XS", "S"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--capacity", type=int, default=4000, help="transitions in the memory")
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parse_arguments(parser)
    overrides = [f"replay.capacity={arguments.capacity}", f"distill.epochs={arguments.epochs}"]
    # Nothing but play and training: games are cut short and no events are written.
    overrides += ["save.tensorboard=false", "evaluation.validation_episodes=1"]
    overrides += ["environment.max_frames=400", "collection.student_fraction=0", "device=cpu"]
    recipe = load_recipe("breakout/base", overrides)
    members = {
        size: override_recipe(recipe, [f"student.size={size}", f"name={size}"])
        for size in arguments.sizes
    }
    times: dict[str, list[dict[str, float]]] = {"one by one": [], "one shared play": []}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as name:
            singles = [distil({k: r}, Path(name) / "alone" / k) for k, r in members.items()]
            total = {key: sum(single[key] for single in singles) for key in singles[0]}
            times["one by one"].append(total)
            times["one shared play"].append(distil(members, Path(name) / "shared"))
    medians = {
        way: {key: statistics.median(found[key] for found in rounds) for key in rounds[0]}
        for way, rounds in times.items()
    }
    base = medians["one by one"]["all"]
    rows = [
        [way, f"{found['all']:.1f}", f"{found['collecting']:.1f}", f"{base / found['all']:.2f}x"]
        for way, found in medians.items()
    ]
    title = f"Phase 1 of {len(members)} students, {arguments.epochs} epochs of {arguments.capacity}"
    print_rates(title, ["cells", "seconds", "of these collecting", "as fast"], rows)


if __name__ == "__main__":
    main()
