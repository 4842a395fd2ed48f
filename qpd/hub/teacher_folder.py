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
from qpd.hub.contents import new_hub_folder, zoo_results
from qpd.hub.measured_return import MeasuredReturn
from qpd.manifest import date_now
from teachers import Teacher, TeacherError
from teachers.compact_agent import compact_agent
from teachers.sb3_archive import read_sb3_archive
from teachers.teacher_source import TeacherFiles, find_teacher_files

if TYPE_CHECKING:
    from analysis.training_curve import TrainingCurve

NORMALIZATION = "vecnormalize.pkl"


@dataclass(frozen=True)
class TeacherPage:
    """What a teacher's card tells.

    `files` lie where the agent was trained; `num_bytes` are those of the zip that is published,
    `is_half` whether its weights are float16.
    """

    files: TeacherFiles
    teacher: Teacher
    env_id: str
    num_bytes: int
    is_half: bool
    measured: MeasuredReturn
    sb3_version: str | None
    curve: TrainingCurve | None

    @property
    def zip_name(self) -> str:
        """The agent's file."""
        return _zip_name(self.teacher.algo, self.env_id)


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
    from analysis.training_curve import training_curve

    files = find_teacher_files(source)
    if files.archive.is_dir():
        raise TeacherError(
            f"{files.archive}: is an unpacked agent; expected its zip file",
            ErrorCode.TEACHER_UNSUPPORTED,
        )
    archive = read_sb3_archive(files.archive)
    content = compact_agent(archive) if half else files.archive.read_bytes()
    with new_hub_folder(folder) as fresh:
        named = load_target(source, None, env_id, "auto")
        assert named.teacher is not None
        path = fresh / _zip_name(named.teacher.algo, named.env_id)
        write_bytes(path, content)
        if files.vec_normalize is not None:
            copy_file(files.vec_normalize, fresh / NORMALIZATION)
        result = play(load_target(str(path), None, named.env_id, "auto"))
        curve = training_curve(files.archive.parent, archive.num_timesteps or None)
        measured = MeasuredReturn.from_json(result.to_json() | {"date": date_now()})
        page = TeacherPage(
            files,
            named.teacher,
            named.env_id,
            len(content),
            half,
            measured,
            archive.sb3_version,
            curve,
        )
        write_json(fresh / "results.json", zoo_results(measured))
        write_json(fresh / "evaluation.json", result.to_json())
        if curve is not None:
            _write_curve(fresh, curve, measured)
        write_text(fresh / "README.md", card(page))
    return page


def _zip_name(algo: str, env_id: str) -> str:
    """As the RL Zoo names agents on the hub: a2c-BreakoutNoFrameskip-v4.zip."""
    return f"{algo}-{env_id.replace('/', '-').replace(':', '-')}.zip"


def _write_curve(folder: Path, curve: TrainingCurve, measured: MeasuredReturn) -> None:
    from analysis.figure_style import paper_style, save_tables
    from analysis.training_curve import draw_training

    final = (measured.mean, measured.low, measured.high)
    with paper_style():
        draw_training(curve, final).savefig(folder / "training.png", metadata={"Software": None})
    save_tables({"training": curve.binned()}, folder)
