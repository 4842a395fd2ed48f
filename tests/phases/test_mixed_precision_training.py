"""`qpd train --precision` of algorithms but SAC, and counted gradients of all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO, TD3
from torch import nn

import qpd
from qpd.numerics.float_format import FloatFormat
from qpd.numerics.gradient_exponents import LOWEST
from qpd.numerics.layer_arithmetic import LayerArithmetic
from qpd.numerics.loss_scale import LossScale
from qpd.recipe.train_schema import TrainPrecision
from qpd.runs.counted_gradients import PhaseGradients
from qpd.runs.training_run import TrainingRun
from qpd.teachers.training.agent_training import LearningFailedError
from qpd.teachers.training.mixed_precision import MixedLinear, use_mixed_precision
from tests.command_line import call
from tests.phases.small_trainings import (
    SMALL,
    TRAININGS,
    Interrupts,
    agent_tensors,
    assert_same_training,
    metric_rows,
    training_overrides,
)

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn
FP16 = FloatFormat.parse("fp16")


def trained(output: Path, name: str = "ppo", progress: Any = None, **more: Any) -> TrainingRun:
    algo, env, hyperparameters = TRAININGS[name]
    overrides = training_overrides(hyperparameters) | more
    return qpd.train(algo, env, overrides=overrides, output=output, progress=progress, **SMALL)


def layer(scale: float, weight: float) -> MixedLinear:
    found = MixedLinear(1, 1)
    optimizer = torch.optim.SGD(found.parameters(), lr=1.0)
    found.arithmetic = LayerArithmetic(FP16, optimizer, LossScale(scale))
    with torch.no_grad():
        found.weight.fill_(weight)
        found.bias.fill_(0.0)
    return found


def test_a_layer_by_hand() -> None:
    # 1 + 2^-12 is 1 in fp16, 3 + 2^-10 is 3; 1e-8 is nearest to 0 in it, but 1e-8 * 2^16, which is
    # 6.5536e-4, is 1374 * 2^-21, and three times that, 4122, has 12 bits: it is 2061 * 2^-20, whose
    # neighbours with 11 bits are 2060 and 2062: to the even one, 1030 * 2^-19.
    its, x = layer(2.0**16, 1.0 + 2.0**-12), torch.tensor([[3.0 + 2.0**-10]], requires_grad=True)
    y = its(x)
    y.backward(torch.tensor([[1e-8]]))
    assert y.item() == 3.0
    assert its.bias.grad is not None and its.weight.grad is not None and x.grad is not None
    assert its.bias.grad.item() * 2.0**16 == 1374 * 2.0**-21 == x.grad.item() * 2.0**16
    assert its.weight.grad.item() * 2.0**16 == pytest.approx(1030.5 * 2.0**-19, abs=2.0**-20)
    assert FP16.round(its.weight.grad * 2.0**16).item() == its.weight.grad.item() * 2.0**16


def test_without_a_scale_small_gradients_vanish() -> None:
    its = layer(1.0, 1.0)
    its(torch.ones(1, 1)).backward(torch.tensor([[1e-8]]))
    assert its.weight.grad is not None and its.weight.grad.item() == 0.0


def model_of(**settings: Any) -> DQN:
    model = DQN("MlpPolicy", gymnasium.make("CartPole-v1"), seed=0, device="cpu", buffer_size=100,
                policy_kwargs={"net_arch": [8]}, learning_starts=10)  # fmt: skip
    model.learn(10)
    use_mixed_precision(model, TrainPrecision(**settings))
    return model


def test_an_update_whose_gradients_overflow_is_skipped() -> None:
    model = model_of(format="fp16")
    optimizer: Any = model.policy.optimizer
    before = [each.clone() for each in model.policy.parameters()]
    for factor, scale, skipped in ((1e3, 2.0**15, 1), (1e-3, 2.0**15, 1)):
        optimizer.zero_grad()
        (model.q_net(torch.ones(4, 4)).sum() * factor).backward()
        optimizer.step()
        group = optimizer.param_groups[0]
        assert (group["loss_scale"], group["skipped_updates"]) == (scale, skipped)
        moved = any(
            not torch.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True)
        )
        assert moved == (factor < 1)


def test_an_actors_overflow_behind_the_critic_lowers_the_scale_of_both() -> None:
    model = TD3("MlpPolicy", gymnasium.make("Pendulum-v1"), seed=0, device="cpu", buffer_size=100,
                policy_kwargs={"net_arch": [8]}, learning_starts=10)  # fmt: skip
    model.learn(10)
    use_mixed_precision(model, TrainPrecision(format="fp16", loss_scale="dynamic"))
    group = model.critic.optimizer.param_groups[0]
    group["loss_scale"] = 2.0**24  # where the critic has had nothing to learn for a while
    before = [each.clone() for each in model.actor.parameters()]
    states = torch.ones(4, 3)
    while torch.equal(before[0], next(model.actor.parameters())):
        model.actor.optimizer.zero_grad()
        (-model.critic.q1_forward(states, model.actor(states)).mean()).backward()
        model.actor.optimizer.step()
        assert group["skipped_updates"] < 20
    # 2^24 / 4 is beyond 65,504, and so is each half of it down to 2^17 / 4.
    assert group["loss_scale"] <= 2.0**17 and group["skipped_updates"] >= 7


def test_gradients_are_counted_before_they_are_clipped(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "a2c", **{"precision.gradient_exponents": 1})
    found = PhaseGradients.read(run.exponents_file)
    # A2C clips to a norm of 0.5; Pendulum's value loss has gradients far beyond.
    assert found is not None and sum(found.total("weights").counts[-LOWEST:]) > 0
    counted = {each.epoch: each.weights for each in found.epochs}
    told = [row for row in metric_rows(run) if row["gradients_lost"]]
    assert len(told) >= 2
    for row in told:
        its = counted[int(row["timesteps"])]
        assert float(row["gradients_lost"]) == its.shares(FP16)["lost"]
        assert float(row["fitting_scale"]) == its.fitting_scale(FP16)


@pytest.mark.parametrize("name", ["ppo", "td3"])
def test_a_training_whose_updates_were_all_skipped_has_failed(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(LearningFailedError, match=r"all \d+ updates were skipped"):
        trained(path, name, **{"precision.format": "e4m3", "precision.loss_scale": 2**24})
    assert TrainingRun.open(path).phase.failed_at is not None


def test_targets_compute_in_the_format_too() -> None:
    model = model_of(format="e5m2", master_weights=False)
    x = torch.randn(5, 4)
    form = FloatFormat.parse("e5m2")
    for network in (model.q_net, model.q_net_target):
        values = network(x)
        assert torch.equal(form.round(values), values)
    for name, each in model.q_net.named_parameters():
        assert torch.equal(form.round(each), each), name


@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn", "qrdqn", "td3", "tqc", "ddpg"])
def test_an_interrupted_training_ends_in_the_same_numbers(name: str, tmp_path: Path) -> None:
    low = {"precision.format": "fp16", "precision.gradient_exponents": 3}
    whole = trained(tmp_path / "whole", name, **low)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "parts", name, Interrupts(240), **low)
    parts = trained(tmp_path / "parts", name, **low)
    assert len(parts.phase.resumed_at) == 1
    assert_same_training(whole, parts)
    assert parts.manifest.arithmetic is not None and parts.manifest.arithmetic.threads >= 1
    ours, theirs = (json.loads(run.exponents_file.read_text()) for run in (whole, parts))
    assert ours == theirs and ours["precision"] == "fp16"
    assert float(metric_rows(whole)[-2]["train/loss_scale"]) >= 1.0
    assert qpd.evaluate(whole, episodes=1).returns.size == 1


@pytest.mark.parametrize("name", ["ppo", "sac", "td3"])
@pytest.mark.parametrize("learner", [{}, {"train.learner": "fast"}, {"precision.format": "fp16"}])
def test_counting_changes_no_number(name: str, learner: dict[str, str], tmp_path: Path) -> None:
    if name == "ppo" and "train.learner" in learner:
        pytest.skip("PPO has no fast learner")
    plain = trained(tmp_path / "plain", name, **learner)
    counted = trained(tmp_path / "counted", name, **learner, **{"precision.gradient_exponents": 1})
    assert plain.agent_file is not None and counted.agent_file is not None
    ours, theirs = agent_tensors(plain.agent_file), agent_tensors(counted.agent_file)
    for key, value in ours.items():
        np.testing.assert_array_equal(value, theirs[key], err_msg=key)
    found = PhaseGradients.read(counted.exponents_file)
    assert found is not None and not plain.exponents_file.exists()
    weights, activations = found.total("weights"), found.total("activations")
    if name == "ppo":  # 10 rollouts, 20 epochs of 2 minibatches; CartPole's policy of 64-64
        assert weights.total == 400 * 9_155
    assert weights.total > 100 and (activations.total > 100) == ("train.learner" not in learner)
    # Without the factor of compound scaling, 1e4, gradients by weights are small.
    assert found.form == FP16 and weights.fitting_scale(FP16) > 1e-3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("trpo", "CartPole-v1", "--precision", "fp16"), "TRPO does not"),
        (("ars", "CartPole-v1", "--precision", "fp16"), "ARS does not"),
        (("ppo", "CartPole-v1", "--precision", "fp16", "--plain"), "methods and baseline are SAC"),
        (("ppo", "CartPole-v1", "--precision", "fp16", "--bits", "8"), "integer controllers alone"),
        (("td3", "Pendulum-v1", "--precision", "fp16", "--bits", "core=3"), "controllers alone"),
        (("ppo", "CartPole-v1", "--set", "precision.loss_scale=x"), "precision.loss_scale"),
        (("ppo", "CartPole-v1", "--set", "precision.loss_scale=8"), "need a format lower"),
        (("trpo", "CartPole-v1", "--set", "precision.gradient_exponents=9"), "can be counted"),
        (
            ("sac", "Pendulum-v1", "--precision", "fp16", "--set", "precision.loss_scale=8"),
            "auto or dynamic",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(
    arguments: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "train", *arguments, "-o", tmp_path / "new", "--device", "cpu")
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(lines) == 1 and expected in lines[0] and not out, err
    assert not (tmp_path / "new").exists()


def test_ppo_of_images_learns_in_half_precision() -> None:
    class Images(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0, 255, (3, 36, 36), np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), float(action), False, False, {}

    model = PPO("CnnPolicy", Images(), n_steps=16, batch_size=8, n_epochs=1, seed=0, device="cpu")
    use_mixed_precision(model, TrainPrecision(format="fp16"))
    before = {name: each.clone() for name, each in model.policy.state_dict().items()}
    model.learn(32)
    layers = [each for each in model.policy.modules() if isinstance(each, nn.Conv2d)]
    assert len(layers) >= 3
    for name, each in model.policy.state_dict().items():
        assert each.isfinite().all() and not torch.equal(each, before[name]), name
