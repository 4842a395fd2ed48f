"""Vector environments by id: one preprocessing for teacher, student and export.

Atari games (``BreakoutNoFrameskip-v4`` or ``ALE/Breakout-v5``) are preprocessed as
Stable-Baselines3 does, whichever of the two ids is given: ``ALE/X-v5`` has no sticky actions
here. Other gymnasium environments need flat observations, or ones that SB3 flattens.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ale_py
import gymnasium
from ale_py import Action, ALEInterface, LoggerMode, roms

from qpd.actions import Discrete
from qpd.environments.action_spaces import actions_of
from qpd.environments.atari import AtariEnvironment
from qpd.environments.gymnasium_vector import GymEnvironment
from qpd.environments.interface import (
    FRAME_SIZE,
    FRAME_STACK,
    EnvironmentConfigError,
    EnvironmentRunError,
    EnvironmentSpec,
    VectorEnvironment,
    VectorStep,
)
from qpd.environments.making import is_playable_atari, make_one
from qpd.environments.observation import ShownObservations
from qpd.environments.source import EnvironmentSource, Maker, as_source
from qpd.errors.codes import ErrorCode

__all__ = [
    "EnvironmentConfigError",
    "EnvironmentRunError",
    "EnvironmentSource",
    "EnvironmentSpec",
    "VectorEnvironment",
    "VectorStep",
    "action_names",
    "as_source",
    "environment_spec",
    "feature_origin",
    "make_vector_env",
]

# ale-py's own limit: half an hour of play at 60 frames a second.
DEFAULT_MAX_FRAMES = 108_000
# The ball vanishes for good after about 65,536 emulator frames: nothing is scored later.
BREAKOUT_MAX_FRAMES = 65_700

# Importing ale_py is what registers its games; this call only says that the import is needed.
gymnasium.register_envs(ale_py)


def environment_spec(source: str | EnvironmentSource | Maker) -> EnvironmentSpec:
    """Return the sizes of an environment; raises EnvironmentConfigError if it cannot be used."""
    return _spec(as_source(source))


def feature_origin(source: EnvironmentSource) -> dict[str, Any]:
    """Return what a student's file says of its features: of a Dict, each key and its size.

    Its images, which would come first, are left out. `qpd.environments.feature_names` reads it.
    `feature_forms` are there where a part, or the whole, is shown in another form than it has.
    """
    spec = environment_spec(source)
    found: dict[str, Any] = {"features": [list(part) for part in spec.parts]} if spec.parts else {}
    return found | ({"feature_forms": list(spec.forms)} if any(spec.forms) else {})


@lru_cache(maxsize=64)
def _spec(source: EnvironmentSource) -> EnvironmentSpec:
    rom = _rom_of(source)
    if rom is not None:
        return EnvironmentSpec(
            env_id=source.env_id,
            actions=Discrete(len(_minimal_actions(rom))),
            observation_shape=(FRAME_STACK, FRAME_SIZE, FRAME_SIZE),
            observation_dtype="uint8",
            is_atari=True,
            frame_stack=FRAME_STACK,
        )
    return _gym_spec(source)


def make_vector_env(
    source: str | EnvironmentSource | Maker,
    num_envs: int,
    *,
    num_threads: int = 0,
    max_frames: int | None = None,
    background: bool = False,
    workers: int | None = None,
) -> VectorEnvironment:
    """Build ``num_envs`` copies of an environment; call ``reset(seed)`` before stepping.

    ``source`` is an id, or a function that makes one environment, or both with all that is done to
    it. ``num_threads``: emulators or worker processes that run at once, 0 for no limit.
    ``max_frames``: a game is truncated after so many emulator frames (default 65,700 for Breakout,
    108,000 for other games), or after so many steps outside Atari (default: the environment's own
    limit). ``background``: emulators give way to the threads of this process and of others (Atari,
    Linux). ``workers``: processes that step an environment outside Atari, 0 for this one; default:
    as many as pay, by the time that one step takes. Results do not depend on their number.
    Raises EnvironmentConfigError.
    """
    if num_envs < 1:
        raise EnvironmentConfigError(f"num_envs must be at least 1, got {num_envs}")
    if num_threads < 0:
        raise EnvironmentConfigError(f"num_threads must be 0 (no limit) or more, got {num_threads}")
    if max_frames is not None and max_frames < 1:
        raise EnvironmentConfigError(f"max_frames must be at least 1, got {max_frames}")
    source = as_source(source)
    spec = environment_spec(source)
    rom = _rom_of(source)
    if rom is None:
        if workers is None and num_threads == 1:
            workers = 0
        return GymEnvironment(
            spec,
            source,
            num_envs,
            max_frames=max_frames,
            workers=workers,
            most_workers=num_threads or None,
        )
    if max_frames is None:
        max_frames = default_max_frames(rom)
    return AtariEnvironment(
        spec,
        rom,
        num_envs,
        fire_reset=Action.FIRE in _minimal_actions(rom),
        num_threads=num_threads,
        max_frames=max_frames,
        background=background,
    )


def _rom_of(source: EnvironmentSource) -> str | None:
    """Return the game's ROM; EnvironmentConfigError where something is to be done to a game."""
    rom = None if source.maker is not None else atari_rom(source.env_id)
    if rom is not None and source.additions():
        raise EnvironmentConfigError(
            f"{', '.join([source.env_id, *source.additions()])}: Atari games are preprocessed as "
            "SB3 does, without other arguments or wrappers"
        )
    return rom


def atari_rom(env_id: str) -> str | None:
    """Return the ROM's name if ``env_id`` is a supported form of an Atari game, else None."""
    return str(gymnasium.registry[env_id].kwargs["game"]) if is_playable_atari(env_id) else None


def default_max_frames(rom: str) -> int:
    """Return the default number of emulator frames after which a game is truncated."""
    return BREAKOUT_MAX_FRAMES if rom == "breakout" else DEFAULT_MAX_FRAMES


def action_names(env_id: str) -> list[str] | None:
    """Return the button of each action, such as NOOP, FIRE, RIGHT, LEFT; None outside Atari."""
    rom = atari_rom(env_id)
    return None if rom is None else [action.name for action in _minimal_actions(rom)]


@lru_cache(maxsize=64)
def _minimal_actions(rom: str) -> tuple[Action, ...]:
    """Return the game's buttons; FIRE, if any, is number 1 of at least 3 (all 104 games)."""
    # Otherwise each interface prints ALE's banner.
    ALEInterface.setLoggerMode(LoggerMode.Error)
    path = roms.get_rom_path(rom)
    if path is None:
        raise EnvironmentConfigError(f"ale-py has no ROM of {rom}", ErrorCode.ENVIRONMENT_UNKNOWN)
    ale = ALEInterface()
    ale.loadROM(path)
    return tuple(ale.getMinimalActionSet())


def _gym_spec(source: EnvironmentSource) -> EnvironmentSpec:
    """Return the sizes of a gymnasium environment that is not Atari."""
    env = make_one(source)
    observation_space, action_space = env.observation_space, env.action_space
    env.close()
    shown = ShownObservations(observation_space, source.env_id)
    is_box = isinstance(observation_space, gymnasium.spaces.Box)
    is_flat = len(observation_space.shape or ()) == 1
    if source.frame_stack > 1 and not (is_box and (is_flat or shown.image_shape is not None)):
        raise EnvironmentConfigError(
            f"{source.env_id}: frame_stack {source.frame_stack}: only flat Box observations and "
            f"images are stacked, not {observation_space}"
        )
    return EnvironmentSpec(
        env_id=source.env_id,
        actions=actions_of(action_space, source.env_id),
        observation_shape=shown.stacked(source.frame_stack),
        observation_dtype=shown.dtype,
        is_atari=False,
        frame_stack=1,
        parts=shown.parts,
        forms=shown.forms,
        image_shape=shown.image_shape,
    )
