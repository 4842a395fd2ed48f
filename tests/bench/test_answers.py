"""Answers of runtimes: outputs and actions of every kind, each in its own form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import DDPG, PPO, SAC
from stable_baselines3.common.vec_env import DummyVecEnv

from qpd.actions import Box, MultiBinary, MultiDiscrete
from qpd.bench.answers import Wanted, compare, compare_actions, labels_of_outputs, sb3_actions
from qpd.bench.models import run_model
from qpd.bench.plain_network import exact_logits
from qpd.bench.runtimes import start_student, start_teacher
from qpd.bench.teachers import teacher_of_run
from qpd.teachers.sb3_policy import build_sb3_policy, sb3_logits
from tests.analysis.continuous_run import continuous_run
from tests.teachers.agents_of_any_space import Anything, box, observations_for, saved

torch.set_num_threads(1)
RANGE = Box((-1.0, 0.0), (1.0, 10.0), "tanh", "deterministic")


def test_outputs_of_continuous_actions_act_alike_within_a_code() -> None:
    wanted = np.array([[0.0, 0.0], [9.0, -9.0]])
    # At 0 tanh's slope is 1: 0.004 of half a range is less than a code's 2/255; 0.02 is more.
    check = compare(wanted + [[0.004, 0.0], [0.0, 0.0]], wanted, RANGE)
    assert (check.vectors, check.same_actions) == (2, 2)
    assert check.largest_error == pytest.approx(0.004 / 18)
    assert compare(wanted + [[0.02, 0.0], [0.0, 0.0]], wanted, RANGE).same_actions == 1


def test_continuous_actions_differ_by_a_share_of_their_range() -> None:
    wanted = np.zeros((1, 2))  # the actions 0 and 5
    check = compare_actions(np.array([[0.1, 5.0]]), wanted, RANGE)
    assert check.same_actions == 0 and check.largest_error == pytest.approx(0.1 / 2)
    right = Wanted(np.array([[0.0, 5.0]], np.float32), RANGE, are_actions=True)
    assert right.compared(np.array([[0.0, 5.01]])).same_actions == 1
    assert right.compared(np.array([[0.0, np.nan]])).largest_error == 1e9


def test_choices_and_switches_by_hand() -> None:
    parts = MultiDiscrete((2, 3))
    wanted = np.array([[0.0, 10.0, 4.0, 5.0, 1.0]])  # the actions 1 and 1; spread 10
    check = compare_actions(np.array([[1, 0]]), wanted, parts)
    assert (check.same_actions, check.largest_error) == (0, pytest.approx(0.1))
    assert compare_actions(np.array([[1, 1]]), wanted, parts).largest_error == 0.0
    assert compare(-wanted, wanted, parts).same_actions == 0
    switches = MultiBinary(2)
    wanted = np.array([[3.0, -1.0]])  # on, off; spread 4
    check = compare_actions(np.array([[1, 1]]), wanted, switches)
    assert (check.same_actions, check.largest_error) == (0, pytest.approx(0.25))


@pytest.mark.parametrize("kind", [PPO, SAC, DDPG])
def test_what_sb3_returns_becomes_the_action(kind: Any, tmp_path: Path) -> None:
    """PPO: in the environment's units; SAC: before the tanh; DDPG: after it."""
    env = DummyVecEnv([lambda: Anything(box((-2.0, 2.0), (0.0, 5.0)))])
    options = {"n_steps": 8, "batch_size": 8} if kind is PPO else {"buffer_size": 10}
    agent = kind("MlpPolicy", env, device="cpu", seed=0, **options)
    teacher = saved(agent, tmp_path / f"{kind.__name__.lower()}-x-v0.zip")
    seen = torch.from_numpy(observations_for(teacher, 40))
    with torch.inference_mode():
        theirs = sb3_logits(build_sb3_policy(teacher))(seen).numpy()
        mine = exact_logits(teacher.network, teacher.preprocess(seen).double())
    wanted = Wanted(labels_of_outputs(teacher.actions, mine), teacher.actions)
    actions = teacher.actions
    assert isinstance(actions, Box)
    found = wanted.as_actions(lambda raw: sb3_actions(actions, teacher.algo, raw)).compared(theirs)
    assert found.same_actions == 40 and found.largest_error < 1e-5
    taken, _ = agent.predict(seen.numpy(), deterministic=True)
    np.testing.assert_allclose(sb3_actions(actions, teacher.algo, theirs), taken, atol=1e-5)


def test_a_run_of_continuous_actions_is_timed_beside_its_teacher(tmp_path: Path) -> None:
    run = continuous_run(tmp_path)
    model, teacher = run_model(run), teacher_of_run(run)
    for package in ("onnxruntime", "ai_edge_litert"):
        pytest.importorskip(package)
    runtimes = ["torch", "onnx-int8", "litert-int8"]
    started = [
        start_student(name, model, 1, tmp_path / name, model.observations) for name in runtimes
    ]
    started.append(start_teacher("torch", teacher, 1, tmp_path / "t", model.observations))
    try:
        for contestant in started:
            assert contestant.error is None, (contestant.runtime, contestant.error)
            assert contestant.check is not None and contestant.check.largest_error <= 0.02
        assert started[-1].kernels == "SB3"
    finally:
        for contestant in started:
            contestant.close()
