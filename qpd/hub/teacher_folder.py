"""The folder that `qpd teacher card` writes: an agent in the hub's layout, with its returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qpd.environments.source import EnvironmentSource
from qpd.errors.codes import ErrorCode
from qpd.evaluation.games import EvaluationResult
from qpd.files.atomic import copy_file, write_bytes, write_json, write_text
from qpd.files.bounded_read import read_file
from qpd.hub.contents import agent_file_name, new_hub_folder, zoo_results
from qpd.hub.measured_return import MeasuredReturn
from qpd.runs.manifest import date_now
from qpd.runs.played_environment import EnvironmentWish, environment_of
from qpd.runs.target import Target, load_target
from qpd.teachers import Teacher, TeacherError, load_teacher
from qpd.teachers.archive.compact_agent import compact_agent
from qpd.teachers.archive.sb3_archive import MAX_ARCHIVE_BYTES, Sb3Archive, read_sb3_archive
from qpd.teachers.archive.stored_quantization import QUANTIZATION_FILE
from qpd.teachers.sources.teacher_source import TeacherFiles, find_teacher_files

NORMALIZATION = "vecnormalize.pkl"


@dataclass(frozen=True)
class AgentFiles:
    """An agent as its training left it; `env_id` names the `environment` to play it in."""

    files: TeacherFiles
    teacher: Teacher
    archive: Sb3Archive
    env_id: str
    environment: EnvironmentSource


@dataclass(frozen=True)
class TrainingRecord:
    """A training: the steps at which it was resumed, and its curve.

    `continues` tells whether it began with a trained agent's parameters. `write` puts training.png
    and training.csv into a folder, given the return measured afterwards.
    """

    resumed_at: tuple[int, ...]
    write: Callable[[Path, MeasuredReturn], None]
    continues: bool = False


@dataclass(frozen=True)
class TeacherPage:
    """The facts on a teacher's card.

    `zip_name` and `num_bytes` are those of the published zip; `is_half` is True if its weights are
    float16.
    """

    agent: AgentFiles
    zip_name: str
    num_bytes: int
    is_half: bool
    measured: MeasuredReturn
    training: TrainingRecord | None


def read_agent(source: str, wish: EnvironmentWish, vec_normalize: Path | None = None) -> AgentFiles:
    """Read a zip file and what lies beside it; `wish` is what the user says of the environment.

    Raises TeacherError if it is no agent, or if nothing names its environment, and
    EnvironmentConfigError where its files ask for what only the user may.
    """
    wish.allow_modules()
    files = find_teacher_files(source, vec_normalize)
    # The hub keeps an unpacked copy beside the zip; a card is for the file that SB3 loads.
    if files.archive.is_dir():
        raise TeacherError(f"{files.archive}: is an unpacked agent; expected its zip file")
    teacher = load_teacher(source, env_id=wish.env_id, vec_normalize=vec_normalize)
    if teacher.env_id is None:
        raise TeacherError(
            f"{source}: its files don't name the environment: name it with --env",
            ErrorCode.TEACHER_UNCLEAR,
        )
    environment = environment_of(teacher, wish).source
    archive = read_sb3_archive(files.archive)
    return AgentFiles(files, teacher, archive, teacher.env_id, environment)


def write_teacher_folder(
    folder: Path,
    agent: AgentFiles,
    half: bool,
    play: Callable[[Target], EvaluationResult],
    card: Callable[[TeacherPage], str],
    training: TrainingRecord | None,
) -> TeacherPage:
    """Write agent, games, curve and card into `folder`, which must be new or empty.

    With `half` the zip is that of `compact_agent`. `play` gets the very zip that is published.
    Raises TeacherError or TargetError, and HubPushError if `folder` holds something.
    """
    name = agent_file_name(agent.teacher.algo, agent.env_id)
    original = agent.files.archive
    content = compact_agent(agent.archive) if half else read_file(original, MAX_ARCHIVE_BYTES)
    # Played inside the temporary folder: a failure leaves nothing half-written behind.
    with new_hub_folder(folder) as fresh:
        write_bytes(fresh / name, content)
        if agent.files.vec_normalize is not None:
            copy_file(agent.files.vec_normalize, fresh / NORMALIZATION)
        if agent.files.quantization is not None:
            copy_file(agent.files.quantization, fresh / QUANTIZATION_FILE)
        wish = EnvironmentWish(agent.environment)
        # The zip in the folder and not the agent in memory: float16 weights may act differently.
        result = play(load_target(str(fresh / name), None, wish, "auto"))
        measured = MeasuredReturn.from_json(result.to_json() | {"date": date_now()})
        page = TeacherPage(agent, name, len(content), half, measured, training)
        write_json(fresh / "results.json", zoo_results(measured))
        # results.json has the mean only; intervals need every game.
        write_json(fresh / "evaluation.json", result.to_json())
        if training is not None:
            training.write(fresh, measured)
        write_text(fresh / "README.md", card(page))
    return page
