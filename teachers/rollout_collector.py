"""Teacher play as a stream of transitions; limits and statistics belong to the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from qpd.acting import ActingRule
from qpd.environment import VectorEnvironment
from qpd.transition import StepOutcome, TransitionBatch
from teachers.sb3_teacher import Teacher


def collect_transitions(
    teacher: Teacher,
    env: VectorEnvironment,
    rule: ActingRule,
    rng: np.random.Generator,
    *,
    student: Callable[[np.ndarray], np.ndarray] | None = None,
    student_envs: int = 0,
) -> Iterator[TransitionBatch]:
    """Yield one batch per vector step, for ever; `env` has already taken the step it tells of.

    The teacher labels every observation, with one forward pass. It also acts, by `rule`, except in
    the first `student_envs` environments: there the `student` acts (DAgger, Ross et al. 2011), if
    given, a function from observations `[batch, ...]` to logits float32 `[batch, num_actions]`.
    """
    device = next(teacher.parameters()).device
    while True:
        streams = np.flatnonzero(env.acting)
        observations = env.observations[streams]
        ages = env.age[streams].copy()
        with torch.inference_mode():
            outputs = teacher(torch.from_numpy(observations).to(device))
        logits, values = outputs.logits.cpu(), outputs.values.cpu()
        acting_logits = logits.numpy()
        by_student = streams < student_envs
        if student is not None and by_student.any():
            acting_logits = acting_logits.copy()
            acting_logits[by_student] = student(observations[by_student])
        actions = np.zeros(env.num_envs, np.int64)
        actions[streams] = rule.act(acting_logits, rng)
        step = env.step(actions)
        if len(streams):
            ended = (step.terminated | step.truncated)[streams]
            outcome = StepOutcome(
                actions[streams],
                rule.log_probs(acting_logits, actions[streams]),
                step.rewards[streams],
                ended,
                np.where(step.game_over, step.game_returns, np.nan)[streams],
            )
            yield TransitionBatch(observations, ages, streams, logits, values, outcome)
