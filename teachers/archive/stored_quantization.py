"""`quantization.json`, beside an agent that was trained to be quantized: its layers' ranges."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from qpd.errors.codes import ErrorCode
from qpd.files.atomic import write_json
from qpd.files.json_input import read_json
from qpd.quantization.layer_quantizer import Gradient, LayerQuantizer, LayerScheme, Range
from qpd.quantization.weight_quantizer import FEWEST_BITS, GRANULARITIES, MOST_BITS
from qpd.teachers.archive.errors import TeacherError, one_line
from qpd.teachers.archive.stored_controller import (
    CONTROLLER_FORMAT,
    StoredController,
    controller_of_json,
)

QUANTIZATION_FILE = "quantization.json"
_FORMAT = "qpd-quantized-agent-1"
_INPUT_KINDS = ("features", "activations", "bytes")
_MOST_LAYERS, _MOST_GROUPS = 64, 1 << 20
_LEAST_SCALE = 1e-12


@dataclass(frozen=True)
class StoredQuantization:
    """Hold what the file says: how an agent is quantized, layer by layer.

    `begun_at`: agent steps after which its ranges were fixed; None while they are only watched,
    and the agent plays in float.
    """

    bits: int
    begun_at: int | None
    layers: tuple[LayerQuantizer, ...]

    @property
    def is_active(self) -> bool:
        """Tell whether the agent plays quantized."""
        return self.begun_at is not None

    @property
    def scheme(self) -> LayerScheme:
        """The grid of its weights."""
        return self.layers[0].scheme

    def __str__(self) -> str:
        """Return how it plays, in a few words."""
        if self.begun_at is None:
            return f"float, ranges watched for {self.bits} bits"
        grid = " of integers" if self.scheme == "dorefa_scaled" else ""
        return f"trained in {self.bits} bits{grid}, from step {self.begun_at:,} on"

    @property
    def sha256(self) -> str:
        """The digest of all it says."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the file's content, JSON types; floats are float32, exactly."""
        # Absent for the first scheme: its files stay what they were.
        scheme = {} if self.scheme == "affine" else {"scheme": self.scheme}
        return {
            "format": _FORMAT,
            "bits": self.bits,
            **scheme,
            "begun_at": self.begun_at,
            "layers": [_layer_to_json(layer) for layer in self.layers],
        }

    def write(self, folder: Path) -> None:
        """Write the file into `folder`, whole or not at all."""
        write_json(folder / QUANTIZATION_FILE, self.to_json())


def read_quantization(path: Path) -> StoredQuantization | StoredController:
    """Read the file. Raises TeacherError, one line, for anything that is not what QPD writes."""
    try:
        content = read_json(path)
        if isinstance(content, dict) and content.get("format") == CONTROLLER_FORMAT:
            return controller_of_json(content)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f"format is not {_FORMAT} or {CONTROLLER_FORMAT}")
        bits, begun_at, layers = (content[key] for key in ("bits", "begun_at", "layers"))
        if type(bits) is not int or not FEWEST_BITS <= bits <= MOST_BITS:
            raise ValueError(f"bits: expected {FEWEST_BITS} to {MOST_BITS}")
        if begun_at is not None and (type(begun_at) is not int or begun_at < 0):
            raise ValueError("begun_at: expected agent steps, or null")
        if not isinstance(layers, list) or not 0 < len(layers) <= _MOST_LAYERS:
            raise ValueError(f"layers: expected a list of 1 to {_MOST_LAYERS}")
        scheme = content.get("scheme", "affine")
        if scheme not in get_args(LayerScheme):
            raise ValueError(f"scheme: expected {' or '.join(get_args(LayerScheme))}")
        found = tuple(_layer_of_json(layer, bits, begun_at is not None, scheme) for layer in layers)
        _check_together(found, begun_at is not None)
    except KeyError as error:
        raise _damaged(path, f"{error.args[0]} is missing") from error
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(path, one_line(error)) from error
    return StoredQuantization(bits, begun_at, found)


def check_shapes(
    stored: StoredQuantization | StoredController,
    weights: Sequence[torch.Tensor],
    num_features: int | None,
) -> None:
    """Raise TeacherError unless the ranges are of these layers; `num_features`: of vectors."""
    if isinstance(stored, StoredController):
        if len(stored.scales) != len(weights) + 1 or any(each.dim() != 2 for each in weights):
            raise TeacherError(
                f"{QUANTIZATION_FILE} has scales of {len(stored.scales) - 1} linear layers; this "
                f"agent acts by {len(weights)}",
                ErrorCode.TEACHER_DAMAGED,
            )
        return
    if len(stored.layers) != len(weights):
        raise TeacherError(
            f"{QUANTIZATION_FILE} has {len(stored.layers)} layers; this agent acts by "
            f"{len(weights)}",
            ErrorCode.TEACHER_DAMAGED,
        )
    before: torch.Tensor | None = None
    for layer, weight in zip(stored.layers, weights, strict=True):
        flattens = weight.dim() == 2 and before is not None and before.dim() == 4
        columns = len(before) if flattens and before is not None else weight.shape[1]
        before = weight
        fits = layer.columns == columns
        groups = {"tensor": 1, "channel": len(weight), "column": layer.columns}[layer.per]
        fits &= layer.weights is None or len(layer.weights.low) == groups
        features = num_features if layer.input_kind == "features" else 1
        fits &= layer.inputs is None or len(layer.inputs.low) == features
        if not fits:
            raise TeacherError(
                f"{QUANTIZATION_FILE}: the ranges of {layer.name} do not fit weights "
                f"{tuple(weight.shape)}",
                ErrorCode.TEACHER_DAMAGED,
            )


def _damaged(path: Path, problem: str) -> TeacherError:
    return TeacherError(
        f"{path}: {problem}; expected the file that `qpd train --bits` wrote beside this agent",
        ErrorCode.TEACHER_DAMAGED,
    )


def _layer_to_json(layer: LayerQuantizer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "per": layer.per,
        "columns": layer.columns,
        "gradient": layer.gradient,
        "input_kind": layer.input_kind,
        "weights": _range_to_json(layer.weights),
        "inputs": _range_to_json(layer.inputs),
    }


def _layer_of_json(content: Any, bits: int, is_active: bool, scheme: LayerScheme) -> LayerQuantizer:
    if not isinstance(content, dict):
        raise ValueError("layers: expected an object for each")
    name, columns = content["name"], content["columns"]
    if not isinstance(name, str) or not name.isidentifier() or len(name) > 40:
        raise ValueError("layers: a name is no layer's")
    if type(columns) is not int or not 0 < columns <= _MOST_GROUPS:
        raise ValueError(f"layers.{name}.columns: expected input channels")
    for key, known in (
        ("per", GRANULARITIES),
        ("gradient", get_args(Gradient)),
        ("input_kind", _INPUT_KINDS),
    ):
        if content[key] not in known:
            raise ValueError(f"layers.{name}.{key}: expected {', '.join(known)}")
    layer = LayerQuantizer(
        name,
        bits,
        per=content["per"],
        columns=columns,
        input_kind=content["input_kind"],
        gradient=content["gradient"],
        scheme=scheme,
    )
    layer.weights = _range_of_json(content["weights"], f"layers.{name}.weights")
    layer.inputs = _range_of_json(content["inputs"], f"layers.{name}.inputs")
    if is_active:
        if layer.weights is None or not layer.has_watched:
            raise ValueError(f"layers.{name}: ranges are missing")
    return layer


def _check_together(layers: Sequence[LayerQuantizer], is_active: bool) -> None:
    """Raise ValueError where layers do not follow each other as those of `qpd train` do."""
    for position, layer in enumerate(layers):
        kinds = ("activations",) if position else ("features", "bytes")
        if layer.input_kind not in kinds:
            raise ValueError(f"layers.{layer.name}.input_kind: expected {' or '.join(kinds)}")
        if layer.scheme == "affine" or not is_active:
            continue
        is_last = position == len(layers) - 1
        if layer.per != ("tensor" if is_last else layers[0].per):
            raise ValueError(f"layers.{layer.name}.per: integers have one for all, a head tensor")
        assert layer.weights is not None
        low, high = layer.weights.low, layer.weights.high
        if not bool(((high >= _LEAST_SCALE) & (low == -high)).all()):
            raise ValueError(f"layers.{layer.name}.weights: expected a scale s above 0, -s to s")
        if layer.inputs is not None and not bool((layer.inputs.low < layer.inputs.high).all()):
            raise ValueError(f"layers.{layer.name}.inputs: expected low < high")


def _range_to_json(found: Range | None) -> dict[str, list[float]] | None:
    return None if found is None else {"low": found.low.tolist(), "high": found.high.tolist()}


def _range_of_json(content: Any, place: str) -> Range | None:
    if content is None:
        return None
    ends = []
    for key in ("low", "high"):
        numbers = content[key]
        if not isinstance(numbers, list) or not 0 < len(numbers) <= _MOST_GROUPS:
            raise ValueError(f"{place}.{key}: expected a list of numbers")
        if not all(type(number) in (int, float) for number in numbers):
            raise ValueError(f"{place}.{key}: expected numbers")
        ends.append(torch.tensor(numbers, dtype=torch.float32))
    low, high = ends
    if (
        len(low) != len(high)
        or not bool((low <= high).all())
        or not bool((torch.isfinite(low) & torch.isfinite(high)).all())
    ):
        raise ValueError(f"{place}: expected low <= high, as many of each")
    return Range(low, high)
