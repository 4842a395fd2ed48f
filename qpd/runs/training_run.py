"""The run directory of a training (`qpd train`): a run directory that holds an agent.

recipe.yaml             the resolved recipe
manifest.json           kind: training; versions, state, steps done
ENV.zip                 the agent, once it is trained
quantized.safetensors   an integer controller's integers
ENV/                    args.yml, config.yml, vecnormalize.pkl, as the RL Zoo has them
metrics.csv             a row of Stable-Baselines3's numbers at each of some 500 steps
gradient_exponents.train.json  counted gradients, where the recipe asks for them
0.monitor.csv           every episode's return and length
tensorboard/, checkpoints/
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field

from qpd.errors.codes import ErrorCode
from qpd.files.atomic import remove_leftovers, to_plain, write_text
from qpd.files.bounded_read import read_file
from qpd.files.tensors import crc32_of
from qpd.numerics.numerics_record import NumericsRecord
from qpd.recipe.schema import RecipeError
from qpd.recipe.train_schema import TrainRecipe, load_train_recipe
from qpd.recipe.yaml_text import MAX_RECIPE_BYTES
from qpd.runs.manifest import EvaluatedPolicy, Evaluation, PhaseState, RunOrigin, new_origin
from qpd.runs.run_folder import (
    RunDirectoryError,
    RunFolder,
    check_manifest,
    claimed,
    read_sealed,
    recorded_evaluation,
    refuse_differences,
    refuse_foreign,
    require_manifest,
)

_PACKAGES = ("stable-baselines3", "sb3-contrib", "rl_zoo3", "mujoco")


class TrainPhase(BaseModel):
    """State of the training, and what it measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: PhaseState = "pending"
    timesteps: int = Field(0, ge=0)  # agent steps, when the manifest was last written
    total_timesteps: int | None = None
    num_parameters: int | None = None  # of all networks, critics and targets included
    seconds: float = Field(0.0, ge=0)  # of all processes that trained, what was lost left out
    episodes: int = Field(0, ge=0)
    episode_return: float | None = None  # mean of the last 100 episodes
    resumed_at: tuple[int, ...] = ()
    refilled_at: tuple[int, ...] = ()  # resumed with an empty replay buffer
    agent: str | None = None  # the zip, once it is there
    failed_at: int | None = Field(None, ge=0)  # agent steps, where numbers were no longer finite


class TrainingManifest(RunOrigin):
    """All of a training's manifest.json."""

    kind: Literal["training"] = "training"
    algo: str
    env_id: str
    phases: dict[Literal["train"], TrainPhase] = Field(default={"train": TrainPhase()})
    # Of the agent (`teacher`) and of a controller's integers (`qat`).
    evaluations: dict[EvaluatedPolicy, Evaluation] = Field(default_factory=dict)
    arithmetic: NumericsRecord | None = None
    recipe_crc32: str


def is_training(path: str | Path) -> bool:
    """Tell whether `path` is the run directory of a training."""
    folder = Path(path)
    try:
        return (folder / "manifest.json").is_file() and (
            read_sealed(folder).get("kind") == "training"
        )
    except (RunDirectoryError, OSError, ValueError):
        return False


class TrainingRun(RunFolder):
    """An open run directory of a training; use `create` or `open`, and close it (or `with`)."""

    def __init__(
        self, path: Path, recipe: TrainRecipe, manifest: TrainingManifest, lock: FileLock | None
    ) -> None:
        """Wrap what `create` or `open` checked; `lock` is held, or None for reading only."""
        super().__init__(path, lock)
        self._recipe, self._manifest = recipe, manifest

    @classmethod
    def create(cls, path: str | Path, recipe: TrainRecipe) -> Self:
        """Start a run directory, or go on with one that has the same recipe.

        Raises:
            RunDirectoryError: It belongs to something else or to another recipe (the differing
                keys are named), is corrupt, is in use, or cannot be written.
        """
        path = Path(path)
        check_place(path, recipe)
        with claimed(path) as lock:
            text = recipe.to_yaml()
            if (path / "manifest.json").exists():
                manifest = _manifest_of(path)
                run = cls(path, recipe, manifest, lock)
            else:
                origin = new_origin(recipe.name, recipe.seed, _PACKAGES)
                manifest = TrainingManifest(
                    **dict(origin),
                    algo=recipe.train.algo,
                    env_id=recipe.train.env,
                    recipe_crc32=crc32_of(text.encode()),
                )
                run = cls(path, recipe, manifest, lock)
                # First: it marks the folder as ours if we are killed here.
                run._write_manifest(manifest)
            # The file that the training began with stays: a text with the keys in another order, or
            # with keys that are newer, has another checksum. One that is edited or damaged is
            # written again; `check_place` has seen that this text is then the right one.
            if not _is_file_of(run.recipe_file, manifest):
                write_text(run.recipe_file, text)
            remove_leftovers(path)
        return run

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an existing run directory for reading.

        Raises:
            RunDirectoryError: It is missing, corrupt, or not a training's.
        """
        path = Path(path)
        manifest = _manifest_of(path)
        return cls(path, _recipe_of(path, manifest), manifest, None)

    def __repr__(self) -> str:
        """Tell the path and the state."""
        return f"TrainingRun({str(self.path)!r}, {self.phase.state})"

    @property
    def recipe(self) -> TrainRecipe:
        """The resolved recipe."""
        return self._recipe

    @property
    def manifest(self) -> TrainingManifest:
        """The manifest as last written."""
        return self._manifest

    @property
    def phase(self) -> TrainPhase:
        """The state of the training and what it measured."""
        return self._manifest.phases["train"]

    @property
    def agent_file(self) -> Path | None:
        """The agent's zip, None before it is trained."""
        return None if self.phase.agent is None else self.path / self.phase.agent

    @property
    def exponents_file(self) -> Path:
        """gradient_exponents.train.json: counted gradients, by agent steps done."""
        return self.path / "gradient_exponents.train.json"

    @property
    def monitor_file(self) -> Path:
        """All episodes, as Stable-Baselines3's Monitor writes them."""
        return self.path / "0.monitor.csv"

    @property
    def checkpoints_folder(self) -> Path:
        """Checkpoints, a folder each; made when first written."""
        return self.path / "checkpoints"

    def record_evaluation(self, name: EvaluatedPolicy, result: Mapping[str, Any]) -> None:
        """Record the games of the agent or of its integers; replaces earlier ones."""
        plain = recorded_evaluation(self.path, name, result)
        found = {**self._manifest.evaluations, name: plain}
        content = {**self._manifest.model_dump(), "evaluations": found}
        self._manifest = TrainingManifest.model_validate(content)
        self._write_manifest(self._manifest)

    def record_arithmetic(self, now: NumericsRecord) -> NumericsRecord:
        """Record what the training's numbers depend on, once; return what it began with."""
        if self._manifest.arithmetic is None:
            self._manifest = self._manifest.model_copy(update={"arithmetic": now})
            self._write_manifest(self._manifest)
        assert self._manifest.arithmetic is not None
        return self._manifest.arithmetic

    def set_phase(self, **changes: Any) -> None:
        """Record what has changed."""
        values = {**self.phase.model_dump(), **to_plain(changes)}
        phase = TrainPhase.model_validate(values)
        self._manifest = self._manifest.model_copy(update={"phases": {"train": phase}})
        self._write_manifest(self._manifest)


def check_place(path: Path, recipe: TrainRecipe) -> None:
    """Raise RunDirectoryError unless a training by `recipe` may begin or go on in `path`."""
    refuse_foreign(path)
    if not (path / "manifest.json").exists():
        return
    manifest = _manifest_of(path)
    if crc32_of(recipe.to_yaml().encode()) != manifest.recipe_crc32:
        refuse_differences(path, _recipe_of(path, manifest), recipe)


def _is_file_of(recipe_file: Path, manifest: TrainingManifest) -> bool:
    try:
        return crc32_of(read_file(recipe_file, MAX_RECIPE_BYTES)) == manifest.recipe_crc32
    except (OSError, ValueError):
        return False


def _manifest_of(path: Path) -> TrainingManifest:
    require_manifest(path)
    content = read_sealed(path)
    if content.get("kind") != "training":
        raise RunDirectoryError(
            [f"{path}: is a run directory, but not one of `qpd train`; choose a new folder"],
            ErrorCode.OUTPUT_TAKEN,
        )
    return check_manifest(path, content, TrainingManifest)


def _recipe_of(path: Path, manifest: TrainingManifest) -> TrainRecipe:
    file = path / "recipe.yaml"
    way = "`qpd train` with the recipe that it began with goes on without it"
    try:
        content = read_file(file, MAX_RECIPE_BYTES)
        if crc32_of(content) == manifest.recipe_crc32:
            return load_train_recipe(file)
    except RecipeError as error:
        raise RunDirectoryError(error.lines) from error
    except (OSError, ValueError) as error:
        raise RunDirectoryError([f"{file}: cannot be read ({error}); {way}"]) from error
    raise RunDirectoryError([f"{file}: is damaged or was edited; put a copy of it back, or {way}"])
