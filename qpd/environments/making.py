"""Making one gymnasium environment of a source: import, arguments, limit of steps, wrappers."""

from __future__ import annotations

import contextlib
import difflib
import os
import warnings
from collections.abc import Iterator
from ctypes.util import find_library
from typing import Any

import gymnasium

from qpd.environments.errors import EnvironmentConfigError, one_line
from qpd.environments.named_modules import import_named
from qpd.environments.source import EnvironmentSource
from qpd.environments.wrappers import Environment, Score, repeatable, wrapped
from qpd.errors.codes import ErrorCode
from qpd.errors.termination import Terminated
from qpd.version import pip_install

# Ours, beside gymnasium's; its module is imported when one is made.
gymnasium.register(
    "qpd/Navigation-v0", "qpd.environments.navigation:Navigation", max_episode_steps=750
)
# Entry points of environments that need an extra of ours, by a part of their names.
_EXTRAS = {"box2d": "Box2D", "mujoco": "MuJoCo"}
# DeepMind's control suite, which Shimmy registers if dm_control is installed.
CONTROL = "dm_control/"
# Packages that register ids of their own when they are imported, by a part of such an id.
_PACKAGES = {
    "BulletEnv-v0": "pybullet_envs_gymnasium",
    "Fetch": "gymnasium_robotics",
    "Panda": "panda_gym",
    "MiniGrid": "minigrid",
}


def make_one(
    source: EnvironmentSource, max_frames: int | None = None, render_mode: str | None = None
) -> Environment:
    """Make one environment, with its wrappers; frames are not stacked here.

    `max_frames` replaces the environment's own limit of steps; one that a function made is cut off
    at it. Raises EnvironmentConfigError, one line, whatever a user's own code raises.
    """
    if source.maker is not None:
        env = _from_function(source)
        limit = None if env.spec is None else env.spec.max_episode_steps
        if max_frames is not None:
            env = gymnasium.wrappers.TimeLimit(env, max_frames)
    else:
        registered = find_registered(source.env_id)
        options: dict[str, Any] = dict(source.kwargs)
        # gymnasium.make's own argument; `max_frames` goes before it.
        limit = options.pop("max_episode_steps", registered.max_episode_steps)
        if render_mode is not None:
            options["render_mode"] = render_mode
        most = max_frames if max_frames is not None else limit
        env = repeatable(_make(source, registered, options, most))
    if source.wrappers:
        env = Score(env)
    for wrapper in source.wrappers:
        env = wrapped(env, wrapper, limit)
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            limit = env._max_episode_steps
    return env


def find_registered(env_id: str) -> gymnasium.envs.registration.EnvSpec:
    """Return what gymnasium knows of an id; the module of `module:id` is imported.

    Raises EnvironmentConfigError.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        import_named(module, env_id)
    elif name.startswith(CONTROL) and name not in gymnasium.registry:
        if not os.environ.get("DISPLAY"):  # dm_control asks when it is imported
            os.environ.setdefault("MUJOCO_GL", "egl" if find_library("EGL") else "disabled")
        import_named("shimmy", env_id, is_known=True)
    spec = gymnasium.registry.get(name)
    if spec is None or (not module and _is_ales(spec)):
        raise EnvironmentConfigError(*_unknown_id(env_id, module, name))
    return spec


def _is_ales(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    return "game" in spec.kwargs and str(spec.entry_point).startswith("ale_py")


def is_playable_atari(env_id: str) -> bool:
    """Tell whether an id of ale-py's names a game in a form that QPD plays."""
    spec = gymnasium.registry.get(env_id)
    # RAM observations have no frames to stack.
    if spec is None or not _is_ales(spec) or spec.kwargs.get("obs_type") == "ram":
        return False
    return env_id.startswith("ALE/") or env_id.endswith("NoFrameskip-v4")


def _from_function(source: EnvironmentSource) -> Environment:
    assert source.maker is not None
    try:
        env = source.maker()
    except Terminated:
        raise
    except (Exception, SystemExit) as error:
        raise EnvironmentConfigError(f"{source.env_id}: {one_line(error)}") from error
    if not isinstance(env, gymnasium.Env):
        raise EnvironmentConfigError(
            f"{source.env_id} returned {type(env).__name__}, not a gymnasium environment"
        )
    return env


def _make(
    source: EnvironmentSource,
    registered: gymnasium.envs.registration.EnvSpec,
    options: dict[str, Any],
    max_frames: int | None,
) -> Environment:
    env_id, entry = source.env_id, str(registered.entry_point)
    # MuJoCo draws without a screen by EGL or OSMesa only.
    if "render_mode" in options and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        with warnings.catch_warnings(), _quiet_mujoco(entry):
            # That there is a later version: this one is what the agent was trained on.
            warnings.simplefilter("ignore")
            # The checker warns about environments that are not ours, nor our users', to change.
            return gymnasium.make(
                registered.id,
                max_episode_steps=max_frames,
                disable_env_checker=True,
                **options,
            )
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # of a user's own class: it may raise anything
        # gymnasium's own message names its extra, not ours.
        extra = next((name for name in _EXTRAS if f".{name}." in entry), None)
        if extra is not None and isinstance(error, gymnasium.error.DependencyNotInstalled):
            raise EnvironmentConfigError(
                f"{env_id} needs {_EXTRAS[extra]}: {pip_install(extra)}", ErrorCode.PACKAGE_MISSING
            ) from error
        made = f" made with {', '.join(source.kwargs)}" if source.kwargs else ""
        raise EnvironmentConfigError(f"{env_id}{made}: {one_line(error)}") from error


@contextlib.contextmanager
def _quiet_mujoco(entry: str) -> Iterator[None]:
    """Keep MuJoCo from printing a line per environment on what its models are written with."""
    try:
        if ".mujoco." not in entry:
            raise ImportError
        import mujoco
    except ImportError:  # gymnasium says what is missing
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _unknown_id(env_id: str, module: str, name: str) -> tuple[str, ErrorCode]:
    """Say which ids come closest to `env_id`, that its module has no such one, or what it needs."""
    has_control = any(one.startswith(CONTROL) for one in gymnasium.registry)
    if name.startswith(CONTROL) and not has_control:
        needed = f"{env_id} needs dm_control: {pip_install('control')}"
        return needed, ErrorCode.PACKAGE_MISSING
    known = [
        one
        for one, spec in gymnasium.registry.items()
        if not _is_ales(spec) or is_playable_atari(one)
    ]
    nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"; nearest: {', '.join(nearest)}" if nearest else ""
    if module:
        found = f"{env_id}: module {module} registers no environment {name!r} with gymnasium{hint}"
        return found, ErrorCode.ENVIRONMENT_UNKNOWN
    package = next((package for part, package in _PACKAGES.items() if part in name), None)
    if package is not None:
        hint = f"; with the package {package} it is {package}:{env_id}"
    return (
        f"unknown environment {env_id!r} (Atari games: XNoFrameskip-v4 or ALE/X-v5, others: any "
        f"gymnasium id, or module:id){hint}",
        ErrorCode.ENVIRONMENT_UNKNOWN,
    )
