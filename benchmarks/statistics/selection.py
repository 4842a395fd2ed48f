"""Measure how well a validation tells two students apart: by its return, and by its divergence.

python -m benchmarks.statistics.selection RUN [--games 16] [--seed 77]

Prints, for each student of a run, the mean return and the mean divergence from its teacher, with
the standard error over so many games: Eq. 1 at the recipe's temperature and the divergence of the
policies that act, each a mean over games of a game's mean, and Eq. 1 over all states alike, where
games that last long count more. Baseline: the return, by which the QPD paper chooses an epoch.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from qpd.environments.policy import network_policy
from qpd.environments.registry import environment_spec, make_vector_env
from qpd.evaluation.games import evaluate
from qpd.phases.student_run import LEGACY_TEMPERATURE
from qpd.runs.manifest import MADE_BY
from qpd.runs.run_directory import RunDirectory
from qpd.runs.target import Target, load_target
from qpd.teachers import Teacher, load_recipe_teacher


def main() -> None:
    """Measure, and print a line for each student."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--games", type=int, default=16)
    parser.add_argument("--seed", type=int, default=77)
    options = parser.parse_args()
    run = RunDirectory.open(options.run, read_only=True)
    recipe = run.recipe
    teacher = load_recipe_teacher(recipe.teacher)
    chosen = recipe.distill.temperature or teacher.actions.temperature
    temperature = chosen or run.phase("distill").metrics.get("temperature", LEGACY_TEMPERATURE)
    folded = teacher.actions.fold(temperature, recipe.student.sharpness)
    scales = {"Eq. 1": (temperature, folded), "acting": (1.0 / recipe.student.sharpness, 1.0)}
    for name, phase in MADE_BY.items():
        if run.phase(phase).state != "done":
            continue
        target = load_target(options.run, name, None, "cpu")
        returns, found, states = _play(target, teacher, scales, options.games, options.seed)
        parts = [f"return {_with_error(returns)}"]
        parts += [f"divergence ({key}) {_with_error(found[key])}" for key in scales]
        parts.append(f"over states (Eq. 1) {_over_states(found['Eq. 1'], states)}")
        print(f"{name}: {', '.join(parts)}", flush=True)


def _play(
    target: Target,
    teacher: Teacher,
    scales: dict[str, tuple[float, float]],
    games: int,
    seed: int,
) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Play `games` at once; return returns, mean divergences and states of each, `[games]`."""
    actions, labels = target.policy.actions, network_policy(teacher, teacher.actions)
    states = np.zeros(games)
    sums = {key: np.zeros(games) for key in scales}

    def compare(rows: np.ndarray, observations: np.ndarray, outputs: np.ndarray) -> None:
        wanted = torch.from_numpy(labels(observations))
        acted = torch.from_numpy(teacher.actions.outputs_of(actions, outputs))
        states[rows] += 1
        for key, (of_teacher, of_student) in scales.items():
            each = teacher.actions.divergence(wanted, acted, of_teacher, of_student)
            sums[key][rows] += each.numpy()

    is_atari = environment_spec(target.environment).is_atari
    rule = actions.rule(target.acting, on_atari=is_atari, epsilon=target.epsilon, sharpness=1.0)
    with closing(make_vector_env(target.environment, games, max_frames=target.max_frames)) as env:
        result = evaluate(target.policy, env, games, rule, seed, on_outputs=compare)
    return result.returns, {key: total / states for key, total in sums.items()}, states


def _over_states(values: np.ndarray, states: np.ndarray) -> str:
    mean = np.average(values, weights=states)
    # Of a ratio of two means over games.
    count, residuals = len(values), states * (values - mean)
    error = residuals.std(ddof=1) / np.sqrt(count) / states.mean()
    return f"{mean:.4g} +- {error:.2g} ({error / abs(mean):.1%})"


def _with_error(values: np.ndarray) -> str:
    error = values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.4g} +- {error:.2g} ({error / abs(values.mean()):.1%})"


if __name__ == "__main__":
    main()
