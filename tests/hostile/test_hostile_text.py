"""Recipes, manifests, device files and settings from strangers: refused in lines, within bounds.

The limits are those of `tests.hostile.bounded_reader`: 1 GiB and 10 s of processor time a file.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.targets import TARGETS
from qpd.errors.user_error import UserError
from qpd.files.json_input import MAX_JSON_BYTES, MAX_MANIFEST_BYTES, parse_json
from qpd.recipe import mistakes
from qpd.recipe.loading import load_recipe
from qpd.recipe.schema import RecipeError
from qpd.runs.metrics_log import MetricsLogError, read_metrics
from qpd.sweep.cells import cell_names, make_cells
from qpd.sweep.grid import load_grid
from qpd.teachers.sources.zoo_yaml import read_zoo_yaml
from tests.hostile.bounded_reader import BoundedReader, refused

RUN = Path(__file__).parents[2] / "runs-reference" / "classic-ppo-cartpole"
MIB = 1 << 20
ALMOST = 65_000  # bytes: just under what a recipe may have
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 99))


RECIPES = {
    "billion laughs": (LAUGHS, "anchors and aliases are not allowed"),
    "merge of itself": ("a: &a\n  <<: *a\n", "anchors and aliases are not allowed"),
    "merge key": ("<<: {seed: 1}\nstudent: {size: S}\n", "<<: unknown key"),
    "nested lists": ("x: " + "[" * ALMOST, "nested too deeply"),
    "nested blocks": ("".join(" " * i + "a:\n" for i in range(300)), "nested too deeply"),
    "python object": ("name: !!python/object/apply:os.mkdir ['was-run']\n", "tags such as"),
    "python name": ("name: !!python/name:os.system\nstudent: {size: S}\n", "tags such as"),
    "long name": ("name: " + "a" * ALMOST, "at most 100"),
    "huge number": ("seed: 1" + "0" * 5000, "seed: "),
    "huge exponent": ("distill: {lr: 1e999}", "distill.lr: "),
    "larger than a recipe": ("#" * 70_000, "larger than 64 KiB"),
    "many unknown keys": ("".join(f"k{i}: 1\n" for i in range(7000)), "unknown key"),
    "one key again and again": ("a: 1\n" * (ALMOST // 5), "given twice"),
    "small lists": ("x: [" + "[]," * (ALMOST // 3) + "]", "x: unknown key"),
    "name of another folder": ("name: ../../elsewhere\nstudent: {size: S}", "plain folder name"),
    "absolute name": ("name: /tmp/elsewhere\nstudent: {size: S}", "plain folder name"),
    "hidden name": ("name: .ssh\nstudent: {size: S}", "plain folder name"),
    "name with an escape": ('name: "a\\e[2J"\nstudent: {size: S}', "plain folder name"),
    "name with a line end": ('name: "a\\n"\nstudent: {size: S}', "plain folder name"),
    "base that is no recipe": ("base: ../../../../../../etc/passwd", "must be a .yaml file"),
    "base that is a device": ("base: /dev/zero", "neither a recipe file nor"),
    "base that is itself": ("base: mine", "recipes inherit from each other"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes(reader: BoundedReader, tmp_path: Path, name: str) -> None:
    text, expected = RECIPES[name]
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    refused(reader.read("recipe", path), expected, most_mib=300)
    assert not (tmp_path / "was-run").exists() and not Path("was-run").exists()


def test_of_many_mistakes_only_the_first_are_looked_into(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("".join(f"k{i}: 1\n" for i in range(200)))
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert len(caught.value.lines) == 50


def test_chains_of_bases_end(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"r{number}.yaml").write_text(f"base: r{number + 1}.yaml\n")
    (tmp_path / "r20.yaml").write_text("student: {size: S}\n")
    assert load_recipe(tmp_path / "r13.yaml").student.size == "S"
    with pytest.raises(RecipeError, match="more than 8 recipes inherit in a row"):
        load_recipe(tmp_path / "r12.yaml")


GRIDS = {
    "billions of cells": (
        "base: quickstart\naxes:\n"
        + "".join(f"  k{n}: [{','.join(map(str, range(99)))}]\n" for n in range(9)),
        "at most 10,000",
    ),
    "billion laughs": (LAUGHS, "anchors and aliases are not allowed"),
    "many exclusions": (
        "base: quickstart\naxes: {seed: [" + ",".join(map(str, range(9000))) + "]}\nexclude:\n"
        + "- {seed: 1}\n" * 900,
        "exclude: 900 entries; at most 500",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRIDS)
def test_grids(reader: BoundedReader, tmp_path: Path, name: str) -> None:
    text, expected = GRIDS[name]
    path = tmp_path / "mine-grid.yaml"
    path.write_text(text)
    refused(reader.read("grid", path), expected, most_mib=300)


def test_what_is_wrong_in_every_cell_is_not_looked_for_in_every_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine-grid.yaml"
    seeds = ",".join(map(str, range(3000)))
    path.write_text(f"base: base.yaml\naxes: {{seed: [{seeds}]}}\n")
    unknown = "".join(f"k{n}: 1\n" for n in range(2000))
    (tmp_path / "base.yaml").write_text("student: {size: S}\n" + unknown)
    looked_at: list[str] = []
    nearest = mistakes.nearest_key

    def counted(path: tuple[str, ...], model: type) -> str:
        looked_at.append(path[-1])
        return nearest(path, model)

    monkeypatch.setattr(mistakes, "nearest_key", counted)
    with pytest.raises(RecipeError, match="k0: unknown key"):
        make_cells(load_grid(str(path)))
    assert 2000 <= len(looked_at) <= 2 * 2000


def test_names_of_cells_that_are_alike(tmp_path: Path) -> None:
    path = tmp_path / "mine-grid.yaml"
    sources = ",".join(f"'{'!' * n}'" for n in range(1, 300))
    path.write_text(f"base: quickstart\naxes: {{teacher.source: [{sources}, empty-3]}}\n")
    names = cell_names(load_grid(str(path)))
    assert names[:4] == [f"teacher=empty{more}" for more in ("", "-2", "-3", "-4")]
    assert names[-1] == "teacher=empty-3-2" and len(set(names)) == 300


MANIFEST = (RUN / "manifest.json").read_text()
MANIFESTS = {
    "nested": ("[" * 1_000_000, "nested too deeply"),
    "many digits": ('{"format_version": 1, "seed": ' + "9" * 1_000_000 + "}", "4300 digits"),
    "NaN": (MANIFEST.replace('"seed": 0', '"seed": NaN', 1), "NaN is not a JSON number"),
    "beyond floats": (MANIFEST.replace('"seed": 0', '"seed": 1e999', 1), "too large for a float"),
    "integer beyond floats": (
        MANIFEST.replace('"seed": 0', '"seed": 1' + "0" * 400, 1),
        "too large for a float",
    ),
    "keys twice": (MANIFEST.replace('"seed"', '"name": "b", "seed"', 1), "'name' is given twice"),
    "one of many keys twice": (
        "{" + "".join(f'"{i}":0,' for i in range(500_000)) + '"499999":1}',
        "'499999' is given twice",
    ),
    "surrogates": (MANIFEST.replace('"name": "', '"name": "\\ud800', 1), "surrogate"),
    "large": ('"' + "a" * MAX_MANIFEST_BYTES + '"', "larger than 24 MiB"),
    "small lists": ('{"format_version": 1, "x": [' + "[]," * (2 * MIB) + "1]}", "x: "),
    "many keys": (
        '{"format_version": 1' + "".join(f',"{i}": 0' for i in range(100_000)) + "}",
        "Extra inputs",
    ),
    "a path for a name": (MANIFEST.replace('"name": "', '"name": "../../', 1), "name: "),
    "an escape for a name": (MANIFEST.replace('"name": "', '"name": "\\u001b[2J', 1), "name: "),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests(reader: BoundedReader, tmp_path: Path, name: str) -> None:
    text, expected = MANIFESTS[name]
    assert text != MANIFEST
    path = tmp_path / "manifest.json"
    path.write_text(text)
    refused(reader.read("manifest", path), expected, most_mib=300)


DEVICES = {
    "nested": ("[" * 1_000_000, "nested too deeply"),
    "many lines": ("{}\n" * MIB, "not JSON"),
    "a time of almost nothing": (
        json.dumps(
            {
                "device": "a",
                "student": "b",
                "kernels": "portable",
                "threads": 1,
                "forwards": 1,
                "median_ns": 1e-322,
                "p99_ns": 1,
                "peak_rss_bytes": 1,
                "constant_bytes": 1,
            }
        ),
        "median_ns is below 1",
    ),
    "infinite": ('{"median_ns": Infinity}', "Infinity is not a JSON number"),
    "large": (" " * (MAX_JSON_BYTES + 1), "larger than 8 MiB"),
}


@pytest.mark.parametrize("name", DEVICES)
def test_device_files(reader: BoundedReader, tmp_path: Path, name: str) -> None:
    text, expected = DEVICES[name]
    path = tmp_path / "device.json"
    path.write_text(text)
    refused(reader.read("device", path), expected, most_mib=300)


def merge_bomb(depth: int) -> str:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, depth)]
    return "\n".join(lines)


ZOO = {
    "merge bomb": (merge_bomb(20), "merge keys"),
    "merge of itself": ("a: &a\n  <<: *a\n", "merge keys"),
    "nested": ("a: " + "[" * ALMOST, "args.yml"),
    "large": ("#" * 70_000, "larger than"),
    "recursive": ("a: &a [*a]\n---\n", "args.yml"),
    "many digits": ("a: " + "9" * 60_000, "4300 digits"),
}


@pytest.mark.parametrize("name", ZOO)
def test_zoo_settings(reader: BoundedReader, tmp_path: Path, name: str) -> None:
    text, expected = ZOO[name]
    path = tmp_path / "args.yml"
    path.write_text(text)
    refused(reader.read("zoo_yaml", path), expected, most_mib=300)


def test_zoo_settings_build_no_objects(tmp_path: Path) -> None:
    target = tmp_path / "was-run"
    path = tmp_path / "args.yml"
    path.write_text(f"env: CartPole-v1\nx: !!python/object/apply:os.mkdir [{target}]\n" + LAUGHS)
    assert read_zoo_yaml(path)["env"] == "CartPole-v1"
    assert not target.exists()


@pytest.mark.parametrize(
    "content", [b"\xff\xfe,\n", b'phase,epoch\n"' + b"a" * 200_000, b"a" * (17 * MIB), b"," * MIB]
)
def test_metrics_that_are_no_csv(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)
    with pytest.raises(MetricsLogError, match=r"metrics\.csv: (is|has 1048577 columns)"):
        read_metrics(path)


def test_epochs_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    digits = "9" * 5000
    path.write_text(f"phase,epoch\ndistill,1\ndistill,²\ndistill,{digits}\ndistill\ndistill,2\n")
    assert [row["epoch"] for row in read_metrics(path)] == ["1", "2"]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=9))
def test_what_json_writes_reads_back(value: object) -> None:
    try:
        text = json.dumps(value)
        text.encode()
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    assert parse_json(text) == value


CODES = [
    ("sb3_zip", b"PK", "Q302"),
    ("vec_normalize", b"\x80\x04" + b"N0" * 600_000 + b"N.", "Q307"),
    ("zoo_yaml", b"#" * 70_000, "Q307"),
    ("student", (1 << 40).to_bytes(8, "little"), "Q702"),
    ("recipe", b"#" * 70_000, "Q102"),
    ("recipe", b"x: " + b"[" * 99, "Q102"),
    ("recipe", b"base: /etc/passwd", "Q105"),
    ("recipe", b"name: ../x\nstudent: {size: S}", "Q105"),
    ("grid", GRIDS["billions of cells"][0].encode(), "Q110"),
    ("grid", GRIDS["many exclusions"][0].encode(), "Q110"),
    ("manifest", b"[" * 9000, "Q204"),
    ("manifest", b'{"format_version": 2}', "Q205"),
    ("device", b" " * (MAX_JSON_BYTES + 1), "Q802"),
]


@pytest.mark.parametrize(("target", "content", "code"), CODES)
def test_each_limit_has_its_code(tmp_path: Path, target: str, content: bytes, code: str) -> None:
    path = tmp_path / TARGETS[target].file_name
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        TARGETS[target].read(path)
    assert all(line.endswith(f" [{code}]") for line in caught.value.coded_lines())
