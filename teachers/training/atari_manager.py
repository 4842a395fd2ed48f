"""The RL Zoo's training of Atari agents, on QPD's environments, in bfloat16 where it is native."""

from __future__ import annotations

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.vec_env import VecEnv

from qpd.numerics.precision import compute_precision
from qpd.teachers.training.atari_vec_env import AtariVecEnv
from qpd.teachers.training.blocked_frames import use_blocked_frames
from qpd.teachers.training.manager import TrainingManager

# One Atari game is too few for a vector environment. DQN keeps the zoo's ratio of updates to steps:
# 4 steps in each of 8 games, then 8 updates, instead of 4 steps in one game, then one.
VECTOR_SETTINGS = {algo: {"n_envs": 8, "gradient_steps": 8} for algo in ("dqn", "qrdqn")}


class AtariManager(TrainingManager):
    """The zoo's manager, with its own vector environment for Atari games."""

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        """Create all games in one vector environment, with SB3's preprocessing."""
        return AtariVecEnv(self.env_name.gym_id, n_envs, self.seed)

    def prepare(self, model: BaseAlgorithm) -> None:
        """Choose faster arithmetic with the same meaning."""
        super().prepare(model)
        fuse_adam(model)
        # What quantizers or a format have rounded bfloat16 would round once more.
        is_rounded = self._recipe.quantization.bits is not None
        is_plain = is_rounded or self._recipe.precision.format is not None
        precision = "fp32" if is_plain else "auto"
        if compute_precision(precision, model.device) == torch.bfloat16:
            for module in model.policy.modules():
                if isinstance(module, NatureCNN):
                    use_bfloat16(module)
            # Blocked frames go past the modules whose hooks count gradients by activations.
            if model.device.type == "cpu" and self._recipe.precision.gradient_exponents is None:
                use_blocked_frames(model)


def fuse_adam(model: BaseAlgorithm) -> None:
    """Fuse Adam's step into one kernel on a CPU: with DQN's small batches a sixth of an update."""
    optimizer = getattr(model.policy, "optimizer", None)
    if isinstance(optimizer, torch.optim.Adam) and model.device.type == "cpu":
        for group in optimizer.param_groups:
            group["fused"] = True


def use_bfloat16(extractor: NatureCNN) -> None:
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
