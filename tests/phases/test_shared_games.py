"""Runs of one sweep that would evaluate the same policy alike have one of them do it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qpd.phases.shared_games import SharedGames
from qpd.phases.whole_run import run_all_phases
from qpd.recipe.schema import Recipe
from qpd.runs.run_directory import RunDirectory
from tests.tiny_run import Follower, recipe_of

torch.set_num_threads(1)

SHORT = {"distill": {"epochs": 1}, "finetune": {"epochs": 1}}


def evaluations(path: Path, recipe: Recipe, games: SharedGames | None) -> dict[str, Any]:
    """Return what a whole run records of its policies."""
    run_all_phases(recipe, path, Follower(), shared_games=games)
    return dict(RunDirectory.open(path, read_only=True).manifest.evaluations)


def was_played(evaluation: dict[str, Any]) -> bool:
    return bool(evaluation["seconds"] > 0)


def without_seconds(evaluation: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in evaluation.items() if key not in ("seconds", "date")}


@pytest.fixture(scope="module")
def first(
    teacher_zip: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[SharedGames, dict[str, Any]]:
    """A run's evaluations, and what it left for others."""
    path = tmp_path_factory.mktemp("first")
    games = SharedGames(path / "games")
    recipe = recipe_of(teacher_zip, student={"sharpness": 2}, **SHORT)
    return games, evaluations(path / "run", recipe, games)


def test_the_same_games_are_not_played_again(
    teacher_zip: Path, tmp_path: Path, first: tuple[SharedGames, dict[str, Any]]
) -> None:
    games, before = first
    other = recipe_of(teacher_zip, student={"size": "mlp-4", "sharpness": 2}, **SHORT)
    shared = evaluations(tmp_path / "shared", other, games)
    alone = evaluations(tmp_path / "alone", other, None)
    for name in ("teacher", "teacher_sharpened"):
        assert was_played(before[name]) and was_played(alone[name])
        assert not was_played(shared[name])
        assert without_seconds(shared[name]) == without_seconds(alone[name])
    # Another student is another policy, and plays as it would alone.
    assert was_played(shared["distilled"])
    assert shared["distilled"]["returns"] == alone["distilled"]["returns"]


def test_one_distilled_student_is_evaluated_once_for_all_bits(
    teacher_zip: Path, tmp_path: Path, first: tuple[SharedGames, dict[str, Any]]
) -> None:
    games, before = first
    other = recipe_of(teacher_zip, student={"sharpness": 2}, quantize={"weight_bits": 3}, **SHORT)
    other = other.model_copy(update={"name": "another-cell"})  # which its files tell of
    after = evaluations(tmp_path / "run", other, games)
    assert was_played(before["distilled"]) and not was_played(after["distilled"])
    assert after["distilled"]["returns"] == before["distilled"]["returns"]
    assert was_played(after["ptq"])


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"seed": 4},
        {"environment": {"max_frames": 40}},
        {"environment": {"kwargs": {"sutton_barto_reward": True}}},
        {"evaluation": {"episodes": 5}},
        {"evaluation": {"num_envs": 3}},
        {"evaluation": {"acting": "greedy"}},
    ],
)
def test_other_games_are_played(
    teacher_zip: Path,
    tmp_path: Path,
    first: tuple[SharedGames, dict[str, Any]],
    changed: dict[str, Any],
) -> None:
    sections = {key: value for key, value in changed.items() if key != "seed"}
    recipe = recipe_of(teacher_zip, **SHORT, **sections)
    recipe = recipe.model_copy(update={"seed": changed.get("seed", recipe.seed)})
    found = evaluations(tmp_path / "run", recipe, first[0])
    assert was_played(found["teacher"]) == bool(changed)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:100],
        lambda text: text.replace('"mean": ', '"mean": 1'),
        lambda text: text.replace('"seed": 3', '"seed": 4'),
        lambda text: "[]",
        lambda text: '{"games": 1}',
    ],
)
def test_damaged_files_are_played_anew(
    teacher_zip: Path, tmp_path: Path, damage: Callable[[str], str]
) -> None:
    recipe = recipe_of(teacher_zip, **SHORT)
    folder = tmp_path / "games"
    before = evaluations(tmp_path / "first", recipe, SharedGames(folder))
    for file in folder.iterdir():
        text = file.read_text()
        assert damage(text) != text
        file.write_text(damage(text))
    after = evaluations(tmp_path / "second", recipe, SharedGames(folder))
    assert was_played(after["teacher"])
    assert after["teacher"]["returns"] == before["teacher"]["returns"]
