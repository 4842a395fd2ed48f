"""Filmed games, with what one or more policies would do at every moment."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv

from qpd.environments.action_spaces import within_space
from qpd.environments.atari_emulators import emulator_seed
from qpd.environments.errors import one_line
from qpd.environments.gymnasium_vector import episode_seed
from qpd.environments.making import make_one
from qpd.environments.observation import ShownObservations
from qpd.environments.registry import (
    EnvironmentConfigError,
    atari_rom,
    environment_spec,
    make_vector_env,
)
from qpd.environments.source import EnvironmentSource, as_source
from qpd.environments.wrappers import score_of
from qpd.errors.termination import Terminated
from qpd.evaluation.decisions import Player, decide, undecided
from qpd.evaluation.games import evaluation_rng
from qpd.machine.torch_threads import torch_threads

SCREEN = (210, 160)  # of the Atari 2600, in pixels
AGENT_STEPS_PER_SECOND = 15  # the console shows 60 frames, an action lasts four
MAX_GYM_WIDTH = 320  # pixels of a rendered frame; larger ones are shrunk
MAX_PICTURES_PER_SECOND = 50  # MuJoCo without a graphics card draws some ten a second


@dataclass(frozen=True)
class FilmedGame:
    """The beginning of a game: a picture before every `stride` steps, and one at the end.

    `frames` is uint8 `[pictures, height, width, 3]`; `decisions` float64 `[players, steps + 1,
    numbers]` as in `qpd.evaluation.decisions`, of the one who plays, then of the others on the same
    observations, NaN where nobody was asked (a forced step, the end); `taken` `[steps, ...]`, the
    actions; `scores` float64 `[steps + 1]`, the return so far. `ended` is True if the last frame is
    the game's end.
    """

    frames: np.ndarray
    decisions: np.ndarray
    taken: np.ndarray
    scores: np.ndarray
    ended: bool
    steps_per_second: float
    stride: int = 1


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


def _film_atari(
    players: list[Player], env_id: str, seed: int, seconds: float, max_frames: int | None
) -> FilmedGame:
    env = make_vector_env(env_id, 1, max_frames=max_frames)
    env.reset(seed)
    # The evaluation's stream of draws, which there all parallel games share: a greedy policy, or
    # one that plays alone, acts as it does there.
    rng = evaluation_rng(seed)
    asked: list[np.ndarray] = []
    scores, ended = [0.0], False
    # Steps that the environment forces (no-ops, FIRE after a lost life) are nobody's decision.
    silent = undecided(players)
    while not ended and len(asked) < round(seconds * AGENT_STEPS_PER_SECOND):
        action = np.zeros(1, np.int64)
        asked.append(silent)
        if env.acting[0]:
            action, asked[-1] = decide(players, env.observations, rng)
        step = env.step(action)
        scores.append(float(step.game_returns[0]))
        ended = bool(step.game_over[0])
    # The vector environment draws no pictures: the game is played again from its seed, by the
    # buttons it pressed.
    buttons = env.get_state()["game_actions"].astype(np.int64)
    env.close()
    frames = film_buttons(env_id, seed, buttons.tolist())
    decisions = np.stack([*asked, silent], axis=1)
    rate = float(AGENT_STEPS_PER_SECOND)
    return FilmedGame(frames, decisions, buttons, np.array(scores), ended, rate)


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
    rate, score = _rate(env), score_of(env)
    rng = evaluation_rng(seed)
    stride = max(1, -(-round(rate) // MAX_PICTURES_PER_SECOND))
    asked: list[np.ndarray] = []
    taken: list[np.ndarray] = []
    scores, ended = [0.0], False
    steps = max(1, round(seconds * rate))
    while not ended and len(taken) < steps:
        action, told = decide(players, seen, rng)
        asked.append(told)
        taken.append(action[0])
        # A copy: the environment may write into it.
        given = within_space(action[0].copy(), env.action_space)
        with _drawn(source):
            observation, reward, terminated, truncated, _ = env.step(given)
        shown.push(observation, seen[0])
        scores.append(scores[-1] + (float(reward) if score is None else score.take()))
        ended = bool(terminated or truncated)
        is_last = ended or len(taken) == steps
        if is_last or len(taken) % stride == 0:
            with _drawn(source):
                frames.append(_shrunk(env.render()))
    env.close()
    decisions = np.stack([*asked, undecided(players)], axis=1)
    scored = np.array(scores)
    pictures = np.stack(frames)
    return FilmedGame(pictures, decisions, np.array(taken), scored, ended, rate, stride)


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
    with _drawn(source):
        env = make_one(source, max_frames, "rgb_array")
        _follow(env, source)
        observation, _ = env.reset(seed=episode_seed(seed, 0, 0))  # as the evaluation's first
        picture = _shrunk(env.render())  # some fail only here
    return env, observation, picture


def _rate(env: gymnasium.Env[Any, Any]) -> float:
    """Return an environment's steps per second, 30 where it says none."""
    said = env.metadata.get("render_fps")
    return float(said) if isinstance(said, int | float) and 0 < said < math.inf else 30.0


@contextmanager
def _drawn(source: EnvironmentSource) -> Iterator[None]:
    """Raise EnvironmentConfigError, one line, for whatever an environment raises."""
    try:
        yield
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # of a user's own class, or of what draws it
        known = isinstance(error, EnvironmentConfigError)
        reason = str(error).removeprefix(f"{source.env_id}: ") if known else one_line(error)
        raise EnvironmentConfigError(
            f"{source} cannot be drawn: {reason}{_drawing_hint(source)}",
            error.code if isinstance(error, EnvironmentConfigError) else None,
        ) from error


def _follow(env: gymnasium.Env[Any, Any], source: EnvironmentSource) -> None:
    """Let MuJoCo's camera go along with the robot, unless the user chose a camera.

    Since gymnasium 1.3 the default one stays where it is, and robots walk out of the picture.
    """
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is None:
        return
    import mujoco
    from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer

    # Without OpenGL its viewer fails before it has a context, and complains on stderr that there is
    # none to free.
    if not hasattr(OffScreenViewer, "opengl_context"):
        OffScreenViewer.opengl_context = SimpleNamespace(free=lambda: None)
    if {"camera_id", "camera_name"} & set(source.kwargs):
        return

    camera = mujoco.mj_name2id(renderer.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    if camera >= 0:  # arms and pendulums have none, and stay in sight
        renderer.camera_id = camera


def _drawing_hint(source: EnvironmentSource) -> str:
    """Say what MuJoCo needs to draw where there is no screen; nothing for others."""
    registered = gymnasium.registry.get(source.env_id)
    if registered is None or ".mujoco" not in str(registered.entry_point):
        return ""
    backend = os.environ.get("MUJOCO_GL", "a screen's OpenGL")
    return (
        f" (MuJoCo drew with {backend}; without a screen it needs libegl1 and MUJOCO_GL=egl, or "
        "libosmesa6 and MUJOCO_GL=osmesa)"
    )


def _shrunk(frame: object) -> np.ndarray:
    """Shrink a picture by a whole factor to at most MAX_GYM_WIDTH: uint8 `[height, width, 3]`."""
    picture = np.asarray(frame, np.uint8)
    if picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        raise ValueError(f"a picture of shape {picture.shape}; expected [height, width, 3]")
    factor = min(-(-picture.shape[1] // MAX_GYM_WIDTH), picture.shape[0])
    height, width = (size // factor * factor for size in picture.shape[:2])
    blocks = picture[:height, :width].reshape(height // factor, factor, width // factor, factor, 3)
    return blocks.mean(axis=(1, 3)).round().astype(np.uint8)
