"""The teacher's play and the memory it fills: what phases 1 and 3 draw their batches from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qpd.actions import ActingRule
from qpd.environments.policy import Policy
from qpd.environments.registry import VectorEnvironment, make_vector_env
from qpd.environments.source import EnvironmentSource
from qpd.environments.transition import TransitionBatch
from qpd.numerics.precision import compute_precision
from qpd.numerics.random_seeds import generator, seed_for
from qpd.recipe.schema import Recipe
from qpd.recipe.training_phases import RewardSettings
from qpd.replay.advantages import PlayedStep, generalized_advantages
from qpd.replay.memory import ReplayMemory
from qpd.teachers import Teacher
from qpd.teachers.rollout_collector import OVERLAP_FROM, collect_transitions

_JOINED = 256  # transitions that are judged and stored together


@dataclass(frozen=True)
class Rollout:
    """A rollout: its ring rows, int64 `[n]`, and the returns, float64, of the games that ended."""

    rows: np.ndarray
    game_returns: np.ndarray


class PlayStream:
    """A rolling replay with the environment and the randomness that feed it, resumable exactly.

    The frames are in `frame_file`; `state_dict` holds all the rest. What a killed process wrote
    since the last checkpoint lies in spare rows, and is written again on resuming.
    """

    def __init__(
        self,
        recipe: Recipe,
        teacher: Teacher,
        environment: str | EnvironmentSource,
        frame_file: Path,
    ) -> None:
        settings = recipe.environment
        self.env: VectorEnvironment = make_vector_env(
            environment,
            settings.num_envs,
            num_threads=settings.num_threads,
            max_frames=settings.max_frames,
            background=settings.num_envs >= OVERLAP_FROM,
        )
        device = next(teacher.parameters()).device
        precision = recipe.collection.precision
        if precision == "auto" and teacher.actions.has_values:
            precision = "fp32"  # Q-values of 3, the best two 0.03 apart: bfloat16's steps are 0.016
        self._teacher = teacher.in_precision(compute_precision(precision, device))
        self._refresh_count = recipe.replay.refresh_count
        # One refresh, which may overshoot by a vector step, never touches what a checkpoint needs.
        # (A rollout may touch that: it draws from nothing but itself, and is played again.)
        spare = self._refresh_count + settings.num_envs
        self.memory = ReplayMemory(
            recipe.replay.capacity,
            settings.num_envs,
            self.env.spec.observation_shape,
            self.env.spec.frame_stack,
            teacher.actions,
            frame_file,
            spare,
            device,
            self.env.spec.pixels,
        )
        collection = recipe.collection
        self.student_envs = round(collection.student_fraction * settings.num_envs)
        asked = collection.acting
        self._rule = teacher.actions.rule(
            teacher.actions.exploring if asked == "auto" else asked,
            on_atari=self.env.spec.is_atari,
            epsilon=collection.epsilon,
            sharpness=collection.sharpness,
        )
        self._rng = generator(recipe.seed, "collection")
        self._seed = seed_for(recipe.seed, "collection")
        self._started = False

    def fill(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Let the teacher play until the memory is full (nothing to do if it is)."""
        missing = self.memory.capacity - len(self.memory)
        if missing > 0:
            self.collect(missing, (), on_progress)

    def refresh(self, students: Sequence[Policy] = ()) -> None:
        """Replace the oldest part of the memory; `students` act in their share of environments."""
        if self._refresh_count > 0:
            self.collect(self._refresh_count, students)

    def collect(
        self,
        count: int,
        students: Sequence[Policy] = (),
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Add at least `count` transitions, whole vector steps, to the memory."""
        # Of stacked frames each is found by the step before it: these are added step by step.
        joined = 1 if self.memory.stacks_frames else _JOINED
        for batch in self._play(students, self.student_envs, self._rule, count, joined):
            self.memory.add(batch)
            if on_progress is not None:
                on_progress(len(self.memory), self.memory.capacity)

    def rollout(self, student: Policy, settings: RewardSettings) -> Rollout:
        """Let the `student` play everywhere, sampling its actions, and note their advantages.

        They are normalised to mean 0 and deviation 1. On Atari rewards are clipped to their sign,
        as they were for the teacher, whose critic is the baseline.
        """
        rows, steps, returns = [], [], []
        rule = ActingRule("sample")
        for batch in self._play((student,), self.env.num_envs, rule, settings.rollout):
            assert batch.outcome is not None
            rewards = batch.outcome.rewards
            if self.env.spec.is_atari:
                rewards = np.sign(rewards)
            values = batch.values.numpy().astype(np.float64)
            rows.append(self.memory.add(batch))
            outcome = batch.outcome
            steps.append(PlayedStep(batch.streams, rewards, values, outcome.ended, outcome.cut))
            returns.append(outcome.game_returns)
        advantages = np.concatenate(
            generalized_advantages(steps, self.env.num_envs, settings.discount, settings.gae_lambda)
        )
        known = np.isfinite(advantages)
        usable, values = np.concatenate(rows)[known], advantages[known]
        self.memory.set_advantages(usable, (values - values.mean()) / (values.std() + 1e-8))
        finished = np.concatenate(returns)
        return Rollout(usable, finished[np.isfinite(finished)])

    def _play(
        self,
        students: Sequence[Policy],
        student_envs: int,
        rule: ActingRule,
        count: int,
        joined: int = 1,
    ) -> Iterator[TransitionBatch]:
        if not self._started:
            self.env.reset(self._seed)
            self._started = True
        return collect_transitions(
            self._teacher,
            self.env,
            rule,
            self._rng,
            count,
            students=students,
            student_envs=student_envs,
            joined=joined,
        )

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors, and what JSON can hold."""
        tensors = {f"replay.{k}": v for k, v in self.memory.state_dict().items()}
        for name, array in self.env.get_state().items():
            tensors[f"environment.{name}"] = torch.from_numpy(np.ascontiguousarray(array))
        plain = {
            "rng": json.dumps(self._rng.bit_generator.state),
            "frame_bytes": self.memory.frame_bytes,
        }
        return tensors, plain

    def load_state_dict(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; play continues from there."""
        self.memory.load_state_dict(_without_prefix(tensors, "replay."))
        state = _without_prefix(tensors, "environment.")
        self.env.set_state({name: tensor.numpy() for name, tensor in state.items()})
        self._rng.bit_generator.state = json.loads(plain["rng"])
        self._started = True

    def close(self) -> None:
        """Release the emulators."""
        self.env.close()


def _without_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
