"""Recipe text: YAML 1.2 scalars, and one clear line for everything that is no recipe."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from qpd.recipe.loading import load_recipe
from qpd.recipe.schema import Recipe, RecipeError
from qpd.recipe.yaml_text import parse_recipe_text, parse_scalar
from tests.recipe.recipe_mistakes import mistakes, write


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1.", 1.0),
        (".5", 0.5),
        ("-2E+3", -2000.0),
        ("010", 10),  # not octal
        ("1:30", "1:30"),  # not 90
        ("on", "on"),  # not a bool
        ("null", None),
        ("", None),
        ("2024-01-01", "2024-01-01"),  # not a date
        ("true", True),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    parsed = parse_scalar(text)
    assert parsed == value and type(parsed) is type(value)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_dumped_numbers_read_back(value: float) -> None:
    assert parse_recipe_text(yaml.safe_dump({"x": value})).data["x"] == value


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 99))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed: 1\nseed: 2", "line 2: seed: given twice, first on line 1"),
        ("student:\n  size: S\n  size: M", "line 3: student.size: given twice"),
        (BOMB, "line 1: anchors and aliases are not allowed"),
        ("- 1", "must be a mapping"),
        ("just text", "must be a mapping"),
        ("a: b: c", "line 1: not valid YAML"),
        ("seed: 1\n---\nseed: 2", "line 2: not valid YAML"),
        ("? [a]\n: 1", "keys must be plain text"),
        ("x: " + "[" * 50_000, "nested too deeply"),
        ("seed: \x01", "not valid YAML"),
        ("#" * (1 << 16) + "\n", "larger than 64 KiB"),
        ("base: 5", "base: 5 must be a path"),
        ("base: nowhere.yaml", "base: 'nowhere.yaml' is neither a recipe file nor"),
        ("base: mine.yaml", "recipes inherit from each other"),
        ("1: 2\nstudent: {size: S}", "1: unknown key"),
    ],
)
def test_unreadable_documents(tmp_path: Path, text: str, expected: str) -> None:
    lines = mistakes(write(tmp_path, text))
    assert any("mine.yaml" in line and expected in line for line in lines), lines


@pytest.mark.parametrize("value", ["!!python/object/apply:os.getpid []", "!!str 8", "!x {}"])
def test_tags_are_refused(tmp_path: Path, value: str) -> None:
    path = write(tmp_path, f"student: {{size: S}}\nseed: {value}")
    assert "line 2: tags such as !!str are not allowed" in mistakes(path)[0]


def test_cycle_over_several_files(tmp_path: Path) -> None:
    write(tmp_path, "base: b.yaml", "a.yaml")
    write(tmp_path, "base: a.yaml", "b.yaml")
    lines = mistakes(tmp_path / "a.yaml")
    assert len([line for line in lines if "inherit from each other" in line]) == 1


def test_not_text_and_not_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in mistakes(path)[0]
    assert "did you mean quickstart?" in mistakes("quikstart")[0]
    assert "neither a recipe file" in mistakes(tmp_path)[0]
    assert "neither a recipe file" in mistakes("x" * 5000)[0]


@given(st.binary(max_size=200))
def test_any_bytes_give_a_recipe_or_lines(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(raw)
    try:
        assert isinstance(load_recipe(path), Recipe)
    except RecipeError as error:
        assert error.lines
