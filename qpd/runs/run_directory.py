"""A run directory: everything one experiment writes, locked while a process works in it.

recipe.yaml             the resolved recipe
manifest.json           versions, teacher, state of each phase, evaluations
distilled.safetensors   the student after phase 1
ptq.safetensors         the k-bit student after phase 2
quantized.safetensors   the k-bit student, of phase 3 once it is done
gradient_exponents.distill.json, gradient_exponents.finetune.json   where they are counted
metrics.csv, tensorboard/, wandb/, checkpoint/, exports/, report/
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from filelock import FileLock

from qpd.errors.codes import ErrorCode
from qpd.files.atomic import remove_leftovers, to_plain, write_text
from qpd.files.bounded_read import TooLargeError, read_file
from qpd.files.tensors import crc32_of
from qpd.numerics.numerics_record import NumericsRecord
from qpd.numerics.random_seeds import seed_for
from qpd.recipe.loading import load_recipe
from qpd.recipe.schema import Recipe, RecipeError
from qpd.recipe.yaml_text import MAX_RECIPE_BYTES
from qpd.runs.manifest import (
    PHASES,
    EvaluatedPolicy,
    Manifest,
    PhaseName,
    PhaseRecord,
    PhaseState,
    StudentPolicy,
    TeacherRecord,
    new_manifest,
)
from qpd.runs.run_folder import (
    LOCK_NAME,
    LOG_NAME,
    RunDirectoryError,
    RunFolder,
    acquire_lock,
    check_manifest,
    claimed,
    read_sealed,
    recorded_evaluation,
    refuse_differences,
    refuse_foreign,
    require_manifest,
    sealed,
)

__all__ = [
    "LOCK_NAME",
    "LOG_NAME",
    "REMOVED_KEYS",
    "RunDirectory",
    "RunDirectoryError",
    "read_manifest",
    "read_recipe",
    "sealed",
]

# Keys that recipes had once: runs made with them stay readable, whatever their value.
REMOVED_KEYS = (("distill", "processes"), ("finetune", "processes"))


def read_manifest(path: Path) -> Manifest:
    """Return the checked manifest of the run directory `path`.

    Raises:
        RunDirectoryError: It cannot be read, is not one of this version, or is a training's.
    """
    content = read_sealed(path)
    if content.get("kind") == "training":
        raise RunDirectoryError(
            [
                f"{path}: is a training by `qpd train`, an agent to this command: "
                f"`qpd run --teacher {path}` makes a student of it"
            ],
            ErrorCode.RUN_NOT_A_RUN,
        )
    return check_manifest(path, content, Manifest)


def read_recipe(path: Path, manifest: Manifest) -> Recipe:
    """Return the resolved recipe of the run directory `path`.

    Raises:
        RunDirectoryError: It is missing or wrong, or not the one that its `manifest` means.
    """
    file = path / "recipe.yaml"
    way = "`qpd run` with the recipe that the run began with writes it anew"
    if not file.is_file():
        raise RunDirectoryError(
            [f"{path}: is not a whole run directory: recipe.yaml is missing; {way}"]
        )
    try:
        content = read_file(file, MAX_RECIPE_BYTES)
    except TooLargeError as error:
        raise RunDirectoryError(
            [f"{file}: is larger than {MAX_RECIPE_BYTES >> 10} KiB; {way}"]
        ) from error
    known = manifest.recipe_crc32
    if known and crc32_of(content) not in known:
        raise RunDirectoryError(
            [f"{file}: is damaged or was edited; put a copy of it back, or {way}"]
        )
    try:
        # Runs from before there was a choice chose by the return.
        earlier = [] if b"\n  select:" in content else ["evaluation.select=return"]
        return load_recipe(file, earlier, ignored=REMOVED_KEYS)
    except RecipeError as error:
        raise RunDirectoryError(error.lines) from error


def evaluation_seed(recipe: Recipe, manifest: Manifest) -> int:
    """Return the seed of the games that a run's policies play.

    A run that `qpd quantize AGENT` made plays those of its suite, whose seed is the recipe's: the
    first 64 games, as a suite seeds every 64 anew.
    """
    return recipe.seed if manifest.is_agent else seed_for(recipe.seed, "evaluation")


def at_same_place(recipe: Recipe, other: Recipe) -> Recipe:
    """Return `recipe` with its agent and VecNormalize's statistics where those of `other` are."""
    places = {name: getattr(other.teacher, name) for name in ("source", "vecnormalize")}
    return recipe.model_copy(update={"teacher": recipe.teacher.model_copy(update=places)})


class RunDirectory(RunFolder):
    """An open run directory; use `create` or `open`, and close it (or use it with `with`)."""

    def __init__(
        self, path: Path, recipe: Recipe, manifest: Manifest, lock: FileLock | None
    ) -> None:
        """Wrap what `create` or `open` checked; `lock` is held, or None for reading only."""
        super().__init__(path, lock)
        self._recipe = recipe
        self._manifest = manifest

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe, *, forked_from: str | None = None) -> Self:
        """Start a run directory, or go on with one that has the same recipe.

        A new one's manifest records `forked_from`, the CRC-32 of another run's distilled student.

        Raises:
            RunDirectoryError: It belongs to something else or to another recipe (the differing
                keys are named), is corrupt, is in use, or cannot be written.
        """
        path = Path(path)
        refuse_foreign(path)
        with claimed(path) as lock:
            if (path / "manifest.json").exists():
                run = cls(path, recipe, read_manifest(path), lock)
                run._go_on(recipe)
            else:
                # The manifest comes first: it marks the folder as ours if we are killed here.
                manifest = new_manifest(recipe.name, recipe.seed, forked_from)
                run = cls(path, recipe, manifest, lock)
                run.replace_recipe(recipe)
            remove_leftovers(path)
        return run

    @classmethod
    def open(cls, path: str | Path, *, read_only: bool = False) -> Self:
        """Open an existing run directory.

        Args:
            path: The folder.
            read_only: Take no lock and refuse to write, for reports and exports.

        Raises:
            RunDirectoryError: It is missing, foreign, corrupt or in use.
        """
        path = Path(path)
        require_manifest(path)
        lock = None if read_only else acquire_lock(path)
        try:
            manifest = read_manifest(path)
            run = cls(path, read_recipe(path, manifest), manifest, lock)
            if lock is not None:
                remove_leftovers(path)
            return run
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    def __repr__(self) -> str:
        """Tell the path and the state of each phase."""
        states = ", ".join(f"{name}={self.phase(name).state}" for name in PHASES)
        return f"RunDirectory({str(self.path)!r}, {states})"

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe."""
        return self._recipe

    @property
    def manifest(self) -> Manifest:
        """The manifest as last written."""
        return self._manifest

    @property
    def distilled_file(self) -> Path:
        """The full-precision student after phase 1."""
        return self.path / "distilled.safetensors"

    @property
    def ptq_file(self) -> Path:
        """The integer student as phase 2 left it, packed."""
        return self.path / "ptq.safetensors"

    @property
    def student_files(self) -> dict[StudentPolicy, Path]:
        """The students' files, whether or not they exist, in the order of `MADE_BY`."""
        return {"distilled": self.distilled_file, "ptq": self.ptq_file, "qat": self.quantized_file}

    @property
    def is_only_rounded(self) -> bool:
        """Tell whether quantized.safetensors holds phase 2's student, as phase 3 is not done."""
        return self.phase("quantize").state == "done" and self.phase("finetune").state != "done"

    def exponents_file(self, phase: str) -> Path:
        """Return the file of the gradients that a phase counted (`qpd.runs.counted_gradients`)."""
        return self.path / f"gradient_exponents.{phase}.json"

    @property
    def checkpoint_folder(self) -> Path:
        """All that resuming needs; made on access."""
        folder = self.path / "checkpoint"
        folder.mkdir(exist_ok=True)
        return folder

    def metrics_bytes(self) -> bytes:
        """Return the content of metrics.csv, empty if there is none."""
        return read_file(self.metrics_file, None) if self.metrics_file.is_file() else b""

    @property
    def keeps_memory(self) -> bool:
        """Tell whether a finished phase left its memory in the checkpoint folder for later ones."""
        return any(self.phase(name).metrics.get("keeps_memory", False) for name in PHASES)

    @property
    def memory_refilled(self) -> bool:
        """Tell whether phases 2 and 3 have another memory than phase 1 left.

        It was played anew, or phase 3 of the run that this one is forked from has renewed it.
        """
        return any(self.phase(name).metrics.get("memory_refilled", False) for name in PHASES)

    def phase(self, name: PhaseName) -> PhaseRecord:
        """Return the state of a phase and what it measured."""
        return self._manifest.phases.get(name, PhaseRecord())

    def set_phase(self, name: PhaseName, state: PhaseState, /, **metrics: Any) -> None:
        """Record the state of a phase; metrics are added to those it has, later ones win."""
        known = {**self.phase(name).metrics, **to_plain(metrics)}
        record = PhaseRecord.model_validate({**known, "state": state})
        self._update(phases={**self._manifest.phases, name: record})

    def record_teacher(self, teacher: TeacherRecord) -> None:
        """Record who is imitated. Raises RunDirectoryError as `refuse_another_teacher` does."""
        self.refuse_another_teacher(teacher.source, teacher.sha256)
        self._update(teacher=teacher)
        if crc32_of(self._recipe.to_yaml().encode()) not in self._manifest.recipe_crc32:
            self.replace_recipe(self._recipe)  # the same agent at another place

    def refuse_another_teacher(self, source: str, sha256: str) -> None:
        """Raise RunDirectoryError where the run began with another teacher."""
        known = self._manifest.teacher
        if known is not None and known.sha256 != sha256:
            raise RunDirectoryError(
                [
                    f"{self.path}: began with the teacher {known.source} (sha256 "
                    f"{known.sha256[:12]}), now it is {source} ({sha256[:12]})"
                ],
                ErrorCode.RUN_OTHER_RECIPE,
            )

    def record_arithmetic(self, now: NumericsRecord) -> NumericsRecord:
        """Record what the run's numbers depend on, once; returns what it began with."""
        if self._manifest.arithmetic is None:
            self._update(arithmetic=now)
            return now
        return self._manifest.arithmetic

    def record_evaluation(self, policy: EvaluatedPolicy, result: Mapping[str, Any]) -> None:
        """Record returns and whatever belongs to them, replacing an earlier evaluation."""
        plain = recorded_evaluation(self.path, policy, result)
        self._update(evaluations={**self._manifest.evaluations, policy: plain})

    def replace_recipe(self, recipe: Recipe) -> None:
        """Write another recipe, for a later phase that is run with other settings.

        Games that were played by another `evaluation` are forgotten.
        """
        if self._recipe.evaluation != recipe.evaluation and self._manifest.evaluations:
            self._update(evaluations={})
        text = recipe.to_yaml()
        checksum = crc32_of(text.encode())
        # A kill before the recipe is written leaves the old one, which the manifest then knows too.
        self._update(recipe_crc32=(*self._manifest.recipe_crc32, checksum))
        write_text(self.recipe_file, text)
        self._update(recipe_crc32=(checksum,))
        self._recipe = recipe

    def _go_on(self, recipe: Recipe) -> None:
        """Check that the directory was made by `recipe`; finish a start that was interrupted."""
        started = any(self.phase(name).state != "pending" for name in PHASES)
        text = recipe.to_yaml().encode()
        if crc32_of(text) in self._manifest.recipe_crc32 or (
            not self.recipe_file.exists() and not started
        ):
            if not self.recipe_file.exists() or read_file(self.recipe_file, None) != text:
                self.replace_recipe(recipe)
            return
        before = read_recipe(self.path, self._manifest)
        refuse_differences(self.path, at_same_place(before, recipe), recipe)
        # Who the agent is, its checksum tells: `record_teacher` writes where it is now.

    def _update(self, **changes: Any) -> None:
        manifest = self._manifest.model_copy(update=changes)
        self._write_manifest(manifest)
        self._manifest = manifest
