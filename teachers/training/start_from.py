"""A training that starts from a trained agent: what it learned, and VecNormalize's statistics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import nn
from torch.nn.utils import parameters_to_vector

from qpd.errors.codes import ErrorCode
from qpd.recipe.train_schema import TrainSettings
from qpd.teachers.archive.algorithm import ACTOR_CRITIC_ALGORITHMS, SEARCH_ALGORITHM
from qpd.teachers.archive.errors import TeacherError, one_line
from qpd.teachers.archive.plain_data import (
    class_name,
    is_class_of,
    read_flag,
    read_policy_option,
)
from qpd.teachers.archive.sb3_archive import read_sb3_archive
from qpd.teachers.archive.stored_quantization import read_quantization
from qpd.teachers.archive.vec_normalize import (
    normalizes_rewards,
    read_observation_count,
    read_return_statistics,
    read_vec_normalize,
)
from qpd.teachers.sources.teacher_source import find_teacher_files
from qpd.teachers.training.layer_norm import has_layer_norm


def settings_of_agent(
    train: TrainSettings, policy: str, checkpoint: Path | None = None
) -> dict[str, Any]:
    """Return the `policy_kwargs` of the agent to start from that its parameters do not tell.

    Its activations, without layer normalization, and whether a tanh keeps its actions inside; a
    `policy` without hidden layers (ARS) has none. A resumed training asks its own `checkpoint`, a
    zip. Raises TeacherError.
    """
    assert train.start_from is not None
    if policy == "LinearPolicy":
        return {}
    archive = read_sb3_archive(checkpoint or find_teacher_files(train.start_from).archive)
    is_actor_critic = train.algo in ACTOR_CRITIC_ALGORITHMS
    found: dict[str, Any] = {"activation_fn": nn.Tanh if is_actor_critic else nn.ReLU}  # SB3's
    if text := read_policy_option(archive.data, "activation_fn"):
        kind = getattr(nn, class_name(text).removeprefix("LayerNorm"), None)
        if kind is None or not is_class_of(text, "torch", "qpd"):
            raise TeacherError(
                f"{train.start_from}: its activation {text:.80} is none of PyTorch's own",
                ErrorCode.TEACHER_TRAINING,
            )
        found["activation_fn"] = kind
    if is_actor_critic and read_flag(archive.data, "squash_output"):
        found["squash_output"] = True
    return found


def start_from(model: BaseAlgorithm, train: TrainSettings) -> None:
    """Put a trained agent's parameters into `model`; nothing of it is unpickled.

    The entropy coefficient of SAC and TQC too, where both learn it.
    Optimizers begin anew, and so does a replay buffer: the agent fills it by its own play. Raises
    TeacherError where the agent does not fit.
    """
    assert train.start_from is not None
    files = find_teacher_files(train.start_from)
    # A float twin has the file, too.
    if files.quantization is not None and read_quantization(files.quantization).is_active:
        raise TeacherError(
            f"{train.start_from}: was trained in few bits ({files.quantization}); start from a "
            "float agent",
            ErrorCode.TEACHER_TRAINING,
        )
    archive = read_sb3_archive(files.archive)
    text = read_policy_option(archive.data, "activation_fn")
    was_normed = text is not None and class_name(text).startswith("LayerNorm")
    if was_normed != has_layer_norm(model.policy):  # which has no parameters that would not fit
        value = "true" if was_normed else "false"
        raise TeacherError(
            f"{train.start_from}: it was trained with layer_norm={value}: set it",
            ErrorCode.TEACHER_TRAINING,
        )
    try:
        # float16 (agents made smaller by QPD) is widened.
        model.policy.load_state_dict(dict(archive.state_dict))
    except RuntimeError as error:
        its = (archive.algo or files.algo_hint or train.algo, files.env_id or train.env)
        text = f"its parameters do not fit {train.algo} on {train.env}"
        if its == (train.algo, train.env):
            text += f" with these hyperparameters: {one_line(error)}"
        else:
            text += f": it is an agent of {its[0]} on {its[1]}"
        raise TeacherError(f"{train.start_from}: {text}", ErrorCode.TEACHER_TRAINING) from error
    if hasattr(model, "weights"):  # ARS perturbs a vector of its own
        model.weights = parameters_to_vector(model.policy.parameters()).detach()
    learned = getattr(model, "log_ent_coef", None)
    if learned is not None and archive.log_ent_coef is not None:
        learned.data.fill_(archive.log_ent_coef)
    normalize: Any = model.get_vec_normalize_env()
    if normalize is not None and isinstance(normalize.observation_space, spaces.Dict):
        raise TeacherError(
            f"{train.start_from}: VecNormalize of a Dict's keys is not taken over: train anew, or "
            "set normalize=false for an agent that saw observations as they are",
            ErrorCode.TEACHER_TRAINING,
        )
    stored = read_vec_normalize(files.vec_normalize) if files.vec_normalize else None
    is_normalized = normalize is not None and normalize.norm_obs
    if is_normalized != (stored is not None):
        has = "normalized observations" if stored is not None else "observations as they are"
        raise TeacherError(
            f"{train.start_from}: it saw {has}; set normalize="
            f"{'true' if stored is not None else 'false'} for this training",
            ErrorCode.TEACHER_TRAINING,
        )
    has_critic = train.algo != SEARCH_ALGORITHM
    was_normalized = files.vec_normalize is not None and normalizes_rewards(files.vec_normalize)
    if has_critic and was_normalized != (normalize is not None and normalize.norm_reward):
        has = "normalized rewards" if was_normalized else "rewards as they are"
        wanted = json.dumps({"norm_obs": is_normalized, "norm_reward": was_normalized})
        raise TeacherError(
            f"{train.start_from}: its critic knows {has}; set normalize={wanted}",
            ErrorCode.TEACHER_TRAINING,
        )
    if stored is not None:
        for key in ("clip_obs", "epsilon"):
            its, ours = getattr(stored, key), getattr(normalize, key)
            if its != ours:
                raise TeacherError(
                    f"{train.start_from}: it saw observations with {key}={its:g}, this training "
                    f"has {ours:g}; set {key}: {its:g} in normalize",
                    ErrorCode.TEACHER_TRAINING,
                )
        average = normalize.obs_rms
        if average.mean.shape != stored.mean.shape:
            raise TeacherError(
                f"{files.vec_normalize}: statistics of shape {stored.mean.shape}; expected "
                f"{average.mean.shape}",
                ErrorCode.TEACHER_TRAINING,
            )
        average.mean, average.var = stored.mean.copy(), stored.var.copy()
        # So that they do not jump; an agent's own steps leave out those that it started from.
        assert files.vec_normalize is not None
        seen = read_observation_count(files.vec_normalize) or archive.num_timesteps or 0
        average.count = np.float64(max(seen, 1))
    returns = read_return_statistics(files.vec_normalize) if files.vec_normalize else None
    if returns is not None and normalize is not None and normalize.norm_reward:
        average = normalize.ret_rms  # the unit of the rewards that the critic knows
        average.mean, average.var, average.count = map(np.float64, returns)
