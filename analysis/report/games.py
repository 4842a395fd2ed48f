"""Filmed games, with each action's probability at every moment under one or more policies."""

from __future__ import annotations

import os
from dataclasses import dataclass

import gymnasium
import numpy as np

from qpd.environments.acting import ActingRule
from qpd.environments.policy import Policy
from qpd.environments.registry import EnvironmentConfigError, environment_spec, make_vector_env
from qpd.evaluation.video import AGENT_STEPS_PER_SECOND, film

MAX_GYM_WIDTH = 320  # pixels of a rendered frame; larger ones are shrunk


@dataclass(frozen=True)
class Player:
    """A policy with its acting rule and a label."""

    label: str
    policy: Policy
    rule: ActingRule

    def probabilities(self, observations: np.ndarray) -> np.ndarray:
        """Return each action's probability, float64 `[actions]`, for one observation `[1, ...]`."""
        return self.rule.probabilities(self.policy(observations))[0]


@dataclass(frozen=True)
class FilmedGame:
    """The beginning of a game: a picture before every step and one at the end.

    `frames` is uint8 `[steps + 1, height, width, 3]`; `probabilities` float64 `[players, steps + 1,
    actions]`, of the one who plays, then of the others on the same observations, NaN where nobody
    was asked (a forced step, the end); `buttons` int64 `[steps]`, the actions taken; `scores`
    float64 `[steps + 1]`, the return so far. `ended` is True if the last frame is the game's end.
    """

    frames: np.ndarray
    probabilities: np.ndarray
    buttons: np.ndarray
    scores: np.ndarray
    ended: bool
    frames_per_second: float


def film_game(
    players: list[Player], env_id: str, seed: int, seconds: float, max_frames: int | None
) -> FilmedGame:
    """Film a game of the first of `players`; the others say what they would do.

    Stops after `seconds` of game time. Raises EnvironmentConfigError if the environment cannot be
    rendered.
    """
    if environment_spec(env_id).is_atari:
        return _film_atari(players, env_id, seed, seconds, max_frames)
    return _film_gym(players, env_id, seed, seconds, max_frames)


def _film_atari(
    players: list[Player], env_id: str, seed: int, seconds: float, max_frames: int | None
) -> FilmedGame:
    env = make_vector_env(env_id, 1, max_frames=max_frames)
    env.reset(seed)
    # The evaluation's own stream of draws, so that the same seed acts as it does there.
    rng = np.random.default_rng([seed, 0xE7A1])
    asked: list[np.ndarray] = []
    scores, ended = [0.0], False
    # Steps that the environment forces (no-ops, FIRE after a lost life) are nobody's decision.
    silent = np.full((len(players), env.spec.num_actions), np.nan)
    while not ended and len(asked) < round(seconds * AGENT_STEPS_PER_SECOND):
        action = np.zeros(1, np.int64)
        asked.append(silent)
        if env.acting[0]:
            asked[-1] = np.stack([p.probabilities(env.observations) for p in players])
            action = players[0].rule.act(players[0].policy(env.observations), rng)
        step = env.step(action)
        scores.append(float(step.game_returns[0]))
        ended = bool(step.game_over[0])
    # The vector environment draws no pictures: the game is played again from its seed, by the
    # buttons it pressed.
    buttons = env.get_state()["game_actions"].astype(np.int64)
    env.close()
    frames = film(env_id, seed, buttons.tolist())
    probabilities = np.stack([*asked, silent], axis=1)
    rate = float(AGENT_STEPS_PER_SECOND)
    return FilmedGame(frames, probabilities, buttons, np.array(scores), ended, rate)


def _film_gym(
    players: list[Player], env_id: str, seed: int, seconds: float, max_frames: int | None
) -> FilmedGame:
    # Nothing is shown or heard: SDL need not look for a screen, nor complain that there is none.
    for variable in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        os.environ.setdefault(variable, "dummy")
    try:
        env = gymnasium.make(env_id, render_mode="rgb_array", max_episode_steps=max_frames)
        observation, _ = env.reset(seed=seed)
        # The first picture is taken inside the try: some environments fail only when they render.
        frames = [_shrunk(env.render())]
    except (gymnasium.error.Error, ImportError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise EnvironmentConfigError(f"{env_id} cannot be drawn: {reason}") from error
    rate = float(env.metadata.get("render_fps", 30))
    rng = np.random.default_rng([seed, 0xE7A1])
    asked: list[np.ndarray] = []
    buttons: list[int] = []
    scores, ended = [0.0], False
    while not ended and len(buttons) < round(seconds * rate):
        batch = np.asarray(observation, np.float32)[None]
        asked.append(np.stack([p.probabilities(batch) for p in players]))
        buttons.append(int(players[0].rule.act(players[0].policy(batch), rng)[0]))
        observation, reward, terminated, truncated, _ = env.step(buttons[-1])
        frames.append(_shrunk(env.render()))
        scores.append(scores[-1] + float(reward))
        ended = terminated or truncated
    env.close()
    probabilities = np.stack([*asked, np.full_like(asked[0], np.nan)], axis=1)
    scored = np.array(scores)
    return FilmedGame(np.stack(frames), probabilities, np.array(buttons), scored, ended, rate)


def _shrunk(frame: object) -> np.ndarray:
    """Shrink a picture by a whole factor to at most MAX_GYM_WIDTH: uint8 `[height, width, 3]`."""
    picture = np.asarray(frame, np.uint8)
    factor = -(-picture.shape[1] // MAX_GYM_WIDTH)
    height, width = (size // factor * factor for size in picture.shape[:2])
    blocks = picture[:height, :width].reshape(height // factor, factor, width // factor, factor, 3)
    return blocks.mean(axis=(1, 3)).round().astype(np.uint8)
