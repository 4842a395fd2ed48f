"""Phase 1 says where Eq. 1 is far larger on the student's own play than on its memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_run import Follower, recipe_of, work


@pytest.mark.parametrize(("new", "is_told"), [(0.0, True), (0.5, False)])
@pytest.mark.parametrize("patience", [None, 1])
def test_a_memory_learned_by_heart_is_told(
    teacher_zip: Path, tmp_path: Path, new: float, is_told: bool, patience: int | None
) -> None:
    replay = {"capacity": 64, "refresh_fraction": new}
    recipe = recipe_of(
        teacher_zip,
        student={"size": "mlp-64"},
        replay=replay,
        distill={"epochs": 200, "lr": 0.01, "temperature": 0.02, "patience": patience},
        finetune={"epochs": 0},
        evaluation={"validation_episodes": 8, "validate_every": 25},
    )
    follower = work(tmp_path / "run", recipe, Follower())
    told = [note for note in follower.notes if "raise replay.refresh_fraction" in note]
    assert patience is None or follower.reports[-1].epoch < 200  # it ended early
    assert len(told) == is_told, follower.reports[-1]
