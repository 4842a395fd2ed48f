"""Compute what a device returns for the head's accumulators: codes, choices or switches."""

from __future__ import annotations

import numpy as np

from qpd.actions import ActingRule, Box
from qpd.integer.action_codes import action_codes
from qpd.integer.integer_student import IntegerStudent


def device_actions(student: IntegerStudent, accumulators: np.ndarray) -> np.ndarray:
    """Return the best actions as integers, `[n, numbers]`; `accumulators` int32 `[n, num_outputs]`.

    Codes of continuous actions (uint8), the choice of each part, 0 or 1 for each switch (int64); a
    single choice among several has one number.
    """
    if student.action_thresholds is not None:
        return action_codes(accumulators, student.action_thresholds)
    # float64 holds every int32: no two accumulators become equal.
    chosen = student.actions.act(
        accumulators.astype(np.float64), ActingRule("greedy"), np.random.default_rng(0)
    )
    return chosen.reshape(len(accumulators), -1)


def environment_actions(student: IntegerStudent, accumulators: np.ndarray) -> np.ndarray:
    """Return the same as the environment takes them, `[n, *shape]` of the actions' dtype."""
    actions, numbers = student.actions, device_actions(student, accumulators)
    if isinstance(actions, Box):
        return actions.as_codes().scaled(code_shares(student)[numbers])
    return numbers.reshape(-1, *actions.shape).astype(actions.dtype)


def code_shares(student: IntegerStudent) -> np.ndarray:
    """Return what each code stands for, float32 `[2^action_bits]` from -1 to 1, as the engine."""
    top = 2**student.action_bits - 1
    return 2.0 * np.arange(top + 1, dtype=np.float32) / np.float32(top) - 1.0
