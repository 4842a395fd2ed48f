"""Find the files of a teacher: a zip, an RL Zoo folder, the embedded default, a hub id."""

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.archive.stored_quantization import QUANTIZATION_FILE
from qpd.teachers.sources.environment_ids import algorithm_from_name, environment_id_from_name
from qpd.teachers.sources.hub import download_agent, is_hub_id
from qpd.teachers.sources.training_environment import TrainingEnvironment, training_environment
from qpd.teachers.sources.zoo_yaml import read_zoo_yaml

EMBEDDED_NAME = "ppo-BreakoutNoFrameskip-v4"
# A folder for each agent, as the hub has them.
_PRETRAINED = Path(__file__).parents[1] / "pretrained"
NORMALIZATION_NAMES = ("vecnormalize.pkl", "vec_normalize.pkl")  # the zoo's, the hub's
_ACCEPTED = "give an SB3 zip, an RL Zoo folder, 'embedded', or a hub id like sb3/ppo-CartPole-v1"


@dataclass(frozen=True)
class TeacherFiles:
    """A teacher's files, and what their names and settings say about it.

    `seed`, `hyperparameters` (the RL Zoo's config.yml) and `environment` are those of its training.
    """

    source: str
    archive: Path  # a zip file, or the folder of an unpacked one
    vec_normalize: Path | None = None
    quantization: Path | None = None  # of an agent that was trained to be quantized
    side_folders: tuple[Path, ...] = ()  # where it was looked for, nearest first
    algo_hint: str | None = None
    env_id: str | None = None
    seed: int | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    environment: TrainingEnvironment = field(default_factory=TrainingEnvironment)


def find_teacher_files(source: str | Path, vec_normalize: str | Path | None = None) -> TeacherFiles:
    """Resolve `source`, downloading from the hub if it is an id.

    `vec_normalize` is used in place of what lies beside the agent. Raises TeacherError if nothing
    fits.
    """
    given = Path(vec_normalize).expanduser() if vec_normalize is not None else None
    if given is not None and not given.is_file():
        raise TeacherError(
            f"{given}: no such file; expected the vecnormalize.pkl that was saved with the agent",
            ErrorCode.TEACHER_SETTINGS,
        )
    files = _find(source, given)
    return files if given is None else replace(files, vec_normalize=given)


def _find(source: str | Path, given: Path | None) -> TeacherFiles:
    text = str(source)
    pretrained = _pretrained(text)
    if pretrained is not None:
        return pretrained
    path = Path(source).expanduser()
    if not path.exists() and Path(f"{path}.zip").is_file():
        path = Path(f"{path}.zip")  # as SB3's own load() does
    if path.suffix == ".safetensors" and path.is_file():
        raise TeacherError(
            f"{path}: is a student's file, not an agent; `qpd evaluate` and `qpd show` take its "
            "run directory",
            ErrorCode.TEACHER_DAMAGED,
        )
    if path.exists():
        archive = _archive_in(path) if path.is_dir() else path
        return _with_side_files(text, archive, _side_folders(path, archive), given)
    # A Path is never a hub id, and a mistyped pretrained/NAME should not ask the network.
    if isinstance(source, str) and is_hub_id(source) and not text.startswith("pretrained/"):
        agent = download_agent(source)
        name = source.split("/")[1]
        return _with_side_files(source, agent.archive, [agent.folder], given, name)
    raise TeacherError(
        f"{text}: no such file or folder; {_ACCEPTED}{_nearest(path)}", ErrorCode.TEACHER_NOT_FOUND
    )


def pretrained_names() -> list[str]:
    """Return the names of the agents shipped with QPD; `embedded` is the PPO agent among them."""
    return sorted(path.name for path in _PRETRAINED.iterdir() if path.is_dir())


def comes_with_qpd(source: str) -> bool:
    """Return whether `source` names one of `pretrained_names`, or `embedded`."""
    return _pretrained(source) is not None


def _pretrained(source: str) -> TeacherFiles | None:
    """Resolve `embedded` or `pretrained/NAME` (`.zip` or not), an agent of QPD, or None."""
    name = source.removeprefix("pretrained/").removesuffix(".zip")
    if source == "embedded":
        name = EMBEDDED_NAME
    elif not source.startswith("pretrained/") or name not in pretrained_names():
        return None
    algo, env_id = algorithm_from_name(name), environment_id_from_name(name)
    archive = _PRETRAINED / name / f"{name}.zip"
    return TeacherFiles(f"pretrained/{name}", archive, algo_hint=algo, env_id=env_id)


def _nearest(path: Path) -> str:
    """Suggest an agent of a similar name: one of QPD's own, or a zip or folder beside `path`."""
    beside = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    agents = [str(p) for p in beside if p.suffix == ".zip" or p.is_dir()]
    own = ["embedded", *(f"pretrained/{name}" for name in pretrained_names())]
    return did_you_mean(str(path), [*own, *agents], cutoff=0.75)


def _archive_in(folder: Path) -> Path:
    if (folder / "policy.pth").is_file():
        return folder
    # The zoo's layout: ppo/CartPole-v1_1/CartPole-v1.zip, its settings in
    # ppo/CartPole-v1_1/CartPole-v1/.
    env_name = re.sub(r"_\d+$", "", folder.name)
    # rl_model_*_steps.zip are the zoo's checkpoints, not the agent.
    zips = sorted(p for p in folder.glob("*.zip") if not re.match(r"rl_model_\d+_steps", p.stem))
    by_stem = {p.stem: p for p in zips}
    named = [p for p in zips if environment_id_from_name(p.stem)]
    for choice in (by_stem.get(env_name), named[0] if len(named) == 1 else None,
                   by_stem.get("best_model"), zips[0] if len(zips) == 1 else None):  # fmt: skip
        if choice is not None:
            return choice
    if (folder / "manifest.json").is_file() and (folder / "recipe.yaml").is_file():
        raise TeacherError(
            f"{folder}: is a run, not an agent; its recipe.yaml names the agent that it imitates",
            ErrorCode.TEACHER_NOT_FOUND,
        )
    found = ", ".join(p.name for p in zips) or "no zip file"
    wanted = f"{env_name or 'AGENT'}.zip"
    raise TeacherError(
        f"{folder}: contains {found}; expected one agent, such as {wanted} or best_model.zip",
        ErrorCode.TEACHER_NOT_FOUND,
    )


def _side_folders(path: Path, archive: Path) -> list[Path]:
    """Return the folders that may hold args.yml, config.yml and vecnormalize.pkl, nearest first."""
    parent = archive.parent
    if archive.is_dir():  # an unpacked agent; what lies beside it are others
        return [archive, parent]
    folders = [parent / archive.stem]
    if path.is_dir() or archive.stem.startswith(("best_model", "rl_model_")):
        folders += [p.parent for p in sorted(parent.glob("*/args.yml"))]
    return list(dict.fromkeys([*folders, parent]))


def _with_side_files(
    source: str, archive: Path, folders: list[Path], given: Path | None, name: str | None = None
) -> TeacherFiles:
    args = _settings(folders, "args.yml")
    config = _settings(folders, "config.yml")
    absolute = Path(os.path.abspath(archive))  # not resolve(): links keep their names
    names = [name] if name else [_stem(absolute), absolute.parent.name, absolute.parent.parent.name]
    env_ids = [environment_id_from_name(n) for n in names[:2]]
    algos = [algorithm_from_name(n) for n in names]
    vec_normalize = given or _first_file(folders, NORMALIZATION_NAMES)
    environment = training_environment(args, config, archive)
    if vec_normalize is None and environment.normalize:
        raise TeacherError(
            f"{archive}: its config.yml says that observations were normalized, but"
            f" vecnormalize.pkl is missing; put it into {folders[0]}, or give --vecnormalize FILE",
            ErrorCode.TEACHER_SETTINGS,
        )
    return TeacherFiles(
        source=source,
        archive=archive,
        vec_normalize=vec_normalize,
        quantization=_first_file(folders, (QUANTIZATION_FILE,)),
        side_folders=tuple(folders),
        algo_hint=_text(args.get("algo")) or next((a for a in algos if a), None),
        env_id=_text(args.get("env")) or next((e for e in env_ids if e), None),
        seed=args["seed"] if type(args.get("seed")) is int else None,
        hyperparameters=config,
        environment=environment,
    )


def _stem(path: Path) -> str:
    return path.name.removesuffix(".zip")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _settings(folders: list[Path], name: str) -> dict[str, Any]:
    path = _first_file(folders, (name,))
    return read_zoo_yaml(path) if path else {}


def _first_file(folders: list[Path], names: tuple[str, ...]) -> Path | None:
    candidates = (folder / name for folder in folders for name in names)
    return next((path for path in candidates if path.is_file()), None)
