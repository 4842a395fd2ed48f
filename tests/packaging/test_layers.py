"""Imports go one way: docs_build/layers.py ranks the folders, and every import is read."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from docs_build.layers import CONTRIBUTING, LAYERS, ROOT, layer_of, purpose, with_layers

TOPS = ("qpd", "teachers", "students", "analysis")
SB3 = {"stable_baselines3", "sb3_contrib", "rl_zoo3"}
# Scripts that are copied into exported folders: they run there, without QPD.
NOT_OURS = "qpd/export/bundle_files/"


def files() -> dict[str, Path]:
    """Every module of the packages by its path relative to the repository."""
    found = {
        path.relative_to(ROOT).as_posix(): path
        for top in TOPS
        for path in sorted((ROOT / top).rglob("*.py"))
    }
    found = {name: path for name, path in found.items() if not name.startswith(NOT_OURS)}
    assert len(found) > 200
    return found


def imported(source: str) -> set[str]:
    """Return the dotted names a module imports anywhere in it, relative imports excluded."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            # `from qpd import cli` names a module as much as `from qpd.cli import X` does.
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def file_of(name: str, known: dict[str, Path]) -> str | None:
    """Return the file that an imported dotted name lies in; None for other people's."""
    parts = name.split(".")
    if parts[0] != "qpd":
        return None
    # Installed and imported, students/ is qpd.students, and so on.
    places = [parts[1:], parts] if len(parts) > 1 and parts[1] in TOPS else [parts]
    for place in places:
        for end in (len(place), len(place) - 1):
            stem = "/".join(place[:end])
            for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
                if candidate in known:
                    return candidate
    raise AssertionError(f"no file of ours holds {name}")


FILES = files()
IMPORTS = {name: imported(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def test_every_file_is_in_a_layer() -> None:
    faces = ["qpd/__init__.py", "analysis/__init__.py"]
    assert [name for name in IMPORTS if layer_of(name) is None] == sorted(
        faces, key=list(IMPORTS).index
    )


@pytest.mark.parametrize("layer", LAYERS)
def test_a_folder_imports_only_what_stands_before_it(layer: str) -> None:
    own = [name for name in IMPORTS if layer_of(name) == layer]
    assert own, "the list names a folder that holds nothing"
    upward = []
    for name in own:
        for target in IMPORTS[name]:
            file = file_of(target, FILES)
            if file is None or file == "qpd/__init__.py":  # for __version__
                continue
            other = layer_of(file)
            assert other is not None, f"{name} imports {target}, which is in no layer"
            if LAYERS.index(other) > LAYERS.index(layer):
                upward.append(f"{name} imports {target}")
    assert upward == []


def test_no_import_cycles() -> None:
    """Within a layer, too."""
    graph = {
        name: {file_of(target, FILES) for target in targets} - {None, name, "qpd/__init__.py"}
        for name, targets in IMPORTS.items()
    }
    while leaves := [name for name, targets in graph.items() if not targets & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert list(graph) in ([], ["qpd/__init__.py"])


def test_contributing_shows_the_list() -> None:
    page = CONTRIBUTING.read_text(encoding="utf-8")
    assert with_layers(page) == page, "run `python -m docs_build.layers`"
    for layer in LAYERS:
        assert purpose(layer).endswith("."), f"{layer} has no docstring of one sentence"


def test_students_import_torch_and_the_standard_library_only() -> None:
    allowed = {"torch", *sys.stdlib_module_names}
    foreign = [
        f"{name} imports {target}"
        for name, targets in IMPORTS.items()
        if name.startswith("students/")
        for target in targets
        if target.split(".")[0] not in allowed and not target.startswith("qpd.students.")
    ]
    assert foreign == []


def test_sb3_appears_in_teachers_and_export_only() -> None:
    found = {name for name, targets in IMPORTS.items() if {t.split(".")[0] for t in targets} & SB3}
    assert found and all(name.startswith(("teachers/", "qpd/export/")) for name in found)


def test_analysis_never_touches_training() -> None:
    training = ("qpd.phases", "qpd.training", "qpd.losses", "qpd.replay")
    assert [
        f"{name} imports {target}"
        for name, targets in IMPORTS.items()
        if name.startswith("analysis/")
        for target in targets
        if target.startswith(training)
    ] == []


def test_only_commands_and_what_is_above_import_analysis() -> None:
    above = ("analysis/", "qpd/commands/", "qpd/cli.py")
    assert [
        name
        for name, targets in IMPORTS.items()
        if any(t.startswith("qpd.analysis") for t in targets) and not name.startswith(above)
    ] == []


def test_no_grab_bags() -> None:
    names = {Path(name).stem for name in IMPORTS}
    assert not names & {"utils", "util", "common", "helpers", "misc", "parts"}


def test_no_file_is_longer_than_an_idea() -> None:
    long = {name: len(path.read_text().splitlines()) for name, path in FILES.items()}
    assert {name: lines for name, lines in long.items() if lines > 450} == {}


def test_detection_sees_every_form_of_import() -> None:
    source = (
        "import a.b as c\n"
        "from qpd import cli\n"
        "def f():\n    from late import y\n"
        "if TYPE_CHECKING:\n    import typed\n"
    )
    assert imported(source) == {"a.b", "qpd.cli", "late.y", "typed"}
    known = FILES
    assert file_of("qpd.teachers.load_teacher", known) == "teachers/__init__.py"
    assert file_of("qpd.teachers.sources.hub.download_agent", known) == "teachers/sources/hub.py"
    assert file_of("qpd.cli", known) == "qpd/cli.py" and file_of("torch.nn", known) is None
    assert layer_of("teachers/sources/hub.py") == "teachers/sources"
    assert layer_of("teachers/sb3_teacher.py") == "teachers"
    with pytest.raises(AssertionError, match="no file"):
        file_of("qpd.nowhere.near", known)
