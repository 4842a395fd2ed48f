"""Types of a recipe's values that are more than a number in a range: names, sizes, widths."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from qpd.recipe.plain_values import PLAIN, is_plain

# Those of students.activations, which imports torch: a test compares them.
ActivationName = Literal[
    "relu", "tanh", "sigmoid", "elu", "selu", "silu", "gelu", "mish", "softplus", "leaky_relu",
    "relu6", "hardtanh", "hardsigmoid", "hardswish",
]  # fmt: skip
_ScaleName = Literal["auto", "none", "dynamic"]
_LEAST_SCALE, _MOST_SCALE = 2.0**-24, 2.0**24  # those of qpd.numerics.loss_scale
CNN_SIZES = ("XXS", "XS", "S", "M", "L", "XL", "XXL")


def _as_tuple(value: Any) -> Any:
    # YAML has lists only, and the models are frozen: strict mode refuses a list for a tuple.
    return tuple(value) if isinstance(value, list) else value


def _check_size(value: str) -> str:
    if value in CNN_SIZES or re.fullmatch(r"mlp(-[1-9][0-9]{0,4}){1,16}", value):
        return value
    raise PydanticCustomError(
        "choice",
        "must be one of {choices}, or mlp-N, mlp-N-N ... for vector observations",
        {"choices": ", ".join(CNN_SIZES), "candidates": [*CNN_SIZES, "mlp-16", "mlp-64-64"]},
    )


def _check_device(value: str) -> str:
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", value):
        return value
    candidates = ["auto", "cpu", "cuda", "cuda:0"]
    raise PydanticCustomError(
        "choice", "must be auto, cpu, cuda or cuda:N", {"candidates": candidates}
    )


def _check_precision(value: str) -> str:
    return value if value == "auto" else _check_format(value, "auto, ")


def _check_format(value: str, also: str = "") -> str:
    # At most 10 mantissa bits, which float32 rounds exactly.
    if re.fullmatch(r"fp32|bf16|fp16|e[2-8]m([1-9]|10)", value):
        return value
    raise PydanticCustomError(
        "choice",
        f"must be {also}fp32, bf16, fp16 or eXmY, of 2 to 8 exponent and 1 to 10 mantissa bits",
        {"candidates": [*also.split(", ")[:-1], "fp32", "bf16", "fp16", "e5m7"]},
    )


def _check_loss_scale(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value in get_args(_ScaleName) or (is_number and _LEAST_SCALE <= value <= _MOST_SCALE):
        return value
    raise PydanticCustomError(
        "choice",
        "must be auto, none, dynamic, or a number from 2^-24 to 2^24",
        {"candidates": list(get_args(_ScaleName))},
    )


def _check_name(value: str) -> str:
    # The name becomes a folder: no separators, and no leading dot or dash, which hides it or reads
    # as an option.
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
        return value
    raise PydanticCustomError(
        "name",
        "must be a plain folder name: letters, digits, '.', '_' and '-', at most 100",
    )


def _check_project(value: str) -> str:
    if re.fullmatch(r"[^/\\#?%:\s](?:[^/\\#?%:]{0,126}[^/\\#?%:\s])?", value):
        return value
    raise PydanticCustomError(
        "project", "must be a project's name: at most 128 characters, none of / \\ # ? % :"
    )


def _check_arguments(value: Any) -> Any:
    if not isinstance(value, dict) or not all(
        isinstance(key, str) and key.isidentifier() for key in value
    ):
        raise PydanticCustomError(
            "arguments_type", "must be a mapping of arguments' names to values"
        )
    if not is_plain(value):
        raise PydanticCustomError("arguments", "must hold {plain}", {"plain": PLAIN})
    return value


def _check_wrappers(value: Any) -> Any:
    """Read the RL Zoo's env_wrapper: a name, {name: arguments}, or a list of either."""
    entries = value if isinstance(value, list | tuple) else [] if value is None else [value]
    for entry in entries:
        alone = isinstance(entry, dict) and len(entry) == 1
        name, arguments = next(iter(entry.items())) if alone else (entry, {})
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name):
            raise PydanticCustomError(
                "wrappers",
                "must be module.Class or {module.Class: {argument: value}}, or a list of them",
            )
        _check_arguments({} if arguments is None else arguments)
    return tuple(entries)


Name = Annotated[str, AfterValidator(_check_name)]
Width = Annotated[int, Field(ge=1, le=65536)]
Size = Annotated[str, AfterValidator(_check_size)]
ConvChannels = Annotated[
    tuple[Width, ...], Field(min_length=3, max_length=5), BeforeValidator(_as_tuple)
]
HiddenWidths = Annotated[
    tuple[Width, ...], Field(min_length=1, max_length=16), BeforeValidator(_as_tuple)
]
PhasePrecision = Annotated[str, AfterValidator(_check_precision)]
TrainFormat = Annotated[str, AfterValidator(_check_format)]
# Checked before: each member of the union would report its own mistake.
PhaseLossScale = Annotated[
    Annotated[float, Field(ge=_LEAST_SCALE, le=_MOST_SCALE)] | _ScaleName,
    BeforeValidator(_check_loss_scale),
]
Device = Annotated[str, AfterValidator(_check_device)]
Project = Annotated[str, AfterValidator(_check_project)]
EnvArguments = Annotated[dict[str, Any], BeforeValidator(_check_arguments)]
Wrappers = Annotated[tuple[Any, ...], Field(max_length=16), BeforeValidator(_check_wrappers)]
