"""Transitions per second with the NatureCNN teacher acting, every one stored.

python -m benchmarks.play.rollouts [--envs 64] [--steps 40] [--rounds 5] [--threads 2]

Compared are SB3 (the faster of DummyVecEnv and SubprocVecEnv is the baseline), QPD, and the
environments alone (random actions, nothing stored), which no program can beat.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from ale_py.vector_env import AtariVectorEnv

from benchmarks.baseline import PlainRollouts
from benchmarks.breakout_play import ENV_ID, teacher_play
from benchmarks.timing import interleave, parse_arguments, print_rates
from qpd.environments.registry import make_vector_env


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40, help="vector steps per round")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parse_arguments(parser)
    with tempfile.TemporaryDirectory() as folder:
        capacity = arguments.envs * arguments.steps
        teacher, stream = teacher_play(Path(folder), capacity, arguments.envs)
        plain = {
            name: PlainRollouts(teacher, 8, in_processes, capacity)
            # Eight environments, as the RL Zoo has for PPO on Atari.
            for name, in_processes in (("DummyVecEnv(8)", False), ("SubprocVecEnv(8)", True))
        }
        alone = make_vector_env(ENV_ID, arguments.envs)
        alone.reset(0)
        raw = AtariVectorEnv("breakout", arguments.envs, num_threads=arguments.threads)
        raw.reset(seed=0)
        rng = np.random.default_rng(0)

        def qpd() -> int:
            before = stream.memory.num_added
            stream.collect(capacity)
            return stream.memory.num_added - before

        def environment() -> int:
            transitions = 0
            for _ in range(arguments.steps):
                # Steps that the environment forces are no transitions.
                transitions += int(alone.acting.sum())
                alone.step(rng.integers(4, size=arguments.envs))
            return transitions

        def ale() -> int:
            for _ in range(arguments.steps):
                raw.step(rng.integers(4, size=arguments.envs))
            return arguments.steps * arguments.envs

        cases: dict[str, Callable[[], int]] = {
            name: partial(run.collect, arguments.steps) for name, run in plain.items()
        }
        cases |= {"QPD": qpd, "QPD's environment alone": environment, "ALE's alone": ale}
        rates = interleave(cases, arguments.rounds)
        for run in plain.values():
            run.env.close()
        stream.close()
        alone.close()
        raw.close()
    # The faster SB3 environment, whichever it is on this machine.
    base = max(rates[name] for name in plain)
    best = max(("QPD's environment alone", "ALE's alone"), key=lambda name: rates[name])
    rows = [
        [name, f"{rate:,.0f}", f"{rate / base:.2f}x", f"{rate / rates[best]:.0%}"]
        for name, rate in rates.items()
    ]
    headers = ["rollouts", "transitions/s", "of the faster SB3", "of the emulator alone"]
    print_rates("Teacher rollouts on Breakout", headers, rows)


if __name__ == "__main__":
    main()
