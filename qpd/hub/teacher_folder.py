"""The folder that `qpd teacher card` writes: an agent as the hub has them, and how it played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qpd.atomic_files import copy_file, write_bytes, write_json, write_text
from qpd.error_codes import ErrorCode
from qpd.evaluation import EvaluationResult
from qpd.evaluation_target import Target, load_target
from qpd.hub.contents import agent_file_name, new_hub_folder, zoo_results
from qpd.hub.measured_return import MeasuredReturn
from qpd.manifest import date_now
from teachers import Teacher, TeacherError, load_teacher
from teachers.compact_agent import compact_agent
from teachers.sb3_archive import Sb3Archive, read_sb3_archive
from teachers.teacher_source import TeacherFiles, find_teacher_files

if TYPE_CHECKING:
    from analysis.training_curve import TrainingCurve

NORMALIZATION = "vecnormalize.pkl"


@dataclass(frozen=True)
class TeacherPage:
    """What a teacher's card tells.

    `files` lie where the agent was trained; `zip_name` and `num_bytes` are those of the zip that is
    published, `is_half` whether its weights are float16.
    """

    files: TeacherFiles
    teacher: Teacher
    env_id: str
    zip_name: str
    num_bytes: int
    is_half: bool
    measured: MeasuredReturn
    sb3_version: str | None
    curve: TrainingCurve | None


def write_teacher_folder(
    folder: Path,
    source: str,
    env_id: str | None,
    half: bool,
    play: Callable[[Target], EvaluationResult],
    card: Callable[[TeacherPage], str],
) -> TeacherPage:
    """Write agent, games, curve and card into `folder`, which must be new or empty.

    With `half` the zip is that of `compact_agent`. What `play` is given is what is published.
    Raises TeacherError, TargetError, HubPushError where `folder` holds something.
    """
    with new_hub_folder(folder) as fresh:
        files, teacher, archive = _read(source, env_id)
        env = str(teacher.env_id)
        name = agent_file_name(teacher.algo, env)
        curve = _curve(files.archive.parent, archive.num_timesteps or None)
        write_bytes(fresh / name, compact_agent(archive) if half else files.archive.read_bytes())
        if files.vec_normalize is not None:
            copy_file(files.vec_normalize, fresh / NORMALIZATION)
        result = play(load_target(str(fresh / name), None, env, "auto"))
        measured = MeasuredReturn.from_json(result.to_json() | {"date": date_now()})
        size = (fresh / name).stat().st_size
        page = TeacherPage(
            files, teacher, env, name, size, half, measured, archive.sb3_version, curve
        )
        write_json(fresh / "results.json", zoo_results(measured))
        write_json(fresh / "evaluation.json", result.to_json())
        if curve is not None:
            _write_curve(fresh, curve, measured)
        write_text(fresh / "README.md", card(page))
    return page


def _read(source: str, env_id: str | None) -> tuple[TeacherFiles, Teacher, Sb3Archive]:
    """The agent, with an environment and as a zip file; TeacherError where it lacks one."""
    files = find_teacher_files(source)
    if files.archive.is_dir():
        raise TeacherError(f"{files.archive}: is an unpacked agent; expected its zip file")
    teacher = load_teacher(source, env_id=env_id)
    if teacher.env_id is None:
        raise TeacherError(
            f"{source}: nothing tells its environment: name it with --env",
            ErrorCode.TEACHER_UNCLEAR,
        )
    return files, teacher, read_sb3_archive(files.archive)


def _curve(folder: Path, num_timesteps: int | None) -> TrainingCurve | None:
    """The training's curve; what drawing it takes is looked for now, before the games."""
    import matplotlib  # noqa: F401

    from analysis.training_curve import training_curve

    return training_curve(folder, num_timesteps)


def _write_curve(folder: Path, curve: TrainingCurve, measured: MeasuredReturn) -> None:
    from analysis.figure_style import paper_style, save_tables
    from analysis.training_curve import draw_training

    final = (measured.mean, measured.low, measured.high)
    with paper_style():
        draw_training(curve, final).savefig(folder / "training.png", metadata={"Software": None})
    save_tables({"training": curve.binned()}, folder)
