"""The folder that `qpd push` publishes: a run directory that anyone can read, play and rerun."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from qpd.environments.registry import EnvironmentConfigError, atari_rom, environment_spec
from qpd.environments.source import EnvironmentSource
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.evaluation.filmed_game import check_drawable
from qpd.evaluation.video import record_gif
from qpd.export.bundle import (
    ExportError,
    ExportSource,
    GoldenVectors,
    golden_vectors,
    load_export_source,
    write_bundle,
)
from qpd.files.atomic import write_bytes, write_json, write_text
from qpd.files.tensors import crc32_of
from qpd.files.whole_folder import is_current_folder, whole_folder
from qpd.hub.measured_return import MeasuredReturn
from qpd.recipe.schema import Recipe
from qpd.runs.manifest import EvaluatedPolicy, Manifest, TeacherRecord
from qpd.runs.run_directory import RunDirectory
from qpd.runs.run_folder import sealed
from qpd.runs.target import load_target

Exporter = Callable[[ExportSource, GoldenVectors], Mapping[str, bytes]]

ATARI_VIDEO_SECONDS, VIDEO_SECONDS = 40.0, 10.0
# The id becomes part of a file's name and of code on the card, so it may hold nothing but itself.
_ENVIRONMENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:-]*")


class HubPushError(UserError, ValueError):
    """A run cannot be published, or not there; the message is one line with a remedy."""

    code = ErrorCode.HUB_REFUSED


@dataclass(frozen=True)
class PushSource:
    """A run with a quantized student that was evaluated.

    `policy` is what quantized.safetensors holds: `qat`, or `ptq` before phase 3.
    """

    run: RunDirectory
    export: ExportSource
    teacher: TeacherRecord
    policy: EvaluatedPolicy
    returns: dict[EvaluatedPolicy, MeasuredReturn]

    @property
    def measured(self) -> MeasuredReturn:
        """The return of the published student."""
        return self.returns[self.policy]

    @property
    def is_agent(self) -> bool:
        """Tell whether it is the agent itself in integers, and imitates none."""
        return self.run.manifest.is_agent

    @property
    def noun(self) -> str:
        """Return what the card calls what it publishes."""
        return "agent" if self.is_agent else "student"

    @property
    def environment(self) -> EnvironmentSource:
        """Return what it was played in, wrappers and all."""
        return self.teacher.played

    @property
    def video_seconds(self) -> float:
        """Seconds of a game to film."""
        is_atari = atari_rom(self.teacher.env_id) is not None
        # Other films have larger pictures with more colours, and MuJoCo draws slowly.
        return ATARI_VIDEO_SECONDS if is_atari else VIDEO_SECONDS

    @property
    def zip_name(self) -> str:
        """The SB3 agent's file name, in the RL Zoo's style: ppo-BreakoutNoFrameskip-v4.zip.

        The algorithm is the one that loads the zip: an A2C teacher's student loads as PPO.
        """
        from qpd.export.sb3_zip import sb3_algorithm

        return agent_file_name(sb3_algorithm(self.export).lower(), self.teacher.env_id)


def agent_file_name(algo: str, env_id: str) -> str:
    """Return an agent's file name, as the RL Zoo names them; HubPushError for a bad `env_id`."""
    if not _ENVIRONMENT_ID.fullmatch(env_id):
        raise HubPushError(f"{env_id!r} names no environment", ErrorCode.ENVIRONMENT_UNKNOWN)
    return f"{algo}-{env_id.replace('/', '-').replace(':', '-')}.zip"


def load_push_source(path: Path) -> PushSource:
    """Read and check a run. Raises HubPushError, RunDirectoryError or StudentFileError."""
    run = RunDirectory.open(path, read_only=True)
    if run.manifest.teacher is None or not run.quantized_file.is_file():
        raise HubPushError(
            f"{path}: there is no quantized student yet; `qpd quantize {path}` makes it",
            ErrorCode.RUN_PHASE_MISSING,
        )
    env_id = run.manifest.teacher.env_id
    if not _ENVIRONMENT_ID.fullmatch(env_id):
        raise HubPushError(
            f"{run.manifest_file}: teacher.env_id: {env_id!r} names no environment",
            ErrorCode.RUN_DAMAGED,
        )
    # quantized.safetensors holds the latest student: phase 3 replaces phase 2's when it is done.
    policy: EvaluatedPolicy = "qat" if run.phase("finetune").state == "done" else "ptq"
    if policy not in run.manifest.evaluations:
        raise HubPushError(
            f"{path}: its student was never evaluated: `qpd evaluate {path} --policy {policy}`",
            ErrorCode.NOTHING_MEASURED,
        )
    try:
        returns = {
            name: MeasuredReturn.from_json(result)
            for name, result in run.manifest.evaluations.items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise HubPushError(
            f"{run.manifest_file}: evaluations: not as `qpd evaluate` writes them ({error!r})",
            ErrorCode.RUN_DAMAGED,
        ) from error
    return PushSource(run, load_export_source(path), run.manifest.teacher, policy, returns)


def can_be_filmed(source: PushSource) -> bool:
    """Return whether the student can be filmed: some environments draw nothing, or not here."""
    try:
        check_drawable(source.environment)
    except EnvironmentConfigError:
        return False
    return True


def made_exports(
    source: PushSource, exporters: Mapping[str, Exporter]
) -> tuple[dict[str, Mapping[str, bytes]], dict[str, ExportError]]:
    """Return the files of each format that can be made, and why the others cannot, by its name."""
    # One set of vectors for all formats: a reader may compare the bundles with each other.
    golden = golden_vectors(source.export.student)
    made: dict[str, Mapping[str, bytes]] = {}
    left_out: dict[str, ExportError] = {}
    for name, exporter in exporters.items():
        try:
            made[name] = exporter(source.export, golden)
        except ExportError as error:
            left_out[name] = error
    return made, left_out


def write_hub_folder(
    folder: Path,
    source: PushSource,
    card: str,
    exports: Mapping[str, Mapping[str, bytes]],
    video: bool,
) -> None:
    """Write everything that is published into `folder`, which must be new or empty.

    `exports` are files by format name: `sb3` becomes a zip beside the card, any other a folder.
    With `video` a game is played and filmed. Afterwards the folder is either as it was or complete.
    Raises HubPushError if it holds something, OSError.
    """
    with new_hub_folder(folder) as fresh:
        _write_run_files(fresh, source)
        for name, files in exports.items():
            if name == "sb3":
                write_bytes(fresh / source.zip_name, files["student.zip"])
            else:
                write_bundle(fresh / name, name, source.export, files)
        if video:
            _film(fresh / "replay.gif", source)
        write_text(fresh / "README.md", card)


@contextmanager
def new_hub_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `folder` when the block ends, or vanishes if it fails.

    `folder` must be new or empty: HubPushError otherwise.
    """
    check_new(folder)
    with whole_folder(folder) as fresh:
        yield fresh
        # Empty, as was checked; rmdir refuses anything else that has come meanwhile.
        if folder.exists():
            folder.rmdir()


def check_new(folder: Path) -> None:
    """Raise HubPushError if `folder` is a file, the current folder, or holds anything."""
    if is_current_folder(folder):
        raise HubPushError(
            f"{folder}: is the current folder; name a new one with -o", ErrorCode.OUTPUT_TAKEN
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise HubPushError(
            f"{folder}: holds files already; choose a new folder with -o", ErrorCode.OUTPUT_TAKEN
        )


def _write_run_files(folder: Path, source: PushSource) -> None:
    run = source.run
    shutil.copyfile(run.quantized_file, folder / run.quantized_file.name)
    if source.policy == "ptq":  # by this name a run knows them
        shutil.copyfile(run.quantized_file, folder / run.ptq_file.name)
    # Runs kept for their results may have left it out, as it is the larger file.
    if run.distilled_file.is_file():
        shutil.copyfile(run.distilled_file, folder / run.distilled_file.name)
    recipe = published_recipe(run.recipe).to_yaml()
    write_text(folder / "recipe.yaml", recipe)
    known = {"recipe_crc32": (crc32_of(recipe.encode()),)}
    manifest = published_manifest(run.manifest).model_copy(update=known)
    write_json(folder / "manifest.json", sealed(manifest.model_dump(mode="json")))
    write_json(folder / "results.json", zoo_results(source.measured))


def published_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe without this machine's paths (`published_source`) and accounts."""
    places = {"source": published_source(recipe.teacher.source)}
    if recipe.teacher.vecnormalize is not None:
        places["vecnormalize"] = published_source(recipe.teacher.vecnormalize)
    teacher = recipe.teacher.model_copy(update=places)
    # The name of a Weights & Biases project tells about its owner.
    save = recipe.save.model_copy(update={"wandb": None})
    return recipe.model_copy(update={"teacher": teacher, "save": save})


def published_manifest(manifest: Manifest) -> Manifest:
    """Return the manifest with the teacher's source as `published_source` gives it."""
    assert manifest.teacher is not None
    source = published_source(manifest.teacher.source)
    teacher = manifest.teacher.model_copy(update={"source": source})
    return manifest.model_copy(update={"teacher": teacher})


def published_source(source: str) -> str:
    """Return a teacher's source; of a path through this machine's folders only the last part."""
    # Both kinds on every system: a run made on Windows may be published from Linux.
    for path in (PurePosixPath(source), PureWindowsPath(source)):
        if path.is_absolute() or path.parts[:1] == ("~",) or ".." in path.parts:
            return path.name
    return source


def zoo_results(measured: MeasuredReturn) -> dict[str, Any]:
    """Return results.json as the RL Zoo writes it; `eval_datetime` is null if not recorded."""
    return {
        "mean_reward": measured.mean,
        "std_reward": measured.std,
        # The zoo knows two ways of acting; epsilon-greedy counts as stochastic there.
        "is_deterministic": measured.acting == "greedy",
        "n_eval_episodes": measured.episodes,
        "eval_datetime": measured.date,
    }


def _film(path: Path, source: PushSource) -> None:
    target = load_target(str(source.run.path), source.policy, None, "cpu")
    rule = target.policy.actions.rule(
        target.acting,
        on_atari=environment_spec(target.environment).is_atari,
        epsilon=target.epsilon,
        sharpness=1.0,
    )
    try:
        record_gif(path, target.policy, target.environment, rule, target.seed, source.video_seconds)
    except EnvironmentConfigError as error:
        raise HubPushError(f"{error}; --no-video leaves the film out", error.code) from error


def folder_files(folder: Path) -> dict[str, int]:
    """Return the bytes of each file below `folder`, by relative path, sorted."""
    files: Sequence[Path] = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
