"""The environment that an agent plays: its id, what its files add, and what the user asks for.

What the user names may import the user's code. What an agent's own files name, which may come from
anyone, is applied only where it is harmless (`qpd.environments.wrappers.is_known`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qpd.environments.errors import EnvironmentConfigError
from qpd.environments.named_modules import allow_named, is_allowed
from qpd.environments.older_ids import present_form
from qpd.environments.registry import atari_rom, environment_spec
from qpd.environments.source import EnvironmentSource, Maker, Wrapper, as_source, wrappers_of
from qpd.environments.wrappers import ZERO_CONTACT_FORCES, ZeroContactForces, is_known
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError
from qpd.recipe.schema import Recipe
from qpd.teachers import Teacher
from qpd.teachers.sources.teacher_source import TeacherFiles
from qpd.teachers.sources.training_environment import TrainingEnvironment

_PACKAGE = re.compile(r"gymnasium(\.envs)?|ale_py")
# What QPD's emulators do, by arguments of AtariWrapper and of ale-py's environments. Whole games
# are played whether or not a lost life ended a training's episodes, and scores are never clipped.
_ATARI: dict[str, tuple[object, ...]] = {
    "noop_max": (30,),
    "frame_skip": (4,),
    "screen_size": (84,),
    "terminal_on_life_loss": (True, False),
    "clip_reward": (True, False),
    "action_repeat_probability": (0.0,),
    "frameskip": (1,),
    "repeat_action_probability": (0.0,),
    "full_action_space": (False,),
    "obs_type": ("rgb",),
    "mode": (0,),
    "difficulty": (0,),
    "max_num_frames_per_episode": (108_000,),
}


@dataclass(frozen=True)
class EnvironmentWish:
    """Hold what the user says of the environment; the agent's files say the rest.

    Attributes:
        env: an id, a source taken as it is, or a function that makes one environment.
        kwargs: added to those of the agent's files.
        wrappers: in place of those of the agent's files; None: theirs.
        frame_stack: likewise.
    """

    env: str | EnvironmentSource | Maker | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Wrapper, ...] | None = None
    frame_stack: int | None = None

    @property
    def env_id(self) -> str | None:
        """The id that is asked for, by which an agent's files are read."""
        return (
            self.env
            if self.env is None or isinstance(self.env, str)
            else as_source(self.env).env_id
        )

    def allow_modules(self) -> None:
        """Let be imported what is named here: to be called where these are the user's own words."""
        named = self.env if isinstance(self.env, EnvironmentSource) else None
        wrappers = (*(self.wrappers or ()), *(named.wrappers if named else ()))
        allow_named(EnvironmentSource(self.env_id or "", wrappers=wrappers))

    @property
    def is_plain(self) -> bool:
        """Tell whether nothing but an id is asked for."""
        named = self.env is None or isinstance(self.env, str)
        return named and not self.kwargs and self.wrappers is None and self.frame_stack is None

    def recipe_values(self) -> dict[str, Any]:
        """Return it as values of a recipe's keys; see `recipe_wish`."""
        found: dict[str, Any] = {} if self.env is None else {"teacher.env": self.env_id}
        if self.kwargs:
            found["environment.kwargs"] = dict(self.kwargs)
        if self.wrappers is not None:
            found["environment.wrappers"] = [each.to_json() for each in self.wrappers]
        if self.frame_stack is not None:
            found["environment.frame_stack"] = self.frame_stack
        return found


def wish_of(
    env: str | EnvironmentSource | Maker | None,
    env_kwargs: Mapping[str, Any] | None,
    wrappers: Sequence[str | Mapping[str, Any]] | None,
    frame_stack: int | None,
) -> EnvironmentWish:
    """Return what arguments of a function say. Raises EnvironmentConfigError for a wrapper."""
    named = None if wrappers is None else wrappers_of(list(wrappers))
    return EnvironmentWish(env, env_kwargs or {}, named, frame_stack)


@dataclass(frozen=True)
class PlayedEnvironment:
    """The environment, and what a user should know of it, one line each."""

    source: EnvironmentSource
    notes: tuple[str, ...] = ()


def recipe_wish(recipe: Recipe) -> EnvironmentWish:
    """Return what a recipe says of the environment."""
    settings = recipe.environment
    wrappers = None if settings.wrappers is None else wrappers_of(settings.wrappers)
    return EnvironmentWish(recipe.teacher.env, settings.kwargs, wrappers, settings.frame_stack)


def environment_of(teacher: Teacher, wish: EnvironmentWish) -> PlayedEnvironment:
    """Return what `teacher` plays; the notes also say of which files it is, and if in few bits.

    Raises EnvironmentConfigError where its files ask for what only the user may, and TargetError
    where nothing names its environment.
    """
    played = _environment_of(teacher, wish)
    notes = list(teacher.files.notes)
    if teacher.normalization is not None:
        notes.append(f"observations are normalized by {teacher.files.vec_normalize}")
    if teacher.quantization is not None:
        notes.append(f"the agent was {teacher.quantization}")
    return replace(played, notes=(*notes, *played.notes))


def without_zeros(teacher: Teacher, played: PlayedEnvironment) -> tuple[Teacher, PlayedEnvironment]:
    """Give zeros that a wrapper appends for the agent's sake alone to the agent itself.

    A student then sees what the environment shows: Ant's 27 inputs, not 84 zeros more, whose
    weights would learn nothing.
    """
    source = played.source
    shown = [each.to_json() for each in source.wrappers]
    if shown != [ZERO_CONTACT_FORCES] or source.frame_stack != 1:
        return teacher, played
    seeing = teacher.appending_zeros(ZeroContactForces.NUM_FORCES)
    note = f"the student sees the {seeing.observation_shape[0]} inputs of {source.env_id} alone"
    return seeing, PlayedEnvironment(replace(source, wrappers=()), (*played.notes, note))


def _environment_of(teacher: Teacher, wish: EnvironmentWish) -> PlayedEnvironment:
    if isinstance(wish.env, EnvironmentSource):
        return _stated(wish.env)
    if wish.env is not None and not isinstance(wish.env, str):
        wrappers = wish.wrappers or ()
        return _stated(replace(as_source(wish.env), wrappers=wrappers, kwargs=wish.kwargs,
                               frame_stack=wish.frame_stack or 1))  # fmt: skip
    old = present_form(EnvironmentSource(wish.env or teacher.files.env_id or ""))
    env_id = teacher.env_id if old[1] is None else old[0].env_id
    if env_id is None:
        raise TargetError(
            f"{teacher.source}: its files don't name its environment: give it with --env "
            "(teacher.env)",
            ErrorCode.TEACHER_UNCLEAR,
        )
    if wish.env is None:
        _refuse_module(teacher, env_id)
    found = _with_files(teacher, env_id, wish)
    named = {wrapper.name for wrapper in found.wrappers}  # what a card's command has said itself
    added = (wrapper for wrapper in old[0].wrappers if wrapper.name not in named)
    found = replace(found, wrappers=(*added, *found.wrappers))
    return _stated(_with_contact_forces(teacher, found), *([old[1]] if old[1] else []))


def _stated(source: EnvironmentSource, *notes: str) -> PlayedEnvironment:
    """Say what is done to the environment, where anything is."""
    more = (f"plays {source}",) if source.additions() else ()
    return PlayedEnvironment(source, (*notes, *more))


def _with_files(teacher: Teacher, env_id: str, wish: EnvironmentWish) -> EnvironmentSource:
    """Return the environment with what the files say, as far as the user does not."""
    if atari_rom(env_id) is not None:
        # Their AtariWrapper and stack of four are what QPD's own emulators do.
        _refuse_other_atari(teacher)
        return EnvironmentSource(env_id, wish.kwargs, wish.wrappers or (), wish.frame_stack or 1)
    told = teacher.files.environment
    kwargs = _played_kwargs(told)
    _refuse_arguments(teacher, {key: kwargs[key] for key in kwargs if key not in wish.kwargs})
    wrappers = wish.wrappers
    if wrappers is None:
        wrappers = _told_wrappers(told)
        _refuse_wrappers(teacher, wrappers)
    stack = wish.frame_stack
    if stack is None:
        stack = told.frame_stack
        for outer in told.vec_env_wrapper:
            stack *= _stack_of(teacher, outer.name, outer.kwargs)
    return EnvironmentSource(env_id, {**kwargs, **wish.kwargs}, wrappers, stack)


def _refuse_other_atari(teacher: Teacher) -> None:
    """Refuse an agent whose files ask for another Atari than QPD's emulators play."""
    told = teacher.files.environment
    asked = {key: value for key, value in told.env_kwargs.items() if key != "render_mode"}
    for wrapper in told.env_wrapper:
        if wrapper.name.endswith("AtariWrapper"):
            asked |= wrapper.kwargs
    other = [f"{key}={value!r:.40}" for key, value in asked.items() if not _is_usual(key, value)]
    if other:
        raise EnvironmentConfigError(
            f"{teacher.source}: its files have Atari with {', '.join(other)}, which QPD's "
            "emulators do not do: they play as AtariWrapper's defaults have it"
        )


def _is_usual(key: str, value: object) -> bool:
    return value is None or value in _ATARI.get(key, ())


def _stack_of(teacher: Teacher, name: str, kwargs: Mapping[str, Any]) -> int:
    """Return how many observations a wrapper around all environments stacks, 1 for a monitor."""
    short = name.rpartition(".")[2]
    count = kwargs.get("n_stack", 1) if short == "VecFrameStack" else 1
    if short in ("VecFrameStack", "VecMonitor") and type(count) is int:
        return count
    raise EnvironmentConfigError(
        f"{teacher.source}: its files wrap all environments in {name}: of such wrappers QPD knows "
        "VecFrameStack and VecMonitor; give --frame-stack 1 (environment.frame_stack) to play "
        "without it"
    )


def needed_options(files: TeacherFiles) -> list[str]:
    """Return the words of a command line that allow what an agent's files alone may not."""
    env_id, told = files.env_id or "", files.environment
    if atari_rom(env_id) is not None:  # its preprocessing is QPD's own, and takes no options
        return []
    kwargs = {key: value for key, value in _played_kwargs(told).items() if not _is_numeric(value)}
    wrappers = _told_wrappers(told)
    numeric = all(_is_numeric(each) for one in wrappers for each in one.kwargs.values())
    asked = () if numeric and all(map(is_known, wrappers)) else wrappers
    return EnvironmentSource(env_id if _module_of(env_id) else "", kwargs, asked).options()


def _played_kwargs(told: TrainingEnvironment) -> dict[str, Any]:
    # How to draw is no part of the game, unless a wrapper may show the picture.
    draws = not all(map(is_known, _told_wrappers(told)))
    return {key: value for key, value in told.env_kwargs.items() if draws or key != "render_mode"}


def _told_wrappers(told: TrainingEnvironment) -> tuple[Wrapper, ...]:
    return tuple(Wrapper(each.name, each.kwargs) for each in told.env_wrapper)


def _module_of(env_id: str) -> str:
    """Return the module that an id has imported, unless it is one that QPD imports itself."""
    module = env_id.rpartition(":")[0]
    return "" if _PACKAGE.fullmatch(module) else module


def _refuse_module(teacher: Teacher, env_id: str) -> None:
    module = _module_of(env_id)
    if module and not is_allowed(module):
        raise EnvironmentConfigError(
            f"{teacher.source}: its files name the environment {env_id}, for which the module "
            f"{module} would be imported: if you trust it, give --env {env_id} (teacher.env), or "
            f"set QPD_IMPORT={module}"
        )


def _refuse_arguments(teacher: Teacher, kwargs: Mapping[str, Any]) -> None:
    """Refuse text: it may be a path, or name code."""
    for key, value in kwargs.items():
        if not _is_numeric(value):
            raise EnvironmentConfigError(
                f"{teacher.source}: its files make the environment with {key}={value!r:.80}: if "
                f"you trust that, give --env-kwargs {key}:VALUE (environment.kwargs)"
            )


def _is_numeric(value: object) -> bool:
    if isinstance(value, list):
        return all(_is_numeric(item) for item in value)
    return value is None or type(value) in (bool, int, float)


def _refuse_wrappers(teacher: Teacher, wrappers: tuple[Wrapper, ...]) -> None:
    for wrapper in wrappers:
        if not is_known(wrapper):
            raise EnvironmentConfigError(
                f"{teacher.source}: its files wrap the environment in {wrapper.name}, which QPD "
                f"does not know: if you trust it, give --wrapper {wrapper.name} "
                "(environment.wrappers), which imports it"
            )
        _refuse_arguments(teacher, wrapper.kwargs)


def _with_contact_forces(teacher: Teacher, source: EnvironmentSource) -> EnvironmentSource:
    """Add Ant's 84 zeros where an agent of Ant-v3 plays Ant-v4 under its present name."""
    if source.env_id != "Ant-v4" or any(w.name == ZERO_CONTACT_FORCES for w in source.wrappers):
        return source
    given = environment_spec(source).observation_shape[0]
    if teacher.observation_shape != (given + ZeroContactForces.NUM_FORCES * source.frame_stack,):
        return source
    return replace(source, wrappers=(Wrapper(ZERO_CONTACT_FORCES), *source.wrappers))
