"""Read student.bin and compute its integers; needs NumPy alone.

    student = load("student.bin")
    outputs = integer_outputs(student, observations)  # int32: logits, or what codes are made of
    actions = actions_of(student, outputs)

QPD's docs/bin-format.md describes every byte. The arithmetic is plain int64, written to be read.
"""

import os
import struct
import sys
import zlib
from dataclasses import dataclass

import numpy as np

HEADER = struct.Struct("<4s4B2HId2BHI")
DISCRETE, BOX, MULTI_DISCRETE, MULTI_BINARY = range(4)


@dataclass
class Layer:
    """One layer: `weights` int64 `[out, inputs]`; `kernel` is 0 in a linear layer."""

    weights: np.ndarray
    bias: np.ndarray
    multiplier: np.ndarray  # empty in the head
    shift: np.ndarray
    kernel: int
    stride: int
    table: np.ndarray  # the level of each index; empty after ReLU and in the head


@dataclass
class Student:
    """The layers, the top level of activations, an output's unit, the range of vectors, actions.

    `thresholds` are the least outputs of each code above 0; `choices` counts those of each part.
    """

    layers: list
    top: int
    logit_scale: float
    low: np.ndarray  # empty where observations are images
    high: np.ndarray
    kind: int
    action_low: np.ndarray  # empty unless actions are continuous
    action_high: np.ndarray
    thresholds: np.ndarray
    choices: np.ndarray  # empty unless there is a choice in each of several parts
    input_top: int  # the top level of features
    image: list  # channels, height, width of the image that vectors begin with; empty without one


def load(path: str | os.PathLike) -> Student:
    """Return the Student in `path`; ValueError if it is damaged or no student.bin."""
    with open(path, "rb") as file:
        data = file.read(1 << 28)
    if len(data) < HEADER.size or data[:4] != b"QPDB":
        raise ValueError(f"{path}: not a student.bin")
    (_, version, count, convs, top, features, outputs_count, size, scale, kind, bits, numbers,
     crc) = HEADER.unpack_from(data)  # fmt: skip
    if version not in (1, 2, 3, 4, 5, 6) or kind > MULTI_BINARY:
        raise ValueError(
            f"{path}: version {version}, kind {kind}: this reader knows 1 to 6, 0 to 3"
        )
    if len(data) != 32 + size or zlib.crc32(data[:28] + data[32:]) != crc:
        raise ValueError(f"{path}: damaged: {len(data)} bytes, of the wrong length or checksum")
    at = 32

    def take(dtype: str, length: int) -> np.ndarray:
        nonlocal at
        values = np.frombuffer(data, dtype, length, at)
        at += values.nbytes
        return values

    table = [struct.unpack("<H2B", take("u1", 4).tobytes()) for _ in range(count)]
    low, high = take("<f4", features), take("<f4", features)
    of_box = numbers if kind == BOX else 0
    action_low, action_high = take("<f4", of_box), take("<f4", of_box)
    thresholds = take("<i4", 2**bits - 1 if kind == BOX else 0)
    choices = take("<u4", numbers if kind == MULTI_DISCRETE else 0).astype(np.int64)
    image = take("<u4", 3).tolist() if version in (5, 6) else []
    inputs, *sides = image or (features or 4, 84, 84)
    input_bits, is_even = take("u1", 4).tolist()[:2] if version == 4 else (8, 0)
    num_tables = int(take("<u4", 1)[0]) if version in (3, 4) else 0
    if num_tables not in (0, 1, count - 1):
        raise ValueError(f"{path}: {num_tables} tables for {count} layers")
    tables = [take("u1", 1024).astype(np.int64) for _ in range(num_tables)]
    outputs = [out for out, _, _ in table]
    biases = [take("<i4", out).astype(np.int64) for out in outputs]
    multipliers = [take("<i4", out).astype(np.int64) for out in outputs[:-1]]
    shifts = [take("u1", out).astype(np.int64) for out in outputs[:-1]]
    none = np.zeros(0, np.int64)
    layers = []
    for i, (out, bits, geometry) in enumerate(table):
        kernel, stride = divmod(geometry, 16)
        if kernel:
            inputs *= kernel * kernel
            sides = [(side - kernel) // stride + 1 for side in sides]
        elif i == convs and convs:
            inputs = inputs * sides[0] * sides[1] + (features if version == 6 else 0)
        row_bytes = (inputs * bits + 7) // 8
        packed = take("u1", out * row_bytes).reshape(out, row_bytes)
        last = i == count - 1
        layers.append(
            Layer(
                _weights(packed, bits, inputs, 2**bits - (0 if is_even else 1)),
                biases[i],
                none if last else multipliers[i],
                none if last else shifts[i],
                kernel,
                stride,
                none if last or not tables else tables[min(i, num_tables - 1)],
            )
        )
        inputs = out
    if at != len(data) or outputs[-1] != outputs_count:
        raise ValueError(f"{path}: its numbers do not fit its shape")
    return Student(
        layers, top, scale, low, high, kind, action_low, action_high, thresholds, choices,
        top if version == 6 else 2**input_bits - 1, image if version == 6 else [],
    )  # fmt: skip


def _weights(packed: np.ndarray, bits: int, inputs: int, zero: int) -> np.ndarray:
    """Return the integers 2n - zero of levels n; at 8 bits n - 128 is stored as int8."""
    if bits == 8:
        levels = packed.view(np.int8).astype(np.int64) + 128
    else:
        planes = np.unpackbits(packed, axis=1, bitorder="little")[:, : inputs * bits]
        planes = planes.reshape(len(packed), inputs, bits).astype(np.int64)
        levels = planes @ (1 << np.arange(bits))
    return 2 * levels - zero


def levels_of(student: Student, observations: np.ndarray) -> np.ndarray:
    """Turn float32 vectors into levels from 0 on; NaN becomes 0. Images are levels already."""
    if not len(student.low):
        return observations
    pixels, features = np.split(observations, [-len(student.low)], axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        unit = (features.astype(np.float32) - student.low) / (student.high - student.low)
        levels = np.round(np.clip(unit, 0, 1) * np.float32(student.input_top))
        levels = np.concatenate([np.round(np.clip(pixels, 0, 255)), levels], 1)
    return np.nan_to_num(levels, nan=0.0)


def integer_outputs(student: Student, observations: np.ndarray) -> np.ndarray:
    """Map uint8 images `[batch, c, h, w]` or float32 vectors to int32 `[batch, outputs]`."""
    levels = levels_of(student, observations).astype(np.int64)
    features = np.zeros((len(levels), 0), np.int64)
    if student.image:
        levels, features = np.split(levels, [-len(student.low)], axis=1)
        levels = levels.reshape(-1, *student.image)
    for i, layer in enumerate(student.layers):
        if layer.kernel:
            # Windows of a [batch, channel, row, column] or [batch, row, column, channel] image.
            axes = (2, 3) if i == 0 else (1, 2)
            size = (layer.kernel, layer.kernel)
            windows = np.lib.stride_tricks.sliding_window_view(levels, size, axes)
            if i == 0:  # -> [batch, y, x, channel, row, column]
                windows = windows.transpose(0, 2, 3, 1, 4, 5)
            else:  # -> [batch, y, x, row, column, channel]
                windows = windows.transpose(0, 1, 2, 4, 5, 3)
            windows = windows[:, :: layer.stride, :: layer.stride]
            levels = windows.reshape(*windows.shape[:3], -1)
        else:
            levels = np.concatenate([levels.reshape(len(levels), -1), features], 1)
            features = features[:, :0]  # joined once
        acc = levels @ layer.weights.T + layer.bias
        if not len(layer.multiplier):
            return acc.astype(np.int32)
        half = np.int64(1) << (layer.shift - 1)
        levels = (acc * layer.multiplier + half) >> layer.shift
        if len(layer.table):
            levels = layer.table[np.clip(levels, 0, len(layer.table) - 1)]
        else:
            levels = np.clip(levels, 0, student.top)
    raise AssertionError("the last layer is the head")


def actions_of(student: Student, outputs: np.ndarray) -> np.ndarray:
    """Return the best actions: `[batch]`, or `[batch, numbers]`, and uint8 where they are codes."""
    if student.kind == BOX:
        return np.searchsorted(student.thresholds, outputs, side="right").astype(np.uint8)
    if student.kind == MULTI_DISCRETE:
        parts = np.split(outputs, np.cumsum(student.choices)[:-1], axis=1)
        return np.stack([part.argmax(1) for part in parts], axis=1)
    return (outputs > 0).astype(np.int64) if student.kind == MULTI_BINARY else outputs.argmax(1)


def values_of(student: Student, codes: np.ndarray) -> np.ndarray:
    """Return what codes stand for, float32: continuous actions in the environment's units."""
    shares = np.float32(2) * codes.astype(np.float32) / np.float32(len(student.thresholds))
    width = student.action_high - student.action_low
    # In this order of operations the numbers are those of QPD's engine, bit for bit.
    parts = np.float32(0.5) * (shares - np.float32(1) + np.float32(1)) * width
    return np.clip(student.action_low + parts, student.action_low, student.action_high)


if __name__ == "__main__":
    read = load(sys.argv[1] if len(sys.argv) > 1 else "student.bin")
    print([layer.weights.shape for layer in read.layers])
