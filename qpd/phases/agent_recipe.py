"""The recipe for a user's own agent: what its files say replaces what a recipe says of another."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from qpd.actions import Box
from qpd.environments.registry import environment_spec
from qpd.environments.source import check_plain
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.recipe.loading import (
    load_recipe,
    override_line,
    override_lines,
    override_recipe,
    refuse_repeated,
    with_arguments,
)
from qpd.recipe.schema import Recipe, RecipeError
from qpd.runs.played_environment import EnvironmentWish, environment_of, recipe_wish
from qpd.teachers import Teacher, TeacherError, load_recipe_teacher
from qpd.teachers.archive.agent_identity import agent_name
from qpd.teachers.sources.teacher_source import (
    comes_with_qpd,
    find_teacher_files,
    refuse_object,
)

IMAGE_RECIPE, VECTOR_RECIPE = "agent/atari", "agent/vector"
CONTINUOUS_RECIPE = "agent/continuous"

AgentSource = str | os.PathLike[str]
RecipeSource = Recipe | str | os.PathLike[str]
Overrides = Mapping[str, Any] | Sequence[str] | None


def agent_lines(teacher: AgentSource, vec_normalize: AgentSource | None) -> list[str]:
    """Return the overrides that name an agent in a recipe; a Path is never taken for a hub id.

    Files and folders are named from the root: a run is gone on with from other folders, too.
    Raises TeacherError for an agent that is no file.
    """
    refuse_object(teacher)
    source = os.path.abspath(teacher) if isinstance(teacher, os.PathLike) else from_root(teacher)
    statistics = None if vec_normalize is None else os.path.abspath(vec_normalize)
    return override_lines({"teacher.source": source, "teacher.vecnormalize": statistics})


def environment_lines(wish: EnvironmentWish) -> list[str]:
    """Return the overrides that say in a recipe what the user says of the environment.

    Raises RecipeError for a function that makes one, which no recipe can hold, and
    EnvironmentConfigError for arguments that are not plain.
    """
    if wish.env is not None and not isinstance(wish.env, str):
        raise RecipeError(
            [
                f"env: {wish.env!r:.80}: a recipe holds an environment's id: register the "
                "environment with gymnasium, and give 'module:id'"
            ],
            ErrorCode.RECIPE_WRONG_VALUE,
        )
    check_plain(wish.kwargs, "env_kwargs")
    lines: list[str] = []
    for key, value in wish.recipe_values().items():
        # Arguments each as it is: one that is a mapping is no section of the recipe.
        many = {f"{key}.{name}": one for name, one in wish.kwargs.items()}
        found = many if key == "environment.kwargs" else {key: value}
        lines += [override_line(*each) for each in found.items()]
    return lines


def from_root(source: str) -> str:
    """Return the absolute path of a local agent, and a hub id or an agent of QPD as it is."""
    path = os.path.expanduser(source)
    is_local = os.path.exists(path) or os.path.isfile(f"{path}.zip")
    return os.path.abspath(path) if is_local and not comes_with_qpd(source) else source


def told_by_agent(teacher: AgentSource, recipe: Recipe | None) -> list[str]:
    """Return the overrides that unset what the agent's own files say: algorithm, environment.

    Warns where `recipe` was made for another environment, whatever its version.
    """
    try:
        files = find_teacher_files(teacher if isinstance(teacher, str) else Path(teacher))
    except TeacherError:  # raised again by `prepare`, which says what is wrong with the agent
        return []
    played = files.env_id
    made_for = None if recipe is None else recipe.teacher.env
    if recipe is not None and made_for and played and _game(made_for) != _game(played):
        line = f"recipe {recipe.name} is for {made_for}; {teacher} plays {played}, and keeps to it"
        warnings.warn(line, stacklevel=2)
    lines = ["teacher.algo=null"] if files.algo_hint is not None else []
    return [*lines, "teacher.env=null"] if files.env_id is not None else lines


def _game(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id)


def choose_recipe(named: Sequence[str], changes: Sequence[str]) -> tuple[str, list[str]]:
    """Return the shipped recipe that fits the agent, and the override that names the run after it.

    `named` and `changes` are overrides: those of `agent_lines`, and the user's. Raises RecipeError
    for mistakes in them, and TeacherError.
    """
    if not named:
        raise RecipeError(
            ["no recipe: give one (`qpd recipes` lists them), or --teacher AGENT"],
            ErrorCode.COMMAND_LINE,
        )
    recipe = _any_recipe([*named, *changes])
    agent = load_recipe_teacher(recipe.teacher)
    name = f"name={agent_name(agent.algo, agent.env_id)}"
    if agent.image_shape is not None or _shows_image(agent, recipe):
        return IMAGE_RECIPE, [name]
    return CONTINUOUS_RECIPE if isinstance(agent.actions, Box) else VECTOR_RECIPE, [name]


def _any_recipe(lines: list[str]) -> Recipe:
    """Return one of the three with these overrides, the first that takes them.

    Their capacities differ, and so do their environments, so that one may refuse what fits another.
    """
    try:
        return load_recipe(VECTOR_RECIPE, lines)
    except RecipeError:
        for name in (IMAGE_RECIPE, CONTINUOUS_RECIPE):
            with suppress(RecipeError):
                return load_recipe(name, lines)
        raise


def _shows_image(agent: Teacher, recipe: Recipe) -> bool:
    """Tell whether the environment shows an image, of which VecNormalize may make floats."""
    wish = recipe_wish(recipe)
    wish.allow_modules()  # these are the user's own words
    try:
        played = environment_of(agent, wish)
        return environment_spec(played.source).image_shape is not None
    except UserError:  # raised again by `prepare`
        return False


def resolve_recipe(
    recipe: RecipeSource | None,
    overrides: Overrides = None,
    *,
    seed: int | None = None,
    device: str | None = None,
    teacher: AgentSource | None = None,
    vecnormalize: AgentSource | None = None,
    wish: EnvironmentWish | None = None,
) -> Recipe:
    """Return the recipe with all that the arguments change in it. Raises RecipeError.

    If another teacher's files name its algorithm or its environment, `teacher.algo` or
    `teacher.env` of the recipe, which belong to its own teacher, become null; `overrides` may set
    them again. A `teacher` that is a Path is never taken for a hub id. Without a recipe, the
    teacher decides which of the shipped ones it is (then also TeacherError), and the run is named
    after it.
    """
    changes = with_arguments(override_lines(overrides), seed=seed, device=device)
    told = environment_lines(wish or EnvironmentWish())
    refuse_repeated(told, changes)
    changes = [*changes, *told]
    named = [] if teacher is None else agent_lines(teacher, vecnormalize)
    if teacher is None and vecnormalize is not None:
        named = override_lines({"teacher.vecnormalize": os.path.abspath(vecnormalize)})
    refuse_repeated([line for line in named if not line.endswith("=null")], changes)
    if recipe is None:
        recipe, name = choose_recipe(named if teacher is not None else [], changes)
        changes = [*name, *changes]

    def resolved(lines: list[str]) -> Recipe:
        if isinstance(recipe, Recipe):
            return override_recipe(recipe, lines)
        assert recipe is not None
        return load_recipe(os.fspath(recipe), lines)

    found = resolved([*named, *changes])  # every mistake is told before anything is fetched
    if teacher is not None:
        is_told = any(line.startswith("teacher.env=") for line in changes)
        unset = told_by_agent(teacher, None if is_told else found)
        found = resolved([*named, *unset, *changes])
    recipe_wish(found).allow_modules()  # the recipe is the user's: what it names may be imported
    return found
