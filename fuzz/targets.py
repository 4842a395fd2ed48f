"""One target per parser of foreign files, which returns or raises the parser's own error.

`check` swallows that error and nothing else, so any other exception is a finding, and so is an
input that takes too much time or memory (`fuzz.measured`).
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fuzz.measured import bounded_work
from qpd.bench.device_record import BenchError, read_device_record
from qpd.recipe.loading import load_recipe
from qpd.recipe.schema import RecipeError
from qpd.runs.run_directory import RunDirectoryError, read_manifest
from qpd.student_files.distilled import StudentFileError, load_student, stored_architecture
from qpd.student_files.origin import student_origin
from qpd.student_files.quantized import load_integer_student
from qpd.sweep.grid import load_grid
from qpd.teachers import TeacherError, load_teacher
from qpd.teachers.archive.compact_agent import compact_agent
from qpd.teachers.archive.sb3_archive import read_sb3_archive
from qpd.teachers.archive.vec_normalize import read_vec_normalize
from qpd.teachers.sources.teacher_source import find_teacher_files

MAX_LINE = 4000  # characters of one message


@dataclass(frozen=True)
class Target:
    """A parser; `read` gets the path of a file named `file_name` with the fuzzed bytes."""

    file_name: str
    read: Callable[[Path], object]
    error: type[Exception]

    def check(self, content: bytes) -> bool:
        """Return whether `content` was accepted; raise anything that is a finding."""
        # A folder for each input: parsers look for files beside the one they are given.
        with tempfile.TemporaryDirectory(prefix="qpd-fuzz-") as folder:
            path = Path(folder) / self.file_name
            path.write_bytes(content)
            try:
                with bounded_work():
                    self.read(path)
            except self.error as error:
                _check_message(error)
                return False
        return True


def _check_message(error: Exception) -> None:
    """Assert that an error is one or more lines, none of them empty or endless."""
    lines = list(getattr(error, "lines", [str(error)]))
    assert lines and all(lines), "an error without a line"
    for line in lines:
        # Echoing a foreign value whole would let a file flood the terminal.
        assert len(line) <= MAX_LINE, f"a line of {len(line)} characters"


def _recipe_with_overrides(path: Path) -> object:
    """Read a recipe; lines of the file after `---overrides` are `--set` assignments."""
    recipe, found, overrides = path.read_bytes().partition(b"\n---overrides\n")
    path.write_bytes(recipe)
    lines = overrides.decode("utf-8", "replace").split("\n") if found else []
    return load_recipe(path, lines)


def _agent(path: Path) -> object:
    """Read an agent, and what `qpd teacher card --half` reads of it beside the weights."""
    teacher = load_teacher(path)
    compact_agent(read_sb3_archive(path))
    return teacher


def _student(path: Path) -> object:
    try:
        stored_architecture(path)
        student_origin(path)
    except StudentFileError:
        pass
    return load_student(path)


TARGETS = {
    "sb3_zip": Target("agent.zip", _agent, TeacherError),
    "vec_normalize": Target("vecnormalize.pkl", read_vec_normalize, TeacherError),
    "zoo_yaml": Target(
        "args.yml", lambda path: find_teacher_files(path.parent / "args.yml"), TeacherError
    ),
    "student": Target("distilled.safetensors", _student, StudentFileError),
    "packed_student": Target("quantized.safetensors", load_integer_student, StudentFileError),
    "recipe": Target("mine.yaml", _recipe_with_overrides, RecipeError),
    "grid": Target("mine.yaml", lambda path: load_grid(str(path)), RecipeError),
    "manifest": Target("manifest.json", lambda path: read_manifest(path.parent), RunDirectoryError),
    "device": Target("device.json", read_device_record, BenchError),
}
