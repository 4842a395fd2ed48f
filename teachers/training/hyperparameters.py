"""Hyperparameters of a training in place of the RL Zoo's: `--set n_steps=3`."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from typing import Any

from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean
from qpd.teachers.archive.errors import TeacherError, one_line

# What `qpd train` sets itself, and what the RL Zoo would execute as Python.
_NOT_TO_SET = ("self", "policy", "env", "seed", "device", "verbose", "tensorboard_log",
               "action_noise", "_init_setup_model", "policy_kwargs", "replay_buffer_kwargs",
               "rollout_buffer_kwargs", "replay_buffer_class", "rollout_buffer_class")  # fmt: skip
# The zoo's own: games side by side, VecNormalize, the noise on actions of TD3 and DDPG; of
# `policy_kwargs` the widths of hidden layers and of a NatureCNN, and what precedes activations.
_OF_THE_ZOO = {"n_envs": int, "normalize": bool, "noise_type": str, "noise_std": float,
               "net_arch": list, "cnn_arch": list, "layer_norm": bool}  # fmt: skip
# Arguments of VecNormalize that may stand in place of `normalize: true`.
_OF_NORMALIZE: dict[str, type] = {
    "norm_obs": bool,
    "norm_reward": bool,
    "clip_obs": float,
    "epsilon": float,
    "clip_reward": float,
    "norm_obs_keys": list,
}
_MOST_LAYERS, _MOST_UNITS = 16, 1 << 16
# Which part of `net_arch` is a critic's; the others have no critic.
_WITH_Q = ("SAC", "TQC", "TD3", "DDPG")
_WITH_VALUE = ("PPO", "A2C", "TRPO")
_NOISES = ("normal", "ornstein-uhlenbeck")
_WORDS = {"true": True, "false": False, "none": None}
# `lin_2.5e-4` falls linearly to 0; the zoo turns such text into a function.
_SCHEDULE = re.compile(r"lin_[0-9.]+(e-?[0-9]+)?")
# SAC's and TQC's own: learned, from a value on or from 1; minus the number of actions.
_AUTOMATIC = {"ent_coef": re.compile(r"auto(_[0-9.]+(e-?[0-9]+)?)?"),
              "target_entropy": re.compile("auto")}  # fmt: skip
_SCHEDULED = ("learning_rate", "clip_range", "clip_range_vf", "delta_std")


def checked_hyperparameters(values: Mapping[str, Any], algorithm: type) -> dict[str, Any]:
    """Return hyperparameters with the types that a class such as Stable-Baselines3's DQN wants.

    Values are numbers, true, false, none, or the zoo's schedules such as `lin_2.5e-4`. Raises
    TeacherError for names that `algorithm` does not know, and for values that its signature rules
    out.
    """
    wanted: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in inspect.signature(algorithm).parameters.items()
        if name not in _NOT_TO_SET
    } | _OF_THE_ZOO
    checked = {}
    for name, value in values.items():
        if name not in wanted:
            near = did_you_mean(name, list(wanted))
            raise _refused(name, value, f"{algorithm.__name__} has no such hyperparameter{near}")
        checked[name] = _value(name, value, wanted[name])
    if isinstance(checked.get("net_arch"), dict):
        _refuse_other_parts(checked["net_arch"], algorithm)
    return checked


def _refuse_other_parts(widths: dict[str, list[int]], algorithm: type) -> None:
    """Raise unless Stable-Baselines3 reads both: it passes over a part that it does not know."""
    name = algorithm.__name__
    critic = "qf" if name in _WITH_Q else "vf" if name in _WITH_VALUE else None
    if critic is None:
        raise _refused(
            "net_arch", widths, f"{name} has one network: must be its widths, such as [64, 64]"
        )
    if set(widths) != {"pi", critic}:
        raise _refused("net_arch", widths, f"{name} has pi and {critic}")


def _value(name: str, value: Any, wanted: object) -> Any:
    # `wanted` is int only where the signature says just that; unions such as float | Schedule take
    # anything that is listed here.
    if isinstance(value, str) and value.lower() in _WORDS:
        value = _WORDS[value.lower()]
    if name == "noise_type":
        if value is not None and value not in _NOISES:
            raise _refused(name, value, f"must be {', '.join(_NOISES)} or none")
        return value
    if name == "net_arch":
        return _widths(value)
    if name == "cnn_arch":
        if _are_widths(value) and len(value) == 4:
            return list(value)
        why = "must be channels of three convolutions and units behind them, [128, 128, 128, 512]"
        raise _refused(name, value, why)
    if name == "normalize" and isinstance(value, dict):
        return _normalization(value)
    if wanted is bool and not isinstance(value, bool):
        raise _refused(name, value, "must be true or false")
    if name == "train_freq" and isinstance(value, list):
        return _frequency(name, value)
    if value is None or isinstance(value, bool):
        kind = "None" if value is None else "bool"
        # Signatures without a type say nothing.
        if wanted is not bool and wanted is not inspect.Parameter.empty and kind not in str(wanted):
            raise _refused(name, value, f"must be {_expected(name, wanted)}")
        return value
    if isinstance(value, str):
        if _SCHEDULE.fullmatch(value) and name in _SCHEDULED:
            return value
        is_automatic = name in _AUTOMATIC and _AUTOMATIC[name].fullmatch(value)
        if is_automatic and "str" in str(wanted):
            return value
        value = _number(name, value, wanted)
    if isinstance(value, int | float):
        return _bounded(name, value, wanted)
    raise _refused(name, value, f"must be {_expected(name, wanted)}")


def _number(name: str, text: str, wanted: object) -> int | float:
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise _refused(name, text, f"must be {_expected(name, wanted)}") from None


# With none of them nothing is learned, or the same for ever.
_COUNTS = {
    "n_envs", "batch_size", "buffer_size", "n_steps", "n_epochs", "n_delta", "train_freq",
    "policy_delay", "target_update_interval", "n_quantiles", "n_critics", "n_top",
}  # fmt: skip


# Least and most of what has no meaning beyond.
_ABOVE_ZERO = ("max_grad_norm", "clip_range", "clip_range_vf")
_RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("gamma", "tau", "gae_lambda", "exploration_fraction"), (0.0, 1.0)),
    **dict.fromkeys(("exploration_initial_eps", "exploration_final_eps"), (0.0, 1.0)),
    **dict.fromkeys(("learning_rate", "noise_std", "target_policy_noise"), (0.0, math.inf)),
    **dict.fromkeys(("vf_coef", "target_noise_clip"), (0.0, math.inf)),
    "top_quantiles_to_drop_per_net": (0, 24),  # of a critic's 25
}


def _bounded(name: str, value: int | float, wanted: object) -> int | float:
    is_whole = math.isfinite(value) and float(value).is_integer()
    if wanted is int and not is_whole:
        raise _refused(name, value, "must be a whole number")
    if not math.isfinite(value):
        raise _refused(name, value, "must be a finite number")
    if name in _COUNTS and value < 1:
        raise _refused(name, value, "must be at least 1")
    if name == "gradient_steps" and value < 1 and value != -1:
        raise _refused(name, value, "must be at least 1, or -1 for as many as steps")
    if name in _ABOVE_ZERO and value <= 0:
        raise _refused(name, value, "must be above 0")
    least, most = _RANGES.get(name, (-math.inf, math.inf))
    if not least <= value <= most:
        limit = "at least 0" if most == math.inf else f"from {least:g} to {most:g}"
        raise _refused(name, value, f"must be {limit}")
    return int(value) if wanted is int else value


def _frequency(name: str, value: list[Any]) -> list[Any]:
    """Check `train_freq: [1, episode]`."""
    if (
        len(value) == 2
        and type(value[0]) is int
        and value[0] > 0
        and value[1] in ("step", "episode")
    ):
        return value
    raise _refused(name, value, "must be a whole number, or such as [1, episode]")


def _normalization(value: dict[str, Any]) -> dict[str, Any]:
    """Check `normalize: {norm_reward: false, norm_obs_keys: [arm]}`."""
    for key, given in value.items():
        kind = _OF_NORMALIZE.get(key)
        fits = kind is not None and isinstance(given, kind)
        if kind is list:
            fits = fits and bool(given) and all(isinstance(each, str) for each in given)
        elif kind is float:
            fits = type(given) in (int, float) and 0 < given < math.inf
        if not fits:
            known = ", ".join(_OF_NORMALIZE)
            raise _refused("normalize", value, f"{key}: must be one of {known}, with its value")
    return dict(value)


def _widths(value: Any) -> list[int] | dict[str, list[int]]:
    """Check `net_arch: [64, 64]`, the same for actor and critic, or `{pi: [16], qf: [64, 64]}`."""
    if isinstance(value, dict):
        is_whole = set(value) in ({"pi", "qf"}, {"pi", "vf"})
        if is_whole and all(_are_widths(each) for each in value.values()):
            return {name: list(each) for name, each in value.items()}
    elif _are_widths(value):
        return list(value)
    raise _refused(
        "net_arch",
        value,
        "must be the widths of the hidden layers, such as [64, 64], or those of actor and critic, "
        "{pi: [16, 16], qf: [256, 256]} (on-policy: vf)",
    )


def _are_widths(value: Any) -> bool:
    is_list = isinstance(value, list) and 0 < len(value) <= _MOST_LAYERS
    return is_list and all(type(each) is int and 0 < each <= _MOST_UNITS for each in value)


def _expected(name: str, wanted: object) -> str:
    if wanted is int:
        return "a whole number"
    others = ["true", "false"] if "bool" in str(wanted) else []
    others += ["none"] if "None" in str(wanted) else []
    others += ["a schedule such as lin_2.5e-4"] if name in _SCHEDULED else []
    return " or ".join(filter(None, (", ".join(["a number", *others[:-1]]), *others[-1:])))


def _refused(name: str, value: object, why: str) -> TeacherError:
    return TeacherError(
        f"train.hyperparameters.{name}={one_line(value)}: {why}", ErrorCode.TEACHER_TRAINING
    )
