"""Play and training for an agent of continuous actions: SB3 with PyTorch, and QPD.

python -m benchmarks.distillation.continuous AGENT [--size mlp-64-64] [--rounds 5] [--threads 2]

AGENT is one that `qpd run` takes. Play: SB3's own policy acts and labels every step, in eight
environments (the faster of DummyVecEnv and SubprocVecEnv is the baseline); QPD plays as in
recipes/agent/continuous.yaml. Training: batches of 256 from an array, SB3's policy labels them in
the loop, an eager student, Adam; that of phase 3 goes through quantizers, by autograd.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from benchmarks.distillation.training import QpdTraining
from benchmarks.timing import interleave, parse_arguments, print_rates
from qpd.actions import Box
from qpd.environments.making import make_one
from qpd.environments.source import EnvironmentSource
from qpd.phases.preparation import prepare
from qpd.recipe.loading import load_recipe
from qpd.replay.play_stream import PlayStream
from qpd.students.size_grid import architecture_for
from qpd.teachers import Teacher
from qpd.teachers.sb3_policy import build_sb3_policy

BATCH, SB3_ENVS, CAPACITY = 256, 8, 20_000


class Sb3Labels:
    """Hold what SB3's policy says of observations: means, deviations, and values where it has V."""

    def __init__(self, teacher: Teacher) -> None:
        self.policy: Any = build_sb3_policy(teacher)
        self.normalization, self.algo = teacher.normalization, teacher.algo

    def __call__(self, observations: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Return means and deviations `[batch, actions]`, and values `[batch]`."""
        if self.normalization is not None:
            observations = self.normalization.apply(observations)
        seen = torch.as_tensor(observations)
        with torch.no_grad():
            if self.algo in ("ppo", "a2c", "trpo"):
                found = self.policy.get_distribution(seen).distribution
                return found.mean, found.stddev, self.policy.predict_values(seen).flatten()
            actor = self.policy.actor  # of TD3 and DDPG it has nothing but a mean
            means = actor(seen, True) if self.algo in ("sac", "tqc") else actor(seen)
        return means, torch.full_like(means, 0.1), torch.zeros(len(means))


class PlainPlay:
    """SB3's vector environment, its policy acting, every transition stored with its labels."""

    def __init__(self, labels: Sb3Labels, source: EnvironmentSource, in_processes: bool) -> None:
        def make() -> gymnasium.Env[Any, Any]:
            return make_one(source)

        kind = SubprocVecEnv if in_processes else DummyVecEnv
        self.labels, self.env = labels, kind([make] * SB3_ENVS)
        self.observations = np.asarray(self.env.reset(), np.float32)
        bounds: Any = self.env.action_space
        self.low, self.high = bounds.low, bounds.high
        self.stored: list[tuple[np.ndarray, ...]] = []

    def steps(self, count: int) -> int:
        """Take `count` steps of all environments; return the transitions."""
        self.stored.clear()
        for _ in range(count):
            means, deviations, values = self.labels(self.observations)
            actions = np.clip(torch.normal(means, deviations).numpy(), self.low, self.high)
            kept = (self.observations, means.numpy(), deviations.numpy(), values.numpy())
            self.stored.append(kept)
            self.observations = np.asarray(self.env.step(actions)[0], np.float32)
        return count * SB3_ENVS


def _rounded(numbers: Tensor, levels: int) -> Tensor:
    """Round to 1 / levels, straight-through."""
    scaled = numbers * levels
    return (scaled + (scaled.round() - scaled).detach()) / levels


class QuantizedLinear(nn.Linear):
    """8-bit weights, a learned scale for each output."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.scale = nn.Parameter(self.weight.detach().abs().amax(1, keepdim=True))

    def forward(self, values: Tensor) -> Tensor:
        """Apply the layer with rounded weights."""
        weight = self.scale * _rounded((self.weight / self.scale).clamp(-1.0, 1.0), 127)
        return F.linear(values, weight, self.bias)


class QuantizedRelu(nn.Module):
    """8-bit activations of a learned range."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Parameter(torch.tensor(4.0))

    def forward(self, values: Tensor) -> Tensor:
        """Clamp and round."""
        return self.top * _rounded((values / self.top).clamp(0.0, 1.0), 255)


class PlainTraining:
    """Distillation over `observations`, float32 `[n, features]`, as anyone would write it.

    Where it is `quantized`, of a student with 8-bit weights and activations, through its quantizers
    (DoReFa with learned scales and ranges) by autograd.
    """

    def __init__(
        self, labels: Sb3Labels, observations: np.ndarray, widths: list[int], quantized: bool
    ) -> None:
        linear, relu = (QuantizedLinear, QuantizedRelu) if quantized else (nn.Linear, nn.ReLU)
        inputs = [observations.shape[1], *widths[:-2]]
        layers = [part for a, b in zip(inputs, widths[:-1], strict=True)
                  for part in (linear(a, b), relu())]  # fmt: skip
        self.trunk = nn.Sequential(*layers)
        self.actor, self.critic = linear(widths[-2], widths[-1]), nn.Linear(widths[-2], 1)
        parts = [*self.trunk.parameters(), *self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(parts, lr=1e-3)
        self.labels, self.observations = labels, observations
        self.rng = np.random.default_rng(0)

    def steps(self, count: int) -> int:
        """Take `count` optimizer steps; return the number of samples used."""
        for _ in range(count):
            batch = self.observations[self.rng.integers(len(self.observations), size=BATCH)]
            means, deviations, values = self.labels(batch)
            features = self.trunk(torch.as_tensor(batch))
            own = Normal(self.actor(features), deviations)
            actor = kl_divergence(Normal(means, deviations), own).sum(1).mean()
            loss = actor + F.huber_loss(self.critic(features).squeeze(-1), values)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return count * BATCH


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agent")
    parser.add_argument("--size", default="mlp-64-64")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parse_arguments(parser)
    changes = [f"teacher.source={arguments.agent}", f"replay.capacity={CAPACITY}",
               f"student.size={arguments.size}"]  # fmt: skip
    recipe = load_recipe("agent/continuous", changes)
    prepared = prepare(recipe, "cpu")
    teacher, source = prepared.teacher, prepared.environment
    if not isinstance(teacher.actions, Box):
        parser.error(f"{arguments.agent}: its actions are {teacher.actions}, not a Box")
    labels = Sb3Labels(teacher)
    with tempfile.TemporaryDirectory() as folder:
        stream = PlayStream(recipe, teacher, source, Path(folder) / "replay.bin")
        stream.fill()
        _measure_play(labels, source, stream, arguments.rounds)
        precisions = {1: recipe.distill.precision, 3: recipe.finetune.precision}
        _measure_training(labels, teacher.actions, stream, arguments, precisions)
        stream.close()


def _measure_play(
    labels: Sb3Labels, source: EnvironmentSource, stream: PlayStream, rounds: int
) -> None:
    plain = {
        "DummyVecEnv(8)": PlainPlay(labels, source, False),
        "SubprocVecEnv(8)": PlainPlay(labels, source, True),
    }

    def qpd() -> int:
        before = stream.memory.num_added
        stream.collect(4096)
        return stream.memory.num_added - before

    rates = interleave(
        {**{name: partial(run.steps, 256) for name, run in plain.items()}, "QPD": qpd}, rounds
    )
    for run in plain.values():
        run.env.close()
    base = max(rates[name] for name in plain)
    rows = [[name, f"{rate:,.0f}", f"{rate / base:.1f}x"] for name, rate in rates.items()]
    headers = ["play", "agent steps/s", "of the faster SB3"]
    print_rates(f"Labelled play in {source.env_id}", headers, rows)


def _measure_training(
    labels: Sb3Labels,
    actions: Box,
    stream: PlayStream,
    arguments: argparse.Namespace,
    precisions: dict[int, str],
) -> None:
    rows = torch.from_numpy(stream.memory.transition_rows())
    observations = stream.memory.gather(rows).observations.numpy().copy()
    shape = architecture_for(arguments.size, observations.shape[1:], actions.num_outputs)
    widths = [*shape.hidden, actions.num_outputs]
    programs = {
        f"QPD phase {phase}": QpdTraining(
            arguments.size, stream, BATCH, phase == 3, actions, precision=precision
        )
        for phase, precision in precisions.items()
    }
    baselines = {
        phase: PlainTraining(labels, observations, widths, quantized=phase == 3)
        for phase in precisions
    }
    cases = {f"SB3 and PyTorch, phase {phase}": partial(run.steps, 64)
             for phase, run in baselines.items()}  # fmt: skip
    cases |= {name: partial(run.steps, 256) for name, run in programs.items()}
    rates = interleave(cases, arguments.rounds)
    shown = [
        [name, f"{rate:,.0f}", f"{rate / rates['SB3 and PyTorch, phase ' + name[-1]]:.1f}x"]
        for name, rate in rates.items()
    ]
    title = f"Training of {arguments.size}, samples/s, batches of {BATCH}"
    print_rates(title, ["program", "samples/s", "of its baseline"], shown)


if __name__ == "__main__":
    main()
