"""Small real experiments that are hit in every phase, and what a fault must not change in them."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from qpd.recipe.schema import Recipe
from tests.tiny_run import recipe_of

STUDENTS = ("distilled.safetensors", "ptq.safetensors", "quantized.safetensors")
PLACES = ("start", "fill", "distill", "quantize", "finetune", "evaluate", "end")
REWARD = {"imitation": 0.3, "rollout": 1024, "passes": 1, "clip": 0.2}


@dataclass(frozen=True)
class Experiment:
    """A recipe file, and the run directory that it made undisturbed."""

    recipe_file: Path
    whole: Path

    @classmethod
    def of(cls, folder: Path, recipe: Recipe) -> Experiment:
        """Write the recipe into `folder`; nothing has run yet."""
        folder.mkdir(parents=True)
        file = folder / "recipe.yaml"
        file.write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
        return cls(file, folder / "whole")


def tiny(teacher: Path) -> Recipe:
    """A second of work; the teacher's zip is `teacher`."""
    return recipe_of(teacher)


def variants(teacher: Path) -> dict[str, Recipe]:
    """Some ten seconds of work each, in phases of seconds: three ways to collect."""
    sections: dict[str, dict[str, Any]] = {
        "replay": {"capacity": 4096, "refresh_fraction": 0.1},
        "distill": {"epochs": 6},
        "finetune": {"epochs": 4},
        "quantize": {"calibration_samples": 4096},
        "evaluation": {"episodes": 100},
        "environment": {"max_frames": 200},
    }
    rewards = {**sections, "finetune": {"epochs": 6, "reward": REWARD}}
    return {
        "teacher plays": recipe_of(teacher, **sections),
        "student plays half": recipe_of(teacher, collection={"student_fraction": 0.5}, **sections),
        "rewards": recipe_of(teacher, **rewards),
    }


def place(path: Path) -> str:
    """Return how far the run in `path` is, one of PLACES."""
    try:
        phases = json.loads((path / "manifest.json").read_bytes())["phases"]
    except FileNotFoundError:
        return "start"
    if phases["distill"]["state"] == "pending":
        return "fill" if (path / "checkpoint" / "replay.bin").exists() else "start"
    unfinished = [name for name in PLACES if phases.get(name, {}).get("state", "done") != "done"]
    return unfinished[0] if unfinished else "end"


def outcome(path: Path) -> dict[str, Any]:
    """Return what no fault may change: students' bytes; metrics and evaluations but for times."""
    with (path / "metrics.csv").open() as file:
        rows = [{**row, "samples_per_second": ""} for row in csv.DictReader(file)]
    evaluations = json.loads((path / "manifest.json").read_bytes())["evaluations"]
    timeless = {
        name: {**result, "seconds": None, "date": None} for name, result in evaluations.items()
    }
    students = {name: (path / name).read_bytes() for name in STUDENTS}
    return {"metrics": rows, "evaluations": timeless, **students}
