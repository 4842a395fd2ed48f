"""`qpd train` with the fast learner, and integer controllers, for real and briefly."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from stable_baselines3 import SAC

import qpd
from qpd.actions import Box
from qpd.commands.train import _bits
from qpd.errors.user_error import UserError
from qpd.integer.controller_student import controller_student
from qpd.integer.integer_student import IntegerEngine
from qpd.numerics.precision import has_bfloat16_units
from qpd.quantization.controller_layer import (
    ControllerBits,
    ControllerQuantizers,
    attach_frozen_controller,
)
from qpd.recipe.train_schema import load_train_recipe
from qpd.runs.counted_gradients import PhaseGradients
from qpd.runs.metrics_log import read_metrics
from qpd.runs.progress import SilentProgress
from qpd.runs.training_run import TrainingRun
from qpd.student_files.origin import student_environment, student_origin
from qpd.student_files.quantized import load_integer_student, save_integer_student
from qpd.teachers import load_teacher
from qpd.teachers.archive.stored_controller import StoredController
from qpd.teachers.archive.stored_quantization import QUANTIZATION_FILE, read_quantization
from qpd.teachers.networks.actor import actor_modules, actor_of
from qpd.teachers.sb3_policy import build_sb3_policy, sb3_logits
from tests.command_line import call
from tests.phases.small_trainings import FAST_SETTINGS, SMALL, Interrupts, assert_same_training

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn

FAST = {"train.learner": "fast"}
CORE_3 = {"quantization.core_bits": 3, "quantization.input_bits": 4}
PLACED = {
    "precision.format": "fp16",
    "precision.methods": [],
    "precision.baseline": "placed_mixed_precision",
}


def trained(algo: str, output: Path, more: dict[str, Any], progress: Any = None) -> TrainingRun:
    options = {} if progress is None else {"progress": progress}
    return qpd.train(
        algo, "Pendulum-v1", overrides=FAST_SETTINGS | more, output=output, **SMALL, **options
    )


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    return trained("sac", tmp_path_factory.mktemp("runs") / "sac", CORE_3)


@pytest.mark.parametrize(
    ("algo", "more", "stop"),
    [
        ("sac", FAST, 240),
        ("td3", FAST, 150),
        ("ddpg", FAST | {"train.products": "bfloat16"}, 240),
        ("td3", FAST | {"precision.format": "fp16"}, 150),
        ("sac", FAST | PLACED | {"precision.master_weights": False}, 240),
        ("sac", CORE_3, 150),  # while scales are averaged
        ("sac", CORE_3, 240),  # while they are learned
        ("td3", CORE_3 | {"quantization.delay": 0.4}, 240),
        ("sac", FAST | {"train.compile": "on"}, 240),
        pytest.param("ddpg", CORE_3 | {"train.compile": "on"}, 240, marks=pytest.mark.slow),
    ],
)
def test_resumed_trainings_end_in_the_same_numbers(
    tmp_path: Path, algo: str, more: dict[str, Any], stop: int
) -> None:
    whole = trained(algo, tmp_path / "whole", more)
    with pytest.raises(KeyboardInterrupt):
        trained(algo, tmp_path / "parts", more, Interrupts(stop))
    parts = trained(algo, tmp_path / "parts", more)
    assert parts.phase.resumed_at
    assert_same_training(whole, parts)
    found = [run.path / QUANTIZATION_FILE for run in (whole, parts)]
    assert found[0].exists() == found[1].exists() == ("quantization.core_bits" in more)
    if found[0].exists():
        assert found[0].read_bytes() == found[1].read_bytes()


def test_a_processor_without_units_for_bfloat16_is_said(tmp_path: Path) -> None:
    class Said(SilentProgress):
        lines: ClassVar[list[str]] = []

        def warning(self, text: str) -> None:
            self.lines.append(text)

    trained("ddpg", tmp_path / "run", FAST | {"train.products": "bfloat16"}, Said())
    said = [line for line in Said.lines if line.startswith("train.products")]
    assert len(said) == (0 if has_bfloat16_units("cpu") else 1)


def test_the_controller_plays_on_its_grids(controller: TrainingRun) -> None:
    teacher = load_teacher(controller.path)
    stored = teacher.quantization
    assert isinstance(stored, StoredController) and stored.calls == 300
    assert (
        str(stored)
        == "trained as an integer controller, core=3,input=4,output=8 bits, from step 0 on"
    )
    assert teacher.normalization is not None and teacher.normalization.clip_obs == 10.0
    seen: dict[int, torch.Tensor] = {}
    for position, layer in enumerate(actor_modules(teacher.network)):
        assert isinstance(layer.weight, torch.Tensor)
        assert len(layer.weight.unique()) <= 7  # -3 to 3
        layer.register_forward_hook(lambda *each, at=position: seen.update({at: each[2]}))
    teacher(torch.randn(500, 3) * 3)
    step = stored.scales[-1] / 128
    levels = seen[2] / step
    torch.testing.assert_close(levels, levels.round(), atol=1e-3, rtol=0)
    assert -128 <= levels.min() and levels.max() <= 127


def test_a_controllers_gradients_by_activations_are_counted_at_every_update(tmp_path: Path) -> None:
    counted = {"precision.gradient_exponents": 1, "train.compile": "on"}
    run = trained("sac", tmp_path / "sac", CORE_3 | counted)
    found = PhaseGradients.read(run.exponents_file)
    assert found is not None
    # Two hidden layers of 16 units, batches of 16: 512 an update, of which there are some 500.
    assert found.total("activations").total > 400 * 512


def test_a_controllers_integers_say_what_wraps_its_environment(tmp_path: Path) -> None:
    wrapper = "sb3_contrib.common.wrappers.TimeFeatureWrapper"
    wrapped = {"environment.wrappers": [wrapper], "environment.kwargs": {"g": 5.0}}
    run = trained("sac", tmp_path / "sac", CORE_3 | wrapped)
    played = student_environment(student_origin(run.quantized_file))
    assert played.kwargs == {"g": 5.0} and [str(each) for each in played.wrappers] == [wrapper]
    assert load_integer_student(run.quantized_file).architecture.observation_shape == (4,)


def test_integers_play_without_the_agent(
    controller: TrainingRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(controller.path, tmp_path / "alone")
    alone = TrainingRun.open(tmp_path / "alone")
    assert alone.agent_file is not None
    alone.agent_file.unlink()
    options = ("--policy", "qat", "--episodes", 3, "--seed", 1, "--json")
    found = [json.loads(call(capsys, "evaluate", each.path, *options)[1])["return"]["returns"]
             for each in (controller, alone)]  # fmt: skip
    assert found[0] == found[1] and len(found[0]) == 3
    code, out, err = call(capsys, "show", alone.path)
    assert code == 0 and f"qpd evaluate {alone.path} --policy qat;" in out, err


def test_sb3_reads_the_agent_and_its_policy_plays_the_same(
    controller: TrainingRun, tmp_path: Path
) -> None:
    teacher = load_teacher(controller.path)
    states = teacher.preprocess(torch.randn(200, 3))
    mine = teacher.network(states)[0][:, :1]
    torch.testing.assert_close(mine, sb3_logits(build_sb3_policy(teacher))(states))
    # Alone, the zip is a float agent of the same shape.
    assert controller.agent_file is not None
    shutil.copy(controller.agent_file, tmp_path / "alone.zip")
    model = SAC.load(tmp_path / "alone.zip", device="cpu")
    assert model.predict(np.zeros(3, np.float32), deterministic=True)[0].shape == (1,)
    assert load_teacher(tmp_path / "alone.zip", env_id="Pendulum-v1").quantization is None


def test_parts_of_bits_whatever_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    widths = [_bits(text) for text in ("core=2,all=3", "all=3,core=2", "input=4")]
    assert widths[0] == widths[1] == {"input_bits": "3", "core_bits": "2", "output_bits": "3"}
    assert widths[2] == {"input_bits": "4", "core_bits": "8", "output_bits": "8"}
    for wrong, said in (
        (("--bits", "core=2,core=4"), "core is given twice"),
        (("--bits", "all=2,all=4"), "all is given twice"),
        (("--bits", "core=2", "--per", "tensor"), "--per tensor: needs --bits of one number"),
        (("--bits", "core=2", "--set", "quantization.gradient=identity"), "gradient=identity"),
    ):
        code, _, err = call(capsys, "train", "sac", "Pendulum-v1", *wrong, "-o", "never")
        assert code == 2 and said in err and not Path("never").exists()


def test_what_cannot_take_its_integers_says_so(controller: TrainingRun) -> None:
    teacher = load_teacher(controller.path)
    with pytest.raises(UserError, match=r"quantized.safetensors.*`qpd export`"):
        actor_of(teacher.network, teacher.activation)


@pytest.mark.parametrize("grid", ["narrow", "full", "odd"])
def test_its_integers_are_its_simulation(
    grid: str, controller: TrainingRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = controller
    if grid != "narrow":
        short = {"train.timesteps": 200, "quantization.grid": grid}
        run = trained("td3", tmp_path / grid, CORE_3 | short)
    teacher, student = load_teacher(run.path), load_integer_student(run.quantized_file)
    assert (student.input_bits, student.layers[0].bits, student.layers[0].levels) == (4, 3, 7)
    assert student.has_zero_weight == (grid != "odd")
    if grid == "narrow":
        assert {-6, 0, 6} <= set(student.layers[1].weight.ravel().tolist())
    states = np.random.default_rng(0).normal(size=(2_000, 3)).astype(np.float32)
    statistics = teacher.normalization
    assert statistics is not None
    states = (statistics.mean + 1.5 * np.sqrt(statistics.var) * states).astype(np.float32)
    with torch.no_grad():
        means = teacher.network(teacher.preprocess(torch.tensor(states)))[0][:, :1]
    simulated = torch.tanh(means)
    assert len(np.unique(simulated.numpy())) > 3
    codes = IntegerEngine(student).codes(states)
    assert codes is not None
    wanted = np.floor((simulated.double().numpy() + 1.0) / 2.0 * 255.0 + 0.5)
    # A tie of the simulation's float32 may fall the other way.
    assert (codes == wanted).mean() > 0.995
    code, out, _ = call(capsys, "export", run.path, "--format", "c", "--json")
    assert code == 0 and '"format": "c"' in out
    code, out, _ = call(
        capsys, "evaluate", run.path, "--policy", "qat", "--episodes", "2", "--json"
    )
    assert code == 0 and '"qat"' in out


def test_games_of_agent_and_integers_are_recorded(
    controller: TrainingRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = tmp_path / "played"
    shutil.copytree(controller.path, copied)
    assert call(capsys, "evaluate", copied, "--policy", "qat", "--episodes", "3", "-q")[0] == 0
    assert TrainingRun.open(copied).manifest.evaluations == {}
    assert call(capsys, "evaluate", copied, "--policy", "qat", "-q")[0] == 0
    assert call(capsys, "evaluate", copied, "-q")[0] == 0
    found = TrainingRun.open(copied).manifest.evaluations
    assert {name: each["episodes"] for name, each in found.items()} == {"qat": 100, "teacher": 100}
    # The same starts, and all but the same actions.
    apart = np.array(found["qat"]["returns"]) - np.array(found["teacher"]["returns"])
    assert np.abs(apart).mean() < 10


def test_integers_are_written_again_where_they_are_missing(
    controller: TrainingRun, tmp_path: Path
) -> None:
    copied = tmp_path / "again"
    shutil.copytree(controller.path, copied)
    written = (copied / "quantized.safetensors").read_bytes()
    (copied / "quantized.safetensors").unlink()
    trained("sac", copied, CORE_3)
    assert (copied / "quantized.safetensors").read_bytes() == written


def test_the_twin_is_the_float_network_with_the_same_normalization(tmp_path: Path) -> None:
    twin = trained("sac", tmp_path / "twin", CORE_3 | {"quantization.delay": 1.0})
    assert load_teacher(twin.path).quantization is None
    assert load_teacher(twin.path).normalization is not None
    stored = read_quantization(twin.path / QUANTIZATION_FILE)
    assert not stored.is_active and "float" in str(stored)


def test_a_controller_learns_from_float64_observations_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    more = FAST_SETTINGS | CORE_3 | {"normalize": False}
    run = qpd.train("ddpg", "InvertedPendulum-v5", overrides=more, output=tmp_path / "run", **SMALL)
    assert load_teacher(run.path).normalization is None
    assert qpd.evaluate(run.path, policy="qat", episodes=2).mean >= 1.0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["sac", "Pendulum-v1", "--bits", "core=9"], "--bits core=9: core=9: expected 2 to 8"),
        (["sac", "Pendulum-v1", "--bits", "weights=3"], "weights: expected one of input, core"),
        (["sac", "Pendulum-v1", "--bits", "core3"], "--bits core3: expected 2 to 8, or parts"),
        (["ppo", "CartPole-v1", "--bits", "core=3"], "by SAC, TD3 or DDPG, not by ppo"),
        (["ppo", "CartPole-v1", "--set", "train.learner=fast"], "PPO does not"),
        (["sac", "Pendulum-v1", "--set", "train.products=bfloat16"], "needs train.learner=fast"),
        (["sac", "Pendulum-v1", "--set", "train.compile=on"], "needs train.learner=fast"),
        (
            ["sac", "Pendulum-v1", "--set", "train.learner=fast", "--precision", "fp16"],
            "precision.baseline=placed_mixed_precision",
        ),
        (
            [
                "td3",
                "Pendulum-v1",
                "--set",
                "train.learner=fast",
                "--set",
                "train.products=bfloat16",
                "--precision",
                "fp16",
            ],
            "do not go together",
        ),
        (
            ["sac", "Pendulum-v1", "--bits", "core=3", "--set", "train.learner=sb3"],
            "learned by `fast`",
        ),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    arguments: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, errors = call(capsys, "train", *arguments, "-o", tmp_path / "run")
    lines = errors.strip().splitlines()
    assert code == 2
    assert problem in lines[-1] and "Traceback" not in "".join(lines)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"core_bits": 9}, "core_bits"),
        ({"scales": [1.0, -1.0, 1.0, 1.0]}, "from 1e-30"),
        ({"scales": [1.0, 1.0]}, "scales of 1 linear layers"),
        ({"calls": 301}, "calls"),
        ({"grid": "round"}, "grid"),
    ],
)
def test_a_damaged_file_is_one_line(
    controller: TrainingRun, tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    import json

    copied = tmp_path / "agent"
    shutil.copytree(controller.path, copied)
    path = copied / QUANTIZATION_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=problem):
        load_teacher(copied)


def test_scales_are_logged_as_they_are_learned(controller: TrainingRun) -> None:
    rows = read_metrics(controller.metrics_file)
    stored = read_quantization(controller.path / QUANTIZATION_FILE)
    assert isinstance(stored, StoredController)
    names = ("input", "hidden1", "hidden2", "output")
    logged = [[float(row[f"train/scale_{name}"]) for name in names] for row in rows[1:]]
    assert logged[-1] == pytest.approx(stored.scales, rel=0.2) and logged[-1] != logged[1]


@pytest.mark.parametrize(("asked", "clip"), [("true", 10.0), ("{clip_obs: 5.0}", 5.0)])
def test_a_controllers_rewards_are_normalized_only_where_asked(
    asked: str, clip: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"{key}={value}" for key, value in FAST_SETTINGS.items()]
    given = [each for text in (*settings, f"normalize={asked}") for each in ("--set", text)]
    arguments = ["sac", "Pendulum-v1", "--bits", "core=3", *given, "-o", tmp_path / "run"]
    assert call(capsys, "train", *arguments)[0] == 0
    (saved,) = (tmp_path / "run").glob("*/vecnormalize.pkl")
    own = pickle.loads(saved.read_bytes())
    assert (own.norm_obs, own.norm_reward, own.clip_obs) == (True, False, clip)


def test_a_controller_of_whole_numbers_learns_without_normalization(tmp_path: Path) -> None:
    more = FAST_SETTINGS | CORE_3 | {"train.timesteps": 200}
    where = "tests.phases.own_environments:Count-v0"
    run = qpd.train("sac", where, overrides=more, output=tmp_path / "run", **SMALL)
    assert load_teacher(run.path).normalization is None


def test_a_controller_that_never_learned_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained("sac", tmp_path / "run", CORE_3 | {"learning_starts": 400})
    assert "float" in str(read_quantization(run.path / QUANTIZATION_FILE))
    code, _, error = call(capsys, "export", run.path, "--format", "c", "-o", tmp_path / "c")
    assert code == 2 and "beyond learning_starts steps" in error


def test_episodes_that_never_end_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = FAST_SETTINGS | {"train.checkpoint_every": 60, "train.timesteps": 250}
    given = [each for key, value in settings.items() for each in ("--set", f"{key}={value}")]
    code, _, error = call(capsys, "train", "sac", "Pendulum-v1", *given, "-o", tmp_path / "run")
    assert code == 0 and error.count("no episode has ended between two checkpoints") == 1


def test_a_compiler_is_on_record_where_it_is_used(tmp_path: Path) -> None:
    compiled = trained("sac", tmp_path / "on", FAST | {"train.compile": "on"})
    plain = trained("sac", tmp_path / "off", FAST)  # too short for auto
    records = [each.manifest.arithmetic for each in (compiled, plain)]
    assert [each and each.compiler for each in records] == [True, None]


def test_auto_is_the_cpu_where_the_fast_learner_learns() -> None:
    fast = load_train_recipe(None, ["quantization.core_bits=3"], algo="sac", env="Pendulum-v1")
    assert (fast.device, fast.learning_device) == ("auto", "cpu")
    plain = load_train_recipe(None, [], algo="sac", env="Pendulum-v1")
    assert plain.learning_device == "auto"
    asked = load_train_recipe(
        None, ["quantization.core_bits=3", "device=cuda"], algo="sac", env="Pendulum-v1"
    )
    assert asked.learning_device == "cuda"


def test_a_bias_that_no_accumulator_holds_is_refused() -> None:
    bits = ControllerBits(8, 8, 8)
    quantizers = ControllerQuantizers(bits, "narrow", [2.0, 1e-6, 1.0], 300)
    layers: list[Any] = [torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)]
    torch.nn.init.constant_(layers[1].bias, 0.3)
    attach_frozen_controller(layers, quantizers)
    box, mean = Box((-1.0,), (1.0,), "tanh"), np.zeros(3)
    with pytest.raises(ValueError, match="a bias of actor is beyond 32 bits"):
        controller_student(layers, quantizers, mean, mean + 1.0, box)


def test_a_feature_that_never_varies_keeps_its_level(tmp_path: Path) -> None:
    quantizers = ControllerQuantizers(ControllerBits(8, 3, 8), "narrow", [2.0, 1.0, 1.0], 300)
    layers: list[Any] = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)]
    attach_frozen_controller(layers, quantizers)
    # VecNormalize's least deviation: beside 5,000 its levels are closer than float32's numbers.
    mean, deviation = np.array([5000.0, 0.0]), np.array([1e-4, 1.0])
    student = controller_student(layers, quantizers, mean, deviation, Box((-1.0,), (1.0,), "tanh"))
    save_integer_student(tmp_path / "q", student, {})
    levels = load_integer_student(tmp_path / "q").encode(mean[None].astype(np.float32))
    assert levels.tolist() == [[128, 128]]


def test_any_width_makes_a_controller_with_integers(tmp_path: Path) -> None:
    run = trained("sac", tmp_path / "run", {"quantization.input_bits": 4})
    assert load_integer_student(run.quantized_file).input_bits == 4
