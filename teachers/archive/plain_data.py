"""Plain values of an SB3 archive's `data` member: spaces, activation, algorithm.

`data` is JSON. Values that JSON cannot hold are stored as objects with a base64 pickle
under `:serialized:` and, beside it, `str()` of their attributes. Only the latter are
used here; nothing is ever unpickled. Old archives spell keys and values differently
(`shape`/`_shape`, `'n': '4'`/`4`), and any of them may be missing.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ActionKind = Literal["discrete", "continuous", "other", "unknown"]

_SPACE_NAME = re.compile(r"spaces\.\w+\.(\w+)'|\b(Box|Discrete|MultiDiscrete|MultiBinary|Dict)\b")


@dataclass(frozen=True)
class ActionSpace:
    """The agent's action space; `num_actions` is set for `discrete` if it is known."""

    kind: ActionKind
    num_actions: int | None = None


@dataclass(frozen=True)
class ObservationSpace:
    """The agent's observation space; fields are None where the archive does not say."""

    space: str | None = None  # "Box", "Discrete", "Dict", ...
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    is_uint8_image: bool = False  # SB3's is_image_space(): 3 axes, uint8, from 0 to 255


def read_action_space(data: Mapping[str, Any]) -> ActionSpace:
    """Return the action space that the plain data describe, `unknown` if they do not."""
    fields = _fields(data, "action_space")
    name = _space_name(fields)
    if name == "Box":
        return ActionSpace("continuous")
    if name in ("MultiDiscrete", "MultiBinary", "Dict", "Tuple"):
        return ActionSpace("other")
    num_actions = _positive_int(fields.get("n"))
    if num_actions is not None:
        return ActionSpace("discrete", num_actions)
    return ActionSpace("discrete" if name == "Discrete" else "unknown")


def read_observation_space(data: Mapping[str, Any]) -> ObservationSpace:
    """Return the observation space that the plain data describe."""
    fields = _fields(data, "observation_space")
    shape = _int_tuple(fields.get("_shape", fields.get("shape")))
    dtype = fields.get("dtype")
    dtype = dtype if isinstance(dtype, str) else None
    # Bounds are NumPy's text of a whole array, `[[[0 0 0 ... 0]]]`: only its numbers count.
    low, high = (set(re.findall(r"\d+", str(fields.get(key, "")))) for key in ("low", "high"))
    is_image = shape is not None and len(shape) == 3 and dtype == "uint8"
    is_image = is_image and low <= {"0"} and high <= {"255"}
    return ObservationSpace(_space_name(fields), shape, dtype, is_image)


def read_policy_option(data: Mapping[str, Any], name: str) -> str | None:
    """Return the text of one entry of `policy_kwargs`, or None.

    `policy_kwargs` may be a JSON object, an object of `str()`s, or the `str()` of a dict.
    """
    options = data.get("policy_kwargs")
    if isinstance(options, str):
        # The text of a dict or of keyword arguments: 'net_arch': [64], net_arch=[64].
        found = re.search(rf"['\"]?\b{name}\b['\"]?\s*[:=]\s*(<[^>]*>|[^,}}\)]+)", options)
        return found.group(1).strip() if found else None
    if isinstance(options, Mapping) and options.get(name) is not None:
        return str(options[name])
    return None


def class_name(text: str) -> str:
    """Return the last name in the text of a class: `<class 'torch.nn.Tanh'>` -> `Tanh`."""
    return re.sub(r"[<>'\"\s]|class\b", "", text).rsplit(".", 1)[-1]


def read_float(data: Mapping[str, Any], key: str) -> float | None:
    """Return a plain number, or None if it is missing, no number, not finite or too large."""
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def read_int(data: Mapping[str, Any], key: str) -> int | None:
    """Return a plain non-negative integer, or None."""
    value = data.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def actor_critic_label(data: Mapping[str, Any]) -> str | None:
    """Return `ppo`, `a2c` or `trpo` for an actor-critic's plain data, None if they say neither.

    Only the names of training settings tell them apart: their policies are the same class.
    """
    # PPO's keys are a superset of A2C's, so A2C comes last.
    if "clip_range" in data or "n_epochs" in data:
        return "ppo"
    if "cg_max_steps" in data:
        return "trpo"
    if "gae_lambda" in data or "vf_coef" in data:
        return "a2c"
    return None


def _fields(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    if isinstance(value, str):  # `str()` of a space: "Discrete(4)"
        found = re.match(r"\s*Discrete\((\d+)", value)
        return {":type:": value, **({"n": found.group(1)} if found else {})}
    return value if isinstance(value, Mapping) else {}


def _space_name(fields: Mapping[str, Any]) -> str | None:
    found = _SPACE_NAME.search(str(fields.get(":type:", "")))
    return (found.group(1) or found.group(2)) if found else None


def _positive_int(value: object) -> int | None:
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,9}", str(value)):
        return None
    return int(str(value)) or None


def _int_tuple(value: object) -> tuple[int, ...] | None:
    text = str(value)
    # A JSON list and the text of a tuple look alike as text; nothing is evaluated.
    if not re.fullmatch(r"\s*[\[(][\d,\s]{0,200}[\])]\s*", text):
        return None
    return tuple(int(number) for number in re.findall(r"\d{1,9}", text))
