"""The C export: a fixed C99 runtime (`runtime/`) and one student's numbers as const arrays."""

from __future__ import annotations

from importlib.resources import files
from math import log, prod

import numpy as np

from qpd.export.bundle import ExportError, ExportSource, GoldenVectors
from qpd.export.c.golden import golden_header
from qpd.integer.integer_student import INT32_MAX, IntegerLayer, IntegerStudent
from qpd.student_files.quantized import pack_levels

STRIP = 10  # patches gathered at once: more unpack packed weights less often, but cost RAM


def export_c(source: ExportSource, golden: GoldenVectors) -> dict[str, bytes]:
    """Return sources, Makefile, golden vectors and README of one student, by file name.

    Raises ExportError for a student whose numbers do not fit the runtime's types.
    """
    student = source.student
    _check(student)
    exported = {
        entry.name: entry.read_bytes()
        for entry in files("qpd.export.c").joinpath("runtime").iterdir()
        if entry.is_file()
    }
    if not student.architecture.is_image:
        del exported["qpd_preprocess.c"], exported["qpd_preprocess.h"]
    exported["qpd_student.h"] = _student_header(source).encode()
    exported["qpd_layers.h"] = _layers_header(student).encode()
    exported["qpd_golden.h"] = golden_header(student, golden).encode()
    exported["README.md"] = _readme(source, exported["README.md"].decode()).encode()
    return exported


def weight_rows(student: IntegerStudent, layer: IntegerLayer) -> np.ndarray:
    """Return the odd weights int16 `[out, inputs]`, inputs in the runtime's reading order.

    The first convolution reads (frame, row, column), all others (row, column, channel): the runtime
    keeps activations channels-last.
    """
    out, weight = layer.weight.shape[0], layer.weight
    if layer.shape.name == "conv1":
        return weight.reshape(out, -1)
    if layer.shape.kind == "conv":
        return np.ascontiguousarray(weight.transpose(0, 2, 3, 1)).reshape(out, -1)
    if layer.shape.name == "linear1" and student.architecture.is_image:
        last = len(student.architecture.conv_channels) - 1
        image = student.architecture.layer_shapes()[last].output_shape
        return np.ascontiguousarray(weight.reshape(out, *image).transpose(0, 2, 3, 1)).reshape(
            out, -1
        )
    return weight


def packed_weights(student: IntegerStudent, layer: IntegerLayer) -> np.ndarray:
    """Return the layer's constants: int8 `n - 128` at 8 bits, else packed levels n, uint8.

    Packed rows begin on whole bytes.
    """
    levels = (weight_rows(student, layer).astype(np.int32) + (2**layer.bits - 1)) // 2
    if layer.bits == 8:
        return (levels - 128).astype(np.int8).reshape(-1)
    return np.concatenate([pack_levels(row, layer.bits) for row in levels])


def weight_bytes(student: IntegerStudent) -> int:
    """Return the bytes of all constants: packed weights, biases, multipliers and shifts."""
    constants = 0
    for layer in student.layers:
        # A bias of 4 bytes; hidden layers add a multiplier of 4 and a shift of 1.
        per_output = 4 if layer.multiplier is None else 9
        constants += packed_weights(student, layer).size + per_output * len(layer.bias)
    return constants


def arena_bytes(student: IntegerStudent) -> int:
    """Return the runtime's static RAM, QPD_ARENA_BYTES, without observation and stack."""
    sizes = _sizes(student)
    scratch = STRIP * sizes["QPD_PATCH_BYTES"] + 4 * sizes["QPD_UNPACKED_BYTES"]
    return sizes["QPD_EVEN_BYTES"] + sizes["QPD_ODD_BYTES"] + scratch + 4 * _strip_outputs(student)


def _strip_outputs(student: IntegerStudent) -> int:
    """Return the dot products in the largest strip, outputs rounded up to fours."""
    return max(-(-len(y.weight) // 4) * 4 * min(STRIP, _side(y)) for y in student.layers)


def _check(student: IntegerStudent) -> None:
    for layer in student.layers:
        name = layer.shape.name
        if layer.largest_accumulator > INT32_MAX:
            raise ExportError(f"{name}: accumulators may exceed int32: the C runtime has no more")
        # qpd_layer.h keeps them in uint16, as every layer's struct lies in a microcontroller's
        # flash.
        if max(_geometry(layer).values()) > 65535:
            raise ExportError(f"{name}: rows beyond 65,535 bytes do not fit the C runtime")


def _sizes(student: IntegerStudent) -> dict[str, int]:
    """Return the bytes of the runtime's buffers, rounded up to multiples of 4."""
    # Layers alternate between two buffers; the head writes to the caller's logits instead.
    written = [prod(layer.shape.output_shape) for layer in student.layers[:-1]]
    patches = [prod(layer.weight.shape[1:]) for layer in student.layers if _side(layer) > 1]
    unpacked = [prod(layer.weight.shape[1:]) for layer in student.layers if layer.bits < 8]

    def room(sizes: list[int]) -> int:
        return -(-max(sizes, default=1) // 4) * 4

    return {
        "QPD_EVEN_BYTES": room(written[0::2]),
        "QPD_ODD_BYTES": room(written[1::2]),
        "QPD_PATCH_BYTES": room(patches),
        "QPD_UNPACKED_BYTES": room(unpacked),
    }


def _side(layer: IntegerLayer) -> int:
    return layer.shape.output_shape[1] if layer.shape.kind == "conv" else 1


def _geometry(layer: IntegerLayer) -> dict[str, int]:
    """Return where the layer's patches lie in its input, in bytes; see qpd_layer.h."""
    if layer.shape.kind == "linear":
        width = layer.weight.shape[1]
        return dict(
            planes=1, rows=1, row_bytes=width, plane_stride=0, row_stride=0, step_x=0, step_y=0
        )
    kernel, stride, channels = layer.weight.shape[2], layer.shape.stride, layer.weight.shape[1]
    if layer.shape.name == "conv1":  # frames, one after the other
        planes, row, pixel, plane_stride = channels, 84, 1, 84 * 84
    else:
        side = (_side(layer) - 1) * stride + kernel  # 20 and 9: no column is left over
        planes, row, pixel, plane_stride = 1, side * channels, channels, 0
    return dict(
        planes=planes,
        rows=kernel,
        row_bytes=kernel * pixel,
        plane_stride=plane_stride,
        row_stride=row,
        step_x=stride * pixel,
        step_y=stride * row,
    )


def _student_header(source: ExportSource) -> str:
    student = source.student
    shape = student.architecture.observation_shape
    # One unit of the logits in bits, as a 32-bit fraction: qpd_sample takes powers of 2, not of e.
    scale = min(round(student.logit_scale / log(2) * 2**32), 2**32 - 1)
    # The VNNI path keeps weights 16 outputs abreast, and for conv1 the sums over frames as well.
    prepared = sum(-(-len(y.weight) // 16) * 16 * prod(y.weight.shape[1:]) for y in student.layers)
    if student.architecture.is_image:
        prepared += -(-len(student.layers[0].weight) // 16) * 16 * 64 * 2
    rows = {
        "QPD_INPUT_BYTES": prod(shape),
        "QPD_ACTIONS": student.architecture.num_actions,
        "QPD_LAYERS": len(student.layers),
        "QPD_IMAGE": int(student.architecture.is_image),
        "QPD_CONSTANT_BYTES": weight_bytes(student),
        "QPD_ARENA_BYTES": arena_bytes(student),
        "QPD_STRIP": STRIP,
        "QPD_STRIP_OUTPUTS": _strip_outputs(student),
        "QPD_PREPARED_BYTES": prepared,
        **_sizes(student),
    }
    lines = [f"#define {name} {value}" for name, value in rows.items()]
    return "\n".join(
        [
            f"/* {_comment(source.name)}: sizes. Generated by qpd export. */",
            "#ifndef QPD_STUDENT_H",
            "#define QPD_STUDENT_H",
            "",
            f'#define QPD_NAME "{_c_string(source.name)}"',
            *lines,
            "/* The value of one unit of a logit; the second in bits, times 2^32. */",
            f"#define QPD_LOGIT_SCALE {student.logit_scale!r}",
            f"#define QPD_LOGIT_BITS_Q32 UINT32_C({scale})",
            "",
            "#endif",
            "",
        ]
    )


def _layers_header(student: IntegerStudent) -> str:
    parts = ["/* The student's numbers. Generated by qpd export. */", '#include "qpd_layer.h"', ""]
    table = []
    for layer in student.layers:
        name, weights = layer.shape.name, packed_weights(student, layer)
        kind = "int8_t" if layer.bits == 8 else "uint8_t"
        parts.append(_array(f"static const {kind} qpd_{name}_weights", weights))
        parts.append(_array(f"static const int32_t qpd_{name}_bias", layer.bias))
        multiplier = shift = "0"
        if layer.multiplier is not None and layer.shift is not None:
            multiplier, shift = f"qpd_{name}_multiplier", f"qpd_{name}_shift"
            parts.append(_array(f"static const int32_t {multiplier}", layer.multiplier))
            parts.append(_array(f"static const uint8_t {shift}", layer.shift))
        fields = dict(
            weights=f"qpd_{name}_weights",
            bias=f"qpd_{name}_bias",
            multiplier=multiplier,
            shift=shift,
            inputs=prod(layer.weight.shape[1:]),
            outputs=len(layer.weight),
            bits=layer.bits,
            top=layer.levels,
            **_geometry(layer),
            side=_side(layer),
        )
        table.append("    {" + ", ".join(f".{key} = {value}" for key, value in fields.items()))
    body = "},\n".join(table)
    parts.append(f"static const struct qpd_layer qpd_layers[QPD_LAYERS] = {{\n{body}}}}};\n")
    return "\n".join(parts)


def _array(declaration: str, values: np.ndarray) -> str:
    flat = [str(value) for value in values.reshape(-1).tolist()]
    # Wrapped, as C99 guarantees only 4,095 characters per line.
    rows = [",".join(flat[i : i + 32]) for i in range(0, len(flat), 32)]
    return f"{declaration}[{len(flat)}] = {{\n" + ",\n".join(rows) + "};\n"


def _comment(text: str) -> str:
    return text.replace("*/", "* /").replace("\n", " ")


def _c_string(text: str) -> str:
    """Replace what ends or escapes a C or JSON string, and all but printable ASCII.

    The question mark goes as well: two of them begin a trigraph.
    """
    return "".join(c if " " <= c <= "~" and c not in '"\\?' else "_" for c in text)


def _readme(source: ExportSource, template: str) -> str:
    student = source.student
    inputs = "frames uint8 [4][84][84], oldest first (no scaling)"
    if student.input_low is not None and student.input_high is not None:
        ranges = "\n".join(
            f"| {i} | {low!r} | {high!r} |"
            for i, (low, high) in enumerate(
                zip(student.input_low.tolist(), student.input_high.tolist(), strict=True)
            )
        )
        inputs = (
            "uint8 levels, one a feature: `round(clip((x - low) / (high - low), 0, 1) * 255)`, "
            f"halves to even\n\n| feature | low | high |\n|---|---|---|\n{ranges}"
        )
    values = {
        "NAME": source.name,
        "INPUTS": inputs,
        "BITS": ", ".join(f"{layer.shape.name} {layer.bits}" for layer in student.layers),
        "CONSTANT_BYTES": f"{weight_bytes(student):,}",
        "ARENA_BYTES": f"{arena_bytes(student):,}",
        "LOGIT_SCALE": repr(student.logit_scale),
    }
    for key, value in values.items():
        template = template.replace(f"@{key}@", value)
    return template
