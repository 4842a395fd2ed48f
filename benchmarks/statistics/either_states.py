"""Compare the students of phases 2 and 3 on the states that either's games lead to.

python -m benchmarks.statistics.either_states RUN [--games 64]

RUN has ptq.safetensors and quantized.safetensors. Prints the mean return of each, and its
divergence from the teacher (Eq. 1) on the states of its own games and of the other's. Baseline: the
divergence on a student's own states alone, by which an epoch was once chosen.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from qpd.integer.integer_student import IntegerEngine
from qpd.phases.preparation import prepare
from qpd.phases.student_run import LEGACY_TEMPERATURE
from qpd.phases.validation import Validation
from qpd.recipe.loading import override_recipe
from qpd.runs.progress import SilentProgress
from qpd.runs.run_directory import RunDirectory
from qpd.student_files.quantized import load_integer_student


def main() -> None:
    """Measure, and print a line for each student."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--games", type=int, default=64)
    options = parser.parse_args()
    run = RunDirectory.open(options.run, read_only=True)
    recipe = override_recipe(run.recipe, [f"evaluation.validation_episodes={options.games}"])
    prepared = prepare(recipe, "cpu")
    chosen = recipe.distill.temperature or prepared.teacher.actions.temperature
    temperature = chosen or run.phase("distill").metrics.get("temperature", LEGACY_TEMPERATURE)
    validation = Validation(recipe, prepared, SilentProgress())
    files = {"phase 2": run.ptq_file, "phase 3": run.quantized_file}
    found = {
        name: validation(IntegerEngine(load_integer_student(file)), temperature)
        for name, file in files.items()
    }
    for name, own in found.items():
        (other,) = (each for each in found.values() if each is not own)
        low, high = own.games.interval()
        print(
            f"{name}: return {own.games.mean:.1f} [{low:.1f}, {high:.1f}], divergence "
            f"{own.divergence:.4f} on its own states, {other.divergence_of(own.policy):.4f} on the "
            "other's"
        )
    validation.close()


if __name__ == "__main__":
    main()
