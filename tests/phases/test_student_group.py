"""Several students on one stream: as good as alone, resumable, and reached through the CLI."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from qpd.cli import main
from qpd.phases.distill import distill, distill_together
from qpd.phases.preparation import prepare
from qpd.phases.session import open_session
from qpd.phases.student_group import finish_group, member_recipes, open_group
from qpd.recipe.schema import Recipe, RecipeError
from qpd.runs.progress_display import RunProgress
from qpd.runs.run_directory import RunDirectory
from qpd.training.epochs import EpochReport
from tests.tiny_run import recipe_of

torch.set_num_threads(1)


class Stop(BaseException):
    """As KeyboardInterrupt."""


class Display(RunProgress):
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


def together(members: dict[str, Recipe], folder: Path, display: Display) -> Display:
    with open_group(members, folder, "cpu", display) as sessions:
        distill_together(sessions)
        finish_group(sessions)
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
        session = open_session(run, prepare(alone, "cpu"), Display())
        distill(session)
        session.close()
    assert outcome(tmp_path / "group" / "mlp-16-seed3") == outcome(tmp_path / "alone")
    assert not (tmp_path / "group" / "stream").exists()


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
    members = member_recipes(recipe, ["mlp-8"], [0, 1, 2])
    together(members, tmp_path, Display())
    epochs = [len(outcome(tmp_path / label)[0]) for label in members]
    assert len(set(epochs)) > 1 and max(epochs) <= 12


def test_the_command_line_trains_a_group(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(recipe.to_yaml())
    command = ["distill", str(path), "--students", "mlp-8,mlp-4", "--seeds", "0,1", "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "-o", str(tmp_path / "runs")])
    assert ended.value.code == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert sorted(runs) == ["mlp-4-seed0", "mlp-4-seed1", "mlp-8-seed0", "mlp-8-seed1"]
    for label in runs:  # each is a run directory that the next phase takes
        with pytest.raises(SystemExit) as ended:
            main(["quantize", str(tmp_path / "runs" / label)])
        assert ended.value.code == 0
        assert (tmp_path / "runs" / label / "quantized.safetensors").is_file()


def test_wrong_lists_are_refused(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(recipe.to_yaml())
    wrong = {
        ("--students", "mlp-8,,XS"): "names separated by commas",
        ("--students", "mlp-8,TINY"): "student.size",
        ("--students", "mlp-8,XXS"): "XXS",
        ("--seeds", "0,x"): "whole numbers",
        ("--seeds", "1,1"): "named twice",
    }
    for arguments, said in wrong.items():
        with pytest.raises(SystemExit) as ended:
            main(["distill", str(path), *arguments, "-o", str(tmp_path / "runs")])
        assert ended.value.code == 2
        error = capsys.readouterr().err
        assert said in error and "Traceback" not in error
    assert not (tmp_path / "runs").exists()


def test_members_have_their_own_names(recipe: Recipe) -> None:
    members = member_recipes(recipe, [], [7])
    assert members["mlp-16-seed7"].name == "tiny-mlp-16-seed7"
    with pytest.raises(RecipeError, match="twice"):
        member_recipes(recipe, ["mlp-8", "mlp-8"], [])
