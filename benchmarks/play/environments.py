"""Agent steps per second of environments alone, with random actions: SB3's and QPD's.

python -m benchmarks.play.environments [--envs 64] [--steps 40] [--rounds 7] [--id Hopper-v4 ...]

Compared are SB3's DummyVecEnv and SubprocVecEnv of eight environments (the faster is the
baseline), and QPD's environments in this process and in worker processes. MuJoCo's need
`qpd-rl[mujoco]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from benchmarks.timing import interleave, parse_arguments, print_rates
from qpd.actions import ActingRule
from qpd.environments.registry import VectorEnvironment, as_source, make_vector_env
from qpd.environments.worker_pool import step_seconds, workers_that_pay
from qpd.machine.cores import usable_cores

ENV_IDS = ("CartPole-v1", "Pendulum-v1", "LunarLander-v3", "BipedalWalker-v3", "Hopper-v4",
           "HalfCheetah-v4", "Ant-v4")  # fmt: skip
SB3_ENVS = 8


def main() -> None:
    """Measure, and print one table for each environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40, help="vector steps per round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--id", nargs="+", default=ENV_IDS)
    arguments = parse_arguments(parser)
    for env_id in arguments.id:
        _measure(env_id, arguments)


def _measure(env_id: str, arguments: argparse.Namespace) -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make(env_id, disable_env_checker=True)

    sb3: dict[str, VecEnv] = {
        "DummyVecEnv(8)": DummyVecEnv([make] * SB3_ENVS),
        "SubprocVecEnv(8)": SubprocVecEnv([make] * SB3_ENVS),
    }
    count, cores = arguments.envs, usable_cores()
    ours = {
        f"QPD({count})": make_vector_env(env_id, count, workers=0),
        f"QPD({count}), {cores} processes": make_vector_env(env_id, count, workers=cores),
    }
    # As many steps in every case: SB3's eight take more vector steps.
    steps = arguments.steps * count // SB3_ENVS
    cases: dict[str, Callable[[], int]] = {}
    for name, theirs in sb3.items():
        theirs.reset()
        cases[name] = _sb3_case(theirs, steps)
    for name, env in ours.items():
        env.reset(0)
        cases[name] = _our_case(env, arguments.steps)
    rates = interleave(cases, arguments.rounds)
    for theirs in sb3.values():
        theirs.close()
    for env in ours.values():
        env.close()
    base = max(rates[name] for name in sb3)
    rows = [[name, f"{rate:,.0f}", f"{rate / base:.2f}x"] for name, rate in rates.items()]
    source = as_source(env_id)
    chosen = workers_that_pay(source, count) or "none"
    title = (
        f"{env_id}: {1e6 * step_seconds(source):.0f} us a step; worker processes chosen: {chosen}"
    )
    print_rates(title, ["environments", "agent steps/s", "of the faster SB3"], rows)


def _sb3_case(env: VecEnv, steps: int) -> Callable[[], int]:
    env.action_space.seed(0)
    # Drawn before the clock runs: sampling a Box takes as long as a step of CartPole.
    drawn = [np.stack([env.action_space.sample() for _ in range(SB3_ENVS)]) for _ in range(100)]

    def case() -> int:
        for step in range(steps):
            env.step(drawn[step % len(drawn)])
        return steps * SB3_ENVS

    return case


def _our_case(env: VectorEnvironment, steps: int) -> Callable[[], int]:
    rng, space = np.random.default_rng(0), env.spec.actions
    rule = ActingRule("sample" if space.kind != "box" else "greedy")
    outputs = [space.random_outputs(env.num_envs, rng) for _ in range(100)]
    drawn = [space.act(each, rule, rng) for each in outputs]

    def case() -> int:
        for step in range(steps):
            env.step(drawn[step % len(drawn)])
        return steps * env.num_envs

    return case


if __name__ == "__main__":
    main()
