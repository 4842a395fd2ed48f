"""Vector environments by id: one preprocessing for teacher, student and export.

Atari games (``BreakoutNoFrameskip-v4`` or ``ALE/Breakout-v5``) are preprocessed as
Stable-Baselines3 does, whichever of the two ids is given: ``ALE/X-v5`` has no sticky actions
here. Other gymnasium environments need flat observations.
"""

from __future__ import annotations

import difflib
from functools import lru_cache

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
    EnvironmentSpec,
    VectorEnvironment,
    VectorStep,
)
from qpd.errors.codes import ErrorCode
from qpd.version import pip_install

__all__ = [
    "EnvironmentConfigError",
    "EnvironmentSpec",
    "VectorEnvironment",
    "VectorStep",
    "action_names",
    "environment_spec",
    "make_vector_env",
]

# ale-py's own limit: half an hour of play at 60 frames a second.
DEFAULT_MAX_FRAMES = 108_000
# The ball vanishes for good after about 65,536 emulator frames: nothing is scored later.
BREAKOUT_MAX_FRAMES = 65_700

# Importing ale_py is what registers its games; this call only says that the import is needed.
gymnasium.register_envs(ale_py)


@lru_cache(maxsize=64)
def environment_spec(env_id: str) -> EnvironmentSpec:
    """Return the sizes of ``env_id``; raises EnvironmentConfigError if it cannot be used."""
    rom = atari_rom(env_id)
    if rom is not None:
        return EnvironmentSpec(
            env_id=env_id,
            actions=Discrete(len(_minimal_actions(rom))),
            observation_shape=(FRAME_STACK, FRAME_SIZE, FRAME_SIZE),
            observation_dtype="uint8",
            is_atari=True,
            frame_stack=FRAME_STACK,
        )
    return _gym_spec(env_id)


def make_vector_env(
    env_id: str,
    num_envs: int,
    *,
    num_threads: int = 0,
    max_frames: int | None = None,
    background: bool = False,
) -> VectorEnvironment:
    """Build ``num_envs`` copies of ``env_id``; call ``reset(seed)`` before stepping.

    ``num_threads``: emulators that run at once, 0 for no limit (Atari only). ``max_frames``: a
    game is truncated after so many emulator frames (default 65,700 for Breakout, 108,000 for
    other games), or after so many steps outside Atari (default: the environment's own limit).
    ``background``: emulators give way to the threads of this process and of others (Atari, Linux).
    Raises EnvironmentConfigError.
    """
    if num_envs < 1:
        raise EnvironmentConfigError(f"num_envs must be at least 1, got {num_envs}")
    if num_threads < 0:
        raise EnvironmentConfigError(f"num_threads must be 0 (no limit) or more, got {num_threads}")
    if max_frames is not None and max_frames < 1:
        raise EnvironmentConfigError(f"max_frames must be at least 1, got {max_frames}")
    spec = environment_spec(env_id)
    rom = atari_rom(env_id)
    if rom is None:
        return GymEnvironment(spec, num_envs, max_frames=max_frames)
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


def atari_rom(env_id: str) -> str | None:
    """Return the ROM's name if ``env_id`` is a supported form of an Atari game, else None."""
    spec = gymnasium.registry.get(env_id)
    # `game` stands in ale-py's own registrations only; RAM observations have no frames to stack.
    if spec is None or "game" not in spec.kwargs or spec.kwargs.get("obs_type") == "ram":
        return None
    if env_id.startswith("ALE/") or env_id.endswith("NoFrameskip-v4"):
        return str(spec.kwargs["game"])
    return None


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


def _gym_spec(env_id: str) -> EnvironmentSpec:
    """Return the sizes of a gymnasium environment that is not Atari."""
    spec = gymnasium.registry.get(env_id)
    if spec is None or "game" in spec.kwargs:
        raise EnvironmentConfigError(_unknown_id_message(env_id), ErrorCode.ENVIRONMENT_UNKNOWN)
    try:
        env = gymnasium.make(env_id, disable_env_checker=True)
    except (ImportError, gymnasium.error.Error) as error:
        # gymnasium's own message names its extra, not ours.
        if "box2d" in str(spec.entry_point):
            hint = f"{env_id} needs Box2D: {pip_install('box2d')}"
            raise EnvironmentConfigError(hint, ErrorCode.PACKAGE_MISSING) from error
        raise EnvironmentConfigError(f"{env_id}: {error}") from error
    observation_space, action_space = env.observation_space, env.action_space
    env.close()
    if not isinstance(observation_space, gymnasium.spaces.Box) or len(observation_space.shape) != 1:
        raise EnvironmentConfigError(
            f"{env_id} has observations {observation_space}: only flat Box spaces are supported"
        )
    return EnvironmentSpec(
        env_id=env_id,
        actions=actions_of(action_space, env_id),
        observation_shape=observation_space.shape,
        observation_dtype="float32",
        is_atari=False,
        frame_stack=1,
    )


def _unknown_id_message(env_id: str) -> str:
    """Say which ids come closest to ``env_id``."""
    known = [
        name
        for name, spec in gymnasium.registry.items()
        if "game" not in spec.kwargs or atari_rom(name) is not None
    ]
    nearest = difflib.get_close_matches(env_id, known, n=3, cutoff=0.5)
    hint = f"; nearest: {', '.join(nearest)}" if nearest else ""
    return (
        f"unknown environment {env_id!r} "
        f"(Atari games: XNoFrameskip-v4 or ALE/X-v5, others: any gymnasium id){hint}"
    )
