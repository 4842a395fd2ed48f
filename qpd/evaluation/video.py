"""A game as a GIF: played on the policy's own grey frames, filmed in colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from PIL import Image

from qpd.environments.acting import ActingRule
from qpd.environments.atari_emulators import emulator_seed
from qpd.environments.policy import Policy
from qpd.environments.registry import (
    EnvironmentConfigError,
    atari_rom,
    environment_spec,
    make_vector_env,
)
from qpd.errors.codes import ErrorCode
from qpd.files.atomic import replace_file

SCREEN = (210, 160)  # of the Atari 2600, in pixels
AGENT_STEPS_PER_SECOND = 15  # the console shows 60 frames, an action lasts four


def play_buttons(
    policy: Policy, env_id: str, rule: ActingRule, seed: int, max_steps: int
) -> list[int]:
    """Play one game, about `max_steps` at most; return its buttons, SB3's own presses included."""
    env = make_vector_env(env_id, 1)
    env.reset(seed)
    rng = np.random.default_rng([seed, 0xE7A1])
    for _ in range(max_steps):
        actions = np.zeros(1, np.int64)
        if env.acting[0]:
            actions = rule.act(policy(env.observations), rng)
        if env.step(actions).game_over[0]:
            break
    # The environment's own log, as it replays games from; it also has the presses of SB3's
    # wrappers.
    buttons = env.get_state()["game_actions"].tolist()
    env.close()
    return [int(button) for button in buttons]


def film(
    env_id: str,
    seed: int,
    buttons: list[int],
    *,
    size: tuple[int, int] = SCREEN,
    grey: bool = False,
) -> np.ndarray:
    """Film the same game: uint8 `[steps + 1, height, width, 3]`, or `[..., 1]` in grey.

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


def check_filmable(path: Path, env_id: str) -> None:
    """Raise EnvironmentConfigError, before anything is played, if no film can be made."""
    if not environment_spec(env_id).is_atari:
        raise EnvironmentConfigError(f"{env_id}: only Atari games can be filmed")
    if not path.parent.is_dir():
        raise EnvironmentConfigError(
            f"--gif {path}: there is no folder {path.parent}", ErrorCode.FILE_SYSTEM
        )
    if path.is_dir():
        raise EnvironmentConfigError(
            f"--gif {path}: is a folder; name a .gif file", ErrorCode.FILE_SYSTEM
        )


def record_gif(
    path: Path, policy: Policy, env_id: str, rule: ActingRule, seed: int, seconds: float
) -> None:
    """Write the beginning of one game, at the speed of play."""
    max_steps = round(seconds * AGENT_STEPS_PER_SECOND)
    frames = film(env_id, seed, play_buttons(policy, env_id, rule, seed, max_steps))
    images = [Image.fromarray(frame) for frame in frames]
    # One palette for all frames: one each would let colours flicker, and cost bytes.
    palette = images[0].quantize(32, dither=Image.Dither.NONE)
    pictures = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    with replace_file(path) as file:
        pictures[0].save(
            file,
            format="GIF",
            save_all=True,
            append_images=pictures[1:],
            duration=round(1000 / AGENT_STEPS_PER_SECOND),
            loop=0,
        )
