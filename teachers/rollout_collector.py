"""Teacher play as a stream of transitions; statistics are the caller's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from qpd.actions import ActingRule
from qpd.environments.registry import VectorEnvironment, VectorStep
from qpd.environments.transition import StepOutcome, TransitionBatch
from qpd.teachers.sb3_teacher import Teacher, check_outputs

StudentPolicy = Callable[[np.ndarray], np.ndarray]
OVERLAP_FROM = 16  # fewer environments than this are stepped all at once


@dataclass(frozen=True)
class _Decision:
    """The observations of, and decisions in, the environments that are now being stepped.

    A row for each of the `streams` that acted: int64; `observations` and `ages` as the environment
    had them; the teacher's `labels`, and its `values` unless it judges apart; `actions` `[n, ...]`,
    `log_probs` float32.
    """

    streams: np.ndarray
    observations: np.ndarray
    ages: np.ndarray
    labels: Tensor
    values: Tensor | None
    actions: np.ndarray
    log_probs: np.ndarray

    def outcome(self, step: VectorStep) -> StepOutcome:
        """Return what `step` made of the decisions."""
        streams = self.streams
        return StepOutcome(
            self.actions,
            self.log_probs,
            step.rewards[streams],
            (step.terminated | step.truncated)[streams],
            (step.truncated & ~step.terminated)[streams],
            np.where(step.game_over, step.game_returns, np.nan)[streams],
        )


def collect_transitions(
    teacher: Teacher,
    env: VectorEnvironment,
    rule: ActingRule,
    rng: np.random.Generator,
    count: int,
    *,
    students: Sequence[StudentPolicy] = (),
    student_envs: int = 0,
    joined: int = 1,
) -> Iterator[TransitionBatch]:
    """Yield batches of at least `count` transitions in all, those of the last vector step included.

    A batch holds one vector step's, or of several as many as are to be `joined`: whoever stores
    them, and a teacher whose critic shares nothing with its actor, then works once for all.

    Two halves of the environments take turns: while one is emulated, the teacher thinks about the
    other; the last vector step is one of both. Nothing is in flight when the last batch is yielded;
    all of them must be drawn.

    The teacher labels every observation, with one forward pass. It also acts, by `rule`, except in
    the first `student_envs` environments: there `students` act (DAgger, Ross et al. 2011), if
    given, functions from observations `[batch, ...]` to outputs float32 `[batch, num_outputs]`. Of
    n students number k acts in environments k, k + n, k + 2n and so on.
    The rule's sharpness is the teacher's alone: a student's outputs come with its own folded in.
    Raises TeacherError where the teacher's outputs are not finite.
    """
    halves = 2 if env.num_envs >= OVERLAP_FROM else 1
    groups = [np.arange(env.num_envs) % halves == half for half in range(halves)]
    flying: deque[_Decision] = deque()
    ended: list[tuple[_Decision, StepOutcome]] = []
    begun, turn = 0, 0
    with _beside_emulators():
        while (wants := begun < count or turn % halves != 0) or flying:
            if wants and len(flying) < halves:
                group = groups[turn % halves]
                decision = _decide(teacher, env, group, rule, rng, students, student_envs)
                actions = env.spec.actions.empty(env.num_envs)
                actions[decision.streams] = decision.actions
                env.begin_step(actions, group)
                flying.append(decision)
                begun += len(decision.streams)
                turn += 1
            else:
                decision = flying.popleft()
                outcome = decision.outcome(env.finish_step())
                if len(decision.streams):  # else all of the group were forced
                    ended.append((decision, outcome))
                is_last = not wants and not flying
                if ended and (is_last or sum(len(one.streams) for one, _ in ended) >= joined):
                    yield _joined(teacher, ended)
                    ended.clear()


def _decide(
    teacher: Teacher,
    env: VectorEnvironment,
    group: np.ndarray,
    rule: ActingRule,
    rng: np.random.Generator,
    students: Sequence[StudentPolicy],
    student_envs: int,
) -> _Decision:
    """Label the group's observations, and choose its actions."""
    streams = np.flatnonzero(env.acting & group)
    # Fancy indexing copies: the environment overwrites its observations while the batch is used.
    observations = env.observations[streams]
    with torch.inference_mode():
        seen = torch.from_numpy(observations).to(next(teacher.parameters()).device)
        values: Tensor | None = None
        if teacher.judges_apart:
            labels = teacher.act(seen).cpu()
        else:
            labels, values = (each.cpu() for each in teacher(seen))
            check_outputs(teacher, "values", values)
        check_outputs(teacher, "outputs", labels)
        acting = rule.sharpness * labels.numpy().astype(np.float64)
        count = teacher.actions.num_outputs
        for number, student in enumerate(students):
            its = (streams < student_envs) & (streams % len(students) == number)
            if its.any():
                acting[its, :count] = student(observations[its])
                acting[its, count:] = -np.inf  # of a deviation: students act by their means
    as_they_are = replace(rule, sharpness=1.0)
    actions = teacher.actions.act(acting, as_they_are, rng)
    return _Decision(
        streams,
        observations,
        # begin_step and finish_step change `age` in place.
        env.age[streams].copy(),
        labels,
        values,
        actions,
        teacher.actions.log_probs(acting, actions, as_they_are),
    )


def _joined(teacher: Teacher, ended: Sequence[tuple[_Decision, StepOutcome]]) -> TransitionBatch:
    """Join decisions and their outcomes, which the teacher judges where it has not."""
    first, outcome = ended[0]
    observations, ages, streams, labels = (
        first.observations, first.ages, first.streams, first.labels
    )  # fmt: skip
    if len(ended) > 1:
        decisions, outcomes = zip(*ended, strict=True)
        observations = np.concatenate([one.observations for one in decisions])
        ages = np.concatenate([one.ages for one in decisions])
        streams = np.concatenate([one.streams for one in decisions])
        labels = torch.cat([one.labels for one in decisions])
        fields = StepOutcome.__dataclass_fields__
        parts = ([getattr(one, name) for one in outcomes] for name in fields)
        outcome = StepOutcome(*(np.concatenate(part) for part in parts))
    if first.values is not None:
        values = torch.cat([one.values for one, _ in ended if one.values is not None])
    else:
        device = next(teacher.parameters()).device
        with torch.inference_mode():
            seen = torch.from_numpy(observations).to(device)
            values = teacher.judge(seen, labels.to(device)).cpu()
        check_outputs(teacher, "values", values)
    return TransitionBatch(observations, ages, streams, labels, values, outcome)


@contextmanager
def _beside_emulators() -> Iterator[None]:
    """Halve PyTorch's threads: with all, every layer of the teacher waits for a free core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // 2))
    try:
        yield
    finally:
        torch.set_num_threads(threads)
