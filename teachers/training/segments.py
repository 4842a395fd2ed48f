"""A training in segments, each of which ends at a checkpoint and can be repeated exactly.

At a checkpoint all episodes are abandoned, and environments and random generators begin anew with
a seed made of the training's seed and the steps done. A training that resumes there begins the
segment in the same way, so that its numbers are those of one that was never interrupted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from sb3_contrib import ARS
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import set_random_seed

from qpd.environments.making import is_playable_atari
from qpd.numerics.gradient_exponents import GradientExponents
from qpd.recipe.train_schema import TrainSettings
from qpd.teachers.training.checkpoint import read_state, restore_checkpoint, save_checkpoint
from qpd.teachers.training.controller import AgentController
from qpd.teachers.training.gradient_counts import GradientCounts
from qpd.teachers.training.optimizers import only_skipped
from qpd.teachers.training.quantization_aware import AgentQuantizers

NUM_CHECKPOINTS = 20  # of a training, unless the recipe says otherwise
# Each checkpoint abandons the episodes under way: a segment must be long beside them, of each
# environment.
LEAST_BETWEEN = 10_000
# One game of Pong has 1,500 to 6,000 agent steps.
LEAST_BETWEEN_OF_ATARI = 6_250
_NUM_ROWS = 500
_LEAST_STEPS = 100  # between rows of metrics
_MOST_SKIPPED = 1000  # updates, before any was taken: a dynamic scale has long ended its fall


class TrainingListener(Protocol):
    """Hears how a training goes, and keeps a run directory by it."""

    def stepped(self, timesteps: int) -> None:
        """Hear of every step of the environments."""

    def game(self, game_return: float, length: int) -> None:
        """Hear of a finished episode: its undiscounted return, as the environment gives it."""

    def logged(self, timesteps: int, values: Mapping[str, float]) -> None:
        """Hear of a row of numbers, by Stable-Baselines3's names."""

    def counted(
        self,
        timesteps: int,
        loss_scale: float,
        weights: GradientExponents,
        activations: GradientExponents,
    ) -> None:
        """Hear of the gradients that were counted since the last time, and of the scale now."""

    def marks(self) -> dict[str, Any]:
        """Return what a checkpoint is to hold for the listener: JSON types."""

    def saved(self, timesteps: int) -> None:
        """Hear that a checkpoint is on the disk."""

    def resumed(self, timesteps: int, has_replay: bool) -> None:
        """Hear that the training goes on from a checkpoint, with the replay buffer or without."""


def steps_between(train: TrainSettings, total: int, num_envs: int) -> int:
    """Return the agent steps between checkpoints of a training of `total` steps."""
    least = LEAST_BETWEEN_OF_ATARI if is_playable_atari(train.env) else LEAST_BETWEEN
    return train.checkpoint_every or max(least * num_envs, math.ceil(total / NUM_CHECKPOINTS))


class SegmentCallback(BaseCallback):
    """Saves checkpoints below `folder`, resumes from `checkpoint`, and tells the listener."""

    def __init__(
        self,
        train: TrainSettings,
        seed: int,
        total: int,
        folder: Path,
        listener: TrainingListener,
        checkpoint: Path | None,
        quantizers: AgentQuantizers | AgentController | None = None,
        gradients: GradientCounts | None = None,
    ) -> None:
        super().__init__()
        self._gradients = gradients
        self._train, self._seed, self._folder, self._listener = train, seed, folder, listener
        self._checkpoint, self._quantizers = checkpoint, quantizers
        self._total = total
        self._row_every = max(_LEAST_STEPS, math.ceil(total / _NUM_ROWS))
        self._next_checkpoint = self._next_row = 0
        self._begins = False  # a segment that has not begun: a resumed one

    def _init_callback(self) -> None:
        self._between = steps_between(self._train, self._total, self.model.n_envs)
        # With a logger of ours SB3 writes nothing to stdout.
        self.model.set_logger(Logger(None, [_Rows(self._listener)]))

    def _on_training_start(self) -> None:
        starts_trained = self._train.start_from is not None
        is_off_policy = isinstance(self.model, OffPolicyAlgorithm)
        learning_starts: int = getattr(self.model, "learning_starts", 0)
        if self._checkpoint is not None:
            has_replay = restore_checkpoint(self._checkpoint, self.model, self._quantizers)
            begins = read_state(self._checkpoint).get("learns_from") or learning_starts
            if not has_replay:
                play_before_learning(self.model, learning_starts + self.model.num_timesteps)
            elif is_off_policy and (starts_trained or begins != learning_starts):
                play_before_learning(self.model, begins)
            self._listener.resumed(self.model.num_timesteps, has_replay)
            if isinstance(self.model, ARS):  # it draws before its episodes begin
                self._seed_all()
            else:
                self._begins = True
        elif starts_trained and is_off_policy:
            play_before_learning(self.model, learning_starts)
        self._schedule()

    def _on_rollout_start(self) -> None:
        # Parameters have been updated from all that was seen, and nothing new is seen yet.
        is_due = self.model.num_timesteps >= self._next_checkpoint
        if is_due:
            self._tell_gradients()
            self._check_parameters()
            self.model.dump_logs()  # what is logged later belongs to the next segment
            limit = self._train.max_replay_mib << 20
            marks = self._listener.marks()
            keep = self._train.keep_checkpoints
            if self._gradients is not None:
                self._gradients.begin_segment()
            save_checkpoint(self._folder, self.model, limit, keep, marks, self._quantizers)
            self._listener.saved(self.model.num_timesteps)
            self._schedule()
        if (is_due or self._begins) and not isinstance(self.model, ARS):
            self._begins = False
            self._seed_all()
            begin_episodes(self.model)

    def _on_step(self) -> bool:
        timesteps = self.model.num_timesteps
        for info in self.locals.get("infos", ()):
            if "episode" in info:
                self._listener.game(float(info["episode"]["r"]), int(info["episode"]["l"]))
        if timesteps >= self._next_row:
            self._next_row = (timesteps // self._row_every + 1) * self._row_every
            self._tell_gradients()
            self._check_parameters()
            self.model.dump_logs()
        self._listener.stepped(timesteps)
        return True

    def _on_training_end(self) -> None:
        self._tell_gradients()
        if self._gradients is not None:  # the last row has the last counts
            self.model.dump_logs()
        self._check_parameters(is_end=True)

    def _tell_gradients(self) -> None:
        counted = None if self._gradients is None else self._gradients.take()
        if counted is not None:
            self._listener.counted(self.model.num_timesteps, *counted)

    def _check_parameters(self, is_end: bool = False) -> None:
        """Raise ArithmeticError if a parameter is no longer finite, or nothing was ever learned.

        SB3 need not notice the first; the second is where few bits have every update skipped.
        """
        for name, parameter in self.model.policy.named_parameters():
            if not parameter.isfinite().all():
                raise ArithmeticError(f"policy.{name} is no longer finite")
        skipped = only_skipped(self.model.policy)
        if skipped >= (1 if is_end else _MOST_SKIPPED):
            raise ArithmeticError(
                f"all {skipped:,} updates were skipped, as their gradients are not finite in this "
                "format, or at this loss scale"
            )

    def _on_rollout_end(self) -> None:
        if not isinstance(self.model, ARS):
            return
        for game in self.model.ep_info_buffer or ():  # of all candidates; no infos reach us here
            self._listener.game(float(game["r"]), int(game["l"]))
        # Its next candidates are drawn before `_on_rollout_start`, which then saves.
        if self.model.num_timesteps >= self._next_checkpoint:
            self._seed_all()

    def _schedule(self) -> None:
        done = self.model.num_timesteps
        self._next_checkpoint = (done // self._between + 1) * self._between
        self._next_row = (done // self._row_every + 1) * self._row_every

    def _seed_all(self) -> None:
        parts = np.random.SeedSequence([self._seed, self.model.num_timesteps])
        seed = int(parts.generate_state(1)[0]) & (2**30 - 1)
        set_random_seed(seed, using_cuda=self.model.device.type == "cuda")
        self.model.action_space.seed(seed)
        assert self.model.env is not None
        self.model.env.seed(seed)


def begin_episodes(model: BaseAlgorithm) -> None:
    """Begin new episodes in all environments, as SB3 does when it begins to learn."""
    env: Any = model.env
    assert env is not None
    if isinstance(model, OffPolicyAlgorithm):
        _end_last_transition(model.replay_buffer)
    model._last_obs = env.reset()
    model._last_episode_starts = np.ones((env.num_envs,), dtype=bool)
    normalize = model.get_vec_normalize_env()
    if normalize is not None:
        model._last_original_obs = normalize.get_original_obs()
    if model.action_noise is not None:
        model.action_noise.reset()
    if model.use_sde:
        noisy: Any = model.policy if isinstance(model, OnPolicyAlgorithm) else model.policy.actor
        noisy.reset_noise(env.num_envs)


def _end_last_transition(buffer: ReplayBuffer | None) -> None:
    """Let no sample reach from an abandoned episode into the next one."""
    if buffer is None or not (buffer.full or buffer.pos):
        return
    last = buffer.pos - 1
    if isinstance(buffer, HerReplayBuffer):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it will be truncated
            buffer.truncate_last_trajectory()
    elif buffer.optimize_memory_usage:
        # One array holds observations and their successors: the last one has none.
        buffer.dones[last] = True
    elif isinstance(buffer, NStepReplayBuffer):
        # As at a time limit: returns of n steps end here, and bootstrap from its successor.
        # A time limit that fell on this step has both marks already.
        ends = np.logical_not(buffer.dones[last])
        buffer.timeouts[last] = np.maximum(buffer.timeouts[last], ends)


def play_before_learning(model: BaseAlgorithm, learning_starts: int) -> None:
    """Let an off-policy agent fill its replay buffer by its own play until `learning_starts`.

    Stable-Baselines3 would fill it at random, as for an agent that knows nothing. What is saved is
    the number that the model has now: it counts from step 0 of a training, not from a resumption.
    """
    assert isinstance(model, OffPolicyAlgorithm)
    algorithm: Any = type(model)
    asked, model.learning_starts = model.learning_starts, learning_starts

    class Resumed(algorithm):  # a class is not saved with the agent, a changed method is
        def _sample_action(
            self, learning_starts: int, *arguments: Any, **options: Any
        ) -> tuple[np.ndarray, np.ndarray]:
            actions: tuple[np.ndarray, np.ndarray] = super()._sample_action(
                0, *arguments, **options
            )
            return actions

        def save(self, *arguments: Any, **options: Any) -> None:
            self.learning_starts = asked
            try:
                super().save(*arguments, **options)
            finally:
                self.learning_starts = learning_starts

    model.__class__ = Resumed


class _Rows(KVWriter):
    """Hands SB3's rows to the listener, numbers alone."""

    def __init__(self, listener: TrainingListener) -> None:
        self._listener = listener

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0
    ) -> None:
        """Hand one on."""
        found = {key: value for key, value in key_values.items() if np.ndim(value) == 0}
        numbers = {key: float(value) for key, value in found.items() if not isinstance(value, str)}
        self._listener.logged(step, numbers)

    def close(self) -> None:
        """Nothing is open."""
