"""Several students on one stream: as good as alone, resumable, and reached through the CLI."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from rich.console import Console

from qpd.phases.distill import distill, distill_together
from qpd.phases.preparation import prepare
from qpd.phases.student_run import open_student, open_students
from qpd.recipe.loading import override_recipe
from qpd.recipe.schema import Recipe
from qpd.runs.epoch_report import EpochReport
from qpd.runs.progress import TerminalProgress
from qpd.runs.run_directory import RunDirectory
from tests.tiny_run import recipe_of

torch.set_num_threads(1)


class Stop(BaseException):
    """As KeyboardInterrupt."""


class Display(TerminalProgress):
    """The usual display on stderr; stops after as many epochs of students as it is told."""

    def __init__(self, stop_after: int = -1) -> None:
        super().__init__(Console(stderr=True))
        self.left = stop_after
        self.labels: list[str] = []

    def epoch(self, report: EpochReport, label: str = "") -> None:
        super().epoch(report, label)
        self.labels.append(label)
        self.left -= 1
        if self.left == 0:
            raise Stop


@pytest.fixture(scope="module")
def recipe(teacher_zip: Path) -> Recipe:
    return recipe_of(teacher_zip, distill={"epochs": 4})


def member_recipes(recipe: Recipe, sizes: list[str], seeds: list[int]) -> dict[str, Recipe]:
    """The recipe for each size and seed, by label; none are the recipe's own."""
    found = {}
    for size in sizes or [str(recipe.student.size)]:
        for seed in seeds or [recipe.seed]:
            label = f"{size}-seed{seed}"
            changes = [f"seed={seed}", f"name={label}", f"student.size={size}"]
            found[label] = override_recipe(recipe, changes)
    return found


def together(members: dict[str, Recipe], folder: Path, display: Display) -> Display:
    with open_students(members, folder, "cpu", display) as (students, play):
        distill_together(students, play, display)
    return display


def outcome(run: Path) -> tuple[list[dict[str, str]], bytes]:
    """Metrics but for the speed, and the student's tensors."""
    with (run / "metrics.csv").open() as file:
        rows = [{**row, "samples_per_second": ""} for row in csv.DictReader(file)]
    data = (run / "distilled.safetensors").read_bytes()
    return rows, data[8 + int.from_bytes(data[:8], "little") :]


def test_each_student_is_the_one_it_would_be_alone(recipe: Recipe, tmp_path: Path) -> None:
    """On the teacher's play alone, the first student is that of `qpd distill`, bit for bit."""
    members = member_recipes(recipe, ["mlp-16", "mlp-8"], [])
    display = together(members, tmp_path / "group", Display())
    assert list(members) == ["mlp-16-seed3", "mlp-8-seed3"]
    assert display.labels == ["mlp-16-seed3", "mlp-8-seed3"] * 4
    alone = members["mlp-16-seed3"]
    with RunDirectory.create(tmp_path / "alone", alone) as run:
        with open_student(run, prepare(alone, "cpu"), Display()) as (student, play):
            distill(student, play, Display())
    assert outcome(tmp_path / "group" / "mlp-16-seed3") == outcome(tmp_path / "alone")
    # A student that shares plays fewer of its own games: comparisons need to know.
    for name, number in (("group/mlp-16-seed3", 2), ("group/mlp-8-seed3", 2), ("alone", 1)):
        manifest = RunDirectory.open(tmp_path / name, read_only=True)
        assert manifest.phase("distill").metrics["students_sharing"] == number
        # Parity is measured from a random policy's games, which the first student's run plays.
        assert manifest.phase("distill").metrics["first_games"]["episodes"] > 0


@pytest.mark.parametrize("stop_after", [1, 3, 6])
def test_a_group_resumes_to_the_same_students(
    recipe: Recipe, tmp_path: Path, stop_after: int
) -> None:
    recipe = recipe_of(
        Path(recipe.teacher.source), distill={"epochs": 4}, collection={"student_fraction": 0.5}
    )
    members = member_recipes(recipe, ["mlp-8"], [0, 1])
    together(members, tmp_path / "whole", Display())
    with pytest.raises(Stop):
        together(members, tmp_path / "broken", Display(stop_after))
    together(members, tmp_path / "broken", Display())
    whole = [outcome(tmp_path / "whole" / label) for label in members]
    assert [outcome(tmp_path / "broken" / label) for label in members] == whole
    assert whole[0][1] != whole[1][1]  # two seeds, two students


def test_settled_students_stop_while_others_go_on(recipe: Recipe, tmp_path: Path) -> None:
    recipe = recipe_of(
        Path(recipe.teacher.source),
        distill={"epochs": 12, "patience": 1, "batch_size": 16},
        evaluation={"validation_episodes": 1, "acting": "sample"},
    )
    members = member_recipes(recipe, ["mlp-8"], [0, 1, 2, 3, 4])
    together(members, tmp_path, Display())
    epochs = [len(outcome(tmp_path / label)[0]) for label in members]
    assert len(set(epochs)) > 1 and max(epochs) <= 12
