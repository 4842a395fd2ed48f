"""The RL Zoo's training of Atari agents, on QPD's environments, in bfloat16 where it is native."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.vec_env import VecEnv

from qpd.numerics.precision import compute_precision
from qpd.teachers.training.atari_vec_env import AtariVecEnv

# One Atari game is too few for a vector environment. DQN keeps the zoo's ratio of updates to steps:
# 4 steps in each of 8 games, then 8 updates, instead of 4 steps in one game, then one.
VECTOR_SETTINGS = {algo: {"n_envs": 8, "gradient_steps": 8} for algo in ("dqn", "qrdqn")}
_CHECKPOINT = re.compile(r"rl_model_(\d+)_steps\.zip")


class AtariManager(ExperimentManager):
    """The zoo's manager, with its own vector environment for Atari games.

    Hyperparameters, folders and files stay the zoo's. `resume_from` is a checkpoint that an
    interrupted training left in its folder, which is then written to again.
    """

    def __init__(self, *arguments: Any, resume_from: Path | None = None, **options: Any) -> None:
        """Set up the zoo's manager; arguments are ExperimentManager's."""
        super().__init__(*arguments, **options)
        self._resume_from = resume_from
        if resume_from is not None:
            self.save_path = str(resume_from.parent)
            self.params_path = f"{self.save_path}/{self.env_name}"

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        """Create all games in one vector environment, with SB3's preprocessing."""
        resumed = 0 if self._resume_from is None else checkpoint_steps(self._resume_from)
        monitor = None if eval_env or no_log else Path(self.save_path) / str(resumed)
        # Another seed after resuming: the same one would repeat the games that were already learned
        # from.
        return AtariVecEnv(self.env_name.gym_id, n_envs, (self.seed + resumed) % 2**30, monitor)

    def setup_experiment(self) -> tuple[BaseAlgorithm, dict[str, Any]] | None:
        """Build the model; go on from the checkpoint, if any."""
        prepared = super().setup_experiment()
        if prepared is None:
            return None
        model, _ = prepared
        if self._resume_from is not None:
            model.set_parameters(str(self._resume_from), device=model.device)
            model.num_timesteps = checkpoint_steps(self._resume_from)
            if isinstance(model, OffPolicyAlgorithm):  # its replay buffer is empty again
                _refill_by_playing(model)
            # With reset_num_timesteps off, SB3 adds what it is given to the steps done so far.
            self.n_timesteps -= model.num_timesteps
        _fuse_adam(model)
        if compute_precision("auto", model.device) == torch.bfloat16:
            for module in model.policy.modules():
                if isinstance(module, NatureCNN):
                    _use_bfloat16(module)
        return prepared

    def learn(self, model: BaseAlgorithm) -> None:
        """Train for what is left of `n_timesteps`. Ctrl-C is the caller's, unlike in the zoo."""
        try:
            if self.n_timesteps > 0:
                resumed = self._resume_from is not None
                model.learn(
                    int(self.n_timesteps),
                    callback=self.callbacks,
                    log_interval=1000,
                    # False keeps num_timesteps, so that schedules and file names go on where they
                    # were.
                    reset_num_timesteps=not resumed,
                )
        finally:
            if model.env is not None:
                model.env.close()


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint with the most steps in a zoo folder, or None."""
    found = [path for path in folder.glob("rl_model_*_steps.zip") if _CHECKPOINT.match(path.name)]
    return max(found, key=checkpoint_steps, default=None)


def checkpoint_steps(path: Path) -> int:
    """Return the agent steps that a checkpoint had seen, from its name."""
    match = _CHECKPOINT.fullmatch(path.name)
    assert match is not None
    return int(match.group(1))


def _fuse_adam(model: BaseAlgorithm) -> None:
    """Fuse Adam's step into one kernel on a CPU: with DQN's small batches a sixth of an update."""
    optimizer = model.policy.optimizer
    if isinstance(optimizer, torch.optim.Adam) and model.device.type == "cpu":
        for group in optimizer.param_groups:
            group["fused"] = True


def _refill_by_playing(model: OffPolicyAlgorithm) -> None:
    """Let the agent fill its replay buffer by its own play before it learns again.

    Stable-Baselines3 would fill it at random, as for an agent that knows nothing.
    """
    # learning_starts counts from step 0 of the training, not from the resumption.
    model.learning_starts += model.num_timesteps
    algorithm: Any = type(model)

    class Resumed(algorithm):  # a class is not saved with the agent, a changed method is
        def _sample_action(
            self, learning_starts: int, *arguments: Any, **options: Any
        ) -> tuple[np.ndarray, np.ndarray]:
            actions: tuple[np.ndarray, np.ndarray] = super()._sample_action(
                0, *arguments, **options
            )
            return actions

    model.__class__ = Resumed


def _use_bfloat16(extractor: NatureCNN) -> None:
    """Run the convolutions and the large linear layer in bfloat16; weights and heads stay float32.

    Replaces `forward` of this one object, so that what SB3 saves is what it always saves.
    """
    plain = extractor.forward
    device = next(extractor.parameters()).device.type
    extractor.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(observations: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            features = plain(observations.contiguous(memory_format=torch.channels_last))
        return features.float()

    extractor.forward = forward  # type: ignore[method-assign]
