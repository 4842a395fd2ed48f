"""Batches of a sweep's cells that are distilled together, on one play of their teacher.

Cells that agree in all but student, seed, `distill.actor_weight`, phase 2 and phase 3 form a batch;
those that also agree in the first three share one distilled student (a member). A batch lives in
`OUTPUT/.shared/KEY-N`. Its `recipes/LABEL.yaml` fix the members for good, so a grid may grow while
a batch is unfinished, and newcomers form the next batch. The first member's seed decides the play
and every minibatch goes to all; where students collect (collection.student_fraction), each member
plays an equal share of the students' games.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qpd.errors.user_error import UserError
from qpd.files.atomic import write_text
from qpd.recipe.loading import load_recipe
from qpd.recipe.schema import QuantizeSettings, Recipe
from qpd.recipe.training_phases import FinetuneSettings
from qpd.runs.run_directory import RunDirectory
from qpd.sweep.cells import Cell

SHARED_FOLDER = ".shared"
_STREAM = "stream"
_FREE = {"name", "student", "quantize", "finetune"}


@dataclass
class Batch:
    """Students distilled together: `members` by label; `cells` maps a cell to its member."""

    folder: Path
    members: dict[str, Recipe] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The batch's name in the sweep's table."""
        return f"{SHARED_FOLDER}/{self.folder.name}"

    @property
    def key(self) -> str:
        """Return the digest of what its cells agree in, as `needed_keys` has it."""
        return _key_of(self.folder)

    @property
    def stream(self) -> Path:
        """The folder of the members' memory and checkpoint."""
        return self.folder / _STREAM

    def is_distilled(self) -> bool:
        """Return whether every member's phase 1 is done."""
        return all(_distill_state(self.folder / label) == "done" for label in self.members)

    def write_recipes(self) -> None:
        """Record who belongs to the batch; existing records stay."""
        folder = self.folder / "recipes"
        folder.mkdir(parents=True, exist_ok=True)
        for label, recipe in self.members.items():
            if not (folder / f"{label}.yaml").exists():
                write_text(folder / f"{label}.yaml", recipe.to_yaml())

    def drop_memory(self) -> None:
        """Remove memory and checkpoint, once every cell has taken what it needs."""
        shutil.rmtree(self.stream, ignore_errors=True)


def drop_memories(output: Path, recipes: Path) -> None:
    """Remove memory and checkpoint of every batch in `output` that has been distilled.

    One that has not belongs to another grid, which was interrupted; so does one that a cell of
    `recipes`, those of all grids that were given here, has yet to take its student from.
    """
    needed = needed_keys(output, recipes)
    for stream in (output / SHARED_FOLDER).glob(f"*/{_STREAM}"):
        if _key_of(stream.parent) in needed:
            continue
        labels = [path.stem for path in (stream.parent / "recipes").glob("*.yaml")]
        if all(_distill_state(stream.parent / label) == "done" for label in labels):
            shutil.rmtree(stream, ignore_errors=True)


def needed_keys(output: Path, recipes: Path) -> set[str]:
    """Return the keys of batches from which a cell of `recipes` has yet to take its student."""
    found: set[str] = set()
    for path in recipes.glob("*.yaml"):
        try:
            if _distill_state(output / path.stem) == "pending":
                recipe = load_recipe(str(path))
                found |= {_stream_key(recipe, per_seed) for per_seed in (True, False)}
        except UserError:  # damaged, or of an earlier version: it cannot go on as it is
            continue
    return found


def _key_of(folder: Path) -> str:
    return folder.name.rpartition("-")[0]


def plan_batches(cells: Sequence[Cell], output: Path, share: bool | str) -> list[Batch]:
    """Assign the cells that still need a distilled student to batches; the others run alone.

    `share` is the grid's `share_stream`. Cells that began alone, or that share with nobody, run
    alone.
    """
    if not share:
        return []
    waiting = [c for c in cells if _distill_state(output / c.name) == "pending"]
    by_key: dict[str, list[Cell]] = {}
    for cell in waiting:
        by_key.setdefault(_stream_key(cell.recipe, share == "per_seed"), []).append(cell)
    batches = []
    for key, sharing in by_key.items():
        known = sorted((output / SHARED_FOLDER).glob(f"{key}-*"), key=lambda path: path.name)
        # A lone cell joins a batch that is there already, but begins none.
        if len(sharing) > 1 or known:
            batches += _assign(sharing, output / SHARED_FOLDER, key, known)
    return batches


def _assign(cells: list[Cell], folder: Path, key: str, known: list[Path]) -> list[Batch]:
    """Assign cells to the batches that their students belong to, or to a new one."""
    owner = {file.stem: path for path in known for file in (path / "recipes").glob("*.yaml")}
    endings = (path.name.rpartition("-")[2] for path in known)
    numbers = [int(ending) for ending in endings if ending.isdecimal()]
    new = folder / f"{key}-{max(numbers, default=0) + 1}"  # folders may have been removed
    batches: dict[Path, Batch] = {}
    for cell in cells:
        label = _member_label(cell.recipe)
        path = owner.get(label, new)
        batch = batches.setdefault(path, Batch(path))
        # Phase 1 depends on neither: with the defaults, cells that differ in them share one
        # recipe.
        member = {"name": label, "quantize": QuantizeSettings(), "finetune": FinetuneSettings()}
        batch.members.setdefault(label, cell.recipe.model_copy(update=member))
        batch.cells[cell.name] = label
    return list(batches.values())


def _distill_state(path: Path) -> str:
    if not (path / "manifest.json").is_file() or not (path / "recipe.yaml").is_file():
        return "pending"
    return RunDirectory.open(path, read_only=True).phase("distill").state


def _stream_key(recipe: Recipe, per_seed: bool) -> str:
    free = _FREE if per_seed else _FREE | {"seed"}
    agreed = recipe.model_dump(mode="json", exclude=free)
    # Each member has losses of its own; all else in `distill` is about batches, which go to all.
    agreed["distill"]["actor_weight"] = None
    return _digest(agreed)


def _member_label(recipe: Recipe) -> str:
    # The digest tells students of one size apart that differ in other keys, such as sharpness.
    student = recipe.student.model_dump(mode="json")
    if recipe.distill.actor_weight is not None:
        student["lambda"] = recipe.distill.actor_weight
    return f"{recipe.student.size or 'custom'}-seed{recipe.seed}-{_digest(student)}"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
