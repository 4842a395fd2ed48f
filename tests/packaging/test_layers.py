"""Imports go one way: students <- teachers <- qpd <- cli, and analysis reads files only."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = {"qpd", "teachers", "students", "analysis", "recipes"}
SB3 = {"stable_baselines3", "sb3_contrib", "rl_zoo3"}
# What teachers may know of the method: how environments are driven, how a policy acts in them, in
# which precision, what a batch is, what an error of the user's is, and what it proposes.
SHARED_WITH_TEACHERS = {
    "acting",
    "environment",
    "environment_types",
    "error_codes",
    "nearest_name",
    "precision",
    "transition",
    "user_error",
}
# Training: what analysis must never touch.
TRAINING = {
    "phase_distill",
    "phase_finetune",
    "phase_quantize",
    "phase_runner",
    "training_phases",
    "replay_memory",
    "distillation_losses",
}


def imported(source: str, package: str) -> set[str]:
    """Return the dotted names a module imports anywhere in it; `package` resolves relative ones."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            above = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            # `from qpd import cli` names a module as much as `from qpd.cli import X` does.
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def modules(package: str) -> dict[str, set[str]]:
    """Return the imports of every file of a package, by path relative to the repository."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        relative = path.relative_to(ROOT)
        parent = ".".join(relative.parent.parts)
        found[relative.as_posix()] = imported(path.read_text(encoding="utf-8"), parent)
    assert found, f"{package}/ holds no modules"
    return found


def top(name: str) -> str:
    return name.split(".")[0]


def offenders(package: str, forbidden: object, *, but: str = "") -> list[str]:
    assert callable(forbidden)
    return [
        f"{path} imports {name}"
        for path, names in modules(package).items()
        for name in sorted(names)
        if forbidden(name) and not (but and path.startswith(but))
    ]


def is_second(name: str, wanted: set[str]) -> bool:
    return top(name) == "qpd" and len(name.split(".")) > 1 and name.split(".")[1] in wanted


def test_students_import_torch_and_the_standard_library_only() -> None:
    allowed = {"torch", "students", *sys.stdlib_module_names}
    assert offenders("students", lambda name: top(name) not in allowed) == []


@pytest.mark.parametrize("package", ["qpd", "students", "analysis"])
def test_sb3_appears_in_teachers_and_export_only(package: str) -> None:
    assert offenders(package, lambda name: top(name) in SB3, but="qpd/export/") == []


def test_teachers_know_environments_and_batches_only() -> None:
    def forbidden(name: str) -> bool:
        if top(name) == "qpd":
            return name != "qpd" and not is_second(name, SHARED_WITH_TEACHERS)
        return top(name) in OURS - {"teachers"}

    assert offenders("teachers", forbidden) == []


def test_analysis_never_touches_training() -> None:
    assert offenders("analysis", lambda name: is_second(name, TRAINING)) == []


@pytest.mark.parametrize("package", ["qpd", "teachers", "students", "analysis"])
def test_nobody_imports_the_cli(package: str) -> None:
    its_own = ("qpd/__main__.py", "qpd/cli.py", "qpd/commands/")
    found = offenders(package, lambda name: is_second(name, {"cli", "commands"}))
    assert [line for line in found if not line.startswith(its_own)] == []


def test_qpd_imports_analysis_through_the_cli_only() -> None:
    assert offenders("qpd", lambda name: top(name) == "analysis", but="qpd/commands/") == []


def test_no_grab_bags() -> None:
    names = {path.stem for package in OURS for path in (ROOT / package).rglob("*.py")}
    assert not names & {"utils", "util", "common", "helpers", "misc", "parts"}


def test_detection_sees_every_form_of_import() -> None:
    source = (
        "import a.b as c\n"
        "from qpd import phase_runner\n"
        "from . import near\n"
        "from ..up import x\n"
        "def f():\n    from late import y\n"
        "if TYPE_CHECKING:\n    import typed\n"
    )
    names = imported(source, "qpd.export")
    wanted = {"a.b", "qpd.phases.runner", "qpd.export.near", "qpd.up.x", "late.y", "typed"}
    assert wanted <= names
    assert is_second("qpd.phases.runner", TRAINING) and not is_second("qpd", TRAINING)
