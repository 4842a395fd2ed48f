"""quantized.safetensors: the integer student, weights packed at their true bit width."""

from __future__ import annotations

import json
from dataclasses import astuple
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qpd.actions import Box
from qpd.files.atomic import write_safetensors
from qpd.files.json_input import parse_json
from qpd.integer.action_codes import OutputGrid
from qpd.integer.constant_bytes import constant_bytes
from qpd.integer.integer_student import INT32_MAX, IntegerLayer, IntegerStudent
from qpd.quantization.activation_table import ENTRIES
from qpd.student_files.distilled import (
    StudentFileError,
    actions_metadata,
    architecture_from_json,
    architecture_to_json,
    format_version,
    read_metadata,
    read_safetensors,
    stored_actions,
    versioned_architecture,
)
from qpd.student_files.origin import imitates_policy
from qpd.students import StudentArchitecture

FORMAT = "qpd-integer-student"
# Of ReLU students; the next one has tables, and the last one other inputs or weights than those of
# 8 bits and odd integers, or an output's grid.
FORMAT_VERSION, WIDE_VERSION = 2, 4
_SCALES = 1e-30, 1e30  # of outputs: exports take its logarithm, quotient and fixed point


def pack_levels(levels: np.ndarray, bits: int) -> np.ndarray:
    """Pack levels 0..2^bits - 1, any shape, into uint8 `[ceil(size * bits / 8)]`, low bit first."""
    flat = levels.astype(np.uint8).reshape(-1, 1)
    # A byte per bit for a moment: 3.3 MB of weights become 27 MB, which is simpler than shifting
    # words and fast enough.
    planes = (flat >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(planes.reshape(-1), bitorder="little")


def unpack_levels(packed: np.ndarray, bits: int, shape: tuple[int, ...]) -> np.ndarray:
    """Invert `pack_levels`: uint8 levels of `shape`. Raises ValueError on a wrong size."""
    size = prod(shape)
    if packed.dtype != np.uint8 or packed.shape != ((size * bits + 7) // 8,):
        raise ValueError(f"{packed.shape} packed bytes do not hold {size} levels of {bits} bits")
    planes = np.unpackbits(packed, count=size * bits, bitorder="little").reshape(size, bits)
    # uint16, as the sum of 8 bits times their weights must not wrap before it is whole.
    weights = 1 << np.arange(bits, dtype=np.uint16)
    return (planes @ weights).astype(np.uint8).reshape(shape)


def save_integer_student(path: Path, student: IntegerStudent, about: dict[str, Any]) -> None:
    """Write the integer student; `about`, plain data on its origin, is stored unchanged."""
    tensors, metadata = pack_student(student, about)
    write_safetensors(path, tensors, metadata)


def pack_student(
    student: IntegerStudent, about: dict[str, Any]
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors and metadata of a quantized.safetensors; `unpack_student` inverts it.

    Weights are stored as levels n of the integers 2n - M, a tensor for each layer. Biases of
    all layers follow each other in `biases`, what requantizes the hidden ones in `multipliers` and
    `shifts`: every tensor of its own would cost 70 bytes of header. `tables` are those of hidden
    layers, or the one that they share, if there are any.
    """
    tensors: dict[str, torch.Tensor] = {}
    wide = _wide_fields(student)
    for layer in student.layers:
        levels = student.weight_levels(layer)
        tensors[f"{layer.shape.name}.weight"] = torch.from_numpy(pack_levels(levels, layer.bits))
    gains = [(x.multiplier, x.shift) for x in student.layers[:-1]]
    multipliers = [multiplier for multiplier, _ in gains if multiplier is not None]
    # 1..62 fits a byte.
    shifts = [shift.astype(np.uint8) for _, shift in gains if shift is not None]
    tensors["biases"] = torch.from_numpy(np.concatenate([x.bias for x in student.layers]))
    tensors["multipliers"] = torch.from_numpy(np.concatenate(multipliers))
    tensors["shifts"] = torch.from_numpy(np.concatenate(shifts))
    if student.tables:
        tensors["tables"] = torch.from_numpy(np.concatenate(student.tables))
    if student.input_low is not None and student.input_high is not None:
        tensors["input_low"] = torch.from_numpy(student.input_low)
        tensors["input_high"] = torch.from_numpy(student.input_high)
    metadata = {
        "format": FORMAT,
        "format_version": str(
            WIDE_VERSION if wide else format_version(student.architecture, FORMAT_VERSION)
        ),
        "architecture": _compact(architecture_to_json(student.architecture)),
        "weight_bits": _compact([layer.bits for layer in student.layers]),
        "activation_levels": str(student.layers[0].levels),
        # repr, the shortest text that reads back as the same float64.
        "logit_scale": repr(student.output_scale),
        "about": _compact(about),
        **actions_metadata(student.actions),
        **({"action_bits": str(student.action_bits)} if isinstance(student.actions, Box) else {}),
        **({"integers": _compact(wide)} if wide else {}),
    }
    return tensors, metadata


def _wide_fields(student: IntegerStudent) -> dict[str, Any]:
    """Return what the last version alone has; nothing of a student that needs none of it."""
    found: dict[str, Any] = {}
    if student.input_bits != 8:
        found["input_bits"] = student.input_bits
    if student.has_zero_weight:
        found["has_zero_weight"] = True
    if student.output_grid is not None:
        found["output_step"], found["output_bits"] = astuple(student.output_grid)
    return found


def _read_wide_fields(metadata: dict[str, str]) -> tuple[int, bool, OutputGrid | None]:
    """Return bits of inputs, whether there is a weight of zero, and the output's grid."""
    if metadata["format_version"] != str(WIDE_VERSION):
        return 8, False, None
    found = parse_json(metadata["integers"])
    if not isinstance(found, dict):
        raise ValueError("integers: expected an object")
    input_bits, zero = found.get("input_bits", 8), found.get("has_zero_weight", False)
    if type(input_bits) is not int or not 2 <= input_bits <= 8 or type(zero) is not bool:
        raise ValueError("integers: input_bits or has_zero_weight")
    if "output_step" not in found:
        return input_bits, zero, None
    step, bits = found["output_step"], found["output_bits"]
    if type(step) is not float or not _SCALES[0] <= step <= _SCALES[1]:
        raise ValueError("integers: output_step")
    if type(bits) is not int or not 2 <= bits <= 8:
        raise ValueError("integers: output_bits")
    return input_bits, zero, OutputGrid(step, bits)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def load_integer_student(path: Path) -> IntegerStudent:
    """Read what `save_integer_student` wrote; raises StudentFileError for anything else."""
    metadata, tensors = read_safetensors(path, FORMAT, (2, 3, WIDE_VERSION))
    try:
        return unpack_student(metadata, {k: v.numpy() for k, v in tensors.items()})
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise StudentFileError(f"{path}: does not describe an integer student: {error}") from error


def stored_constant_bytes(path: Path) -> int:
    """Return the bytes of a quantized.safetensors' constants alone, as the C export holds them.

    Reads the header. Raises StudentFileError.
    """
    metadata = read_metadata(path)
    try:
        architecture = architecture_from_json(parse_json(metadata["architecture"]))
        bits = [int(bits) for bits in parse_json(metadata["weight_bits"])]
        actions = stored_actions(metadata, architecture.num_outputs, has_values=False)
        return constant_bytes(
            architecture.layer_shapes(),
            bits,
            architecture.num_tables,
            2 ** _action_bits(metadata) - 1 if isinstance(actions, Box) else 0,
        )
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise StudentFileError(f"{path}: does not describe an integer student: {error}") from error


def unpack_student(metadata: dict[str, str], arrays: dict[str, np.ndarray]) -> IntegerStudent:
    """Invert `pack_student`; raises KeyError, ValueError, TypeError or OverflowError otherwise."""
    architecture = (
        architecture_from_json(parse_json(metadata["architecture"]))
        if metadata["format_version"] == str(WIDE_VERSION)
        else versioned_architecture(metadata, FORMAT_VERSION)
    )
    input_bits, has_zero, output_grid = _read_wide_fields(metadata)
    if architecture.image_shape is not None and (input_bits != 8 or has_zero):
        raise ValueError("images have inputs of 8 bits, and odd weights")
    shapes = architecture.layer_shapes()
    bits_per_layer = [int(bits) for bits in parse_json(metadata["weight_bits"])]
    top = int(metadata["activation_levels"])
    if len(bits_per_layer) != len(shapes) or not all(2 <= bits <= 8 for bits in bits_per_layer):
        raise ValueError(f"weight_bits {bits_per_layer} for {len(shapes)} layers")
    # What engines, and the C export's shifts, rely on is checked here, once: a file may come from
    # anyone.
    if top not in [2**bits - 1 for bits in range(2, 9)]:
        raise ValueError(f"activation_levels {top}")
    widths = [shape.weight_shape[0] for shape in shapes]
    biases = _vector(arrays, "biases", np.int32, sum(widths))
    multipliers = _vector(arrays, "multipliers", np.int32, sum(widths[:-1]))
    shifts = _vector(arrays, "shifts", np.uint8, sum(widths[:-1])).astype(np.int32)
    if (multipliers < 0).any() or (shifts < 1).any() or (shifts > 62).any():
        raise ValueError("multipliers or shifts out of range")
    tables = _tables(arrays, architecture, top)
    layers: list[IntegerLayer] = []
    end = 0
    for shape, bits in zip(shapes, bits_per_layer, strict=True):
        levels = unpack_levels(arrays[f"{shape.name}.weight"], bits, shape.weight_shape)
        here = slice(end, end + shape.weight_shape[0])
        end = here.stop
        hidden = shape.name != "actor"
        multiplier, shift = (multipliers[here], shifts[here]) if hidden else (None, None)
        weight = 2 * levels.astype(np.int16) - np.int16(2**bits - (0 if has_zero else 1))
        table = tables[min(len(layers), len(tables) - 1)] if tables and hidden else None
        layers.append(
            IntegerLayer(
                shape,
                bits,
                weight,
                biases[here],
                multiplier,
                shift,
                top,
                table,
                2**input_bits - 1 if not layers else top,
            )
        )
        if layers[-1].largest_accumulator > INT32_MAX:
            raise ValueError(f"{shape.name}: its accumulators may exceed int32")
    ranges: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
    if width := architecture.num_features:
        low = _vector(arrays, "input_low", np.float32, width)
        high = _vector(arrays, "input_high", np.float32, width)
        # Not `low >= high`: NaN compares false and must be refused as well.
        if not (high > low).all():
            raise ValueError("input_high must exceed input_low")
        with np.errstate(over="ignore"):
            if not np.isfinite(high - low).all():
                raise ValueError("input_low to input_high is wider than float32 holds")
        ranges = (low, high)
    scale = float(metadata["logit_scale"])
    if not _SCALES[0] <= scale <= _SCALES[1]:  # NaN compares false
        raise ValueError(f"logit_scale {scale}: must be from {_SCALES[0]:g} to {_SCALES[1]:g}")
    about = parse_json(metadata.get("about", "{}"))
    has_values = isinstance(about, dict) and not imitates_policy(about)
    actions = stored_actions(metadata, architecture.num_outputs, has_values)
    return IntegerStudent(
        architecture,
        tuple(layers),
        scale,
        actions,
        *ranges,
        _action_bits(metadata),
        input_bits,
        has_zero,
        output_grid,
    )


def _action_bits(metadata: dict[str, str]) -> int:
    action_bits = int(metadata.get("action_bits", "8"))
    if not 2 <= action_bits <= 8:
        raise ValueError(f"action_bits {action_bits}")
    return action_bits


def _tables(
    arrays: dict[str, np.ndarray], architecture: StudentArchitecture, top: int
) -> list[np.ndarray]:
    """Return the tables of hidden layers, uint8 `[1024]` each, one for all where they share it."""
    count = architecture.num_tables
    if not count:
        return []
    tables = _vector(arrays, "tables", np.uint8, count * ENTRIES)
    if tables.max() > top:
        raise ValueError(f"tables with levels above {top}")
    return list(tables.reshape(count, ENTRIES))


def _vector(arrays: dict[str, np.ndarray], name: str, dtype: type, size: int) -> np.ndarray:
    array = arrays[name]
    if array.dtype != dtype or array.shape != (size,):
        raise ValueError(f"{name} is {array.dtype} {array.shape}, not {dtype.__name__} ({size},)")
    return array
