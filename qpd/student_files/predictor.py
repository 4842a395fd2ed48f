"""Students with the `predict` of Stable-Baselines3, for tools made for SB3 policies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from qpd.actions import ActingRule
from qpd.environments.observation import ShownObservations
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
        self,
        policy: Policy,
        architecture: StudentArchitecture,
        rule: ActingRule,
        seed: int = 0,
        observation_space: spaces.Space[Any] | None = None,
    ) -> None:
        """Act with `policy`; with `observation_space`, on what the environment itself shows.

        Raises StudentFileError for a space that shows something else than the student sees.
        """
        self.policy, self.architecture, self.rule = policy, architecture, rule
        self._rng = np.random.default_rng(seed)
        self._space = observation_space
        self._shown: ShownObservations | None = None
        if observation_space is not None:
            self._shown = ShownObservations(observation_space, "observation_space")
            if self._shown.shape != architecture.observation_shape:
                raise StudentFileError(
                    f"observation_space: {observation_space} shows {self._shown.shape}; this "
                    f"student sees {architecture.observation_shape}"
                )

    def set_random_seed(self, seed: int) -> None:
        """Restart the random numbers behind the actions."""
        self._rng = np.random.default_rng(seed)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, Any]:
        """Return actions `[batch, ...]`, or one for a single observation, and `state` unchanged.

        Images are uint8, channels first `[4, 84, 84]` or last `[84, 84, 4]`; vectors are
        `[features]`; each alone or in a batch. With an `observation_space` they are the
        environment's own: a Dict, a whole number, an array of any shape. `episode_start` is
        ignored: students have no memory. Raises ValueError for other shapes, and for frames that
        are not uint8.
        """
        batch, is_single = self._batch(observation)
        rule = ActingRule("greedy") if deterministic else self.rule
        space = self.policy.actions
        actions = space.act(self.policy(batch), rule, self._rng).astype(space.dtype)
        # SB3 returns a 0-d array for a single choice, which gymnasium's step takes as an int.
        return (actions[0].reshape(space.shape) if is_single else actions), state

    def outputs(self, observation: Any) -> np.ndarray:
        """Return outputs (logits) float32 `[batch, num_outputs]`; observations as in `predict`."""
        return self.policy(self._batch(observation)[0])

    def _batch(self, observation: Any) -> tuple[np.ndarray, bool]:
        if self._shown is not None:
            return self._shown_batch(self._shown, observation)
        shape = self.architecture.observation_shape
        if isinstance(observation, Mapping):
            raise ValueError(
                f"a Dict: this student sees its parts as one array {shape}: load it with "
                "load_student_policy(..., observation_space=env.observation_space)"
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
                f"{' or '.join(map(str, accepted))}, alone or in a batch; to show it the "
                "environment's own, load it with observation_space=env.observation_space"
            )
        if batch.shape[1:] != shape:
            batch = batch.transpose(0, 3, 1, 2)
        # Vectors may come as float64; the student learned from float32.
        dtype = np.uint8 if self.architecture.is_image else np.float32
        return np.ascontiguousarray(batch, dtype), is_single

    def _shown_batch(self, shown: ShownObservations, observation: Any) -> tuple[np.ndarray, bool]:
        """Write one of the environment's observations, or a batch, as the student sees them."""
        ones, is_single = _apart(self._space, observation)
        batch = np.zeros((len(ones), *shown.shape), shown.dtype)
        for one, into in zip(ones, batch, strict=True):
            shown.push(one, into)
        return batch, is_single


def _apart(space: spaces.Space[Any] | None, observation: Any) -> tuple[list[Any], bool]:
    """Return the observations of a batch one by one, and whether it is none, but one alone."""
    assert space is not None
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, Mapping) or not set(space.spaces) <= set(observation):
            raise ValueError(f"observation: expected a Dict with {', '.join(space.spaces)}")
        parts = {key: _apart(part, observation[key]) for key, part in space.spaces.items()}
        if len({(len(ones), is_single) for ones, is_single in parts.values()}) > 1:
            raise ValueError("observation: a Dict whose parts are batches of unlike lengths")
        rows = zip(*(ones for ones, _ in parts.values()), strict=True)
        is_single = all(is_one for _, is_one in parts.values())
        return [dict(zip(parts, row, strict=True)) for row in rows], is_single
    found = np.asarray(observation)
    if found.shape == space.shape:
        return [found], True
    if found.shape[1:] == space.shape and found.ndim:
        return list(found), False
    raise ValueError(
        f"observation: of shape {found.shape}: expected one of {space}, or a batch of them"
    )


def load_student_policy(
    path: str | os.PathLike[str],
    seed: int = 0,
    observation_space: spaces.Space[Any] | None = None,
) -> StudentPredictor:
    """Load the student of a run directory, the quantized one if there is one, or of a single file.

    The files are `quantized.safetensors`, `ptq.safetensors` and `distilled.safetensors`, preferred
    in this order. `seed` decides the actions of `predict(..., deterministic=False)`. Where an
    environment shows a Dict, whole numbers or arrays, its student sees one flat array; with
    `observation_space`, the environment's, it takes them as they are. Raises StudentFileError, and
    EnvironmentConfigError for a space that no policy sees.
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
    return StudentPredictor(policy, stored_architecture(file), rule, seed, observation_space)


def _student_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    names = ("quantized.safetensors", "ptq.safetensors", "distilled.safetensors")
    for name in names:
        if (path / name).is_file():
            return path / name
    raise StudentFileError(f"{path}: contains no student: none of {', '.join(names)}")
