"""A run in a process of its own: killed, interrupted, ended, and the same numbers afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from qpd.recipe.schema import Recipe
from qpd.runs.run_directory import RunDirectory
from tests.tiny_run import outcome, recipe_of

ROOT = Path(__file__).parents[2]


def start(recipe_file: Path, output: Path) -> subprocess.Popen[str]:
    """`qpd run` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "qpd.cli", "run", str(recipe_file), "-o", str(output)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_rows(path: Path, phase: str, epoch: int, process: subprocess.Popen[str]) -> None:
    """Until metrics.csv has the row of this epoch."""
    file = path / "metrics.csv"
    for _ in range(12_000):
        if file.exists() and f"\n{phase},{epoch}," in file.read_text():
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)
    raise AssertionError(f"{phase} never reached epoch {epoch}")


def stop(
    recipe_file: Path, output: Path, phase: str, epoch: int, number: signal.Signals, delay: float
) -> tuple[int, str]:
    """Start the run, send a signal some time after this epoch; exit status and stderr."""
    with start(recipe_file, output) as process:
        wait_for_rows(output, phase, epoch, process)
        time.sleep(delay)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def assert_survives_signals(
    recipe: Recipe, tmp_path: Path, stops: list[tuple[str, int, signal.Signals, float]]
) -> list[str]:
    """Stop a run as told, let it end, and compare it with one that ran through."""
    recipe_file = tmp_path / "recipe.yaml"
    recipe_file.write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    errors = []
    path = tmp_path / "stopped"
    for phase, epoch, number, delay in stops:
        code, text = stop(recipe_file, path, phase, epoch, number, delay)
        expected = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}[number]
        assert code == expected, text
        assert "Traceback" not in text
        errors.append(text)
    for output in (path, tmp_path / "whole"):
        with start(recipe_file, output) as process:
            _, text = process.communicate(timeout=300)
        assert process.returncode == 0, text
    assert outcome(path) == outcome(tmp_path / "whole")
    stopped, whole = (RunDirectory.open(p, read_only=True) for p in (path, tmp_path / "whole"))
    found, expected_results = (
        {
            name: {**result, "seconds": None, "date": None}
            for name, result in run.manifest.evaluations.items()
        }
        for run in (stopped, whole)
    )
    assert found == expected_results
    return errors


@pytest.mark.slow
def test_a_killed_process_goes_on(teacher_zip: Path, tmp_path: Path) -> None:
    # Epochs of 512 updates, some 0.2 s or more: the signals arrive in the middle of one.
    longer = {"batch_size": 8, "epochs": 5}
    recipe = recipe_of(
        teacher_zip,
        replay={"capacity": 4096, "refresh_fraction": 0.1},
        distill=longer,
        finetune={**longer, "epochs": 2},
    )
    errors = assert_survives_signals(
        recipe,
        tmp_path,
        [
            ("distill", 2, signal.SIGKILL, 0.1),
            ("distill", 4, signal.SIGINT, 0.1),
            ("finetune", 1, signal.SIGTERM, 0.1),
        ],
    )
    assert "distill: resumed after epoch" in errors[1]
    # SIGINT, as Ctrl-C sends it.
    assert "interrupted: rerun the same command; it goes on" in errors[1]


@pytest.mark.slow
def test_a_killed_process_goes_on_with_breakout(tmp_path: Path) -> None:
    from qpd.recipe.loading import load_recipe

    changes = ["distill.epochs=3", "distill.batch_size=256"]
    changes.append("replay.refresh_fraction=0.6")  # before epoch 3 all frames are new: another vote
    recipe = load_recipe(str(ROOT / "recipes" / "ci.yaml"), changes)
    assert_survives_signals(
        recipe,
        tmp_path,
        [
            ("distill", 1, signal.SIGKILL, 0.3),
            ("distill", 2, signal.SIGTERM, 0.0),
            ("distill", 3, signal.SIGINT, 1.0),
        ],
    )
