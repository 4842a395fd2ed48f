"""What cards say about actions of every kind."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3 import SAC

from qpd.actions import Box, Discrete, MultiBinary, MultiDiscrete
from qpd.hub.action_words import actions_in_words
from tests.analysis.continuous_run import continuous_run, continuous_teacher
from tests.command_line import call

torch.set_num_threads(1)


def test_actions_of_every_kind() -> None:
    assert (
        actions_in_words(Discrete(4), "BreakoutNoFrameskip-v4") == "0 NOOP, 1 FIRE, 2 RIGHT, 3 LEFT"
    )
    assert actions_in_words(Discrete(2), "CartPole-v1") == "0 to 1"
    assert (
        actions_in_words(MultiDiscrete((2, 3)), "x") == "2 choices among 2, 3, each counted from 0"
    )
    assert actions_in_words(MultiBinary(5), "x") == "5 switches, 0 for off and 1 for on"


def test_bounds() -> None:
    assert (
        actions_in_words(Box((-2.0,), (2.0,)), "x") == "1 continuous number, float32, from -2 to 2"
    )
    alike = "3 continuous numbers, float32, each from -1 to 1"
    assert actions_in_words(Box((-1.0,) * 3, (1.0,) * 3), "x") == alike
    apart = "2 continuous numbers, float32, 0 from -1 to 1, 1 from 0 to 0.5"
    assert actions_in_words(Box((-1.0, 0.0), (1.0, 0.5)), "x") == apart
    many = actions_in_words(Box(tuple(map(float, range(40))), (99.0,) * 40), "x")
    assert many.endswith("31 from 31 to 99, and so on")


def test_the_card_of_a_student_of_continuous_actions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = continuous_run(tmp_path)
    assert call(capsys, "evaluate", run, "--quiet")[0] == 0
    folder = tmp_path / "hub"
    options = ("--dry-run", "-o", folder, "--formats", "c", "--quiet")
    code, _, err = call(capsys, "push", run, "me/pendulum", *options)
    assert code == 0, err
    card = (folder / "README.md").read_text()
    assert "- Actions: 1 continuous number, float32, from -2 to 2." in card
    assert "the outputs are the actions; nothing is drawn at random" in card
    assert "a code of 8 bits: 0 stands for the lower bound, 255 for the upper one" in card
    assert "(the teacher at 4 bytes per parameter, critic included;" in card
    assert json.loads((folder / "results.json").read_text())["is_deterministic"] is True
    assert (folder / "replay.gif").is_file()


def test_the_card_of_a_teacher_of_continuous_actions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = continuous_teacher(tmp_path)
    folder = tmp_path / "card"
    code, _, err = call(capsys, "teacher", "card", agent, "-o", folder, "--episodes", 2, "--quiet")
    assert code == 0, err
    card = (folder / "README.md").read_text()
    assert "| Actions | 1 continuous number, float32, from -2 to 2 |" in card
    (example,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    found: dict[str, Any] = {}
    with contextlib.chdir(folder):
        exec(example, found)
    assert isinstance(found["agent"], SAC)
