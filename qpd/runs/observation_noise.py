"""Noise on observations: how a policy plays with worse sensors than it was trained with.

Kresse & Lampert (arXiv 2511.07046): N(0, sigma^2) is added to each normalized feature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path

import numpy as np

from qpd.environments.policy import FunctionPolicy
from qpd.environments.registry import environment_spec
from qpd.environments.wrappers import ZERO_CONTACT_FORCES, ZeroContactForces
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError
from qpd.evaluation.sampled_states import SampledStates
from qpd.files.json_input import read_json
from qpd.numerics.random_seeds import seed_for
from qpd.runs.progress import Progress
from qpd.runs.target import Target, load_target, play
from qpd.runs.training_run import is_training

MOST_NOISE = 10.0
_GAMES = 16


def with_deviations(target: Target, progress: Progress, like: Path | None = None) -> Target:
    """Return the target with the deviation of each feature, which noise is a multiple of.

    Those in the file `like`, if it is given. Else, of an agent that has VecNormalize, its own; else
    those of the states in 16 games without noise: of an agent its own, of a run those of the last
    policy made, whichever of its policies the target is, so that all of them get equal noise.
    Raises TargetError for images, or a file that does not fit.
    """
    is_vector = len(target.observation_shape) == 1
    if is_vector and environment_spec(target.environment).pixels:
        raise TargetError(
            f"--noise: {target.label} sees an image among vectors; noise is for vectors alone",
            ErrorCode.COMMAND_LINE,
        )
    if like is None and target.deviations is not None:
        return target
    if not is_vector:
        raise TargetError(
            f"--noise: {target.label} sees observations of shape {target.observation_shape}; noise "
            "is for vectors",
            ErrorCode.COMMAND_LINE,
        )
    if like is not None:
        found = _of_features(_deviations_in(like), target)
        (features,) = target.observation_shape
        if len(found) != features:
            raise TargetError(
                f"--noise-like {like}: has deviations of {len(found)} features, {target.label} "
                f"sees {features}",
                ErrorCode.COMMAND_LINE,
            )
        return replace(target, deviations=found)
    player, run = target, target.run_path
    if run is not None and not is_training(run):
        player = load_target(run, None, None, "cpu")
    seen = SampledStates(player.policy)
    games = seed_for(target.seed, "calibration")
    # In its own environment: a student need not see what is added to the agent's.
    shape, source = player.observation_shape, player.environment
    played = replace(target, policy=seen, environment=source, observation_shape=shape)
    play(played, progress, episodes=_GAMES, seed=games)
    found = seen.observations.std(0, dtype=np.float64).tolist()
    return replace(target, deviations=_of_features(found, target))


def _of_features(found: Sequence[float], target: Target) -> tuple[float, ...]:
    """Return deviations for all that a target sees: those of zeros that are appended are 0."""
    shown = [each.to_json() for each in target.environment.wrappers]
    (features,) = target.observation_shape
    if shown == [ZERO_CONTACT_FORCES] and features - len(found) == ZeroContactForces.NUM_FORCES:
        found = [*found, *[0.0] * ZeroContactForces.NUM_FORCES]
    return tuple(found)


def _deviations_in(file: Path) -> list[float]:
    try:
        found = [float(each) for each in read_json(file)["deviations"]]
        if not all(math.isfinite(each) and each >= 0.0 for each in found):
            raise ValueError
    except FileNotFoundError as error:
        raise TargetError(f"--noise-like {file}: no such file", ErrorCode.COMMAND_LINE) from error
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise TargetError(
            f"--noise-like {file}: holds no deviations; expected what `qpd evaluate TARGET --noise "
            "SIGMA,... --json` prints",
            ErrorCode.COMMAND_LINE,
        ) from error
    return found


def with_noise(target: Target, sigma: float, seed: int) -> Target:
    """Return the target with noise of `sigma` deviations on each feature, drawn by `seed`.

    Raises TargetError unless 0 <= sigma <= 10.
    """
    if not isinstance(sigma, Real) or not 0.0 <= sigma <= MOST_NOISE:
        raise TargetError(
            f"--noise {sigma}: must be from 0 to {MOST_NOISE:g} standard deviations",
            ErrorCode.COMMAND_LINE,
        )
    assert target.deviations is not None
    scale = sigma * np.array(target.deviations)
    rng, policy = np.random.default_rng([seed, 0x5E50]), target.policy

    def outputs(observations: np.ndarray) -> np.ndarray:
        # Also for sigma 0, so that all begin with the same draws.
        drawn = rng.standard_normal(observations.shape)
        return policy((observations + scale * drawn).astype(np.float32))

    return replace(target, policy=FunctionPolicy(outputs, policy.actions))
