"""Filmed games, with each action's probability at every moment under one or more policies."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv

from qpd.actions import ActingRule, Discrete
from qpd.environments.atari_emulators import emulator_seed
from qpd.environments.errors import one_line
from qpd.environments.making import make_one
from qpd.environments.observation import ShownObservations
from qpd.environments.policy import Policy
from qpd.environments.registry import (
    EnvironmentConfigError,
    atari_rom,
    environment_spec,
    make_vector_env,
)
from qpd.environments.source import EnvironmentSource, as_source
from qpd.machine.torch_threads import torch_threads

SCREEN = (210, 160)  # of the Atari 2600, in pixels
AGENT_STEPS_PER_SECOND = 15  # the console shows 60 frames, an action lasts four
MAX_GYM_WIDTH = 320  # pixels of a rendered frame; larger ones are shrunk


@dataclass(frozen=True)
class Player:
    """A policy with its acting rule and a label."""

    label: str
    policy: Policy
    rule: ActingRule


@dataclass(frozen=True)
class FilmedGame:
    """The beginning of a game: a picture before every step and one at the end.

    `frames` is uint8 `[steps + 1, height, width, 3]`; `probabilities` float64 `[players, steps + 1,
    actions]`, of the one who plays, then of the others on the same observations, NaN where nobody
    was asked (a forced step, the end), and of no actions unless there is one choice among several;
    `buttons` `[steps, ...]`, the actions taken; `scores` float64 `[steps + 1]`, the return so far.
    `ended` is True if the last frame is the game's end.
    """

    frames: np.ndarray
    probabilities: np.ndarray
    buttons: np.ndarray
    scores: np.ndarray
    ended: bool
    frames_per_second: float


def film_game(
    players: list[Player],
    env: str | EnvironmentSource,
    seed: int,
    seconds: float,
    max_frames: int | None,
) -> FilmedGame:
    """Film a game of the first of `players`; the others say what they would do.

    Stops after `seconds` of game time. Raises EnvironmentConfigError if the environment cannot be
    rendered.
    """
    with torch_threads(1):
        source = as_source(env)
        if environment_spec(source).is_atari:
            return _film_atari(players, source.env_id, seed, seconds, max_frames)
        return _film_gym(players, source, seed, seconds, max_frames)


def _decide(
    players: list[Player], observation: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first player's action, `[1]`, and all probabilities `[players, actions]`."""
    outputs = [player.policy(observation) for player in players]
    first = players[0]
    action = first.policy.actions.act(outputs[0], first.rule, rng)
    asked = [
        player.policy.actions.probabilities(own, player.rule)[0]
        for player, own in zip(players, outputs, strict=True)
        if isinstance(player.policy.actions, Discrete)
    ]
    return action, np.stack(asked) if len(asked) == len(players) else np.zeros((len(players), 0))


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
    silent = np.full((len(players), env.spec.actions.num_outputs), np.nan)
    while not ended and len(asked) < round(seconds * AGENT_STEPS_PER_SECOND):
        action = np.zeros(1, np.int64)
        asked.append(silent)
        if env.acting[0]:
            action, asked[-1] = _decide(players, env.observations, rng)
        step = env.step(action)
        scores.append(float(step.game_returns[0]))
        ended = bool(step.game_over[0])
    # The vector environment draws no pictures: the game is played again from its seed, by the
    # buttons it pressed.
    buttons = env.get_state()["game_actions"].astype(np.int64)
    env.close()
    frames = film_buttons(env_id, seed, buttons.tolist())
    probabilities = np.stack([*asked, silent], axis=1)
    rate = float(AGENT_STEPS_PER_SECOND)
    return FilmedGame(frames, probabilities, buttons, np.array(scores), ended, rate)


def film_buttons(
    env_id: str,
    seed: int,
    buttons: list[int],
    *,
    size: tuple[int, int] = SCREEN,
    grey: bool = False,
) -> np.ndarray:
    """Film an Atari game again from its seed and buttons.

    Returns uint8 `[steps + 1, height, width, 3]`, or `[..., 1]` in grey.

    Raises EnvironmentConfigError outside Atari.
    """
    rom = atari_rom(env_id)
    if rom is None:
        raise EnvironmentConfigError(f"{env_id}: only Atari games can be filmed")
    # The agent's environment draws 84x84 grey frames and nothing else, so the game is played again
    # in colour: same seed, same no-ops, same buttons, same game.
    env = AtariVectorEnv(
        rom,
        1,
        num_threads=1,
        grayscale=grey,
        img_height=size[0],
        img_width=size[1],
        stack_num=1,
        noop_max=30,
        use_fire_reset=False,
        repeat_action_probability=0.0,
        autoreset_mode="NextStep",
    )
    frame, _ = env.reset(seed=np.array([emulator_seed(seed, 0)]))
    shape = (*size, 1 if grey else 3)
    # Copies: ALE may write the next frame into the array that it returned.
    frames = [frame.reshape(shape).copy()]
    for button in buttons:
        frame, *_ = env.step(np.array([button]))
        frames.append(frame.reshape(shape).copy())
    env.close()
    return np.stack(frames)


def _film_gym(
    players: list[Player],
    source: EnvironmentSource,
    seed: int,
    seconds: float,
    max_frames: int | None,
) -> FilmedGame:
    env, observation, picture = _begin_rendered(source, seed, max_frames)
    shown = ShownObservations(env.observation_space, source.env_id)
    seen = np.zeros((1, *shown.stacked(source.frame_stack)), shown.dtype)
    shown.push(observation, seen[0])
    frames = [picture]
    rate = float(env.metadata.get("render_fps", 30))
    rng = np.random.default_rng([seed, 0xE7A1])
    asked: list[np.ndarray] = []
    buttons: list[np.ndarray] = []
    scores, ended = [0.0], False
    while not ended and len(buttons) < round(seconds * rate):
        action, told = _decide(players, seen, rng)
        asked.append(told)
        buttons.append(action[0])
        # A copy: the environment may write into it. A number where there is one choice.
        given = action[0].copy() if action[0].ndim else int(action[0])
        observation, reward, terminated, truncated, _ = env.step(given)
        shown.push(observation, seen[0])
        frames.append(_shrunk(env.render()))
        scores.append(scores[-1] + float(reward))
        ended = terminated or truncated
    env.close()
    probabilities = np.stack([*asked, np.full_like(asked[0], np.nan)], axis=1)
    scored = np.array(scores)
    return FilmedGame(np.stack(frames), probabilities, np.array(buttons), scored, ended, rate)


def check_drawable(env: str | EnvironmentSource) -> None:
    """Raise EnvironmentConfigError, before anything is played, if no picture can be made."""
    source = as_source(env)
    if not environment_spec(source).is_atari:
        _begin_rendered(source, 0, None)[0].close()


def _begin_rendered(
    source: EnvironmentSource, seed: int, max_frames: int | None
) -> tuple[gymnasium.Env[Any, Any], Any, np.ndarray]:
    """Make an environment that draws, and return it with its first observation and picture."""
    # Nothing is shown or heard: SDL need not look for a screen, nor complain that there is none.
    for variable in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        os.environ.setdefault(variable, "dummy")
    env = make_one(source, max_frames, "rgb_array")
    try:
        observation, _ = env.reset(seed=seed)
        # Inside the try: some environments fail only when they render.
        return env, observation, _shrunk(env.render())
    except Exception as error:  # of a user's own class, or of what draws it
        raise EnvironmentConfigError(f"{source} cannot be drawn: {one_line(error)}") from error


def _shrunk(frame: object) -> np.ndarray:
    """Shrink a picture by a whole factor to at most MAX_GYM_WIDTH: uint8 `[height, width, 3]`."""
    picture = np.asarray(frame, np.uint8)
    factor = -(-picture.shape[1] // MAX_GYM_WIDTH)
    height, width = (size // factor * factor for size in picture.shape[:2])
    blocks = picture[:height, :width].reshape(height // factor, factor, width // factor, factor, 3)
    return blocks.mean(axis=(1, 3)).round().astype(np.uint8)
