"""The Python API: quiet, typed, resumable, and the same numbers as the command line."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import A2C, PPO

import qpd
from qpd.api import resolve_recipe
from qpd.errors.codes import ErrorCode
from qpd.files.tensors import crc32_of
from qpd.recipe.differences import recipe_differences
from qpd.recipe.schema import Recipe, RecipeError
from qpd.runs.progress import SilentProgress
from qpd.runs.run_directory import RunDirectory
from tests.command_line import call
from tests.tiny_run import Follower, recipe_of


@pytest.fixture(scope="module")
def recipe(teacher_zip: Path) -> Recipe:
    return recipe_of(teacher_zip, distill={"epochs": 2}, finetune={"epochs": 1})


@pytest.fixture(scope="module")
def run(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Phase by phase, as a notebook would."""
    run = qpd.distill(recipe, output=tmp_path_factory.mktemp("api") / "run")
    run = qpd.quantize(run, weight_bits=4, activation_bits=6)
    return qpd.finetune(run, overrides={"finetune.lr": 1e-3})


def test_the_phases_leave_a_run_directory(run: RunDirectory) -> None:
    assert isinstance(run, RunDirectory)
    assert [run.phase(p).state for p in ("distill", "quantize", "finetune")] == ["done"] * 3
    assert run.recipe.quantize.weight_bits == 4 and run.recipe.quantize.activation_bits == 6
    assert run.recipe.finetune.lr == 1e-3 and run.recipe.distill.lr == 0.003
    assert Path(run) == run.path and run.quantized_file.is_file()


def test_nothing_is_printed(run: RunDirectory, capfd: pytest.CaptureFixture[str]) -> None:
    qpd.distill(run.recipe, output=run)  # done already
    qpd.evaluate(run, episodes=1)
    assert capfd.readouterr() == ("", "")


def test_progress_is_heard_by_whoever_asks(
    run: RunDirectory, capfd: pytest.CaptureFixture[str]
) -> None:
    follower = Follower()
    qpd.distill(run.recipe, output=run, progress=follower)
    assert any("already done" in note for note in follower.notes)
    qpd.distill(run.recipe, output=run, progress=True)
    printed = capfd.readouterr()
    assert printed.out == "" and "already done" in printed.err


def test_the_commands_do_the_same(
    run: RunDirectory, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "tiny.yaml", tmp_path / "run"
    file.write_text(recipe.to_yaml())
    assert call(capsys, "distill", file, "-o", other)[0] == 0
    bits = ["--set", "quantize.weight_bits=4", "--set", "quantize.activation_bits=6"]
    assert call(capsys, "quantize", other, *bits)[0] == 0
    assert call(capsys, "finetune", other, "--set", "finetune.lr=1e-3")[0] == 0
    for name in ("distilled.safetensors", "ptq.safetensors", "quantized.safetensors"):
        assert crc32_of((other / name).read_bytes()) == crc32_of((run.path / name).read_bytes())
    code, out, _ = call(capsys, "evaluate", other, "--episodes", 3, "--seed", 7, "--json")
    result = qpd.evaluate(run, episodes=3, seed=7)
    assert code == 0 and json.loads(out)["return"]["returns"] == result.returns.tolist()


def test_evaluations(run: RunDirectory) -> None:
    asked = qpd.evaluate(run, policy="distilled", episodes=2)
    assert len(asked.returns) == 2
    assert str(asked).startswith(f"return {asked.mean:.1f} [") and "2 games" in str(asked)
    assert qpd.open_run(run).manifest.evaluations == {}  # not what the recipe says
    own = qpd.evaluate(run)
    assert qpd.open_run(run).manifest.evaluations["qat"]["mean"] == own.mean


def test_the_student_acts(run: RunDirectory) -> None:
    student = qpd.load_student_policy(run)
    action, _ = student.predict([0.0, 0.0, 0.0, 0.0], deterministic=True)
    assert int(action) in (0, 1)


def test_an_export_says_where_it_is_and_what_it_is_of(run: RunDirectory, tmp_path: Path) -> None:
    assert qpd.export_student(run, "bin") == run.path / "exports" / "bin"
    folder = qpd.export_student(run.ptq_file, "c", output=tmp_path / "c", layout="arduino")
    assert folder == tmp_path / "c" and (folder / "library.properties").is_file()
    with pytest.raises(qpd.UserError, match="did you mean onnx"):
        qpd.export_student(run, "onxn")
    halted = tmp_path / "halted"
    shutil.copytree(run.path, halted)
    with RunDirectory.open(halted) as opened:
        opened.set_phase("finetune", "running")
    with pytest.warns(UserWarning, match=r"phase 3 has begun and is not done.*qpd finetune"):
        qpd.export_student(halted, "bin")


def test_the_environment_is_named_in_the_call(recipe: Recipe, tmp_path: Path) -> None:
    agent = tmp_path / "mine.zip"  # a name that says nothing
    PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, seed=0, device="cpu").save(agent)
    found = qpd.distill(
        recipe,
        teacher=agent,
        env="CartPole-v1",
        env_kwargs={"sutton_barto_reward": True},
        wrappers=[],
        overrides={"teacher.algo": "ppo"},
        output=tmp_path / "run",
    ).recipe
    assert found.teacher.env == "CartPole-v1"
    assert found.environment.kwargs == {"sutton_barto_reward": True}
    with pytest.raises(qpd.UserError, match="an option sets this key"):
        qpd.run(recipe, env="CartPole-v1", overrides={"teacher.env": "CartPole-v1"})
    made: Any = lambda: gymnasium.make("CartPole-v1")  # noqa: E731
    with pytest.raises(qpd.UserError, match="register the environment with gymnasium"):
        qpd.distill(recipe, teacher=agent, env=made)


def test_a_model_in_memory_is_no_file(recipe: Recipe) -> None:
    model: Any = A2C("MlpPolicy", "CartPole-v1", n_steps=2, device="cpu")
    calls: list[Callable[[], object]] = [
        lambda: qpd.run(recipe, teacher=model),
        lambda: qpd.evaluate(model),
        lambda: qpd.quantize_agents([model]),
        lambda: qpd.quantize_agents(model),
        lambda: qpd.quantize_agents(iter([model])),
        lambda: qpd.load_teacher(model),
    ]
    for asked in calls:
        with pytest.raises(qpd.UserError, match="class A2C in place of an agent's file: save it"):
            asked()


def test_a_new_run_from_the_same_distilled_student(run: RunDirectory, tmp_path: Path) -> None:
    other = qpd.quantize(run, weight_bits=2, output=tmp_path / "two-bits")
    assert other.recipe.quantize.weight_bits == 2 and run.recipe.quantize.weight_bits == 4
    assert other.distilled_file.read_bytes() == run.distilled_file.read_bytes()


def test_all_phases_in_one_call(recipe: Recipe, teacher_zip: Path, tmp_path: Path) -> None:
    changes = {"distill.epochs": 1, "evaluation.episodes": 2, "student.size": "mlp-8"}
    run = qpd.run(recipe, overrides=changes, seed=5, teacher=teacher_zip, output=tmp_path / "all")
    assert run.recipe.seed == 5 and run.recipe.student.size == "mlp-8"
    assert set(run.manifest.evaluations) == {"teacher", "distilled", "ptq", "qat"}


def test_another_teacher_brings_its_own_algorithm_and_environment(tmp_path: Path) -> None:
    agent = tmp_path / "a2c-CartPole-v1.zip"
    A2C("MlpPolicy", "CartPole-v1", n_steps=2, seed=0, device="cpu").save(agent)
    tiny = {"distill.epochs": 1, "replay.capacity": 256, "evaluation.validation_episodes": 1}
    run = qpd.distill(
        "discrete/ppo-cartpole",  # which names ppo
        teacher=agent,
        overrides=tiny,
        output=tmp_path / "run",
    )
    assert run.manifest.teacher is not None and run.manifest.teacher.algo == "a2c"
    assert run.recipe.teacher.algo is None and run.recipe.teacher.env is None
    (tmp_path / "plain.zip").write_bytes(agent.read_bytes())  # whose name says nothing
    kept = resolve_recipe("discrete/ppo-cartpole", teacher=tmp_path / "plain.zip").teacher
    assert (kept.algo, kept.env) == ("ppo", "CartPole-v1")


def test_an_interrupted_call_resumes(run: RunDirectory, recipe: Recipe, tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    class Stopping(SilentProgress):
        def epoch(self, report: object, label: str = "") -> None:
            raise Stop

    with pytest.raises(Stop):
        qpd.distill(recipe, output=tmp_path / "again", progress=Stopping())
    again = qpd.distill(recipe, output=tmp_path / "again")
    assert again.distilled_file.read_bytes() == run.distilled_file.read_bytes()


@pytest.mark.parametrize(
    ("call_it", "code", "said"),
    [
        (lambda run: qpd.distill("quickstartt"), ErrorCode.RECIPE_NOT_FOUND, "quickstart"),
        (lambda run: qpd.quantize(run, weight_bits=9), ErrorCode.RECIPE_WRONG_VALUE, "9"),
        (
            lambda run: qpd.quantize(run, overrides={"distill.lr": 1.0}),
            ErrorCode.RECIPE_OVERRIDE,
            "distill.lr",
        ),
        (lambda run: qpd.finetune(run.path / "no"), ErrorCode.RUN_NOT_A_RUN, "no"),
        (lambda run: qpd.evaluate(run, policy="best"), ErrorCode.STUDENT_MISSING, "best"),
        (lambda run: qpd.evaluate(run, device="gpu"), ErrorCode.COMMAND_LINE, "gpu"),
    ],
)
def test_mistakes_are_exceptions_with_a_code(
    run: RunDirectory, call_it: object, code: ErrorCode, said: str
) -> None:
    assert callable(call_it)
    with pytest.raises(qpd.UserError) as caught:
        call_it(run)
    assert said in str(caught.value)
    assert {getattr(line, "code", caught.value.code) for line in caught.value.lines} == {code}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"seed": np.int64(3), "distill.lr": np.float32(0.5)}, (3, 0.5)),
        ({"seed": 3, "distill": {"lr": 0.5}}, (3, 0.5)),
        (["seed=3", "distill.lr=0.5"], (3, 0.5)),
        ("seed=3", (3, 0.003)),
    ],
)
def test_overrides_in_every_form(recipe: Recipe, overrides: Any, expected: tuple[Any, ...]) -> None:
    resolved = resolve_recipe(recipe, overrides)
    assert (resolved.seed, resolved.distill.lr) == expected


@pytest.mark.parametrize("value", [{"name": None}, {"distill.lr": object()}])
def test_values_that_no_recipe_holds(recipe: Recipe, value: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(value))):
        resolve_recipe(recipe, value)


@pytest.mark.parametrize(
    ("option", "value"),
    [("episodes", 0), ("epsilon", 2.0), ("seed", -1), ("max_frames", 1), ("sharpness", 0.0)],
)
def test_evaluations_out_of_bounds(run: RunDirectory, option: str, value: float) -> None:
    with pytest.raises(qpd.UserError, match=option.replace("_", "-")):
        qpd.evaluate(run, **{option: value})  # type: ignore[arg-type]


def test_a_path_is_never_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(qpd.UserError, match="no such file or folder"):
        qpd.evaluate(Path("runs/typo"))


def test_recipe_mistakes_are_told_before_an_agent_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RecipeError, match="lrr"):
        qpd.distill("quickstart", teacher="sb3/nobody", overrides={"distill.lrr": 1})


def test_the_package_lists_its_api() -> None:
    assert set(qpd.__all__) <= set(dir(qpd))
    assert all(getattr(qpd, name) is not None for name in qpd.__all__)
    with pytest.raises(AttributeError, match="no attribute 'sessions'"):
        _ = qpd.sessions


def test_an_empty_mapping_clears_what_was_there() -> None:
    base = resolve_recipe("quickstart", {"environment.kwargs": {"repeat_action_probability": 0.25}})
    for overrides in ({"environment": {"kwargs": {}}}, ["environment.kwargs={}"]):
        assert resolve_recipe(base, overrides).environment.kwargs == {}
    # A section's own mapping is merged.
    assert resolve_recipe(base, {"distill": {}}) == base
    both = resolve_recipe(base, ["distill.epochs=3", "distill={lr: 1e-3}"]).distill
    assert (both.epochs, both.lr) == (3, 1e-3)


def test_null_is_not_unset_and_one_is_not_true() -> None:
    recipes = [
        resolve_recipe("quickstart", [f"environment.kwargs={text}"])
        for text in ("{}", "{mode: null}", "{mode: 1}", "{mode: true}")
    ]
    for before, now in itertools.combinations(recipes, 2):
        assert len(recipe_differences(before, now)) in (1, 2)
    said = recipe_differences(recipes[2], recipes[3])
    assert said == ["environment.kwargs.mode: was 1, now true"]


@pytest.mark.parametrize("value", ["2", None, True])
def test_a_sharpness_that_is_no_number(run: RunDirectory, value: Any) -> None:
    with pytest.raises(qpd.UserError, match="--sharpness .*: must be a number"):
        qpd.evaluate(run, sharpness=value)


def test_whole_numbers_may_come_as_floats(run: RunDirectory) -> None:
    whole = qpd.evaluate(run, episodes=2, seed=1)
    floats = qpd.evaluate(run, episodes=2.0, seed=np.float64(1.0))  # type: ignore[arg-type]
    assert floats.to_json()["returns"] == whole.to_json()["returns"]


def test_a_hyperparameter_that_no_recipe_can_hold(tmp_path: Path) -> None:
    with pytest.raises(qpd.UserError, match="n_steps: <object .*: must be a number, text, a list"):
        qpd.train("ppo", "CartPole-v1", overrides={"n_steps": object()}, output=tmp_path / "run")
