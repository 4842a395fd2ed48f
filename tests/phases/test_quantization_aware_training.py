"""`qpd train --bits`, for real and briefly: what is quantized, who plays it, and interruptions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qpd
from qpd.agents.cells import action_changes
from qpd.agents.quantized_agent import agent_policy
from qpd.agents.trained_integers import write_trained_integers
from qpd.errors.user_error import UserError
from qpd.integer.integer_student import IntegerEngine
from qpd.recipe.train_schema import load_train_recipe
from qpd.runs.training_run import TrainingRun
from qpd.student_files.quantized import load_integer_student
from qpd.teachers import Teacher, load_teacher
from qpd.teachers.archive.stored_quantization import QUANTIZATION_FILE, StoredQuantization
from qpd.teachers.networks.actor import actor_modules, actor_of
from qpd.teachers.sb3_policy import build_sb3_policy, sb3_logits
from tests.command_line import call
from tests.phases.small_trainings import (
    SMALL,
    TRAININGS,
    Interrupts,
    agent_tensors,
    assert_same_training,
    small_training,
    training_overrides,
)

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn

LEARNERS = [name for name in TRAININGS if name != "ars"]
FOUR_BITS = {"quantization.bits": 4}


def trained(
    name: str, output: Path, more: dict[str, Any] = FOUR_BITS, progress: Any = None, **train: Any
) -> TrainingRun:
    return small_training(name, output, more, progress, **train)


def states_of(teacher: Teacher, count: int = 200) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, *teacher.observation_shape, generator=generator)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TrainingRun]:
    """Return a function from an algorithm's name to its training in 4 bits, made once."""
    folder = tmp_path_factory.mktemp("runs")
    more = FOUR_BITS | {"quantization.per": "tensor"}
    # A finished training is left as it is.
    return lambda name: trained(name, folder / name, more)


@pytest.mark.parametrize("name", LEARNERS)
def test_no_tensor_has_more_levels_than_its_bits_allow(
    tmp_path: Path, name: str, runs: Callable[[str], TrainingRun]
) -> None:
    run = runs(name)
    teacher = load_teacher(run.path)
    assert teacher.quantization is not None and teacher.quantization.bits == 4
    inputs: dict[int, torch.Tensor] = {}
    layers = actor_modules(teacher.network)
    for position, layer in enumerate(layers):
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        assert len(np.unique(weight.numpy())) <= 16, position
        layer.register_forward_pre_hook(lambda _, seen, at=position: inputs.update({at: seen[0]}))
    teacher(states_of(teacher))
    for position, quantizer in enumerate(teacher.quantization.layers):
        seen = quantizer.quantized_inputs(inputs[position]).numpy()
        if position:
            assert 1 < len(np.unique(seen)) <= 16
        else:
            assert all(len(np.unique(feature)) <= 256 for feature in seen.T)
    # The float parameters, which go on learning, are what the zip holds.
    float_agent = tmp_path / "float" / run.agent_file.name  # type: ignore[union-attr]
    float_agent.parent.mkdir()
    shutil.copy(run.agent_file, float_agent)  # type: ignore[arg-type]
    kwargs = {"algo": teacher.algo, "env_id": teacher.env_id}
    plain = load_teacher(float_agent, **kwargs)  # type: ignore[arg-type]
    assert plain.quantization is None and plain.sha256 != teacher.sha256
    assert len(np.unique(actor_modules(plain.network)[0].weight.numpy())) > 16  # type: ignore


@pytest.mark.parametrize("name", LEARNERS)
def test_sb3s_own_policy_and_the_chain_of_layers_play_the_same(
    name: str, runs: Callable[[str], TrainingRun]
) -> None:
    teacher = load_teacher(runs(name).path)
    states = states_of(teacher)
    seen = teacher.preprocess(states)
    mine = teacher.network(seen)[0][:, : teacher.actions.num_outputs]
    chain = actor_of(teacher.network, teacher.activation)(seen)
    theirs = sb3_logits(build_sb3_policy(teacher))(seen)
    if teacher.algo in ("td3", "ddpg"):
        mine, chain = torch.tanh(mine), torch.tanh(chain)
    # A sum in another order may carry an activation over the edge between two levels.
    near = (mine - theirs).abs().amax(1) < 1e-5
    assert float(near.float().mean()) > 0.95
    assert float(((mine - chain).abs().amax(1) < 1e-4).float().mean()) > 0.95


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "ddpg"])
def test_a_delay_beyond_the_end_is_plain_training(tmp_path: Path, name: str) -> None:
    plain = trained(name, tmp_path / "plain", {})
    watched = trained(name, tmp_path / "watched", FOUR_BITS | {"quantization.delay": 2.0})
    assert plain.agent_file is not None and watched.agent_file is not None
    ours, theirs = agent_tensors(plain.agent_file), agent_tensors(watched.agent_file)
    for key, value in ours.items():
        np.testing.assert_array_equal(value, theirs[key], err_msg=key)
    teacher = load_teacher(watched.path)
    assert teacher.quantization is None  # ranges were watched, and nothing else


@pytest.mark.parametrize(("name", "steps"), [("ppo", 230), ("dqn", 130), ("td3", 230)])
def test_resumed_trainings_end_in_the_same_numbers(tmp_path: Path, name: str, steps: int) -> None:
    whole = trained(name, tmp_path / "whole")
    algo, env, hyperparameters = TRAININGS[name]
    overrides = training_overrides(hyperparameters) | FOUR_BITS
    with pytest.raises(KeyboardInterrupt):
        qpd.train(
            algo,
            env,
            overrides=overrides,
            output=tmp_path / "broken",
            progress=Interrupts(steps),
            **SMALL,
        )
    broken = trained(name, tmp_path / "broken")
    assert broken.phase.resumed_at
    assert_same_training(whole, broken)
    ranges = [(run.path / QUANTIZATION_FILE).read_bytes() for run in (whole, broken)]
    assert ranges[0] == ranges[1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "other"}, "format is not"),
        ({"bits": 64}, "bits: expected 2 to 8"),
        ({"layers": []}, "layers: expected a list"),
        ({"begun_at": -1}, "begun_at"),
    ],
)
def test_a_damaged_file_is_one_line(
    tmp_path: Path,
    change: dict[str, Any],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    runs: Callable[[str], TrainingRun],
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs("dqn").path, run)
    file = run / QUANTIZATION_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    code, out, err = call(capsys, "teacher", "info", str(run))
    assert code == 2 and out == "" and len(err.splitlines()) == 1
    assert QUANTIZATION_FILE in err and problem in err


def test_ranges_of_another_agent_are_refused(
    tmp_path: Path, runs: Callable[[str], TrainingRun]
) -> None:
    shutil.copytree(runs("dqn").path, tmp_path / "run")
    shutil.copy(runs("sac").path / QUANTIZATION_FILE, tmp_path / "run" / QUANTIZATION_FILE)
    with pytest.raises(UserError, match="do not fit"):
        load_teacher(tmp_path / "run")


def test_an_agent_of_few_bits_has_a_folder_of_its_own() -> None:
    names = [
        load_train_recipe(None, lines, algo="dqn", env="CartPole-v1").name
        for lines in ([], ["quantization.bits=4"], ["quantization.bits=4", "name=mine"])
    ]
    assert names == ["dqn-CartPole-v1", "dqn-CartPole-v1-4bit", "mine"]


def test_commands_say_how_an_agent_plays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], runs: Callable[[str], TrainingRun]
) -> None:
    run = runs("ppo")
    code, out, _ = call(capsys, "teacher", "info", str(run.path), "--json")
    assert code == 0
    info = json.loads(out)
    assert info["arithmetic"].startswith("trained in 4 bits, from step ")
    code, _, err = call(capsys, "evaluate", str(run.path), "--episodes", "2")
    assert code == 0 and "the agent was trained in 4 bits, from step " in err
    card = tmp_path / "card"
    code, _, _ = call(
        capsys, "teacher", "card", str(run.path), "-o", str(card), "--episodes", "2", "-q"
    )
    assert code == 0 and load_teacher(card).sha256 == info["sha256"]
    assert info["arithmetic"] in (card / "README.md").read_text()
    new = str(tmp_path / "new")
    code, _, err = call(capsys, "train", "ars", "Pendulum-v1", "--bits", "4", "-o", new)
    assert code == 2 and "ARS learns without gradients" in err
    code, _, err = call(capsys, "train", "ppo", "CartPole-v1", "--quant-delay", "0.5")
    assert code == 2 and "--quant-delay: needs --bits" in err


IN_INTEGERS = {"quantization.bits": 4, "quantization.scheme": "dorefa_scaled"}
CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in LEARNERS]
CASES += [
    # Observations that VecNormalize clips, often.
    ("ppo with gSDE", {"normalize": {"norm_obs": True, "norm_reward": False, "clip_obs": 1.0}}),
    ("dqn", {"quantization.per": "tensor", "quantization.delay": 0.0}),
]


@pytest.mark.parametrize(("name", "more"), CASES)
def test_what_learned_in_integers_is_the_integers(
    name: str, more: dict[str, Any], tmp_path: Path
) -> None:
    run = trained(name, tmp_path / "run", IN_INTEGERS | more)
    teacher = load_teacher(run.path)
    stored = teacher.quantization
    assert isinstance(stored, StoredQuantization) and "4 bits of integers" in str(stored)
    student = load_integer_student(run.quantized_file)
    modules = actor_modules(teacher.network)
    for quantizer, module, integers in zip(stored.layers, modules, student.layers, strict=True):
        if teacher.algo == "qrdqn" and integers is student.layers[-1]:
            continue  # a mean of quantiles, rounded once more
        assert quantizer.weights is not None and isinstance(module.weight, torch.Tensor)
        units = module.weight * (15.0 / quantizer.weights.high.reshape(-1, 1))
        units = units * quantizer.spans if integers is student.layers[0] else units
        expected = units.round().to(torch.int16).numpy()
        assert np.abs(expected).max() <= 15 and bool((expected % 2 == 1).all())
        np.testing.assert_array_equal(integers.weight.reshape(expected.shape), expected)
    # Observations of the training, and some beyond their range.
    low, high = (np.asarray(end, float) for end in (student.input_low, student.input_high))
    shares = np.random.default_rng(0).uniform(-0.2, 1.2, (400, len(low)))
    states = (low + shares * (high - low)).astype(np.float32)
    _, error = action_changes(teacher, IntegerEngine(student), states)
    if error is not None:  # codes of 8 bits, half a step of 1 / 255; and now and then a level
        assert error < 5e-3
        return
    policy = agent_policy(teacher, actor_of(teacher.network, teacher.activation))
    mine, theirs = (
        found - found.mean(1, keepdims=True)
        for found in (IntegerEngine(student)(states), policy(states))
    )
    # Sums and biases are rounded, and tanh comes from a table; a level may flip by that.
    apart = np.abs(mine - theirs).max(1) / theirs.std()
    assert np.median(apart) < 1e-2 and np.quantile(apart, 0.95) < 0.2


def test_images_learn_in_integers_too(tmp_path: Path) -> None:
    overrides = training_overrides({"n_envs": 2, "n_steps": 8}) | {"train.timesteps": 64}
    overrides |= IN_INTEGERS
    run = qpd.train("a2c", "BreakoutNoFrameskip-v4", overrides=overrides, output=tmp_path / "run",
                    **SMALL)  # fmt: skip
    teacher, student = load_teacher(run.path), load_integer_student(run.quantized_file)
    assert student.architecture.stacks_frames
    states = np.random.default_rng(0).integers(0, 256, (40, 4, 84, 84), dtype=np.uint8)
    states[20:] //= 8
    policy = agent_policy(teacher, actor_of(teacher.network, teacher.activation))
    mine, theirs = IntegerEngine(student)(states), policy(states)
    theirs = theirs - theirs.mean(1, keepdims=True)
    np.testing.assert_allclose(mine - mine.mean(1, keepdims=True), theirs, atol=2e-3)


def test_a_training_in_integers_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "dqn", "CartPole-v1", "--timesteps", "300", "--seed", "3", "-q"]
    for key, value in TRAININGS["dqn"][2].items():
        arguments += ["--set", f"{key}={value}"]
    arguments += ["--bits", "4", "--scheme", "dorefa_scaled", "-o", str(tmp_path / "run")]
    code, _, err = call(capsys, *arguments)
    assert code == 0, err
    code, out, err = call(capsys, "export", tmp_path / "run", "--format", "c", "-o", tmp_path / "c")
    assert code == 0 and (tmp_path / "c" / "qpd_network.c").exists(), err
    code, _, err = call(capsys, "evaluate", tmp_path / "run", "--policy", "qat", "--episodes", "2")
    assert code == 0, err
    # Another grid has no integers, and the line says what has.
    code, _, err = call(capsys, *arguments[:-4], "-o", tmp_path / "affine")
    assert code == 0, err
    code, _, err = call(
        capsys, "export", tmp_path / "affine", "--format", "c", "-o", tmp_path / "d"
    )
    assert code == 2 and "--scheme dorefa_scaled" in err and len(err.splitlines()) == 1
    code, _, err = call(capsys, "train", "dqn", "CartPole-v1", "--scheme", "dorefa_scaled")
    assert code == 2 and "--scheme: needs --bits" in err
    for option, value in (("--scheme", "dorefa_scaled"), ("--per", "tensor")):
        given = ("train", "sac", "Pendulum-v1", "--bits", "core=3", option, value)
        code, _, err = call(capsys, *given)
        assert code == 2 and f"{option} {value}: needs --bits of one number" in err


def test_agents_that_no_integers_have_are_refused_before_they_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--bits", "4", "--scheme", "dorefa_scaled", "-o", str(tmp_path / "run")]
    for arguments, said in (
        (["ppo", "CartPole-v1", "--set", "layer_norm=true"], "have LayerNormTanh; integers know"),
        (["a2c", "PongNoFrameskip-v4", "--set", "net_arch=[32]"], "integers of images know ReLU"),
        (["ppo", "tests.phases.own_environments:Matrix-v0"], "observations have shape (3, 3)"),
        (["ppo", "tests.phases.own_environments:Camera-v0"], "sees a Dict with images"),
        (["sac", "Pendulum-v1", "--set", "train.learner=fast"], "quantization.bits needs sb3"),
    ):
        code, _, err = call(capsys, "train", *arguments, *few)
        assert code == 2 and said in err, err
        assert len([line for line in err.splitlines() if line.startswith("error")]) == 1
        assert not (tmp_path / "run").exists()
    code, _, err = call(capsys, "train", "sac", "Pendulum-v1", "--bits", "core=3",
                        "--scheme", "dorefa_scaled", "-o", tmp_path / "run")  # fmt: skip
    assert code == 2 and "--scheme dorefa_scaled: needs --bits of one number" in err
    code, _, err = call(capsys, "train", "sac", "Pendulum-v1", "--bits", "core=3", "--precision",
                        "fp16", "--set", "layer_norm=true", "-o", tmp_path / "run")  # fmt: skip
    assert code == 2 and "integer controllers have ReLU" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--set", "quantization.per=channel"), "per=channel: needs bits"),
     (("--set", "quantization.delay=0.2"), "delay=0.2: needs bits"),
     (("--bits", "4", "--set", "quantization.grid=odd"), "grid=odd: is of a controller's weights")],
)  # fmt: skip
def test_settings_that_do_nothing_are_refused(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, "train", "ppo", "CartPole-v1", *arguments, "-o", tmp_path / "run")
    assert code == 2 and said in err and not (tmp_path / "run").exists()


def test_a_training_too_short_for_few_bits_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained("dqn", tmp_path / "run", {"quantization.bits": 4, "learning_starts": 100_000})
    code, out, err = call(capsys, "show", run.path)
    assert code == 0 and "is a float agent, nothing was learned in few bits" in err
    assert "beyond learning_starts steps" in err and "make a student" not in out


def test_a_training_shorter_than_a_rollout_says_so_in_few_words_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "train", "ppo", "CartPole-v1", "--timesteps", 40, "--bits", 8,
                          "--set", "n_envs=1", "--set", "n_steps=40", "-o", tmp_path / "run",
                          "-q")  # fmt: skip
    assert (code, out) == (0, "") and "is a float agent" in err
    assert "after 50% of the steps" in err and "beyond n_steps x n_envs steps" in err


def test_biases_that_32_bits_do_not_hold_are_refused(tmp_path: Path) -> None:
    run = trained("dqn", tmp_path / "run", IN_INTEGERS)
    run.quantized_file.unlink()
    content = json.loads((run.path / QUANTIZATION_FILE).read_text())
    # A feature that is a thousand beside a range of a thousandth.
    inputs = content["layers"][0]["inputs"]
    inputs["low"][0], inputs["high"][0] = 1000.0, 1000.001
    content["layers"][0]["weights"] = {
        "low": [-1e-7] * len(content["layers"][0]["weights"]["low"]),
        "high": [1e-7] * len(content["layers"][0]["weights"]["low"]),
    }
    (run.path / QUANTIZATION_FILE).write_text(json.dumps(content))
    with pytest.raises(UserError, match="a bias of linear1 is beyond 32 bits"):
        write_trained_integers(run)


@pytest.mark.parametrize(
    ("layer", "change", "problem"),
    [
        (1, {"input_kind": "features"}, "input_kind: expected activations"),
        (0, {"input_kind": "activations"}, "input_kind: expected features or bytes"),
        (1, {"per": "tensor"}, "per: integers have one for all"),
        (1, {"inputs": {"low": [0.0], "high": [0.0]}}, "inputs: expected low < high"),
        (2, {"weights": {"low": [-1.0], "high": [0.5]}}, "expected a scale s above 0"),
    ],
)
def test_a_damaged_layer_in_integers_is_one_line(
    tmp_path: Path,
    layer: int,
    change: dict[str, Any],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    learned: TrainingRun,
) -> None:
    run = tmp_path / "run"
    shutil.copytree(learned.path, run)
    content = json.loads((run / QUANTIZATION_FILE).read_text())
    content["layers"][layer] |= change
    (run / QUANTIZATION_FILE).write_text(json.dumps(content))
    code, out, err = call(capsys, "teacher", "info", str(run))
    assert code == 2 and out == "" and len(err.splitlines()) == 1
    assert QUANTIZATION_FILE in err and problem in err


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """Return a DQN that learned in integers of 4 bits."""
    return trained("dqn", tmp_path_factory.mktemp("learned") / "run", IN_INTEGERS)
