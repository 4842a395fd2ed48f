"""Recipes: shipped ones load, inheritance and overrides resolve, every mistake is told."""

from pathlib import Path

import pytest
import yaml

from qpd.recipe.loading import load_recipe, override_recipe
from qpd.recipe.mistakes import all_key_paths, recipe_field
from qpd.recipe.schema import Recipe, RecipeError, StudentSettings
from qpd.recipe.shipped import GRID_SUFFIX, list_grids, list_recipes, recipes_folder, shipped_text
from qpd.sweep.grid import load_grid
from tests.recipe.recipe_mistakes import mistakes, write

# Grids (test_sweep_grid.py) are told from recipes by their names.
ALL_FILES = sorted(
    path for path in recipes_folder().rglob("*.yaml") if not path.name.endswith(GRID_SUFFIX)
)
IDS = [path.relative_to(recipes_folder()).as_posix() for path in ALL_FILES]


def test_recipes_are_shipped() -> None:
    # 7 sizes x 3 teachers + 3 + base, 7 classic + base, 2 ablations, quickstart, ci
    assert len(ALL_FILES) >= 37
    bases = sum(path.name == "base.yaml" for path in ALL_FILES)
    assert len(list_recipes()) == len(ALL_FILES) - bases
    assert bases >= 2


@pytest.mark.parametrize("path", ALL_FILES, ids=IDS)
def test_every_shipped_recipe_loads_and_reads_back(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.base is None
    copy = write(tmp_path, recipe.to_yaml(), "other-name.yaml")
    assert load_recipe(copy) == recipe


@pytest.mark.parametrize("path", ALL_FILES, ids=IDS)
def test_a_shipped_recipe_that_is_printed_is_the_same_elsewhere(path: Path, tmp_path: Path) -> None:
    text = shipped_text(path.relative_to(recipes_folder()).as_posix())
    assert load_recipe(write(tmp_path, text, path.name)) == load_recipe(path)


@pytest.mark.parametrize("name", list_grids())
def test_so_is_a_grid(name: str, tmp_path: Path) -> None:
    ours, theirs = load_grid(str(write(tmp_path, shipped_text(name), "mine.yaml"))), load_grid(name)
    assert ours.file == theirs.file


@pytest.mark.parametrize("path", ALL_FILES, ids=IDS)
def test_every_shipped_recipe_opens_with_description_and_command(path: Path) -> None:
    first, second = path.read_text(encoding="utf-8").splitlines()[:2]
    assert first.startswith("# ") and first.endswith(".")
    command = second.removeprefix("# qpd run recipes/")
    assert command != second
    expected = path.relative_to(recipes_folder()).as_posix()
    if path.name == "base.yaml":  # launched through an heir
        assert (recipes_folder() / command).is_file()
    else:
        assert command.removesuffix(" --teacher AGENT") == expected


def test_paper_grid_differs_in_teacher_and_size_only() -> None:
    grid = {item.name: load_recipe(item.name) for item in list_recipes() if "paper/" in item.name}
    for algo, temperature in (("ppo", 3.0), ("a2c", 3.0), ("dqn", 0.01)):
        for size in ("XXS", "XS", "S", "M", "L", "XL", "XXL"):
            recipe = grid[f"paper/{algo}-{size.lower()}"]
            assert recipe.student == StudentSettings(size=size)
            assert recipe.teacher.algo == algo
            assert recipe.replay.capacity == 540_000
            assert recipe.replay.refresh_fraction == 0.1
            for phase in (recipe.distill, recipe.finetune):
                assert (phase.epochs, phase.temperature) == (600, temperature)
                assert phase.actor_weight == (1.0 if algo == "dqn" else 0.5)
            assert recipe.evaluation.validation_episodes == 50


def test_ablation_spends_the_same_budget() -> None:
    three = load_recipe("ablation/three-phases")
    alone = load_recipe("ablation/phase3-only")
    assert alone.distill.epochs == 0
    assert alone.finetune.epochs == three.distill.epochs + three.finetune.epochs
    for key in ("student", "replay", "quantize", "teacher", "environment"):
        assert getattr(alone, key) == getattr(three, key)
    assert alone.finetune.batch_size == three.distill.batch_size == three.finetune.batch_size


def test_defaults_and_name_from_file(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, "student: {size: S}", "first try.yaml"))
    assert recipe.name == "first-try"
    assert recipe.replay.capacity == 540_000
    assert (recipe.distill.lr, recipe.finetune.lr) == (4e-3, 1e-4)
    assert recipe.distill.temperature is None


def test_every_key_is_described() -> None:
    for key in all_key_paths():
        field = recipe_field(tuple(key.split(".")))
        assert field is not None and field.description, key


def test_recipe_is_immutable() -> None:
    recipe = load_recipe("ci")
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 3  # type: ignore[misc]


def test_numbers(tmp_path: Path) -> None:
    text = "student: {size: S}\ndistill: {lr: 1e-3, weight_decay: 0, epochs: 1_000}\n"
    recipe = load_recipe(write(tmp_path, text))
    assert recipe.distill.lr == 0.001
    assert recipe.distill.weight_decay == 0.0
    assert recipe.distill.epochs == 1000


def test_inheritance_and_overrides(tmp_path: Path) -> None:
    write(tmp_path, "name: root\nstudent: {size: S}\ndistill: {lr: 0.5, epochs: 7}", "a.yaml")
    (tmp_path / "sub").mkdir()
    middle = "base: ../a.yaml\ndistill:\nfinetune: {epochs: 2}"
    write(tmp_path / "sub", middle, "b.yaml")
    path = write(tmp_path / "sub", "base: b.yaml\ndistill: {lr: 0.25}", "c.yaml")
    recipe = load_recipe(path, ["distill.batch_size=3", "distill.batch_size=4"])
    assert recipe.name == "c"  # never inherited
    assert recipe.distill.lr == 0.25
    assert recipe.distill.epochs == 7  # the empty section of b.yaml changes nothing
    assert recipe.finetune.epochs == 2
    assert recipe.distill.batch_size == 4  # the last one wins


def test_base_may_name_a_shipped_recipe(tmp_path: Path) -> None:
    path = write(tmp_path, "base: paper/dqn-xxs\nseed: 4")
    recipe = load_recipe(path)
    assert (recipe.student.size, recipe.teacher.algo, recipe.seed) == ("XXS", "dqn", 4)


def test_shipped_recipe_by_name_or_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    same = [load_recipe(n) for n in ("ci", "ci.yaml", "recipes/ci.yaml")]
    assert same[0] == same[1] == same[2]
    assert load_recipe("discrete/ppo-cartpole").teacher.source == "sb3/ppo-CartPole-v1"


def test_custom_widths_replace_an_inherited_size_and_back(tmp_path: Path) -> None:
    recipe = load_recipe("ci", ["student.conv_channels=[8, 8, 8]", "student.hidden=[32]"])
    assert recipe.student == StudentSettings(conv_channels=(8, 8, 8), hidden=(32,))
    custom = write(tmp_path, "student: {hidden: [5, 6]}")
    assert load_recipe(custom).student.hidden == (5, 6)
    assert load_recipe(custom, ["student.size=mlp-64-64"]).student.hidden is None


@pytest.mark.parametrize("raw", ["C:\\agents #1.zip", "123", "a: b", "true", "[x"])
def test_override_of_text_is_literal(raw: str) -> None:
    assert load_recipe("ci", [f"teacher.source={raw}"]).teacher.source == raw


def test_override_of_null() -> None:
    recipe = load_recipe("ci", ["environment.max_frames=null", "teacher.env=null"])
    assert recipe.environment.max_frames is None
    assert recipe.teacher.env is None


def test_all_mistakes_at_once_with_file_line_and_nearest_key(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "student:\n  size: xxs\ndistil:\n  lr: 1\ndistill:\n  loss: forward-kl\n"
        "  epochs: '3'\nquantize:\n  weight_bits: 9\nteacher:\n  algo: acer\n",
    )
    text = "\n".join(mistakes(path, "finetune.lrr=1", "replay.capacity"))
    assert len(text.splitlines()) == 8
    assert "mine.yaml:2: student.size: 'xxs' must be one of XXS" in text
    assert "did you mean XXS?" in text
    assert "mine.yaml:3: distil: unknown key; did you mean distill?" in text
    assert "mine.yaml:6: distill.loss: 'forward-kl' must be forward_kl or reverse_kl" in text
    assert "did you mean forward_kl?" in text
    assert "mine.yaml:7: distill.epochs: '3' must be a whole number" in text
    assert "mine.yaml:9: quantize.weight_bits: 9 must be less than or equal to 8" in text
    assert "mine.yaml:11: teacher.algo: 'acer' must be ppo, a2c, trpo, ars, dqn" in text
    assert "--set: finetune.lrr: unknown key; did you mean finetune.lr?" in text
    assert "--set replay.capacity: must be key=value" in text


def test_mistake_names_the_file_it_stands_in(tmp_path: Path) -> None:
    write(tmp_path, "student: {size: S}\nseed: -1", "parent.yaml")
    lines = mistakes(write(tmp_path, "base: parent.yaml"))
    assert len(lines) == 1
    assert "parent.yaml:2: seed: -1 must be greater than or equal to 0" in lines[0]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("lr=1", "lr: unknown key; did you mean distill.lr?"),
        ("distill.temperature=0", "distill.temperature: 0 must be greater than 0"),
        ("distill.lr=.nan", "distill.lr: nan must be a finite number"),
        ("distill.lr=.inf", "distill.lr: inf must be"),
        ("seed=1.5", "seed: 1.5 must be a whole number"),
        ("seed=true", "seed: true must be a whole number"),
        ("quantize.per_channel=yes", "quantize.per_channel: 'yes' must be true or false"),
        ("quantize.weight_bits=1", "quantize.weight_bits: 1 must be greater than or equal to 2"),
        ("device=cuda:x", "device: 'cuda:x' must be auto, cpu, cuda or cuda:N"),
        ("name=../up", "name: '../up' must be a plain folder name"),
        ("student.size=mlp", "student.size: 'mlp' must be one of"),
        ("student.size=mlp-0", "student.size: 'mlp-0' must be one of"),
        ("student.conv_channels=[1, 2]", "[1, 2] must be a list of at least 3 whole numbers"),
        ("student.hidden=[]", "student.hidden: [] must be a list of at least 1"),
        ("student.hidden=[4, 0]", "student.hidden.1: 0 must be greater than or equal to 1"),
        ("replay=5", "replay: 5 must be a mapping"),
        ("replay.capacity=5", "replay.capacity: 5 must be at least environment.num_envs"),
        ("finetune.reward.clip=1", "finetune.reward.clip: 1 must be less than 1"),
        ("distill.lr=[", "not valid YAML"),
        ("distill.lr=&a 1", "anchors and aliases are not allowed"),
        ("base=ci", "base can be set in a file only"),
        ("=1", "must be key=value"),
        ("distill..lr=1", "must be key=value"),
    ],
)
def test_wrong_override(override: str, expected: str) -> None:
    lines = mistakes("ci", override)
    assert any(expected in line and line.startswith("--set") for line in lines), lines


def test_student_needs_exactly_one_form(tmp_path: Path) -> None:
    for text in ("{size: S, hidden: [4]}", "{}", "{conv_channels: [1, 2, 3]}"):
        lines = mistakes(write(tmp_path, f"student: {text}"))
        assert "mine.yaml:1: student: " in lines[0], lines
    assert "student: is missing" in mistakes(write(tmp_path, ""))[0]


def test_a_rollout_has_two_steps_of_every_game_and_fits_the_memory() -> None:
    for rollout in (100, 100_001):  # of 64 games, and a memory of 100,000
        with pytest.raises(RecipeError, match=f"finetune.reward.rollout: {rollout} must be betwe"):
            load_recipe("quickstart", [f"finetune.reward.rollout={rollout}"])
    recipe = load_recipe("quickstart", ["finetune.reward.rollout=128"])
    assert recipe.finetune.reward is not None and recipe.finetune.reward.passes == 2


def test_every_number_has_both_bounds() -> None:
    schema = Recipe.model_json_schema()
    found = 0
    for section in [schema, *schema["$defs"].values()]:
        for key, about in section["properties"].items():
            for choice in about.get("anyOf", [about]):
                if choice.get("type") in ("integer", "number") and "const" not in choice:
                    assert {"minimum", "exclusiveMinimum"} & set(choice), key
                    assert {"maximum", "exclusiveMaximum"} & set(choice), key
                    found += 1
    assert found >= 40


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("distill.precision=fp61", "distill.precision: 'fp61' must be auto, fp32, bf16, fp16"),
        ("distill.precision=e5m11", "1 to 10 mantissa bits"),
        ("finetune.loss_scale=dynamik", "did you mean dynamic?"),
        ("finetune.loss_scale=0", "must be auto, none, dynamic, or a number from 2^-24 to 2^24"),
        ("finetune.loss_scale=[1]", "finetune.loss_scale"),
        ("distill.master_weights=false", "distill.master_weights: false needs precision fp16"),
        ("distill={compile: on, loss_scale: 128}", "distill.compile: on needs loss_scale auto or"),
        ("finetune={compile: on, gradient_exponents: 5}", "finetune.compile: on needs loss_scale"),
    ],
)
def test_mistakes_about_precision_name_what_is_right(line: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("ci", [line])
    assert any(said in each for each in caught.value.lines)
    assert len(caught.value.lines) <= 2


def test_formats_and_scales_are_read_and_written() -> None:
    changes = ["distill.precision=e5m7", "distill.loss_scale=128", "finetune.precision=fp16"]
    recipe = load_recipe("ci", [*changes, "finetune.master_weights=false"])
    assert (recipe.distill.precision, recipe.distill.loss_scale) == ("e5m7", 128.0)
    assert Recipe.model_validate(yaml.safe_load(recipe.to_yaml()), strict=False) == recipe


def test_a_key_within_a_mapping_leaves_the_others(tmp_path: Path) -> None:
    text = "base: discrete/ppo-cartpole\n"
    base = write(tmp_path, text + "environment: {kwargs: {gravity: -8.0}}\n"
                 "finetune: {reward: {rollout: 4096, discount: 0.9}}\n", "base.yaml")  # fmt: skip
    heir = write(tmp_path, "base: base.yaml\nenvironment: {kwargs: {wind: true}}\n", "heir.yaml")
    for recipe in (load_recipe(base, ["environment.kwargs.wind=true"]), load_recipe(heir)):
        assert recipe.environment.kwargs == {"gravity": -8.0, "wind": True}
    changed = override_recipe(load_recipe(base), ["finetune.reward.clip=0.1"]).finetune.reward
    assert changed is not None
    assert (changed.rollout, changed.discount, changed.clip) == (4096, 0.9, 0.1)
    for nothing in ("environment.kwargs={}", "environment.kwargs.gravity=-9.0"):
        assert len(load_recipe(base, [nothing]).environment.kwargs) == ("{}" not in nothing)


@pytest.mark.parametrize(("form", "problem"), [
    ("student.size=mlp" + "-8" * 17, "must be one of"),
    (f"student.hidden={[8] * 17}", "at most 16"),
])  # fmt: skip
def test_more_layers_than_files_hold_are_refused(form: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        load_recipe("discrete/ppo-cartpole", [form])


@pytest.mark.parametrize("text", ["08", "018", "1e5", "12e-4", "1E3", ".5e3", "on", "0x1f", "a: b"])
def test_text_that_looks_like_a_number_reads_back_as_text(text: str, tmp_path: Path) -> None:
    recipe = override_recipe(
        load_recipe("quickstart"), ["name='08'", f"environment.kwargs={{mode: '{text}'}}"]
    )
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    again = load_recipe(tmp_path / "recipe.yaml")
    assert again == recipe and again.environment.kwargs == {"mode": text}
