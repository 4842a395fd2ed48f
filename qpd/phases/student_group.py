"""Several students of one recipe, distilled side by side: a run directory each, one stream."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from qpd.environments.registry import environment_spec
from qpd.errors.codes import ErrorCode
from qpd.phases.preparation import prepare, recipe_architecture
from qpd.phases.session import Progress, Session, open_session
from qpd.recipe.loading import override_recipe
from qpd.recipe.schema import Recipe, RecipeError
from qpd.runs.run_directory import RunDirectory

_STREAM_FOLDER = "stream"


def member_recipes(recipe: Recipe, sizes: Sequence[str], seeds: Sequence[int]) -> dict[str, Recipe]:
    """The recipe for each size and each seed, by the name of its run directory.

    No sizes (or seeds) are the recipe's own. Raises RecipeError where a size or seed does not fit,
    or one is named twice.
    """
    members: dict[str, Recipe] = {}
    for size in sizes or [recipe.student.size or "custom"]:
        for seed in seeds or [recipe.seed]:
            label = f"{size}-seed{seed}"
            if label in members:
                raise RecipeError([f"students: {label} is named twice"], ErrorCode.COMMAND_LINE)
            changes = [f"seed={seed}", f"name={recipe.name}-{label}"]
            changes += [f"student.size={size}"] if sizes else []
            members[label] = override_recipe(recipe, changes)
    return members


@contextmanager
def open_group(
    members: dict[str, Recipe], folder: Path, device: str, progress: Progress
) -> Iterator[list[Session]]:
    """Sessions in `folder/NAME`, with the checkpoint and the frames of all in `folder/stream`.

    All is known to fit before anything is written. Raises what `prepare` and RunDirectory do.
    """
    first = next(iter(members.values()))
    prepared = prepare(first, device)
    spec = environment_spec(prepared.env_id)
    fitting = {
        label: dataclasses.replace(
            prepared,
            architecture=recipe_architecture(recipe, spec.observation_shape, spec.num_actions),
        )
        for label, recipe in members.items()
    }
    store = folder / _STREAM_FOLDER
    with ExitStack() as opened:
        sessions = []
        for label, recipe in members.items():
            run = opened.enter_context(RunDirectory.create(folder / label, recipe))
            store.mkdir(exist_ok=True)
            session = open_session(run, fitting[label], progress, store, label)
            opened.callback(session.close)
            sessions.append(session)
        yield sessions


def finish_group(sessions: Sequence[Session]) -> None:
    """Drop the shared checkpoint and frames, unless the recipe keeps them."""
    if not sessions[0].recipe.save.keep_replay:
        shutil.rmtree(sessions[0].store, ignore_errors=True)
