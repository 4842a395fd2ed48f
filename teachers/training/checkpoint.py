"""Checkpoints of a training: what Stable-Baselines3's zip holds, and what it leaves out.

A folder `checkpoints/000000050000` holds

agent.zip        parameters and optimizers; `load_teacher` and SB3 read it
vecnormalize.pkl beside it, where the training normalizes: for those two
statistics.npz   the same statistics, for resuming
replay/*.npy     the replay buffer, if it is small enough
quantization.json  ranges, where the training is one of quantizers
scale_moments.json of an integer controller: the moments of its scales
state.json       counters, the last games, and the marks of whoever keeps the run directory

Nothing here is unpickled when a training resumes. Random states are not stored: at every checkpoint
they begin anew, from the seed and the steps done (`begin_segment` in `segments.py`).
"""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.save_util import load_from_zip_file, recursive_setattr
from stable_baselines3.common.vec_env import VecNormalize
from torch.nn.utils import parameters_to_vector

from qpd.errors.codes import ErrorCode
from qpd.files.atomic import write_bytes, write_json
from qpd.files.json_input import read_json
from qpd.files.whole_folder import whole_folder
from qpd.teachers.archive.errors import TeacherError, one_line
from qpd.teachers.training.controller import AgentController
from qpd.teachers.training.quantization_aware import AgentQuantizers

_NAME = re.compile(r"[0-9]{12}")
# All that learning counts, wherever an algorithm keeps it.
_COUNTERS = ("num_timesteps", "_episode_num", "_n_updates", "_n_calls",
             "_current_progress_remaining", "exploration_rate")  # fmt: skip
_STATISTICS = ("mean", "var", "count")


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint with the most steps below `folder`, or None."""
    found = [path for path in folder.glob("*") if _NAME.fullmatch(path.name)]
    whole = [path for path in found if (path / "state.json").is_file()]
    return max(whole, key=lambda path: path.name, default=None)


def save_checkpoint(
    folder: Path,
    model: BaseAlgorithm,
    max_replay_bytes: int,
    keep: bool,
    marks: Mapping[str, Any],
    quantizers: AgentQuantizers | AgentController | None = None,
) -> None:
    """Write a checkpoint below `folder`, whole or not at all, and remove what it replaces.

    With `keep` earlier agents stay, without their replay buffers. `marks` are JSON types.
    """
    earlier = [path for path in folder.glob("*") if _NAME.fullmatch(path.name)]
    with whole_folder(folder / f"{model.num_timesteps:012d}") as fresh:
        model.save(fresh / "agent.zip")
        normalize = model.get_vec_normalize_env()
        if normalize is not None:
            write_bytes(fresh / "vecnormalize.pkl", pickle.dumps(normalize))
            np.savez(fresh / "statistics.npz", **dict(_statistics(normalize)))
        if quantizers is not None:
            quantizers.save(fresh)
        if isinstance(quantizers, AgentController):
            quantizers.save_moments(fresh)
        state = {
            "counters": {key: vars(model)[key] for key in _COUNTERS if key in vars(model)},
            "episodes": [[game["r"], game["l"], game["t"]] for game in _last_games(model)],
            "successes": [bool(each) for each in model.ep_success_buffer or ()],
            "replay": _save_replay(fresh / "replay", model, max_replay_bytes),
            # Later than the agent says, where an earlier resumption had to fill the buffer again.
            "learns_from": getattr(model, "learning_starts", None),
            "marks": dict(marks),
        }
        write_json(fresh / "state.json", state)
    for path in earlier:
        if not keep:
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != f"{model.num_timesteps:012d}":
            shutil.rmtree(path / "replay", ignore_errors=True)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return a checkpoint's state.json. Raises TeacherError."""
    try:
        state = read_json(checkpoint / "state.json")
        if isinstance(state, dict) and isinstance(state["marks"], dict):
            return state
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(checkpoint, error) from error
    raise _damaged(checkpoint, "state.json is not one of a training")


def restore_checkpoint(
    checkpoint: Path,
    model: BaseAlgorithm,
    quantizers: AgentQuantizers | AgentController | None = None,
) -> bool:
    """Put back what `save_checkpoint` wrote; return whether the replay buffer was there, or none.

    Raises TeacherError for a damaged checkpoint.
    """
    state = read_state(checkpoint)
    try:
        _, parameters, variables = load_from_zip_file(
            checkpoint / "agent.zip", load_data=False, device=model.device
        )
        model.set_parameters(parameters, exact_match=True, device=model.device)
        if quantizers is not None:
            quantizers.restore(checkpoint)
        for name, value in (variables or {}).items():
            if value is not None:  # SAC's entropy coefficient, where it is learned
                recursive_setattr(model, f"{name}.data", value.data)
        if hasattr(model, "weights"):  # ARS perturbs a vector of its own
            model.weights = parameters_to_vector(model.policy.parameters()).detach()
        for key, value in state["counters"].items():
            if key in _COUNTERS:
                setattr(model, key, value)
        model._num_timesteps_at_start = model.num_timesteps  # for steps per second
        games = [{"r": r, "l": length, "t": t} for r, length, t in state["episodes"]]
        if model.ep_info_buffer is not None and model.ep_success_buffer is not None:
            model.ep_info_buffer.extend(games)
            model.ep_success_buffer.extend(state["successes"])
        normalize = model.get_vec_normalize_env()
        if normalize is not None:
            with np.load(checkpoint / "statistics.npz") as statistics:
                _restore_statistics(normalize, statistics)
        return _restore_replay(checkpoint / "replay", model, state["replay"])
    except TeacherError:
        raise
    except Exception as error:  # of zip, torch or numpy, whichever meets the damage first
        raise _damaged(checkpoint, error) from error


def _damaged(checkpoint: Path, problem: object) -> TeacherError:
    others = [path for path in checkpoint.parent.glob("*/agent.zip") if path.parent != checkpoint]
    way = "that folder to go on from an earlier one, or " if others else ""
    return TeacherError(
        f"{checkpoint}: cannot be resumed ({one_line(problem)}); delete {way}the run directory to "
        "begin anew",
        ErrorCode.TEACHER_TRAINING,
    )


def _last_games(model: BaseAlgorithm) -> list[dict[str, Any]]:
    return [{"t": 0.0, **game} for game in model.ep_info_buffer or ()]


def _averages(normalize: VecNormalize) -> Iterator[tuple[str, RunningMeanStd]]:
    observed = normalize.obs_rms if normalize.norm_obs else {}
    parts = observed if isinstance(observed, dict) else {"": observed}
    yield from ((f"observations_{key}", one) for key, one in parts.items())
    yield "returns", normalize.ret_rms


def _statistics(normalize: VecNormalize) -> Iterator[tuple[str, Any]]:
    for name, average in _averages(normalize):
        yield from ((f"{name}.{part}", getattr(average, part)) for part in _STATISTICS)


def _restore_statistics(normalize: VecNormalize, stored: Mapping[str, np.ndarray]) -> None:
    for name, average in _averages(normalize):
        for part in _STATISTICS:
            value = stored[f"{name}.{part}"]
            setattr(average, part, value if value.ndim else value[()])


def _arrays(buffer: ReplayBuffer) -> dict[str, np.ndarray]:
    return {name: value for name, value in vars(buffer).items() if isinstance(value, np.ndarray)}


def _save_replay(folder: Path, model: BaseAlgorithm, most: int) -> dict[str, Any] | None:
    """Write the buffer's rows, and return where it stands; None if it is not saved, or not there.

    Buffers of dicts and of hindsight hold more than arrays: they are not saved.
    """
    buffer = model.replay_buffer if isinstance(model, OffPolicyAlgorithm) else None
    if buffer is None or type(buffer) not in (ReplayBuffer, NStepReplayBuffer):
        return None
    rows = buffer.buffer_size if buffer.full else buffer.pos
    arrays = {name: array[:rows] for name, array in _arrays(buffer).items()}
    if sum(array.nbytes for array in arrays.values()) > most:
        return None
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return {"pos": buffer.pos, "full": buffer.full}


def _restore_replay(folder: Path, model: BaseAlgorithm, place: Mapping[str, Any] | None) -> bool:
    if not isinstance(model, OffPolicyAlgorithm):
        return True
    buffer = model.replay_buffer
    # Of checkpoints that are kept only the newest keeps its transitions.
    if place is None or buffer is None or not folder.is_dir():
        return False
    rows = buffer.buffer_size if place["full"] else int(place["pos"])
    for name, array in _arrays(buffer).items():
        stored = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        if stored.shape != array[:rows].shape or stored.dtype != array.dtype:
            raise ValueError(f"replay/{name}.npy holds other transitions")
        array[:rows] = stored
    buffer.pos, buffer.full = int(place["pos"]), bool(place["full"])
    return True
