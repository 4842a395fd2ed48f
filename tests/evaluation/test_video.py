from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qpd.actions import ActingRule, Discrete
from qpd.environments.policy import FunctionPolicy, random_policy
from qpd.environments.registry import EnvironmentConfigError
from qpd.evaluation.video import check_filmable, record_gif

GAME = "BreakoutNoFrameskip-v4"


def test_a_gif_is_written_and_moves(tmp_path: Path) -> None:
    path = tmp_path / "game.gif"
    record_gif(path, random_policy(Discrete(4)), GAME, ActingRule("sample"), seed=0, seconds=2)
    with Image.open(path) as image:
        assert image.size == (160, 210)
        assert 20 < image.n_frames < 40
        first = np.array(image.convert("RGB"))
        image.seek(image.n_frames - 1)
        assert (np.array(image.convert("RGB")) != first).any()


def test_a_gif_of_a_game_outside_atari(tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    path = tmp_path / "pole.gif"
    check_filmable(path, "CartPole-v1")
    left = ActingRule("greedy")
    policy = FunctionPolicy(lambda o: np.array([[1.0, 0.0]], np.float32), Discrete(2))
    record_gif(path, policy, "CartPole-v1", left, 1, 2)
    with Image.open(path) as image:
        # 8 to 10 steps until it falls, at 50 pictures a second; every second one is kept.
        assert image.size == (300, 200) and image.n_frames in (5, 6)
        assert image.info["duration"] == 40


def test_what_cannot_be_filmed_is_said_before_playing(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentConfigError, match="CartPole-v7"):
        check_filmable(tmp_path / "x.gif", "CartPole-v7")
    with pytest.raises(EnvironmentConfigError, match="no folder"):
        check_filmable(tmp_path / "absent" / "x.gif", GAME)
