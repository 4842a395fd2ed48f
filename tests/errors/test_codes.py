"""The registry of error codes: whole, used, and in the docs."""

from __future__ import annotations

import ast
import importlib
import pickle
import pkgutil
import re
from collections import Counter
from pathlib import Path

import qpd
from docs_build.error_reference import errors_page
from qpd.commands.errors import error_lines
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import CodedLine, UserError, reworded
from qpd.recipe.schema import RecipeError

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (qpd,)
NOT_IMPORTABLE_HERE = ("qpd.__main__",)


def error_classes() -> set[type[UserError]]:
    """Every subclass of UserError in any module."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name not in NOT_IMPORTABLE_HERE:
                importlib.import_module(module.name)
    found: set[type[UserError]] = set()
    waiting = [UserError]
    while waiting:
        below = waiting.pop().__subclasses__()
        found |= set(below)
        waiting += below
    return found


def used_codes() -> Counter[str]:
    """Count each ErrorCode.NAME outside of the registry."""
    folders = ("qpd", "students", "teachers", "analysis")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    nodes = [
        node
        for path in files
        if path != ROOT / "qpd" / "errors" / "codes.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]
    return Counter(
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "ErrorCode"
    )


def test_every_error_class_has_a_code_of_the_registry() -> None:
    classes = error_classes()
    assert len(classes) >= 17
    assert [
        one.__name__ for one in classes if not isinstance(one.__dict__.get("code"), ErrorCode)
    ] == []


def test_no_code_twice_and_none_unused() -> None:
    codes = [code.id for code in ErrorCode]
    assert len(set(codes)) == len(codes) >= 40
    assert [code for code in codes if not re.fullmatch(r"Q[1-9]\d\d", code)] == []
    assert {code.name for code in ErrorCode} == set(used_codes())


def test_a_line_keeps_its_own_code_and_the_others_get_the_errors() -> None:
    unknown = CodedLine("a: unknown key", ErrorCode.RECIPE_UNKNOWN_KEY)
    error = RecipeError(["b: 3 must be 4", unknown, reworded(unknown, "grid: a: unknown key")])
    assert str(error) == "b: 3 must be 4\na: unknown key\ngrid: a: unknown key"
    assert error_lines(error) == [
        "b: 3 must be 4 [Q105]",
        "a: unknown key [Q103]",
        "grid: a: unknown key [Q103]",
    ]
    assert error_lines(RecipeError(["x"], ErrorCode.COMMAND_LINE)) == ["x [Q901]"]


def test_an_error_survives_another_process() -> None:
    before = RecipeError(["x", CodedLine("y", ErrorCode.RECIPE_NOT_FOUND)], ErrorCode.COMMAND_LINE)
    assert error_lines(pickle.loads(pickle.dumps(before))) == ["x [Q901]", "y [Q101]"]


def test_errors_of_the_system_and_bugs() -> None:
    assert error_lines(FileNotFoundError(2, "No such file", "a.txt")) == [
        "a.txt: No such file [Q603]"
    ]
    assert error_lines(KeyError("ours")) is None  # a bug: its traceback is wanted


def test_every_code_is_in_the_docs() -> None:
    page = errors_page()
    for code in ErrorCode:
        (line,) = [line for line in page.splitlines() if f"{{ #{code.id} }}" in line]
        assert code.title in line and code.remedy in line
        assert code.remedy.endswith(".") and not code.title.endswith(".")
