"""`predict` as Stable-Baselines3 has it, of students in files and of exported agents."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import qpd
from qpd.actions import ActingRule, Discrete
from qpd.environments.policy import network_policy
from qpd.export.bundle import golden_vectors, load_export_source
from qpd.export.sb3_zip import sb3_zip
from qpd.integer.integer_student import IntegerEngine
from qpd.student_files.distilled import StudentFileError, save_student
from qpd.student_files.predictor import StudentPredictor
from qpd.students import Student, StudentArchitecture
from qpd.teachers import TeacherError, load_teacher

RUNS = Path(__file__).resolve().parents[2] / "runs-reference"
XXS, CARTPOLE, DQN_CARTPOLE = (
    RUNS / name for name in ("breakout-ppo-xxs", "classic-ppo-cartpole", "classic-dqn-cartpole")
)


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    return golden_vectors(load_export_source(XXS).student).observations


def test_predict_takes_frames_in_both_orders_alone_and_in_batches(frames: np.ndarray) -> None:
    student = qpd.load_student_policy(XXS)
    wanted = IntegerEngine(load_export_source(XXS).student)(frames).argmax(1)
    assert len(set(wanted)) > 1
    last = np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
    for batch in (frames, last):
        actions, state = student.predict(batch, deterministic=True)
        np.testing.assert_array_equal(actions, wanted)
        assert state is None and actions.dtype == np.int64
    for one in (frames[5], last[5]):
        action, state = student.predict(one, state=("kept",), deterministic=True)
        assert action.shape == () and action == wanted[5] and state == ("kept",)


def test_a_dict_needs_the_environments_space(frames: np.ndarray) -> None:
    student = qpd.load_student_policy(XXS)
    with pytest.raises(ValueError, match=r"a Dict: .*observation_space=env.observation_space"):
        student.predict({"image": frames[0]})


def one_hot(number: int, count: int) -> list[float]:
    return [float(number == index) for index in range(count)]


SPACES = [
    (spaces.Box(-1, 1, (2, 3)), lambda seen: seen.ravel()),
    (spaces.Discrete(5), lambda seen: one_hot(seen, 5)),
    (spaces.MultiDiscrete([2, 3]), lambda seen: [*one_hot(seen[0], 2), *one_hot(seen[1], 3)]),
    (spaces.MultiBinary((2, 2)), lambda seen: seen.ravel()),
    (
        spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(-1, 1, (2,))}),
        lambda seen: [*seen["a"], *one_hot(seen["b"], 3)],  # sorted by key, as gymnasium does
    ),
]


@pytest.mark.parametrize(("space", "flat"), SPACES, ids=[str(each) for each, _ in SPACES])
def test_observations_of_any_space_are_taken_as_they_are(
    space: spaces.Space[Any], flat: Callable[[Any], Any]
) -> None:
    space.seed(0)
    seen = [space.sample() for _ in range(4)]
    wanted = np.array([flat(each) for each in seen], np.float32)
    architecture = StudentArchitecture(wanted.shape[1:], 2, (), (8,))
    policy = network_policy(Student(architecture), Discrete(2))
    rule = ActingRule("greedy")
    student = StudentPredictor(policy, architecture, rule, observation_space=space)
    together = (
        {key: np.stack([each[key] for each in seen]) for key in space.spaces}
        if isinstance(space, spaces.Dict)
        else np.stack(seen)
    )
    np.testing.assert_array_equal(student.outputs(together), policy(wanted))
    np.testing.assert_array_equal(student.outputs(seen[2])[0], policy(wanted[2:3])[0])
    assert student.predict(together)[0].shape == (4,) and student.predict(seen[0])[0].shape == ()
    with pytest.raises(ValueError, match="observation: "):
        student.predict(np.zeros((3, 3, 3, 3)))


def test_another_environments_space_is_refused() -> None:
    with pytest.raises(StudentFileError, match=r"shows \(4,\); this student sees \(4, 84, 84\)"):
        qpd.load_student_policy(XXS, observation_space=spaces.Box(-1, 1, (4,)))


def test_sampling_follows_the_students_probabilities_and_the_seed(frames: np.ndarray) -> None:
    student = qpd.load_student_policy(XXS, seed=1)
    spread = student.outputs(frames).std(1)
    batch = np.repeat(frames[[int(spread.argmin())]], 1000, axis=0)
    actions, _ = student.predict(batch)
    logits = student.outputs(batch[:1])[0].astype(np.float64)
    probabilities = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    shares = np.bincount(actions, minlength=4) / len(actions)
    np.testing.assert_allclose(shares, probabilities, atol=0.08)  # 5 standard errors
    assert 0 < (actions == actions[0]).mean() < 1
    few = batch[:100]
    draws = []
    for seed in (1, 1, 2):
        student.set_random_seed(seed)
        draws.append(student.predict(few)[0].tolist())
    assert draws[0] == draws[1] != draws[2]


def test_students_of_dqn_explore_rarely() -> None:
    student = qpd.load_student_policy(DQN_CARTPOLE)
    observation = np.zeros((20_000, 4))  # float64, as gymnasium may give it
    greedy, _ = student.predict(observation, deterministic=True)
    actions, _ = student.predict(observation)
    assert 0.002 < (actions != greedy).mean() < 0.01  # half of 0.01: two actions


@pytest.mark.parametrize(("algo", "explores"), [("qrdqn", True), ("a2c", False)])
def test_a_file_alone_tells_its_teacher(tmp_path: Path, algo: str, explores: bool) -> None:
    student = Student(StudentArchitecture((3,), 2, (), (8,)), seed=2)
    student.scale_outputs(1e4)  # sampling is then as good as the argmax
    save_student(
        tmp_path / "distilled.safetensors", student, Discrete(2), {"teacher": {"algo": algo}}
    )
    loaded, observation = qpd.load_student_policy(tmp_path), np.ones((20_000, 3), np.float32)
    greedy, _ = loaded.predict(observation, deterministic=True)
    assert (loaded.predict(observation)[0] != greedy).any() == explores


def test_files_of_every_kind(tmp_path: Path) -> None:
    student = Student(StudentArchitecture((3,), 2, (), (8,)), seed=2)
    save_student(tmp_path / "distilled.safetensors", student, Discrete(2), {})
    by_folder = qpd.load_student_policy(tmp_path)
    by_file = qpd.load_student_policy(str(tmp_path / "distilled.safetensors"))
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_array_equal(by_folder.outputs(observations), by_file.outputs(observations))
    action, _ = qpd.load_student_policy(CARTPOLE / "quantized.safetensors").predict(np.zeros(4))
    assert action in (0, 1)


def test_wrong_inputs_get_one_line(tmp_path: Path, frames: np.ndarray) -> None:
    student = qpd.load_student_policy(XXS)
    with pytest.raises(ValueError, match=r"\(4, 84, 84\) or \(84, 84, 4\)"):
        student.predict(frames[:, :3])
    with pytest.raises(ValueError, match="uint8"):
        student.predict(frames / 255.0)
    with pytest.raises(StudentFileError, match="contains no student"):
        qpd.load_student_policy(tmp_path)
    (tmp_path / "quantized.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(StudentFileError, match="damaged"):
        qpd.load_student_policy(tmp_path)
    with pytest.raises(StudentFileError, match="no such file"):
        qpd.load_student_policy(tmp_path / "other.safetensors")


def exported_agent(run: Path, algo: str, folder: Path):
    import stable_baselines3

    (folder / "student.zip").write_bytes(sb3_zip(load_export_source(run)))
    return getattr(stable_baselines3, algo).load(folder / "student.zip", device="cpu")


def test_exported_agent_predicts_as_the_student(tmp_path: Path, frames: np.ndarray) -> None:
    agent, student = exported_agent(XXS, "PPO", tmp_path), qpd.load_student_policy(XXS)
    last = np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
    for observations in (frames, last, frames[3], last[3]):
        theirs, _ = agent.predict(observations, deterministic=True)
        ours, _ = student.predict(observations, deterministic=True)
        np.testing.assert_array_equal(theirs, ours)
        assert np.shape(theirs) == ours.shape
    assert set(agent.predict(np.repeat(frames[:1], 200, axis=0))[0]) <= {0, 1, 2, 3}


@pytest.mark.parametrize(("run", "algo"), [(CARTPOLE, "PPO"), (DQN_CARTPOLE, "DQN")])
def test_evaluate_policy_accepts_agent_and_student(tmp_path: Path, run: Path, algo: str) -> None:
    import gymnasium
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    returns = []
    for player in (exported_agent(run, algo, tmp_path), qpd.load_student_policy(run)):
        env = Monitor(gymnasium.make("CartPole-v1"))
        env.reset(seed=5)
        mean, _ = evaluate_policy(player, env, n_eval_episodes=2, deterministic=True)
        returns.append(mean)
    assert returns == [500.0, 500.0]


def test_exported_agents_are_refused_as_teachers(tmp_path: Path) -> None:
    exported_agent(XXS, "PPO", tmp_path)
    with pytest.raises(TeacherError, match="exported student") as refused:
        load_teacher(tmp_path / "student.zip")
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_exported_agent_plays_breakout_under_stable_baselines3(tmp_path: Path) -> None:
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecFrameStack

    agent = exported_agent(XXS, "PPO", tmp_path)
    env = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=4, seed=0), n_stack=4)
    mean, _ = evaluate_policy(agent, env, n_eval_episodes=4, deterministic=False)
    env.close()
    assert mean > 200  # 384 [376, 393] over 200 games; a student that acts at random gets 1.4
