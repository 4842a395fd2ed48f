"""The SystemVerilog export: a fixed core (`core/`) and one student's numbers in hexadecimal."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from math import ceil
from typing import Literal, get_args

import numpy as np

from qpd.actions import Box, Discrete
from qpd.errors.codes import ErrorCode
from qpd.export.bundle import ExportError, ExportSource, GoldenVectors
from qpd.export.device_actions import device_actions
from qpd.export.systemverilog.readme import readme
from qpd.export.systemverilog.thresholds import feature_thresholds, key_floats, level_thresholds
from qpd.export.systemverilog.unrolled import (
    MOST_THRESHOLD_BITS,
    nonzero_weights,
    unrolled_network,
)
from qpd.integer.integer_student import IntegerLayer, IntegerStudent, reference_outputs
from qpd.version import __version__

MULTIPLE_BITS = 11  # of seven times a level, which the core chooses from for narrow weights
MOST_MULTIPLIERS = 1_000_000
_LARGE_ROM = 64  # words: block RAM
_STYLES = ("ROM_STYLE", "YOSYS_STYLE", "TABLE_ROM_STYLE", "TABLE_YOSYS_STYLE")
# Yosys has no ROM of distributed memory, and looks at ram_style first.
_BLOCK, _LOGIC = ("block", "block"), ("distributed", "logic")
SOURCES = ("qpd_core.sv", "qpd_network.sv", "qpd_search.sv")  # without what only tests
UNUSUAL = np.array([np.nan, np.inf, -np.inf, -0.0, 3e38, -3e38, 1e-45], dtype=np.float32)


Multipliers = int | Literal["all"] | None
Constants = Literal["block-ram", "weights", "fabric"]  # what is in block RAM: all, weights, none


@dataclass(frozen=True)
class Folding:
    """Count the `multipliers` at work, or adders where weights are narrow: one for each lane.

    `unrolled`: every layer has its own, one for each weight that is not 0.
    """

    multipliers: int
    unrolled: bool = False

    @property
    def asked(self) -> int | Literal["all"]:
        """Return what `folding_of` makes this of."""
        return "all" if self.unrolled else self.multipliers

    @property
    def title(self) -> str:
        """Say what is at work, in words."""
        if self.unrolled:
            return f"unrolled, {self.multipliers:,} weights"
        return f"{self.multipliers:,} lane{'s' * (self.multipliers != 1)}"


def multipliers_of(text: str | None) -> Multipliers:
    """Return what `--multipliers` says: a number of at least 1, or all. Raises ExportError."""
    if text is None:
        return None
    if text == "all":
        return "all"
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MOST_MULTIPLIERS))
    if not is_number or not 0 < int(text) <= MOST_MULTIPLIERS:
        raise ExportError(
            f"--multipliers {text:.40}: must be a number from 1 to {MOST_MULTIPLIERS:,}, or all",
            ErrorCode.COMMAND_LINE,
        )
    return int(text)


def constants_of(text: str) -> Constants:
    """Return what `--constants` says. Raises ExportError."""
    known: tuple[Constants, ...] = get_args(Constants)
    for each in known:
        if text == each:
            return each
    raise ExportError(f"--constants {text}: one of {', '.join(known)}", ErrorCode.COMMAND_LINE)


def folding_of(student: IntegerStudent, multipliers: Multipliers) -> Folding:
    """Return the folding with at most `multipliers`; None is a lane for each neuron.

    There are no more lanes than neurons of the widest layer: as levels leave a layer one a clock,
    inputs side by side would wait for them. "all" is every layer at once. Raises ExportError
    below 1.
    """
    if multipliers == "all":
        return Folding(nonzero_weights(student), unrolled=True)
    widest = max(len(layer.weight) for layer in student.layers)
    if multipliers is None:
        return Folding(widest)
    if multipliers < 1:
        raise ExportError(f"--multipliers {multipliers}: at least 1")
    return Folding(min(multipliers, widest))


def export_systemverilog(
    source: ExportSource,
    golden: GoldenVectors,
    multipliers: Multipliers = None,
    constants: Constants = "block-ram",
) -> dict[str, bytes]:
    """Return core, constants, test bench, golden vectors, Makefile and README, by file name.

    `constants`: where tools are asked to put the large ones. Raises ExportError for students of
    images, with tables of activations, or with other actions than one choice or continuous ones.
    """
    student = source.student
    check_student(student)
    golden = _with_unusual(student, golden)
    folding = folding_of(student, multipliers)
    core = files("qpd.export.systemverilog").joinpath("core")
    found = {entry.name: entry.read_bytes() for entry in core.iterdir() if entry.is_file()}
    width, bits = accumulator_bits(student), max(layer.bits for layer in student.layers)
    if folding.unrolled:
        found["qpd_network.sv"] = unrolled_network(student).encode()
    else:
        words = weight_words(student, folding)
        found["weights.hex"] = _hex(words, folding.multipliers * bits)
        params, param_bits = _params(student, width)
        found["params.hex"] = _hex(params, param_bits)
    found |= _search("features", feature_thresholds(student), 32)
    if student.action_thresholds is not None:
        found |= _search("codes", _codes(student.action_thresholds, width), width)
    sizes = {} if folding.unrolled else _folded_sizes(student, folding, len(words), param_bits)
    found["qpd_constants.svh"] = _constants(student, sizes, width, constants).encode()
    found["golden_observations.hex"] = _hex(
        np.ascontiguousarray(golden.observations, np.float32).view(np.uint32).reshape(-1).tolist(),
        32,
    )
    found["golden_outputs.hex"] = _hex(_answers(student, golden), 32)
    found["qpd_golden.sv"] = (
        f"package qpd_golden;\n  localparam int VECTORS = {len(golden.logits)};\nendpackage\n"
    ).encode()
    found["README.md"] = _readme(source, folding).encode()
    return found


def check_student(student: IntegerStudent) -> None:
    """Raise ExportError, in one line, for a student that the core does not compute."""
    if student.architecture.image_shape is not None:
        raise ExportError("a circuit takes mlp-*: students of images do not fit")
    if any(layer.table is not None for layer in student.layers):
        raise ExportError("a circuit takes ReLU, and no tables of activations")
    if not isinstance(student.actions, Box | Discrete):
        raise ExportError("a circuit takes one choice, or continuous actions")


def accumulator_bits(student: IntegerStudent) -> int:
    """Return the bits, sign included, of an accumulator and of a threshold none reaches."""
    widest = max(layer.largest_accumulator + 1 for layer in student.layers)
    return max(widest.bit_length() + 1, MULTIPLE_BITS + 1)


def uses_thresholds(student: IntegerStudent) -> bool:
    """Return whether the core requantizes by thresholds, or by multiplier and shift."""
    return student.layers[0].levels < 2**MOST_THRESHOLD_BITS


def weight_words(student: IntegerStudent, folding: Folding) -> list[int]:
    """Return the words of the weights' ROM in the order in which the core reads them.

    A word has a weight of each lane's neuron, the first one lowest. An integer of fewer bits is one
    of more: all layers have the most bits of any.
    """
    bits, words = max(layer.bits for layer in student.layers), []
    for layer in student.layers:
        out, width = layer.weight.shape
        lanes, groups = folding.multipliers, ceil(out / folding.multipliers)
        codes = np.zeros((groups * lanes, width), dtype=np.int64)
        codes[:out] = (layer.weight.astype(np.int64) + student.zero_level(bits)) // 2
        blocks = codes.reshape(groups, lanes, width).transpose(0, 2, 1)
        words += [_joined(block, bits) for block in blocks.reshape(-1, lanes).tolist()]
    return words


def _joined(numbers: list[int], bits: int) -> int:
    """Return the numbers in one, `bits` each in two's complement, the first lowest."""
    # Through text: adding shifted integers one by one is quadratic in a wide word.
    text = "".join(format(number & ((1 << bits) - 1), f"0{bits}b") for number in reversed(numbers))
    return int(text, 2)


def _params(student: IntegerStudent, width: int) -> tuple[list[int], int]:
    """Return a word for each neuron, and its bits: bias, then thresholds or multiplier, shift."""
    by_threshold, top = uses_thresholds(student), student.layers[0].levels
    words: list[int] = []
    for layer in student.layers:
        rows = _thresholds(layer, top) if by_threshold else None
        for i, bias in enumerate(layer.bias.tolist()):
            word = bias & ((1 << width) - 1)
            if rows is not None:
                word |= _joined(rows[i], width) << width
            elif layer.multiplier is not None and layer.shift is not None:
                word |= (int(layer.multiplier[i]) | int(layer.shift[i]) << 31) << width
            words.append(word)
    return words, width * (1 + top) if by_threshold else width + 37


def _thresholds(layer: IntegerLayer, top: int) -> list[list[int]]:
    if layer.multiplier is None:
        return [[0] * top] * len(layer.bias)
    rows: list[list[int]] = level_thresholds(layer).tolist()
    return rows


def _codes(thresholds: np.ndarray, width: int) -> np.ndarray:
    """Return the least accumulator of each code above 0, plus 2^(width - 1): a row, unsigned."""
    # No accumulator comes near these ends: a threshold beyond them means the same.
    half = 2 ** (width - 1)
    return np.clip(thresholds.astype(np.int64), 1 - half, half - 1)[None] + half


def _search(name: str, thresholds: np.ndarray, bits: int) -> dict[str, bytes]:
    """Return the thresholds of each step of the bisection, `[rows, 2^steps - 1]`, as files."""
    steps = (thresholds.shape[1] + 1).bit_length() - 1
    found = {}
    for step in range(steps):
        half = 1 << (steps - 1 - step)  # level 0 has no threshold: level l's stands at l - 1
        found[f"{name}{step}.hex"] = _hex(
            thresholds[:, half - 1 :: 2 * half].reshape(-1).tolist(), bits
        )
    return found


def _answers(student: IntegerStudent, golden: GoldenVectors) -> list[int]:
    """Return accumulator and code (or, for one choice, the vector's action) of every output."""
    numbers = np.broadcast_to(device_actions(student, golden.logits), golden.logits.shape)
    pairs: list[int] = np.stack([golden.logits, numbers], axis=-1).reshape(-1).tolist()
    return pairs


def _with_unusual(student: IntegerStudent, golden: GoldenVectors) -> GoldenVectors:
    """Return the vectors and more that a sensor may send, but hardly in play.

    One of NaN, infinities, -0 and the like; then all features at the first float32 of each of their
    levels, and at the last one below it: a threshold that is one bit off is seen.
    """
    thresholds = feature_thresholds(student).T
    edges = [key_floats(thresholds), key_floats(thresholds - np.uint32(1))]
    unusual = np.concatenate([np.resize(UNUSUAL, (1, thresholds.shape[1])), *edges])
    return GoldenVectors(
        np.concatenate([golden.observations, unusual]),
        np.concatenate([golden.logits, reference_outputs(student, unusual)]),
    )


def _hex(words: list[int], bits: int) -> bytes:
    digits = (bits + 3) // 4
    rows = [format(word & ((1 << bits) - 1), f"0{digits}x") for word in words]
    return ("\n".join(rows) + "\n").encode()


def _constants(
    student: IntegerStudent, sizes: dict[str, int], width: int, constants: Constants
) -> str:
    inputs, outputs = student.layers[0].weight.shape[1], len(student.layers[-1].weight)
    box = isinstance(student.actions, Box)
    numbers = {
        **sizes,
        "ACC": width,
        "INPUTS": inputs,
        "INPUT_AT": _address(inputs),
        "INPUT_BITS": student.input_bits,
        "INPUT_CLOCKS": _clocks(student.input_bits, inputs),
        "OUTPUTS": outputs,
        "OUTPUT_AT": _address(outputs),
        "CODES": 2**student.action_bits if box else 1,
        "CODE_CLOCKS": _clocks(student.action_bits, 1) if box else 0,
        "LARGE_ROM": _LARGE_ROM,
        "ACTION": student.action_bits if box else _address(outputs),
    }
    of_weights = _LOGIC if constants == "fabric" else _BLOCK
    styles = of_weights + (_BLOCK if constants == "block-ram" else _LOGIC)
    lines = [
        *(f"    parameter {name} = {value}" for name, value in numbers.items()),
        *(f'    parameter {name} = "{style}"' for name, style in zip(_STYLES, styles, strict=True)),
    ]
    if sizes:
        lines += [
            _table("LAYER_INPUTS", [layer.weight.shape[1] for layer in student.layers]),
            _table("LAYER_OUTPUTS", [len(layer.weight) for layer in student.layers]),
        ]
    head = f"// Generated by qpd export {__version__}. No module needs all of them.\n"
    lint = "// verilator lint_{} UNUSEDPARAM\n"
    return head + lint.format("off") + ",\n".join(lines) + "\n" + lint.format("on")


def _clocks(steps: int, rows: int) -> int:
    """Return how long a search takes: two clocks a step, three where its thresholds are many."""
    return sum(3 if rows << step >= _LARGE_ROM else 2 for step in range(steps))


def _folded_sizes(
    student: IntegerStudent, folding: Folding, words: int, param_bits: int
) -> dict[str, int]:
    """Return what layers that share multipliers are made by."""
    ins = [layer.weight.shape[1] for layer in student.layers]
    outs = [len(layer.weight) for layer in student.layers]
    return {
        "P": folding.multipliers,
        "B": max(layer.bits for layer in student.layers),
        "TOP": student.layers[0].levels,
        "THRESHOLDS": int(uses_thresholds(student)),
        "LAYERS": len(student.layers),
        "LAYER": _address(len(student.layers)),
        "TABLE": 16 * _padded(len(student.layers)),
        "NEURONS": sum(outs),
        "PARAM": param_bits,
        "PARAM_AT": _address(sum(outs)),
        "WEIGHT_WORDS": words,
        "WEIGHT_AT": _address(words),
        "EVEN": int(student.has_zero_weight),
        # At least two, so that an address has a bit.
        "MOST_INPUTS": max(2, *ins),
    }


def _address(entries: int) -> int:
    return max((entries - 1).bit_length(), 1)


def _table(name: str, values: list[int]) -> str:
    """Return the values in one constant, 16 bits each, the first lowest: any tool knows these."""
    padded = values + [0] * (_padded(len(values)) - len(values))
    listed = ", ".join(f"16'd{value}" for value in reversed(padded))
    return f"    parameter [{16 * len(padded) - 1}:0] {name} = {{{listed}}}"


def _padded(count: int) -> int:
    """Return the least power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()


def _work(folding: Folding) -> str:
    if folding.unrolled:
        return f"All layers are there at once, an adder for each of {folding.multipliers:,} weights"
    lanes = folding.multipliers
    return f"An input is multiplied a clock, for {lanes:,} neuron{'s' * (lanes != 1)} at once"


def _readme(source: ExportSource, folding: Folding) -> str:
    student = source.student
    stored = student.input_levels * student.layers[0].weight.shape[1]
    how = "thresholds" if uses_thresholds(student) else "multiplier and shift"
    return readme(source, _work(folding), stored, how)
