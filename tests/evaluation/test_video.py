from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qpd.environments.acting import ActingRule
from qpd.environments.registry import EnvironmentConfigError, make_vector_env
from qpd.evaluation.video import check_filmable, film, play_buttons, record_gif

GAME = "BreakoutNoFrameskip-v4"


def random_policy(observations: np.ndarray) -> np.ndarray:
    return np.zeros((len(observations), 4), np.float32)


def test_the_film_shows_the_game_that_was_played() -> None:
    buttons = play_buttons(random_policy, GAME, ActingRule("sample"), seed=3, max_steps=120)
    grey = film(GAME, 3, buttons, size=(84, 84), grey=True)
    # The same buttons in the environment itself, forced steps included: what the policy saw.
    env = make_vector_env(GAME, 1)
    env.reset(3)
    seen = 0
    for step, button in enumerate(buttons):
        if env.acting[0]:
            assert np.array_equal(env.observations[0, -1], grey[step][..., 0]), step
            seen += 1
        env.step(np.array([button]))
    env.close()
    assert seen > 50


def test_a_gif_is_written_and_moves(tmp_path: Path) -> None:
    path = tmp_path / "game.gif"
    record_gif(path, random_policy, GAME, ActingRule("sample"), seed=0, seconds=2)
    with Image.open(path) as image:
        assert image.size == (160, 210)
        assert 20 < image.n_frames < 40
        first = np.array(image.convert("RGB"))
        image.seek(image.n_frames - 1)
        assert (np.array(image.convert("RGB")) != first).any()


def test_what_cannot_be_filmed_is_said_before_playing(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentConfigError, match="only Atari"):
        check_filmable(tmp_path / "x.gif", "CartPole-v1")
    with pytest.raises(EnvironmentConfigError, match="no folder"):
        check_filmable(tmp_path / "absent" / "x.gif", GAME)
