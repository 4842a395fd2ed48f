"""Students with the `predict` of Stable-Baselines3, for tools made for SB3 policies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qpd.actions import ActingRule
from qpd.environments.policy import Policy, network_policy
from qpd.integer.integer_student import IntegerEngine
from qpd.student_files.distilled import (
    StudentFileError,
    load_student,
    stored_architecture,
    stored_format,
)
from qpd.student_files.origin import student_actions
from qpd.student_files.quantized import FORMAT as INTEGER_FORMAT
from qpd.student_files.quantized import load_integer_student
from qpd.students import StudentArchitecture


class StudentPredictor:
    """A student that acts as SB3's agents do.

    `deterministic` takes the likeliest action; otherwise it samples, or for students of DQN takes
    the best one but a uniform action with probability 0.01.
    """

    def __init__(
        self, policy: Policy, architecture: StudentArchitecture, rule: ActingRule, seed: int = 0
    ) -> None:
        self.policy, self.architecture, self.rule = policy, architecture, rule
        self._rng = np.random.default_rng(seed)

    def set_random_seed(self, seed: int) -> None:
        """Restart the random numbers behind the actions."""
        self._rng = np.random.default_rng(seed)

    def predict(
        self,
        observation: np.ndarray,
        state: Any = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, Any]:
        """Return actions `[batch, ...]`, or one for a single observation, and `state` unchanged.

        Images are uint8, channels first `[4, 84, 84]` or last `[84, 84, 4]`; vectors are
        `[features]`; each alone or in a batch. `episode_start` is ignored: students have no memory.
        Raises ValueError for other shapes, and for frames that are not uint8.
        """
        batch, is_single = self._batch(observation)
        rule = ActingRule("greedy") if deterministic else self.rule
        space = self.policy.actions
        actions = space.act(self.policy(batch), rule, self._rng).astype(space.dtype)
        # SB3 returns a 0-d array for a single choice, which gymnasium's step takes as an int.
        return (actions[0].reshape(space.shape) if is_single else actions), state

    def outputs(self, observation: np.ndarray) -> np.ndarray:
        """Return outputs (logits) float32 `[batch, num_outputs]`; observations as in `predict`."""
        return self.policy(self._batch(observation)[0])

    def _batch(self, observation: np.ndarray) -> tuple[np.ndarray, bool]:
        shape = self.architecture.observation_shape
        if isinstance(observation, Mapping):
            raise ValueError(
                f"a Dict: this student sees its parts as one vector {shape}, in the order that its "
                "exports tell; an exported agent (--format sb3) takes the Dict itself"
            )
        observation = np.asarray(observation)
        accepted = [shape]
        if self.architecture.is_image:
            # SB3's VecFrameStack puts channels last; VecTransposeImage puts them first again.
            accepted.append((*shape[1:], shape[0]))
            if observation.dtype != np.uint8:
                raise ValueError(f"frames are {observation.dtype}: this student sees uint8")
        is_single = observation.ndim == len(shape)
        batch = observation[None] if is_single else observation
        if batch.shape[1:] not in accepted:
            raise ValueError(
                f"observation of shape {observation.shape}: this student sees "
                f"{' or '.join(map(str, accepted))}, alone or in a batch"
            )
        if batch.shape[1:] != shape:
            batch = batch.transpose(0, 3, 1, 2)
        # Vectors may come as float64; the student learned from float32.
        dtype = np.uint8 if self.architecture.is_image else np.float32
        return np.ascontiguousarray(batch, dtype), is_single


def load_student_policy(path: str | os.PathLike[str], seed: int = 0) -> StudentPredictor:
    """Load the student of a run directory, the quantized one if there is one, or of a single file.

    The files are `quantized.safetensors`, `ptq.safetensors` and `distilled.safetensors`, preferred
    in this order. `seed` decides the actions of `predict(..., deterministic=False)`. Raises
    StudentFileError.
    """
    file = _student_file(Path(path))
    policy: Policy
    actions = student_actions(file)
    if stored_format(file) == INTEGER_FORMAT:
        policy = IntegerEngine(load_integer_student(file))
    else:
        policy = network_policy(load_student(file), actions)
    # Sharpness 1: the temperature and the recipe's sharpness are folded into the head already.
    rule = ActingRule(actions.exploring)
    return StudentPredictor(policy, stored_architecture(file), rule, seed)


def _student_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    names = ("quantized.safetensors", "ptq.safetensors", "distilled.safetensors")
    for name in names:
        if (path / name).is_file():
            return path / name
    raise StudentFileError(f"{path}: contains no student: none of {', '.join(names)}")
