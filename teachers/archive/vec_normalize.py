"""Read SB3's `vecnormalize.pkl` (observation statistics) without executing the pickle."""

from dataclasses import dataclass
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

    `mean` and `var` are float64 of the observation's shape.
    """

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    epsilon: float
    clip_obs: float

    def apply(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Normalize observations [..., *shape] and return float32 of the same shape."""
        scaled = (observations - self.mean) / np.sqrt(self.var + self.epsilon)
        return np.clip(scaled, -self.clip_obs, self.clip_obs).astype(np.float32)


def read_vec_normalize(path: str | Path) -> ObservationNormalization | None:
    """Return the statistics, or None where observations were not normalized.

    Raises TeacherError for a file that is too large, damaged, or no VecNormalize.
    """
    path = Path(path)
    try:
        return _normalization(load_inert(read_file(path, MAX_PICKLE_BYTES)))
    except TooLargeError as error:
        raise TeacherError(f"{path}: {error}", ErrorCode.TEACHER_SETTINGS) from error
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise TeacherError(
            f"{path}: not readable as a VecNormalize pickle ({one_line(error)});"
            " expected the vecnormalize.pkl that Stable-Baselines3 saved with this agent",
            ErrorCode.TEACHER_SETTINGS,
        ) from error


def _normalization(root: Any) -> ObservationNormalization | None:
    state = _state(root, "VecNormalize")
    # Rewards may have been normalized all the same; playing needs none of that.
    if state.get("norm_obs", True) is False:
        return None
    # One RunningMeanStd per key of a Dict space.
    if isinstance(state.get("obs_rms"), dict):
        raise ValueError("dict observations are not supported")
    statistics = _state(state.get("obs_rms"), "RunningMeanStd")
    # SB3 keeps them in float64; float32 would move normalized observations in the last bit.
    mean = as_array(statistics.get("mean")).astype(np.float64)
    var = as_array(statistics.get("var")).astype(np.float64)
    epsilon = float(as_array(state.get("epsilon")))
    clip_obs = float(as_array(state.get("clip_obs")))
    if mean.shape != var.shape:
        raise ValueError(f"mean has shape {mean.shape}, var {var.shape}")
    if not (np.isfinite(mean).all() and np.isfinite(var).all() and (var + epsilon > 0).all()):
        raise ValueError("mean or var is not finite, or var is negative")
    if not clip_obs > 0:
        raise ValueError(f"clip_obs is {clip_obs}")
    return ObservationNormalization(mean, var, epsilon, clip_obs)


def _state(record: Any, class_name: str) -> dict[str, Any]:
    if not isinstance(record, Recorded) or not record.global_name.endswith(f".{class_name}"):
        found = record.global_name if isinstance(record, Recorded) else type(record).__name__
        raise ValueError(f"expected a {class_name}, found {found}")
    if not isinstance(record.state, dict):
        raise ValueError(f"the state of {class_name} is missing")
    return record.state
