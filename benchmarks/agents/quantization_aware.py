"""Agents trained in few bits, beside float agents that were quantized after their training.

python -m benchmarks.agents.quantization_aware [ALGO-ENV...] [--bits 8,4,2] [--seeds 3 | FIRST:END]
    [--scheme affine | dorefa_scaled] [--runs FOLDER] [--results FOLDER]

QuaRL's question (arXiv 1910.01055, Figure 2): for each algorithm and task one float training and
one with `--bits` for each of 8, 4 and 2, with the RL Zoo's settings and so many seeds. The float
agent is also quantized after its training (PTQ) to the same bits: weights and activations, the same
affine levels, ranges per input column, inputs of 8 bits. All of a seed play the same 100 games.
With `--scheme dorefa_scaled` both are QPD's integers, and the engine plays them. Interrupted work
goes on. With `--print` nothing is trained; the table of the results is printed.

The intervals are over trainings (Student's t), the right thing to judge a method by; the number of
trainings whose own paired games differ from 0 (95%) stands beside them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from rich.console import Console

import qpd
from qpd.agents.agent_games import AgentGames
from qpd.agents.cells import quantize_agent
from qpd.agents.precision import Precision
from qpd.agents.quantized_agent import agent_policy
from qpd.agents.results import Played
from qpd.agents.trained_integers import trained_integers
from qpd.environments.policy import Policy
from qpd.evaluation.games import bootstrap_interval
from qpd.evaluation.studentized import student_t_quantile
from qpd.files.atomic import write_json
from qpd.integer.integer_student import IntegerEngine
from qpd.quantization.weight_quantizer import Scheme, WeightQuantizer
from qpd.runs.played_environment import EnvironmentWish, environment_of
from qpd.runs.progress import SilentProgress
from qpd.teachers import Teacher, load_teacher
from qpd.teachers.networks.actor import actor_of

PAIRS = ("dqn-CartPole-v1", "qrdqn-CartPole-v1", "ddpg-Pendulum-v1", "td3-Pendulum-v1",
         "sac-Pendulum-v1", "ppo-CartPole-v1", "a2c-CartPole-v1")  # fmt: skip
RESULTS = {
    "affine": "runs-reference/quarl/quantization-aware",
    "dorefa_scaled": "runs-reference/quarl/trained-integers",
}
EPISODES = 100
GAMES_SEED = 1_000_000


def main() -> None:
    """Train, play and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pair", nargs="*", default=PAIRS)
    parser.add_argument("--runs", type=Path, default=Path("runs/quantization-aware"))
    parser.add_argument("--results", type=Path, help="a folder for each scheme")
    parser.add_argument("--bits", default="8,4,2")
    parser.add_argument("--seeds", type=_seeds, default=range(3))
    parser.add_argument("--scheme", choices=("affine", "dorefa_scaled"), default="affine")
    parser.add_argument("--print", action="store_true", dest="only_print")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.results = arguments.results or Path(RESULTS[arguments.scheme])
    arguments.results.mkdir(parents=True, exist_ok=True)
    if not arguments.only_print:
        for pair in arguments.pair:
            bits = [int(each) for each in arguments.bits.split(",")]
            results = arguments.results / f"{pair}.json"
            scheme, runs = arguments.scheme, arguments.runs / pair
            _measure(pair, bits, arguments.seeds, scheme, runs, results)
    print(_table(arguments.results))


def _seeds(text: str) -> range:
    first, _, end = text.rpartition(":")
    return range(int(first or 0), int(end))


def _measure(
    pair: str, bits: list[int], seeds: range, scheme: Scheme, runs: Path, file: Path
) -> None:
    algo, _, env_id = pair.partition("-")
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for seed in seeds:
        known = found.setdefault(str(seed), {})
        missing = [each for each in bits if f"QAT-{each}" not in known]
        if not missing:
            continue
        agents = {"fp32": _trained(algo, env_id, seed, None, scheme, runs)}
        for each in missing:
            agents[f"QAT-{each}"] = _trained(algo, env_id, seed, each, scheme, runs)
        known |= _played(agents, missing, scheme)
        write_json(file, found)
        Console(stderr=True).print(pair, seed, {k: mean(v) for k, v in found[str(seed)].items()})


def _trained(
    algo: str, env_id: str, seed: int, bits: int | None, scheme: Scheme, runs: Path
) -> Teacher:
    # `qpd analyze exploration` asks the policies of every checkpoint.
    keep = algo in ("ppo", "a2c")
    overrides: dict[str, Any] = {"save.tensorboard": False, "train.keep_checkpoints": keep}
    name = "fp32"
    if bits is not None:
        overrides |= {"quantization.bits": bits, "quantization.scheme": scheme}
        name = f"{bits}-bits" + "-integers" * (scheme == "dorefa_scaled")
    folder = runs / f"{name}-{seed}"
    run = qpd.train(algo, env_id, overrides=overrides, seed=seed, device="cpu", output=folder)
    return load_teacher(run.path)


def _played(agents: dict[str, Teacher], bits: list[int], scheme: Scheme) -> dict[str, list[float]]:
    teacher = agents["fp32"]
    source = environment_of(teacher, EnvironmentWish()).source
    games = AgentGames(teacher, source, EPISODES, GAMES_SEED)
    progress = SilentProgress()
    policies: dict[str, Policy] = {
        name: IntegerEngine(trained_integers(each, source))
        if scheme == "dorefa_scaled" and each.quantization is not None
        else agent_policy(each, actor_of(each.network, each.activation))
        for name, each in agents.items()
    }
    states = games.visited_states(policies["fp32"], progress)
    for each in bits:
        precision = Precision(WeightQuantizer(scheme, each, "column"), each)
        policies[f"PTQ-{each}"] = quantize_agent(teacher, precision, states, EPISODES, 0).policy
    found = {}
    for name, policy in policies.items():
        played = games.play(policy, Played(), lambda _: None, progress, name)
        found[name] = list(played.returns)
    found["random"] = list(games.play_randomly(Played(), lambda _: None, progress).returns)
    games.close()
    return found


def _table(results: Path) -> str:
    lines = ["| agent | bits | fp32 | PTQ | QAT | QAT - PTQ | QAT - fp32 |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for file in sorted(results.glob("*.json")):
        seeds = [games for games in json.loads(file.read_text()).values() if games]
        kinds = sorted({kind for games in seeds for kind in games if kind.startswith("QAT-")})
        for bits in sorted((int(kind.removeprefix("QAT-")) for kind in kinds), reverse=True):
            having = [games for games in seeds if f"QAT-{bits}" in games]
            own = [mean(games["fp32"]) for games in having]
            after, aware = (
                [games[f"{kind}-{bits}"] for games in having] for kind in ("PTQ", "QAT")
            )
            lines.append(
                f"| {file.stem} | {bits} | {_runs(own)} | {_runs([mean(g) for g in after])} | "
                f"{_runs([mean(g) for g in aware])} | {_difference(aware, after)} | "
                f"{_difference(aware, [games['fp32'] for games in having])} |"
            )
    return "\n".join(lines)


def _runs(means: list[float]) -> str:
    return ", ".join(f"{each:,.1f}" for each in means)


def _difference(ours: list[list[float]], theirs: list[list[float]]) -> str:
    """Return the mean over trainings, its 95% interval, and how many differ by their own games."""
    pairs = [np.subtract(a, b) for a, b in zip(ours, theirs, strict=True)]
    means = [float(pair.mean()) for pair in pairs]
    up = down = 0
    for pair in pairs:
        low, high = bootstrap_interval(pair)
        up, down = up + (low > 0), down + (high < 0)
    text = f"{mean(means):+,.1f}"
    if len(means) > 1:
        far = student_t_quantile(0.975, len(means) - 1) * stdev(means) / len(means) ** 0.5
        text += f" [{mean(means) - far:,.1f}, {mean(means) + far:,.1f}]"
    return f"{text}; {up} up, {down} down"


if __name__ == "__main__":
    main()
