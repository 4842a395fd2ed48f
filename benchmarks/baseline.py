"""The baseline beside every number: what a competent user of SB3 and PyTorch writes today.

SB3's Atari wrappers and frame stack, stacked uint8 observations in one numpy array, batches made
float and divided by 255, an eager fp32 network in PyTorch's ordinary layout, Adam, and the
teacher's forward pass inside the training loop.
"""

from __future__ import annotations

import numpy as np
import torch
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecFrameStack,
    VecTransposeImage,
)
from torch import Tensor, nn
from torch.nn import functional as F

from qpd.students.size_grid import SIZE_GRID
from qpd.teachers import Teacher

ENV_ID = "BreakoutNoFrameskip-v4"


class PlainStudent(nn.Module):
    """The same student, written as anyone would write it."""

    def __init__(self, size: str, num_actions: int = 4) -> None:
        super().__init__()
        (a, b, c), hidden = SIZE_GRID[size]
        self.trunk = nn.Sequential(
            nn.Conv2d(4, a, 8, 4), nn.ReLU(),
            nn.Conv2d(a, b, 4, 2), nn.ReLU(),
            nn.Conv2d(b, c, 3), nn.ReLU(),
            nn.Flatten(),
            nn.Linear(49 * c, hidden), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(hidden, num_actions), nn.Linear(hidden, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits `[batch, actions]` and values `[batch]` of float images in [0, 1]."""
        features = self.trunk(images)
        return self.actor(features), self.critic(features).squeeze(-1)


class PlainTraining:
    """Distillation over `observations`, uint8 `[n, 4, 84, 84]`, with the teacher in the loop.

    Without a `teacher` its outputs are made up, which leaves the student's own cost.
    """

    def __init__(
        self,
        size: str,
        observations: np.ndarray,
        teacher: Teacher | None,
        batch_size: int,
        device: torch.device | None = None,
    ) -> None:
        self.device = device or torch.device("cpu")
        self.student, self.teacher = PlainStudent(size).to(self.device), teacher
        self.optimizer = torch.optim.Adam(self.student.parameters(), lr=1e-3)
        self.observations, self.batch_size = observations, batch_size
        self.rng = np.random.default_rng(0)
        # Random targets cost as much as real ones; nothing is learned here.
        outputs = (torch.randn(batch_size, 4), torch.randn(batch_size))
        self.outputs = (outputs[0].to(self.device), outputs[1].to(self.device))

    def steps(self, count: int) -> int:
        """Take `count` optimizer steps; return the number of samples used."""
        for _ in range(count):
            batch = self.observations[
                self.rng.integers(len(self.observations), size=self.batch_size)
            ]
            # uint8 crosses to the device, a quarter of float's bytes: a competent user knows that
            # much.
            frames = torch.as_tensor(batch).to(self.device)
            logits, values = self.outputs
            if self.teacher is not None:
                with torch.no_grad():
                    logits, values = self.teacher(frames)
            student_logits, student_values = self.student(frames.float() / 255)
            # The paper's tau for actor-critic teachers.
            target = F.log_softmax(logits / 3.0, dim=-1)
            actor = F.kl_div(
                F.log_softmax(student_logits, dim=-1),
                target,
                log_target=True,
                reduction="batchmean",
            )
            loss = actor + F.huber_loss(student_values, values)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return count * self.batch_size


def sb3_environment(num_envs: int, in_processes: bool) -> VecEnv:
    """Make Breakout as SB3 and the RL Zoo do, observations uint8 `[n, 4, 84, 84]`."""
    kind = SubprocVecEnv if in_processes else DummyVecEnv
    env = make_atari_env(ENV_ID, num_envs, seed=0, vec_env_cls=kind)
    # SB3 stacks along the last axis; its CNNs read channels first.
    return VecTransposeImage(VecFrameStack(env, 4))


class PlainRollouts:
    """Play of the teacher in an SB3 environment, every transition stored stacked."""

    def __init__(self, teacher: Teacher, num_envs: int, in_processes: bool, capacity: int) -> None:
        self.teacher = teacher
        self.env = sb3_environment(num_envs, in_processes)
        self.observation = np.asarray(self.env.reset())
        self.storage = np.zeros((capacity, 4, 84, 84), np.uint8)
        self.logits = np.zeros((capacity, 4), np.float32)
        self.values = np.zeros(capacity, np.float32)
        self.row = 0

    def collect(self, vector_steps: int) -> int:
        """Take `vector_steps` steps of all environments; return the transitions stored."""
        num_envs = self.env.num_envs
        for _ in range(vector_steps):
            with torch.no_grad():
                logits, values = self.teacher(torch.as_tensor(self.observation))
            actions = torch.distributions.Categorical(logits=logits).sample().numpy()
            # A ring of whole stacks: four times the bytes of single frames, as most replay buffers
            # keep them.
            rows = (self.row + np.arange(num_envs)) % len(self.storage)
            self.storage[rows] = self.observation
            self.logits[rows], self.values[rows] = logits.numpy(), values.numpy()
            self.row += num_envs
            self.observation = np.asarray(self.env.step(actions)[0])
        return vector_steps * num_envs
