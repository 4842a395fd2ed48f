"""--quiet: neither progress nor tables, only errors and what --json asks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.command_line import call
from tests.tiny_run import recipe_of


def test_a_quiet_life_of_a_run(
    capsys: pytest.CaptureFixture[str], in_an_empty_folder: None, teacher_zip: Path
) -> None:
    recipe = recipe_of(teacher_zip, distill={"epochs": 1}, finetune={"epochs": 1})
    Path("tiny.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    for words in (
        "distill tiny.yaml -o a",
        "quantize a",
        "quantize a -o b",
        "finetune a",
        "run tiny.yaml -o a",
        "evaluate a --episodes 2",
        "export a --format c",
        "report a --no-umap --no-video",
        "push a me/x --dry-run --formats c --no-video",
        f"teacher card {teacher_zip} -o card --episodes 2",
    ):
        assert call(capsys, *words.split(), "--quiet") == (0, "", ""), words
    code, out, err = call(capsys, "evaluate", "a", "-q", "--episodes", "2", "--json")
    assert (code, err) == (0, "") and json.loads(out)["return"]["episodes"] == 2
    code, out, err = call(capsys, "quantize", "absent", "--quiet")
    assert (code, out) == (2, "") and err.startswith("error: absent: is not a run directory")


def test_a_quiet_training_still_warns(
    capsys: pytest.CaptureFixture[str], in_an_empty_folder: None
) -> None:
    # Checkpoints abandon all episodes, and no game of CartPole ends within 8 steps.
    words = "train ppo CartPole-v1 --timesteps 64 -o agent --set n_envs=1 --set n_steps=8"
    words += " --set batch_size=8 --set train.checkpoint_every=8 --quiet"
    code, out, err = call(capsys, *words.split())
    assert (code, out) == (0, "")
    assert "warning: " in err and "no episode has ended between two checkpoints" in err
