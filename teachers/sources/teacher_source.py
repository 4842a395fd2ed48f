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
_CHECKPOINT = re.compile(r"(?P<prefix>.+)_(?P<steps>\d+)_steps")  # SB3's CheckpointCallback
_ACCEPTED = "give an SB3 zip, an RL Zoo folder, 'embedded', or a hub id like sb3/ppo-CartPole-v1"


@dataclass(frozen=True)
class TeacherFiles:
    """A teacher's files, and what their names and settings say about it.

    `seed`, `hyperparameters` (the RL Zoo's config.yml) and `environment` are those of its training.
    `notes` say what was chosen among several files, one line each.
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
    notes: tuple[str, ...] = ()


def find_teacher_files(source: str | Path, vec_normalize: str | Path | None = None) -> TeacherFiles:
    """Resolve `source`, downloading from the hub if it is an id.

    `vec_normalize` is used in place of what lies beside the agent. Raises TeacherError if nothing
    fits.
    """
    refuse_object(source)
    given = Path(vec_normalize).expanduser() if vec_normalize is not None else None
    if given is not None and not given.is_file():
        what = "is a folder" if given.is_dir() else "no such file"
        raise TeacherError(
            f"{given}: {what}; expected the vecnormalize.pkl that was saved with the agent",
            ErrorCode.TEACHER_SETTINGS,
        )
    files = _find(source, given)
    return files if given is None else replace(files, vec_normalize=given)


def refuse_object(source: object) -> None:
    """Raise TeacherError for a model in memory, or whatever else is given in place of a file."""
    if not isinstance(source, str | os.PathLike):
        raise TeacherError(
            f"an object of class {type(source).__name__} in place of an agent's file: save it with "
            "`model.save('agent.zip')`, and give that path",
            ErrorCode.TEACHER_NOT_FOUND,
        )


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
        found = _with_side_files(text, archive, _side_folders(path, archive), given)
        return replace(found, notes=(*_choice_of_agent(path, archive), *found.notes))
    # A Path is never a hub id, and a mistyped pretrained/NAME, or run, should not ask the network.
    is_local = text.startswith("pretrained/") or _holds_runs(path.parent)
    if isinstance(source, str) and is_hub_id(source) and not is_local:
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


def _holds_runs(folder: Path) -> bool:
    return folder.name != "" and any(folder.glob("*/manifest.json"))


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
    zips = _agents_in(folder)
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
    if not zips and (checkpoints := list(folder.glob("*.zip"))):
        latest = max(checkpoints, key=lambda p: (len(p.name), p.name))  # of the most steps
        raise TeacherError(
            f"{folder}: contains checkpoints alone; name one, such as {folder / latest.name}",
            ErrorCode.TEACHER_NOT_FOUND,
        )
    found = ", ".join(p.name for p in zips) or "no zip file"
    wanted = f"{env_name or 'AGENT'}.zip"
    raise TeacherError(
        f"{folder}: contains {found}; expected one agent, such as {wanted} or best_model.zip",
        ErrorCode.TEACHER_NOT_FOUND,
    )


def _agents_in(folder: Path) -> list[Path]:
    """Return the zips of a folder, without the zoo's checkpoints, which are of the same agent."""
    return sorted(p for p in folder.glob("*.zip") if not re.match(r"rl_model_\d+_steps", p.stem))


def _choice_of_agent(path: Path, archive: Path) -> list[str]:
    """Say which zip of a folder was taken, where there are several."""
    if not path.is_dir() or archive.is_dir():
        return []
    others = [p.name for p in _agents_in(path) if p != archive]
    return [f"in {path}, {archive.name} is taken, not {_some(others)}"] if others else []


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown}, ..." if len(names) > 3 else shown


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
    own = _normalization_of_checkpoint(archive)
    vec_normalize = given or own or _first_file(folders, NORMALIZATION_NAMES)
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
        notes=() if given or own else _shared_normalization(archive, vec_normalize),
    )


def _normalization_of_checkpoint(archive: Path) -> Path | None:
    """Return the statistics that CheckpointCallback saves beside PREFIX_N_steps.zip, if any."""
    found = _CHECKPOINT.fullmatch(archive.stem)
    if found is None:
        return None
    name = "{prefix}_vecnormalize_{steps}_steps.pkl".format(**found.groupdict())
    path = archive.with_name(name)
    return path if path.is_file() else None


def _shared_normalization(archive: Path, vec_normalize: Path | None) -> tuple[str, ...]:
    """Say that statistics lie beside several agents, of which one was trained with them."""
    if vec_normalize is None or archive.is_dir() or vec_normalize.parent != archive.parent:
        return ()
    if _is_of_a_training(archive):
        return ()
    others = [p.name for p in _agents_in(archive.parent) if not _is_of_a_training(p)]
    others = [name for name in others if name != archive.name]
    if not others:
        return ()
    return (
        f"{vec_normalize.name} lies beside {_some(others)}, too: if it is not "
        f"{archive.name}'s, give --vecnormalize FILE",
    )


def _is_of_a_training(archive: Path) -> bool:
    """Tell whether it is one of several that callbacks save of one training."""
    return archive.stem == "best_model" or _CHECKPOINT.fullmatch(archive.stem) is not None


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
