"""One student through every runtime, its actions, logits and returns beside the engine's.

python -m benchmarks.device.runtime_returns RUN [--runtimes onnx onnx-fp32 litert sb3 c]
    [--observations 10000] [--episodes 50]

Exports RUN for each runtime, compares logits on observations of the engine's own play, then plays
the same games (one seed) through each. Actions are compared as argmax.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from pkgutil import resolve_name

import numpy as np

from benchmarks.device.runtime_policies import RUNTIMES
from benchmarks.timing import parse_arguments, print_rates
from qpd.actions import Discrete
from qpd.environments.policy import FunctionPolicy, Policy
from qpd.environments.registry import environment_spec, make_vector_env
from qpd.evaluation.games import EvaluationResult, evaluate
from qpd.evaluation.played_observations import played_observations
from qpd.export.bundle import ExportSource, golden_vectors, load_export_source, write_bundle
from qpd.export.formats import EXPORTERS
from qpd.integer.integer_student import IntegerEngine

NUM_ENVS, BATCH = 50, 100


def batched(policy: Policy, observations: np.ndarray) -> np.ndarray:
    """Return the logits of all `observations`, computed in batches."""
    # Batches bound the memory of runtimes that keep every layer's output.
    starts = range(0, len(observations), BATCH)
    return np.concatenate([policy(observations[start : start + BATCH]) for start in starts])


def exported_policy(source: ExportSource, runtime: str, folder: Path) -> Policy:
    """Export for `runtime` into `folder` (once per format), and load it."""
    target, load = RUNTIMES[runtime]
    if not (folder / target).exists():
        files = resolve_name(EXPORTERS[target])(source, golden_vectors(source.student))
        write_bundle(folder / target, target, source, files)
    return FunctionPolicy(load(folder / target), source.student.actions)


def agreement(logits: np.ndarray, wanted: np.ndarray, scale: float) -> list[str]:
    """Return equal actions, equal logits (as integers), and the greatest difference of a logit."""
    # In integer steps: as floats equal integers may differ in the last bit.
    difference = np.abs(np.round(logits / scale) - np.round(wanted / scale)).max(1)
    actions = (logits.argmax(1) == wanted.argmax(1)).mean()
    greatest = difference.max() * scale
    return [f"{actions:.2%}", f"{(difference == 0).mean():.2%}", f"{greatest:.3g}"]


def returns(result: EvaluationResult, engine: EvaluationResult) -> list[str]:
    """Return mean return, interval, and how many games were the engine's, step for step."""
    low, high = result.interval()
    same = (result.returns == engine.returns) & (result.lengths == engine.lengths)
    return [f"{result.mean:.1f}", f"[{low:.1f}, {high:.1f}]", f"{same.sum()} of {len(same)}"]


def main() -> None:
    """Compare, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=list(RUNTIMES))
    parser.add_argument("--observations", type=int, default=10_000)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parse_arguments(parser)
    source = load_export_source(arguments.run)
    if not isinstance(source.student.actions, Discrete):
        parser.error(f"{arguments.run}: has {source.student.actions}; this compares discrete ones")
    engine, scale = IntegerEngine(source.student), source.student.output_scale
    env_id = str(source.about["env_id"])
    rule = engine.actions.rule(
        "auto", on_atari=environment_spec(env_id).is_atari, epsilon=0.01, sharpness=1.0
    )
    seed, count = arguments.seed, arguments.observations
    with closing(make_vector_env(env_id, NUM_ENVS)) as played_in:
        observations = played_observations(engine, played_in, count, rule, seed, every=2)
    # As many environments as games: each plays one, by the same seed in every runtime.
    env = make_vector_env(env_id, min(arguments.episodes, NUM_ENVS))
    wanted = batched(engine, observations)
    played = evaluate(engine, env, arguments.episodes, rule, seed)
    rows = [["engine", "-", "-", "-", *returns(played, played)]]
    with tempfile.TemporaryDirectory() as folder:
        for runtime in arguments.runtimes:
            print(f"{runtime}: {count:,} observations, then games", file=sys.stderr)
            policy = exported_policy(source, runtime, Path(folder))
            logits = batched(policy, observations)
            result = evaluate(policy, env, arguments.episodes, rule, seed)
            rows.append([runtime, *agreement(logits, wanted, scale), *returns(result, played)])
    env.close()
    title = f"{source.name} in {env_id}: {count:,} observations; {arguments.episodes} games, {rule}"
    header = ["runtime", "equal actions", "equal logits", "greatest difference"]
    print_rates(title, [*header, "return", "95% interval", "the engine's games"], rows)


if __name__ == "__main__":
    main()
