"""Transitions as the teacher plays them, two halves of the environments in turn."""

import math
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from qpd.actions import ActingRule, Discrete
from qpd.environments.registry import make_vector_env
from qpd.environments.transition import TransitionBatch
from qpd.recipe.loading import load_recipe
from qpd.replay.play_stream import PlayStream
from qpd.teachers import Teacher, TeacherError, TeacherOutputs, load_teacher
from qpd.teachers.rollout_collector import StudentPolicy, collect_transitions

BREAKOUT = "BreakoutNoFrameskip-v4"


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return load_teacher("embedded")


def test_a_teacher_that_overflows_in_play_only(teacher_zip: Path) -> None:
    """Answer zeros and ones with finite numbers, and play with others."""
    teacher = load_teacher(teacher_zip)
    env = make_vector_env("CartPole-v1", 2)
    env.reset(0)
    with torch.no_grad():
        teacher.network.value_head.bias.fill_(math.inf)  # type: ignore[union-attr]
    with pytest.raises(TeacherError, match=r"ppo-CartPole-v1\.zip: its values are not finite"):
        next(collect_transitions(teacher, env, ActingRule("sample"), np.random.default_rng(0), 2))


@pytest.mark.parametrize("num_envs", [3, 16])
def test_every_step_is_labelled_and_counted_once(teacher: Teacher, num_envs: int) -> None:
    """Each stream's transitions follow each other, with the teacher's own outputs."""
    env = make_vector_env(BREAKOUT, num_envs)
    env.reset(0)
    rng = np.random.default_rng(0)
    batches = list(collect_transitions(teacher, env, ActingRule("sample"), rng, 50 * num_envs))
    total = sum(len(batch) for batch in batches)
    assert 50 * num_envs <= total < 51 * num_envs
    env.get_state()  # raises where a step is still in flight
    last: dict[int, np.ndarray] = {}
    for batch in batches:
        for stream, age, observation in zip(
            batch.streams, batch.ages, batch.observations, strict=True
        ):
            if age == 3:
                np.testing.assert_array_equal(observation[:3], last[stream][1:])
            last[int(stream)] = observation
    assert set(last) == set(range(num_envs))
    with torch.inference_mode():
        outputs = teacher(torch.from_numpy(batches[-1].observations))
    torch.testing.assert_close(outputs.labels, batches[-1].labels, atol=1e-4, rtol=1e-4)


def test_few_transitions_are_still_those_of_all_environments(teacher_zip: Path) -> None:
    """A refresh that half of them could satisfy: else the others would never play again."""
    teacher = load_teacher(teacher_zip)
    env = make_vector_env("CartPole-v1", 16, num_threads=1)
    env.reset(0)
    rng, played = np.random.default_rng(0), np.zeros(16, int)
    for _ in range(20):
        for batch in collect_transitions(teacher, env, ActingRule("sample"), rng, 3):
            np.add.at(played, batch.streams, 1)
    assert played.tolist() == [20] * 16


def test_the_student_plays_its_environments(teacher: Teacher) -> None:
    """A student that always wants action 3 gets it in the first environments, nowhere else."""
    env = make_vector_env(BREAKOUT, 16)
    env.reset(0)

    def stubborn(observations: np.ndarray) -> np.ndarray:
        return np.tile(np.array([0, 0, 0, 99], np.float32), (len(observations), 1))

    taken: dict[bool, list[int]] = {True: [], False: []}
    for batch in collect_transitions(
        teacher,
        env,
        ActingRule("sample"),
        np.random.default_rng(0),
        1000,
        students=[stubborn],
        student_envs=6,
    ):
        assert batch.outcome is not None
        for stream, action in zip(batch.streams, batch.outcome.actions, strict=True):
            taken[bool(stream < 6)].append(int(action))
    assert set(taken[True]) == {3} and set(taken[False]) == {0, 1, 2, 3}


def test_transitions_of_several_steps_are_joined(teacher_zip: Path) -> None:
    """They are those of single steps, in their order; the critic sees them together."""
    teacher = load_teacher(teacher_zip)

    def played(joined: int) -> list[TransitionBatch]:
        env = make_vector_env("CartPole-v1", 4)
        env.reset(0)
        rng, rule = np.random.default_rng(0), ActingRule("sample")
        return list(collect_transitions(teacher, env, rule, rng, 70, joined=joined))

    single, joined = played(1), played(20)
    assert [len(batch) for batch in single] == 18 * [4]
    assert [len(batch) for batch in joined] == [20, 20, 20, 12]
    for name in ("observations", "ages", "streams", "labels", "values"):
        alone, together = (
            np.concatenate([np.asarray(getattr(batch, name)) for batch in batches])
            for batches in (single, joined)
        )
        np.testing.assert_allclose(together, alone, atol=1e-6)
    for name in ("actions", "log_probs", "rewards", "ended", "game_returns"):
        alone, together = (
            np.concatenate([getattr(batch.outcome, name) for batch in batches])
            for batches in (single, joined)
        )
        np.testing.assert_array_equal(together, alone)


class Undecided(torch.nn.Module):
    """A teacher with the same logits for every state: action 1 is worth a little more."""

    def __init__(self) -> None:
        super().__init__()
        self.actions = Discrete(2)
        self.judges_apart = False
        self.row = torch.nn.Parameter(torch.tensor([0.0, math.log(2.0)]))

    def forward(self, observations: Tensor) -> TeacherOutputs:
        count = len(observations)
        return TeacherOutputs(self.row.expand(count, 2), torch.zeros(count))


def play_of_half(sharpness: float) -> list[TransitionBatch]:
    """Six games of CartPole, three of them the student's, whose logits are log 3 apart."""

    def student(observations: np.ndarray) -> np.ndarray:
        return np.tile(np.array([0.0, math.log(3.0)], np.float32), (len(observations), 1))

    env = make_vector_env("CartPole-v1", 6)
    env.reset(0)
    teacher, rng = cast(Teacher, Undecided()), np.random.default_rng(0)
    rule = ActingRule("sample", sharpness=sharpness)
    played = collect_transitions(teacher, env, rule, rng, 60, students=[student], student_envs=3)
    return list(played)


@pytest.mark.parametrize("sharpness", [1.0, 2.0])
def test_sharpness_is_the_teachers_alone(sharpness: float) -> None:
    """Chances of action 1: the student's 3 / (1 + 3), the teacher's 2^s / (1 + 2^s)."""
    chances = {True: 3 / 4, False: 2**sharpness / (1 + 2**sharpness)}
    for batch in play_of_half(sharpness):
        assert batch.outcome is not None
        for stream, action, log_prob in zip(
            batch.streams, batch.outcome.actions, batch.outcome.log_probs, strict=True
        ):
            chance = chances[bool(stream < 3)]
            assert log_prob == pytest.approx(math.log(chance if action == 1 else 1 - chance))
        labels = torch.tensor([[0.0, math.log(2.0)]]).expand(len(batch.streams), 2)
        assert torch.equal(batch.labels, labels)  # what is learned is not sharpened


def test_play_draws_the_same_numbers_at_any_sharpness() -> None:
    """Gumbel-max: one number for each logit, so the student's first actions do not change."""
    first = [play_of_half(sharpness)[0].outcome for sharpness in (1.0, 2.0)]
    assert first[0] is not None and first[1] is not None
    assert first[0].actions[:3].tolist() == first[1].actions[:3].tolist()
    np.testing.assert_array_equal(first[0].log_probs[:3], first[1].log_probs[:3])


def test_pytorch_keeps_its_threads(teacher: Teacher, tmp_path: Path) -> None:
    recipe = load_recipe("ci")
    stream = PlayStream(recipe, teacher, BREAKOUT, tmp_path / "replay.bin")
    before = torch.get_num_threads()
    stream.fill()
    assert torch.get_num_threads() == before
    assert len(stream.memory) == recipe.replay.capacity
    stream.close()


@pytest.mark.parametrize("asked", ["auto", "bf16"])
def test_q_values_are_labelled_in_float32_unless_bfloat16_is_asked_for(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breakout's are about 3, where bfloat16's steps are 0.016, the best two 0.03 apart."""
    monkeypatch.setattr("qpd.numerics.precision.has_bfloat16_units", lambda device: True)
    dqn = load_teacher("pretrained/dqn-BreakoutNoFrameskip-v4")
    recipe = load_recipe("ci", [f"collection.precision={asked}"])
    stream = PlayStream(recipe, dqn, BREAKOUT, tmp_path / "replay.bin")
    stream.collect(8)
    labels = stream.memory.gather(torch.from_numpy(stream.memory.transition_rows())).labels
    stream.close()
    steps = torch.finfo(torch.bfloat16).eps * 2  # between 2 and 4
    on_the_grid = bool((labels / steps == (labels / steps).round()).all())
    assert labels.min() >= 2 and labels.max() < 4
    assert on_the_grid == (asked == "bf16")


@pytest.mark.parametrize("num_envs", [6, 16])  # as many as are stepped by halves
def test_students_play_equal_shares_each_in_environments_of_its_own(num_envs: int) -> None:
    played: dict[int, set[int]] = {number: set() for number in range(3)}

    def student(number: int) -> StudentPolicy:
        """Return logits that say who it is: 10 times its number apart."""
        return lambda seen: np.tile(np.array([0.0, 10.0 + number], np.float32), (len(seen), 1))

    env = make_vector_env("CartPole-v1", num_envs)
    env.reset(0)
    teacher, rng = cast(Teacher, Undecided()), np.random.default_rng(0)
    students = [student(number) for number in range(3)]
    rule = ActingRule("sample")
    for batch in collect_transitions(
        teacher, env, rule, rng, 20 * num_envs, students=students, student_envs=6
    ):
        assert batch.outcome is not None
        for stream, action, log_prob in zip(
            batch.streams, batch.outcome.actions, batch.outcome.log_probs, strict=True
        ):
            if stream < 6 and action == 1:
                gap = -math.log(math.expm1(-log_prob))  # of two logits
                played[round(gap - 10.0)].add(int(stream))
    assert played == {0: {0, 3}, 1: {1, 4}, 2: {2, 5}}
