"""Read SB3's `vecnormalize.pkl` (observation statistics) without executing the pickle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpd.errors.codes import ErrorCode
from qpd.files.bounded_read import TooLargeError, read_file
from qpd.teachers.archive.errors import TeacherError, one_line
from qpd.teachers.archive.inert_pickle import MAX_PICKLE_BYTES, Recorded, load_inert
from qpd.teachers.archive.pickled_array import as_array


@dataclass(frozen=True, eq=False)
class ObservationNormalization:
    """`clip((observation - mean) / sqrt(var + epsilon), -clip_obs, clip_obs)`, as VecNormalize.

    `mean` and `var` are float64 of the observation's shape. `clip_obs` is an array of that shape
    where parts of a Dict are not normalized: infinite there, with mean 0 and deviation 1.
    """

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    epsilon: float
    clip_obs: float | NDArray[np.float64]

    @property
    def deviation(self) -> NDArray[np.float64]:
        """The divisor of observations less their mean, float64 of the observation's shape."""
        return np.sqrt(self.var + self.epsilon)

    @property
    def flat(self) -> ObservationNormalization:
        """The same for observations of one axis, as environments show those of several."""
        clip = self.clip_obs
        clip = clip.ravel() if isinstance(clip, np.ndarray) else clip
        return replace(self, mean=self.mean.ravel(), var=self.var.ravel(), clip_obs=clip)

    def apply(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Normalize observations [..., *shape] and return float32 of the same shape."""
        scaled = (observations - self.mean) / self.deviation
        return np.clip(scaled, -self.clip_obs, self.clip_obs).astype(np.float32)


def read_vec_normalize(
    path: str | Path, parts: Sequence[tuple[str, int]] = ()
) -> ObservationNormalization | None:
    """Return the statistics, or None where observations were not normalized.

    `parts`: key and size of each part of a Dict, in the order in which a policy sees them. Raises
    TeacherError for a file that is too large, damaged, or no VecNormalize.
    """
    path = Path(path)
    try:
        content = read_file(path, MAX_PICKLE_BYTES)
        if content.startswith(b"PK"):
            raise ValueError("it is a zip file")
        return _normalization(load_inert(content), parts)
    except TooLargeError as error:
        raise TeacherError(f"{path}: {error}", ErrorCode.TEACHER_SETTINGS) from error
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise TeacherError(
            f"{path}: not readable as a VecNormalize pickle ({one_line(error)});"
            " expected the vecnormalize.pkl that Stable-Baselines3 saved with this agent",
            ErrorCode.TEACHER_SETTINGS,
        ) from error


def read_return_statistics(path: str | Path) -> tuple[float, float, float] | None:
    """Return mean, variance and count of discounted returns, by which rewards are normalized.

    None where the file, which `read_vec_normalize` has accepted, holds none that are usable.
    """
    found = _numbers(path, "ret_rms", ("mean", "var", "count"))
    if found is None:
        return None
    mean, var, count = found
    return (mean, var, count) if var >= 0 and count > 0 else None


def read_observation_count(path: str | Path) -> float | None:
    """Return how many observations a file's statistics are of.

    None where the file, which `read_vec_normalize` has accepted, does not tell.
    """
    found = _numbers(path, "obs_rms", ("count",))
    return found[0] if found is not None and found[0] > 0 else None


def _numbers(path: str | Path, statistics: str, names: Sequence[str]) -> list[float] | None:
    """Return finite numbers of one of a file's statistics, None where it lacks them."""
    try:
        root = load_inert(read_file(Path(path), MAX_PICKLE_BYTES))
        record = _state(_state(root, "VecNormalize").get(statistics), "RunningMeanStd")
        found = [float(as_array(record.get(name))) for name in names]
    except Exception:  # a pickle without them may raise nearly anything
        return None
    return found if np.isfinite(found).all() else None


def normalizes_rewards(path: str | Path) -> bool:
    """Tell whether rewards were normalized, so that critics are in other units.

    Of a file that `read_vec_normalize` has accepted.
    """
    root = load_inert(read_file(Path(path), MAX_PICKLE_BYTES))
    return _state(root, "VecNormalize").get("norm_reward", True) is not False


def _normalization(root: Any, parts: Sequence[tuple[str, int]]) -> ObservationNormalization | None:
    state = _state(root, "VecNormalize")
    # Rewards may have been normalized all the same; playing needs none of that.
    if state.get("norm_obs", True) is False:
        return None
    epsilon = float(as_array(state.get("epsilon")))
    clip_obs = float(as_array(state.get("clip_obs")))
    clip: float | NDArray[np.float64] = clip_obs
    found = state.get("obs_rms")
    if isinstance(found, dict):  # one RunningMeanStd for each key that is normalized
        mean, var, clip = _of_parts(found, parts, epsilon, clip_obs)
    else:
        mean, var = _moments(found)
    if not (np.isfinite(mean).all() and np.isfinite(var).all() and (var + epsilon > 0).all()):
        raise ValueError("mean or var is not finite, or var is negative")
    if not clip_obs > 0:
        raise ValueError(f"clip_obs is {clip_obs}")
    return ObservationNormalization(mean, var, epsilon, clip)


def _moments(record: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    statistics = _state(record, "RunningMeanStd")
    # SB3 keeps them in float64; float32 would move normalized observations in the last bit.
    mean = as_array(statistics.get("mean")).astype(np.float64)
    var = as_array(statistics.get("var")).astype(np.float64)
    if mean.shape != var.shape:
        raise ValueError(f"mean has shape {mean.shape}, var {var.shape}")
    return mean, var


def _of_parts(
    found: dict[Any, Any], parts: Sequence[tuple[str, int]], epsilon: float, clip_obs: float
) -> tuple[NDArray[np.float64], ...]:
    """Return mean, variance and clip of a Dict's parts, one after the other."""
    unknown = sorted(str(key) for key in found if key not in dict(parts))
    if unknown:
        raise ValueError(
            f"statistics of {unknown[0]!r:.60}; the agent's archive names "
            f"{', '.join(key for key, _ in parts) or 'no parts of a Dict'}"
        )
    means, variances, clips = [], [], []
    for key, size in parts:
        # As they are: mean 0, and var + epsilon = 1.
        mean, var, clip = np.zeros(size), np.full(size, 1.0 - epsilon), np.inf
        if key in found:
            (mean, var), clip = _moments(found[key]), clip_obs
        if mean.size != size:
            raise ValueError(f"statistics of {key!r:.60}: {mean.shape}, not {size} numbers")
        means.append(mean.ravel())
        variances.append(var.ravel())
        clips.append(np.full(size, clip))
    return np.concatenate(means), np.concatenate(variances), np.concatenate(clips)


def _state(record: Any, class_name: str) -> dict[str, Any]:
    if not isinstance(record, Recorded) or not record.global_name.endswith(f".{class_name}"):
        found = record.global_name if isinstance(record, Recorded) else type(record).__name__
        raise ValueError(f"expected a {class_name}, found {found}")
    if not isinstance(record.state, dict):
        raise ValueError(f"the state of {class_name} is missing")
    return record.state
