"""The C export: a fixed C99 runtime (`runtime/`) and one student's numbers as const arrays."""

from __future__ import annotations

from importlib.resources import files
from math import log, prod

import numpy as np

from qpd.actions import ActionSpace, Box, Discrete, MultiBinary, MultiDiscrete
from qpd.export.bundle import ExportError, ExportSource, GoldenVectors
from qpd.export.c.action_tables import action_tables
from qpd.export.c.arrays import c_array, c_float
from qpd.export.c.description import actions, agent, can_sample, features, inputs
from qpd.export.c.geometry import geometry, is_own_image
from qpd.export.c.golden import c_golden_vectors, golden_header
from qpd.export.c.readme import c_readme
from qpd.export.c.sizes import (
    STRIP,
    arena_bytes,
    buffer_sizes,
    c_constant_bytes,
    flash_arena_bytes,
    strip_outputs,
)
from qpd.integer.integer_student import INT32_MAX, IntegerLayer, IntegerStudent
from qpd.student_files.quantized import pack_levels
from qpd.students.student import FIRST_LINEAR


def export_c(source: ExportSource, golden: GoldenVectors, board: bool = False) -> dict[str, bytes]:
    """Return sources, Makefile, golden vectors and README of one student, by file name.

    For a `board` the README has its sketch in place of `make`.
    Raises ExportError for a student whose numbers do not fit the runtime's types.
    """
    student = source.student
    _check(student)
    exported = {
        entry.name: entry.read_bytes()
        for entry in files("qpd.export.c").joinpath("runtime").iterdir()
        if entry.is_file()
    }
    if student.architecture.is_image:
        del exported["qpd_encode.c"]
    if not student.architecture.stacks_frames:
        del exported["qpd_preprocess.c"], exported["qpd_preprocess.h"]
    if not can_sample(source):
        del exported["qpd_sample.c"]
    if isinstance(student.actions, Discrete):
        del exported["qpd_actions.c"]
    else:
        exported["qpd_action_tables.h"] = action_tables(student).encode()
    vectors = c_golden_vectors(student, golden)
    exported["qpd_student.h"] = _student_header(source, len(vectors.logits)).encode()
    exported["qpd_layers.h"] = _layers_header(student).encode()
    exported["qpd_golden.h"] = golden_header(student, vectors).encode()
    exported["README.md"] = c_readme(source, exported["README.md"].decode(), board).encode()
    return exported


def weight_rows(student: IntegerStudent, layer: IntegerLayer) -> np.ndarray:
    """Return the weights' levels int32 `[out, inputs]`, inputs in the runtime's reading order.

    The first convolution reads (channel, row, column), all others (row, column, channel): the
    runtime keeps activations channels-last.
    """
    out, weight = layer.weight.shape[0], student.weight_levels(layer)
    if layer.shape.name == "conv1":
        return weight.reshape(out, -1)
    if layer.shape.kind == "conv":
        return np.ascontiguousarray(weight.transpose(0, 2, 3, 1)).reshape(out, -1)
    if layer.shape.name == FIRST_LINEAR and student.architecture.image_shape is not None:
        last = len(student.architecture.conv_channels) - 1
        image = student.architecture.layer_shapes()[last].output_shape
        flat = weight[:, : prod(image)].reshape(out, *image).transpose(0, 2, 3, 1)
        return np.concatenate([flat.reshape(out, -1), weight[:, prod(image) :]], 1)
    return weight


def packed_weights(student: IntegerStudent, layer: IntegerLayer) -> np.ndarray:
    """Return the layer's constants: int8 `n - 128` at 8 bits, else packed levels n, uint8.

    Packed rows begin on whole bytes.
    """
    levels = weight_rows(student, layer)
    if layer.bits == 8:
        return (levels - 128).astype(np.int8).reshape(-1)
    return np.concatenate([pack_levels(row, layer.bits) for row in levels])


def _check(student: IntegerStudent) -> None:
    if student.architecture.num_features > 0xFFFF:  # which the runtime counts in uint16
        raise ExportError("the C runtime takes at most 65,535 features")
    for layer in student.layers:
        name = layer.shape.name
        if len(layer.weight) > 0xFFFF:  # qpd_layer.h counts them in uint16
            raise ExportError(f"{name}: the C runtime takes at most 65,535 outputs")
        # The kernels add up products of weights less one, then the inputs' sum, then the bias.
        weights = np.abs(layer.weight.astype(np.int64)).reshape(len(layer.weight), -1)
        products = layer.input_levels * int(weights.sum(1).max() + weights.shape[1])
        if max(products, layer.largest_accumulator) > INT32_MAX:
            raise ExportError(f"{name}: accumulators may exceed int32: the C runtime has no more")
        # qpd_layer.h keeps them in uint16, as every layer's struct lies in a microcontroller's
        # flash; those of own images, which may be large, in uint32.
        if not is_own_image(student) and max(geometry(student, layer).values()) > 65535:
            raise ExportError(f"{name}: rows beyond 65,535 bytes do not fit the C runtime")


def _student_header(source: ExportSource, num_golden: int) -> str:
    student = source.student
    shape = student.architecture.observation_shape
    # One unit of the logits in bits, times 2^32: qpd_sample takes powers of 2, not of e. 18 bits
    # below the largest logit is a weight of 0 already.
    scale = min(max(1, round(student.output_scale / log(2) * 2**32)), 18 * 2**32)
    # The VNNI path keeps weights 16 outputs abreast, and for conv1 the sums over frames as well.
    # Inputs are multiplied 4 at a time.
    prepared = sum(
        -(-len(y.weight) // 16) * 16 * -(-prod(y.weight.shape[1:]) // 4) * 4 for y in student.layers
    )
    if student.architecture.stacks_frames:
        prepared += -(-len(student.layers[0].weight) // 16) * 16 * 64 * 2
    space = student.actions
    rows = {
        "QPD_INPUT_BYTES": prod(shape),
        "QPD_ACTIONS": space.n if isinstance(space, Discrete) else prod(space.shape),
        "QPD_OUTPUTS": student.architecture.num_outputs,
        **_action_kind(space),
        "QPD_SAMPLES": int(can_sample(source)),
        "QPD_LAYERS": len(student.layers),
        "QPD_IMAGE": int(student.architecture.is_image),
        "QPD_OWN_IMAGE": int(is_own_image(student)),
        **_image_sides(student),
        "QPD_FEATURES": student.architecture.num_features,
        **({} if student.architecture.is_image else {"QPD_INPUT_TOP": student.input_levels}),
        "QPD_ZERO_WEIGHT": int(student.has_zero_weight),
        "QPD_TABLES": len(student.tables),
        "QPD_LEAST_BITS": min(layer.bits for layer in student.layers),
        "QPD_CONSTANT_BYTES": c_constant_bytes(student),
        "QPD_ARENA_BYTES": arena_bytes(student),
        "QPD_FLASH_ARENA_BYTES": flash_arena_bytes(student),
        "QPD_GOLDEN": num_golden,
        "QPD_STRIP": STRIP,
        "QPD_STRIP_OUTPUTS": strip_outputs(student),
        "QPD_PREPARED_BYTES": prepared,
        **buffer_sizes(student),
    }
    if student.tables:
        rows["QPD_LAST_ENTRY"] = len(student.tables[0]) - 1
    if isinstance(space, Box):
        rows["QPD_ACTION_TOP"] = 2**student.action_bits - 1  # the upper bound's code
    lines = [f"#define {name} {value}" for name, value in rows.items()]
    return "\n".join(
        [
            f"/* {_comment(source.name)}: sizes. Generated by qpd export. */",
            f"/* A student of {_comment(agent(source))}: {inputs(source)}, {actions(source)}. */",
            "#ifndef QPD_STUDENT_H",
            "#define QPD_STUDENT_H",
            "",
            f'#define QPD_NAME "{_c_string(source.name)}"',
            *lines,
            "/* The value of one unit of a logit; the second in bits, times 2^32. */",
            f"#define QPD_LOGIT_SCALE {student.output_scale!r}",
            f"#define QPD_LOGIT_BITS_Q32 UINT64_C({scale})",
            *_ranges(source),
            "",
            "#endif",
            "",
        ]
    )


def _image_sides(student: IntegerStudent) -> dict[str, int]:
    if not is_own_image(student):
        return {}
    names, shape = ("QPD_CHANNELS", "QPD_HEIGHT", "QPD_WIDTH"), student.architecture.image_shape
    found = dict(zip(names, shape or (), strict=True))
    if student.architecture.joins_features:  # where linear layer 1 finds them
        last = student.layers[len(student.architecture.conv_channels) - 1]
        found["QPD_JOINS"] = len(student.architecture.conv_channels)
        found["QPD_JOINED_AT"] = prod(last.shape.output_shape)
    return found


def _action_kind(space: ActionSpace) -> dict[str, int]:
    kinds = {
        "QPD_DISCRETE": Discrete,
        "QPD_BOX": Box,
        "QPD_MULTI_DISCRETE": MultiDiscrete,
        "QPD_MULTI_BINARY": MultiBinary,
    }
    return {name: int(isinstance(space, kind)) for name, kind in kinds.items()}


def _ranges(source: ExportSource) -> list[str]:
    """Return the lines with each feature's low and high end, and the initializers of arrays."""
    student, names = source.student, features(source)
    low, high = student.input_low, student.input_high
    if low is None or high is None:
        return []
    top = f"level {student.input_levels}"
    lines = [f"/* The range of each feature: level 0 and {top}, in the environment's units. */"]
    for i, (one, other) in enumerate(zip(low, high, strict=True)):
        what = f" /* {names[i]} */" if names else ""
        lines += [f"#define QPD_LOW_{i} {c_float(one)}{what}"]
        lines += [f"#define QPD_HIGH_{i} {c_float(other)}"]
    lows = ", ".join(f"QPD_LOW_{i}" for i in range(len(low)))
    # Subtracted here, in single precision: a compiler may keep more digits of a constant.
    widths = ", ".join(c_float(width) for width in high - low)
    return [*lines, f"#define QPD_LOWS {lows}", f"#define QPD_WIDTHS {widths}"]


def _layers_header(student: IntegerStudent) -> str:
    parts = ["/* The student's numbers. Generated by qpd export. */", '#include "qpd_layer.h"', ""]
    tables, table = [f"qpd_table_{i}" for i in range(len(student.tables))], []
    for name, levels in zip(tables, student.tables, strict=True):
        parts.append(c_array(f"static const QPD_FLASH uint8_t {name}", levels))
    for position, layer in enumerate(student.layers):
        name, weights = layer.shape.name, packed_weights(student, layer)
        kind = "int8_t" if layer.bits == 8 else "uint8_t"
        parts.append(c_array(f"static const QPD_FLASH {kind} qpd_{name}_weights", weights))
        parts.append(c_array(f"static const QPD_FLASH int32_t qpd_{name}_bias", layer.bias))
        multiplier = shift = "0"
        if layer.multiplier is not None and layer.shift is not None:
            multiplier, shift = f"qpd_{name}_multiplier", f"qpd_{name}_shift"
            parts.append(c_array(f"static const QPD_FLASH int32_t {multiplier}", layer.multiplier))
            parts.append(c_array(f"static const QPD_FLASH uint8_t {shift}", layer.shift))
        fields = dict(
            weights=f"qpd_{name}_weights",
            bias=f"qpd_{name}_bias",
            multiplier=multiplier,
            shift=shift,
            **_table_field(layer, tables, position),
            inputs=prod(layer.weight.shape[1:]),
            outputs=len(layer.weight),
            bits=layer.bits,
            top=layer.levels,
            **geometry(student, layer),
        )
        table.append("    {" + ", ".join(f".{key} = {value}" for key, value in fields.items()))
    body = "},\n".join(table)
    parts.append(f"static const struct qpd_layer qpd_layers[QPD_LAYERS] = {{\n{body}}}}};\n")
    return "\n".join(parts)


def _table_field(layer: IntegerLayer, tables: list[str], position: int) -> dict[str, str]:
    """Return the field of structs that only students with tables have; a null for the head."""
    if not tables:
        return {}
    return {"table": "0" if layer.table is None else tables[min(position, len(tables) - 1)]}


def _comment(text: str) -> str:
    return text.replace("*/", "* /").replace("/*", "/ *").replace("\n", " ")


def _c_string(text: str) -> str:
    """Replace what ends or escapes a C or JSON string, and all but printable ASCII.

    The question mark goes as well: two of them begin a trigraph.
    """
    return "".join(c if " " <= c <= "~" and c not in '"\\?' else "_" for c in text)
