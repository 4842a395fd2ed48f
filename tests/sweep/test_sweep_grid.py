"""Grid files: their cells and folders, who shares a play, and a line for every mistake."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpd.recipe.schema import RecipeError
from qpd.recipe.shipped import list_grids, list_recipes
from qpd.sweep.cells import Cell, ShortTexts, make_cells
from qpd.sweep.grid import load_grid
from qpd.sweep.sharing import Batch, plan_batches
from tests.recipe.recipe_mistakes import write


def cells(folder: Path, text: str) -> dict[str, Cell]:
    return {cell.name: cell for cell in make_cells(load_grid(str(write(folder, text))))}


def mistakes(folder: Path, text: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        cells(folder, text)
    assert all("\n" not in line for line in caught.value.lines)
    return caught.value.lines


def test_a_cell_for_each_combination(tmp_path: Path) -> None:
    found = cells(
        tmp_path,
        "base: ci\nset: {distill.epochs: 3}\n"
        "axes: {student.size: [XXS, S], seed: [0, 1], quantize.weight_bits: [4]}\n",
    )
    assert list(found) == [
        "size=XXS,seed=0,bits=4",
        "size=XXS,seed=1,bits=4",
        "size=S,seed=0,bits=4",
        "size=S,seed=1,bits=4",
    ]
    recipe = found["size=S,seed=1,bits=4"].recipe
    assert (recipe.student.size, recipe.seed, recipe.quantize.weight_bits) == ("S", 1, 4)
    assert (recipe.distill.epochs, recipe.name) == (3, "size-S_seed-1_bits-4")


def test_agents_lie_beside_the_grid_as_beside_a_recipe(tmp_path: Path) -> None:
    for name in ("one.zip", "two.zip", "stats.pkl"):
        (tmp_path / name).touch()
    text = (
        "base: ci\nset: {teacher.vecnormalize: stats.pkl}\naxes: {teacher.source: [one, two.zip]}\n"
    )
    teachers = [cell.recipe.teacher for cell in cells(tmp_path, text).values()]
    assert [each.source for each in teachers] == [str(tmp_path / "one"), str(tmp_path / "two.zip")]
    assert {each.vecnormalize for each in teachers} == {str(tmp_path / "stats.pkl")}
    elsewhere = "base: ci\naxes: {teacher.source: [embedded, org/agent]}\n"
    teachers = [cell.recipe.teacher for cell in cells(tmp_path, elsewhere).values()]
    assert [each.source for each in teachers] == ["embedded", "org/agent"]


def test_exclude_and_include(tmp_path: Path) -> None:
    found = cells(
        tmp_path,
        "base: ci\naxes: {student.size: [XXS, S], seed: [0, 1]}\n"
        "exclude: [{student.size: S}]\n"
        "include: [{student.size: M, seed: 7, distill.lr: 0.5}]\n",
    )
    assert list(found) == ["size=XXS,seed=0", "size=XXS,seed=1", "size=M,seed=7,lr=0.5"]
    assert found["size=M,seed=7,lr=0.5"].recipe.distill.lr == 0.5


def test_a_base_beside_the_grid_and_bases_as_an_axis(tmp_path: Path) -> None:
    write(tmp_path, "base: ci\nseed: 9", "near.yaml")
    found = cells(tmp_path, "base: near\naxes: {student.size: [S]}")
    assert found["size=S"].recipe.seed == 9
    found = cells(tmp_path, "axes: {base: [paper/dqn, near.yaml]}")
    assert found["base=paper-dqn"].recipe.distill.temperature == 0.01
    assert found["base=near.yaml"].recipe.seed == 9


def test_folders_are_safe_and_unique(tmp_path: Path) -> None:
    found = cells(
        tmp_path, "base: ci\naxes: {teacher.source: ['a/b', 'A b', '../x'], distill.lr: [1e-3]}"
    )
    assert list(found) == ["teacher=a-b,lr=0.001", "teacher=A-b-2,lr=0.001", "teacher=x,lr=0.001"]
    assert [cell.recipe.teacher.source for cell in found.values()] == ["a/b", "A b", "../x"]
    both = cells(tmp_path, "base: ci\naxes: {distill.lr: [0.1], finetune.lr: [0.2]}")
    assert list(both) == ["distill.lr=0.1,finetune.lr=0.2"]


def test_cells_added_later_leave_the_others_folders_alone(tmp_path: Path) -> None:
    grid = "base: ci\naxes: {distill.lr: [1e-3]}"
    assert list(cells(tmp_path, grid)) == ["lr=0.001"]
    added = cells(tmp_path, f"{grid}\ninclude: [{{distill.lr: 1e-3, finetune.lr: 2e-4}}]")
    assert list(added) == ["lr=0.001", "lr=0.001,finetune.lr=0.0002"]


@given(st.lists(st.text() | st.integers() | st.floats(allow_nan=False), unique_by=repr))
def test_every_value_has_its_own_plain_text(values: list[object]) -> None:
    known = ShortTexts()
    texts = [known.of(value) for value in values]
    assert len({text.lower() for text in texts}) == len(values)
    assert all(text.replace("+", "").isascii() and "/" not in text for text in texts)
    assert [known.of(value) for value in values] == texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("axes: {seed: [0]}", "mine.yaml: base: name one recipe"),
        ("base: ci", "axes: name at least one"),
        ("base: ci\naxes: {}", "mine.yaml:2: axes: name at least one"),
        ("base: ci\naxes: {seed: []}", "mine.yaml:2: axes.seed: has no values"),
        ("base: ci\naxes: {seed: 3}", "mine.yaml:2: axes.seed: 3 must be a list"),
        ("base: ci\naxes: {seed: [1, 1]}", "mine.yaml:2: axes.seed: 1 is given twice"),
        ("base: ci\naxes: {sede: [1]}", "mine.yaml:2: axes: sede: unknown key; did you mean seed?"),
        ("base: ci\naxes: {seed: [-1]}", "mine.yaml:2: axes: seed: -1 must be greater than or"),
        ("base: ci\naxes: {seed: ['1']}", "seed: '1' must be a whole number"),
        ("base: ci\naxes: {student.size: [S, xs]}", "student.size: 'xs' must be one of XXS"),
        ("base: ci\naxe: {seed: [1]}", "mine.yaml:2: axe: unknown key; did you mean axes?"),
        ("base: c\naxes: {seed: [1]}", "c: this is neither a recipe file nor a shipped recipe"),
        ("base: ci\naxes: {seed: [1]}\nset: {seed: 2}", "mine.yaml:3: set.seed: is an axis too"),
        ("base: ci\naxes: {seed: [1]}\nset: {distill.lr: 0}", "mine.yaml:3: set: distill.lr: 0 "),
        ("base: ci\naxes: {seed: [1]}\nset: {name: x}", "name: cannot be set by a grid"),
        ("base: ci\naxes: {seed: [1]}\nexclude: [{seed: 2}]", "exclude.0: seed: 2 is not on"),
        ("base: ci\naxes: {seed: [1]}\nexclude: [{sed: 1}]", "exclude.0: sed is not an axis"),
        ("base: ci\naxes: {seed: [1]}\nexclude: [{seed: 1}]", "exclude: leaves no cell"),
        ("base: ci\naxes: {seed: [1]}\ninclude: [{device: cpu}]", "include.0: names no seed"),
        ("base: ci\naxes: {seed: [1]}\ninclude: [{seed: 1}]", "the cell seed=1 exists already"),
        ("base: ci\naxes: {seed: [1]}\nresources: {cpus: 0}", "resources.cpus: 0 must be greater"),
        (
            "base: ci\naxes: {seed: [1]}\nresources: {cpus: 1.5}",
            "resources.cpus: 1.5 must be a",
        ),
        ("base: ci\naxes: {seed: [1]}\nresources: {gpu: 1}", "resources.gpu: unknown key; did you"),
        (
            "base: ci\naxes: {seed: [1]}\nshare_stream: 3",
            "share_stream: must be true, false",
        ),
        ("base: ci\naxes: {replay.capacity: [1]}", "replay.capacity: 1 must be at least"),
        ("base: ci\naxes: [", "mine.yaml: line 2: not valid YAML"),
    ],
)
def test_wrong_grids(tmp_path: Path, text: str, expected: str) -> None:
    lines = mistakes(tmp_path, text)
    assert len(lines) == 1 and expected in lines[0], lines


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    lines = mistakes(
        tmp_path,
        "base: ci\naxes:\n  student.size: [XXS, TINY]\n  seed: [0, -1]\n"
        "set:\n  distill.lrr: 1\ninclude:\n- {student.size: S, seed: 2, quantize.weight_bits: 9}\n",
    )
    places = [line.partition(": ")[0].rpartition("/")[2] for line in lines]
    assert places == ["mine.yaml:3", "mine.yaml:4", "mine.yaml:6", "mine.yaml:8"], lines
    assert "TINY" in lines[0] and "-1" in lines[1] and "distill.lr?" in lines[2]


def test_rules_over_several_keys_name_the_cell(tmp_path: Path) -> None:
    lines = mistakes(
        tmp_path, "base: ci\naxes: {replay.capacity: [64, 1024], environment.num_envs: [8, 100]}"
    )
    assert len(lines) == 1 and "cell capacity=64,num_envs=100: " in lines[0], lines


def test_an_unknown_grid_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean mini-grid?"):
        load_grid("mini-gird")


@pytest.mark.parametrize("name", list_grids())
def test_shipped_grids_open_with_their_command(name: str) -> None:
    grid = load_grid(name)
    first, second = grid.path.read_text().splitlines()[:2]
    assert first.startswith("# ") and first.endswith(".")
    assert second == f"# qpd sweep recipes/{name}.yaml"
    assert name not in [recipe.name for recipe in list_recipes()]


def test_the_papers_grid() -> None:
    found = make_cells(load_grid("paper-grid"))
    assert len(found) == 105
    assert Counter(cell.recipe.teacher.algo for cell in found) == {"ppo": 35, "a2c": 35, "dqn": 35}
    for cell in found:
        recipe = cell.recipe
        assert (recipe.quantize.weight_bits, recipe.quantize.activation_bits) == (8, 8)
        assert (recipe.replay.capacity, recipe.distill.epochs) == (540_000, 600)
        assert recipe.distill.temperature == (0.01 if recipe.teacher.algo == "dqn" else 3)
    assert len(make_cells(load_grid("mini-grid"))) == 12


def batches(folder: Path, text: str, share: bool | str) -> list[Batch]:
    return plan_batches(list(cells(folder, text).values()), folder / "out", share)


def test_cells_of_one_teacher_share_its_play(tmp_path: Path) -> None:
    text = (
        "base: ci\naxes: {collection.epsilon: [0.1, 0.2], student.size: [XXS, S], seed: [0, 1], "
        "quantize.weight_bits: [4, 8]}"
    )
    assert batches(tmp_path, text, False) == []
    both = batches(tmp_path, text, True)  # a play for each epsilon
    assert [(len(batch.members), len(batch.cells)) for batch in both] == [(4, 8)] * 2
    seeds = batches(tmp_path, text, "per_seed")
    assert [(len(batch.members), len(batch.cells)) for batch in seeds] == [(2, 4)] * 4
    assert [{r.seed for r in batch.members.values()} for batch in seeds] == [{0}, {1}] * 2
    # Only what phase 1 reads tells members apart.
    assert len({label for batch in both for label in batch.cells.values()}) == 4
    assert batches(tmp_path, "base: ci\naxes: {distill.lr: [0.1, 0.2]}", True) == []


def test_lambdas_share_a_play_and_are_told_apart(tmp_path: Path) -> None:
    text = (
        "base: ci\naxes: {student.size: [XXS, S], quantize.weight_bits: [4, 8]}\n"
        "include: [{student.size: XXS, quantize.weight_bits: 8, distill.actor_weight: 1}]"
    )
    (batch,) = batches(tmp_path, text, True)
    members = [(each.student.size, each.distill.actor_weight) for each in batch.members.values()]
    assert sorted(members, key=str) == [("S", None), ("XXS", 1.0), ("XXS", None)]
    assert len(batch.cells) == 5


def test_students_of_custom_widths_are_told_apart(tmp_path: Path) -> None:
    """Of these two the digests' first 16 bits are equal."""
    text = "base: ci\nset: {student.size: null}\naxes: {student.hidden: [[125, 16], [274, 16]]}"
    (batch,) = batches(tmp_path, text, True)
    assert [member.student.hidden for member in batch.members.values()] == [(125, 16), (274, 16)]


def test_a_batch_whose_folder_was_removed_is_made_anew(tmp_path: Path) -> None:
    (old,) = batches(tmp_path, "base: ci\naxes: {student.size: [XXS, S]}", True)
    old.write_recipes()
    text = "base: ci\naxes: {student.size: [M, XS, XXS, S]}"
    for batch in batches(tmp_path, text, True):
        batch.write_recipes()
    shutil.rmtree(old.folder)
    found = {path: set(batch.members) for batch in batches(tmp_path, text, True)
             for path in [batch.folder.name.rpartition("-")[2]]}  # fmt: skip
    assert {number: len(members) for number, members in found.items()} == {"2": 2, "3": 2}


def test_a_section_on_an_axis_keeps_what_is_set_for_all(tmp_path: Path) -> None:
    text = "base: ci\nset: {distill.epochs: 7}\naxes: {distill: [{lr: 1e-3}, {lr: 2e-3}]}"
    settings = [cell.recipe.distill for cell in cells(tmp_path, text).values()]
    assert [(each.epochs, each.lr) for each in settings] == [(7, 1e-3), (7, 2e-3)]


def test_a_grid_may_grow(tmp_path: Path) -> None:
    (old,) = batches(tmp_path, "base: ci\naxes: {student.size: [XXS, S]}", True)
    old.write_recipes()
    grown = batches(tmp_path, "base: ci\naxes: {student.size: [M, XXS, S], seed: [0]}", True)
    by_folder = {batch.folder.name: len(batch.members) for batch in grown}
    first = old.folder.name
    assert by_folder == {first: 2, first.removesuffix("1") + "2": 1}
