"""The integer student as an int8 flatbuffer for LiteRT (TensorFlow Lite), written directly.

Levels x are stored as int8 x - 128 (scale 1, zero point -128), channels last. A hidden layer's
weight scale is its requantization gain; saturation at -128 and 127 acts as the ReLU and the top
level. For top levels below 255 the fused RELU6 clips: the tensor's scale is then 6 / top. The head
is in float: levels and odd weights are small integers there, so its sums are exact. So are hidden
layers with a table; the index is computed in int64.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from qpd.actions import Box
from qpd.export.action_texts import litert_texts
from qpd.export.bundle import ExportSource, GoldenVectors
from qpd.export.litert_graph import ACTIONS, CODES, INPUT, OUTPUT, ZERO_POINT, Graph
from qpd.export.runtime_files import bundle_text, golden_npz, model_metadata
from qpd.export.signed_bytes import TOP, requantization_gain, signed_layer
from qpd.integer.integer_student import IntegerLayer
from qpd.students.student import FIRST_LINEAR

RELU6_TOP = 6.0


def export_litert(source: ExportSource, golden: GoldenVectors) -> dict[str, bytes]:
    """Return the bundle's files by name. Raises ExportError without the ai-edge-litert package."""
    metadata = model_metadata(source)
    kind = "images" if source.student.architecture.is_image else "vectors"
    shape = ", ".join(map(str, source.student.architecture.observation_shape))
    fields = {**metadata, **litert_texts(source.student), "shape": shape}
    return {
        "student.tflite": litert_model(source, metadata),
        "golden.npz": golden_npz(source, golden),
        "selftest.py": bundle_text("litert_selftest.py", {}),
        "golden_check.py": bundle_text("golden_check.py", {}),
        "README.md": bundle_text(f"litert_{kind}.md", fields),
    }


def litert_model(source: ExportSource, metadata: dict[str, str]) -> bytes:
    """Return the bytes of the .tflite file.

    Input int8 `[1, height, width, channels]` (pixels ^ 128) or float32 `[1, features]`, output
    float32 logits `[1, num_outputs]`, or continuous actions `[1, *shape]` and their codes, uint8
    `[1, num_outputs]`; the first dimension may be resized.
    """
    graph = Graph(source)
    levels, scale = _encode(graph)
    for layer in source.student.layers[:-1]:
        if layer.shape.name == FIRST_LINEAR and graph.features is not None:
            layer, levels = _joined(graph, layer, levels, scale)
        if layer.table is not None:
            levels = _table_layer(graph, layer, _as_floats(graph, levels))
        else:
            levels, scale = _hidden_layer(graph, layer, levels, scale)
    _head(graph, source.student.layers[-1], levels, scale)
    return graph.serialize(source, metadata)


def _encode(graph: Graph) -> tuple[int, float]:
    """Add the input; return its levels and their scale. Vectors are mapped by Eq. 4 in float32."""
    student = graph.student
    if student.input_low is None or student.input_high is None:
        channels, height, width = student.architecture.observation_shape
        return graph.tensor(INPUT, (1, height, width, channels), np.int8, 1.0), 1.0
    value = graph.tensor(INPUT, (1, *student.architecture.observation_shape), np.float32)
    if not student.architecture.joins_features:
        return _feature_levels(graph, value), 1.0
    image = _image_of(graph, value)
    count = student.architecture.num_features
    values = _sliced(graph, value, student.architecture.observation_shape[0] - count, count)
    graph.features = _feature_levels(graph, values)
    return image, 1.0


def _sliced(graph: Graph, value: int, begin: int, size: int) -> int:
    """Return `size` numbers from `begin` on of vectors `[1, n]`."""
    name = f"from_{begin}"
    operands = [
        graph.tensor(f"{name}_{what}", (2,), np.int32, data=pair)
        for what, pair in (("begin", (0, begin)), ("size", (-1, size)))
    ]
    output = graph.tensor(name, (1, size), np.float32)
    graph.tensors[output].shapeSignature = [-1, size]  # else a resized batch is refused
    return graph.operator("SLICE", [value, *operands], output, graph.schema.SliceOptionsT())


def _image_of(graph: Graph, value: int) -> int:
    """Return the levels `[1, height, width, channels]` of the image that vectors begin with."""
    sides = graph.student.architecture.image_shape
    assert sides is not None
    channels, height, width = sides
    pixels = _sliced(graph, value, 0, channels * height * width)
    target = graph.tensor("image_shape", (4,), np.int32, data=(-1, *sides))
    image = graph.tensor("image", (1, *sides), np.float32)
    graph.operator("RESHAPE", [pixels, target], image, graph.schema.ReshapeOptionsT())
    order = graph.tensor("channels_last", (4,), np.int32, data=(0, 2, 3, 1))
    turned = graph.tensor("image_channels_last", (1, height, width, channels), np.float32)
    graph.operator("TRANSPOSE", [image, order], turned, graph.schema.TransposeOptionsT())
    levels = graph.tensor("image_levels", (1, height, width, channels), np.int8, 1.0)
    return graph.operator("QUANTIZE", [turned], levels, graph.schema.QuantizeOptionsT())


def _joined(
    graph: Graph, layer: IntegerLayer, levels: int, scale: float
) -> tuple[IntegerLayer, int]:
    """Put the features behind a flattened image, and the layer's columns in the same order."""
    assert graph.features is not None
    _, height, width, channels = graph.shape(levels)
    size, count = height * width * channels, graph.student.architecture.num_features
    target = graph.tensor("flat_shape", (2,), np.int32, data=(-1, size))
    flat = graph.tensor("flat", (1, size), np.int8, scale)
    graph.operator("RESHAPE", [levels, target], flat, graph.schema.ReshapeOptionsT())
    features = graph.features
    if scale != 1.0:  # the same levels, on the scale of what they join
        floats = graph.tensor("feature_floats", (1, count), np.float32)
        graph.operator("DEQUANTIZE", [features], floats, graph.schema.DequantizeOptionsT())
        by = graph.tensor("feature_scale", (1,), np.float32, data=[scale])
        scaled = graph.tensor("features_scaled", (1, count), np.float32)
        graph.operator("MUL", [floats, by], scaled, graph.schema.MulOptionsT())
        features = graph.tensor("features_on_scale", (1, count), np.int8, scale)
        graph.operator("QUANTIZE", [scaled], features, graph.schema.QuantizeOptionsT())
    options = graph.schema.ConcatenationOptionsT()
    options.axis = 1
    both = graph.tensor("flat_and_features", (1, size + count), np.int8, scale)
    graph.operator("CONCATENATION", [flat, features], both, options)
    image = layer.weight[:, :size].reshape(-1, channels, height, width).transpose(0, 2, 3, 1)
    weight = np.concatenate([image.reshape(len(image), -1), layer.weight[:, size:]], 1)
    return replace(layer, weight=weight), both


def _feature_levels(graph: Graph, value: int) -> int:
    """Return the levels of features, Eq. 4 in float32."""
    student, shape = graph.student, graph.shape(value)
    assert student.input_low is not None and student.input_high is not None
    steps = [
        ("SUB", "above_low", student.input_low, graph.schema.SubOptionsT()),
        ("DIV", "unit", student.input_high - student.input_low, graph.schema.DivOptionsT()),
        ("MUL", "scaled", np.array([student.input_levels]), graph.schema.MulOptionsT()),
    ]
    # LiteRT's own kernel of QUANTIZE turns what is far below 0, and NaN, into the largest int8. Of
    # NaN and the constant its MAXIMUM returns the constant; XNNPACK's returns NaN.
    bounds = {"MAXIMUM": 0, "MINIMUM": student.input_levels}
    steps += [
        (kind, f"{kind.lower()}_level", np.array([bound]), graph.schema.MaximumMinimumOptionsT())
        for kind, bound in bounds.items()
    ]
    for kind, name, operand, options in steps:
        constant = graph.tensor(f"{name}_by", operand.shape, np.float32, data=operand)
        value = graph.operator(
            kind, [value, constant], graph.tensor(name, shape, np.float32), options
        )
    levels = graph.tensor("input_levels", shape, np.int8, 1.0)
    return graph.operator("QUANTIZE", [value], levels, graph.schema.QuantizeOptionsT())


def _merged_pixels(layer: IntegerLayer, columns: int) -> int:
    """Return how many neighbours in a row are read as one pixel with that many times the channels.

    A convolution whose stride divides its kernel (8x8 by 4 over the image) equals one over merged
    pixels (8x2 by 4x1); kernels that multiply 8 channels at once then waste none. Of an image with
    columns left over, none are merged.
    """
    kernel, stride = layer.shape.weight_shape[-1], layer.shape.stride
    divides = kernel % stride == 0 and columns % stride == 0
    return stride if layer.shape.name == "conv1" and divides else 1


def _channels_merged(layer: IntegerLayer, inputs: tuple[int, ...]) -> int:
    """Return how many pixels are one in `inputs`, the channels-last shape that the layer reads."""
    return inputs[3] // layer.shape.weight_shape[1] if layer.shape.kind == "conv" else 1


def _with_complement(graph: Graph, layer: IntegerLayer, levels: int, scale: float) -> int:
    """Add the complements 255 - x beside the levels x.

    Images are joined along the row, `[1, height, 2 * width, channels]`: copying whole rows is many
    times faster than copying the few bytes of a pixel.
    """
    shape, schema, name = graph.shape(levels), graph.schema, layer.shape.name
    top = graph.tensor(f"{name}_top", (1,), np.int8, scale, [TOP + ZERO_POINT])
    complement = graph.tensor(f"{name}_complement", shape, np.int8, scale)
    graph.operator("SUB", [top, levels], complement, schema.SubOptionsT())
    options = schema.ConcatenationOptionsT()
    options.axis = 2 if len(shape) == 4 else 1
    doubled = tuple(2 * n if axis == options.axis else n for axis, n in enumerate(shape))
    both = graph.tensor(f"{name}_both", doubled, np.int8, scale)
    return graph.operator("CONCATENATION", [levels, complement], both, options)


def _image_inputs(graph: Graph, layer: IntegerLayer, levels: int, scale: float, parts: int) -> int:
    """Reshape `levels` `[1, h, parts * w, c]` to rows of x and 255 - x in turn, pixels merged."""
    _, height, width, channels = graph.shape(levels)
    columns = width // parts
    merged = _merged_pixels(layer, columns)
    shape = (1, height * parts, columns // merged, channels * merged)
    if shape == graph.shape(levels):
        return levels
    # -1 leaves the batch open, which users may resize.
    target = graph.tensor(f"{layer.shape.name}_shape", (4,), np.int32, data=(-1, *shape[1:]))
    output = graph.tensor(f"{layer.shape.name}_rows", shape, np.int8, scale)
    return graph.operator("RESHAPE", [levels, target], output, graph.schema.ReshapeOptionsT())


def _weight_in_reading_order(
    layer: IntegerLayer, weight: np.ndarray, inputs: tuple[int, ...], parts: int
) -> np.ndarray:
    """Reorder weights `[out, parts * in, ...]` from PyTorch's order to that of the inputs.

    `inputs` is the shape of the channels-last input; `parts` is 2 if the second half of the input
    channels are complements, else 1.
    """
    if len(inputs) == 2:
        return weight
    out, merged = len(weight), _channels_merged(layer, inputs)
    channels = inputs[3] // merged
    size = layer.shape.weight_shape[2:] if layer.shape.kind == "conv" else (-1, inputs[2])
    split = weight.reshape(out, parts, channels, *size).transpose(0, 3, 1, 4, 2)
    if layer.shape.kind == "linear":  # the matrix product flattens (row, column, channel)
        return split.reshape(out, -1)
    return split.reshape(out, parts * size[0], size[1] // merged, merged * channels)


def _clipping_scale(top: int) -> float:
    """Return a scale at which RELU6 saturates at level `top`, of few bits to keep sums exact."""
    # The fewest fractional bits that still round to `top`: 6 / top itself is seldom a binary
    # fraction.
    for bits in range(1, 16):
        scale = float(np.ldexp(np.round(np.ldexp(RELU6_TOP / top, bits)), -bits))
        if scale > 0 and round(RELU6_TOP / scale) == top:
            return scale
    raise AssertionError(f"no scale for {top} levels")


def _hidden_layer(
    graph: Graph, layer: IntegerLayer, levels: int, scale: float
) -> tuple[int, float]:
    """Add a hidden layer; return its levels and their scale."""
    name, signed, schema = layer.shape.name, signed_layer(layer), graph.schema
    if signed.reads_complement:
        levels = _with_complement(graph, layer, levels, scale)
    parts = 2 if signed.reads_complement else 1
    if len(graph.shape(levels)) == 4:
        levels = _image_inputs(graph, layer, levels, scale, parts)
    weight = _weight_in_reading_order(layer, signed.weight, graph.shape(levels), parts)
    next_scale = 1.0 if layer.levels == TOP else _clipping_scale(layer.levels)
    weight_scale = requantization_gain(layer).astype(np.float64) * next_scale / scale
    # TensorFlow Lite requires the bias at exactly input scale times weight scale.
    bias_scale = weight_scale * scale
    operands = [
        levels,
        graph.tensor(f"{name}_weight", weight.shape, np.int8, weight_scale, weight),
        graph.tensor(f"{name}_bias", signed.bias.shape, np.int32, bias_scale, signed.bias),
    ]
    is_conv = layer.shape.kind == "conv"
    options = schema.Conv2DOptionsT() if is_conv else schema.FullyConnectedOptionsT()
    if layer.levels != TOP:
        options.fusedActivationFunction = schema.ActivationFunctionType.RELU6
    if is_conv:
        options.padding = schema.Padding.VALID
        # Rows of x and 255 - x alternate, so a step down is two rows; a merged pixel is a whole
        # stride wide.
        options.strideH, options.strideW = (
            parts * layer.shape.stride,
            layer.shape.stride // _channels_merged(layer, graph.shape(levels)),
        )
    channels, *sides = layer.shape.output_shape
    output = graph.tensor(f"{name}_levels", (1, *sides, channels), np.int8, next_scale)
    kind = "CONV_2D" if is_conv else "FULLY_CONNECTED"
    return graph.operator(kind, operands, output, options), next_scale


def _as_floats(graph: Graph, levels: int) -> int:
    """Return levels, whole numbers from 0 on, as float32; those of a table are already."""
    if graph.tensors[levels].type == graph.schema.TensorType.FLOAT32:
        return levels
    features = graph.tensor("features", graph.shape(levels), np.float32)
    return graph.operator("DEQUANTIZE", [levels], features, graph.schema.DequantizeOptionsT())


def _table_layer(graph: Graph, layer: IntegerLayer, levels: int) -> int:
    """Add a hidden layer with a table, from levels to levels, float32.

    Accumulators are exact in float32 below 2^24. Their product with the multiplier is not, and
    there is no division in int64: less its remainder it is a multiple of 2^shift, which float32
    holds.
    """
    schema, name = graph.schema, layer.shape.name
    assert layer.table is not None and layer.multiplier is not None and layer.shift is not None
    width = layer.shape.weight_shape[0]
    shift = layer.shift.astype(np.int64)

    def step(kind: str, value: int, operand: Any, output: str, options: Any, dtype: Any) -> int:
        data = np.broadcast_to(operand, (width,))
        by = graph.tensor(f"{name}_{output}_by", (width,), dtype, data=data)
        result = graph.tensor(f"{name}_{output}", (1, width), dtype)
        return graph.operator(kind, [value, by], result, options)

    def cast(value: int, output: str, dtype: Any) -> int:
        result = graph.tensor(f"{name}_{output}", (1, width), dtype)
        return graph.operator("CAST", [value], result, schema.CastOptionsT())

    clip, long = schema.MaximumMinimumOptionsT, np.int64
    total = _accumulators(graph, layer, levels, 1.0)
    value = cast(total, "wide", long)
    value = step("MAXIMUM", value, 0, "from_zero", clip(), long)
    value = step("MUL", value, layer.multiplier, "product", schema.MulOptionsT(), long)
    value = step("ADD", value, long(1) << (shift - 1), "half_up", schema.AddOptionsT(), long)
    divisor = long(1) << shift
    rest = step("FLOOR_MOD", value, divisor, "rest", schema.FloorModOptionsT(), long)
    whole = graph.tensor(f"{name}_multiple", (1, width), long)
    graph.operator("SUB", [value, rest], whole, schema.SubOptionsT())
    value = cast(whole, "multiple_float", np.float32)
    options = schema.MulOptionsT()
    value = step("MUL", value, np.ldexp(1.0, -layer.shift), "quotient", options, np.float32)
    value = step("MINIMUM", value, layer.largest_number, "index_float", clip(), np.float32)
    index = cast(value, "index", np.int32)
    table = graph.tensor(f"{name}_table", layer.table.shape, np.float32, data=layer.table)
    found = graph.tensor(f"{name}_levels", (1, width), np.float32)
    return graph.operator("GATHER", [table, index], found, schema.GatherOptionsT())


def _accumulators(graph: Graph, layer: IntegerLayer, levels: int, scale: float) -> int:
    """Add a matrix product in float32: accumulators times `scale`, of levels times `scale`."""
    name, width = layer.shape.name, layer.shape.weight_shape[0]
    operands = [
        levels,
        graph.tensor(f"{name}_weight", layer.weight.shape, np.float32, data=layer.weight),
        graph.tensor(f"{name}_bias", layer.bias.shape, np.float32, data=layer.bias * scale),
    ]
    total = graph.tensor(f"{name}_accumulators", (1, width), np.float32)
    return graph.operator("FULLY_CONNECTED", operands, total, graph.schema.FullyConnectedOptionsT())


def _head(graph: Graph, layer: IntegerLayer, levels: int, scale: float) -> None:
    """Add the head, accumulators * logit_scale in float32: equal accumulators, equal logits.

    Continuous actions follow from the accumulators themselves.
    """
    schema, actions = graph.schema, layer.shape.weight_shape[0]
    total = _accumulators(graph, layer, _as_floats(graph, levels), scale)
    if isinstance(graph.student.actions, Box):
        _add_actions(graph, total, scale)
        return
    # One product at the end: the sums before it are integers times a power of two, hence exact.
    unit = [graph.student.output_scale / scale]
    factor = graph.tensor("logit_scale", (1,), np.float32, data=unit)
    logits = graph.tensor(OUTPUT, (1, actions), np.float32)
    graph.operator("MUL", [total, factor], logits, schema.MulOptionsT())


def _add_actions(graph: Graph, total: int, scale: float) -> None:
    """Add the way from accumulators times `scale`, `[1, n]`, to continuous actions and codes."""
    schema, student = graph.schema, graph.student
    actions, thresholds = student.actions, student.action_thresholds
    assert isinstance(actions, Box) and thresholds is not None
    n, most = actions.num_outputs, len(thresholds)

    def constant(name: str, shape: tuple[int, ...], dtype: Any, data: Any) -> int:
        return graph.tensor(f"{name}_by", shape, dtype, data=np.asarray(data).reshape(shape))

    def reshaped(value: int, name: str, shape: tuple[int, ...]) -> int:
        # -1 leaves the batch open, which users may resize.
        target = constant(name, (len(shape) + 1,), np.int32, (-1, *shape))
        output = graph.tensor(name, (1, *shape), np.float32)
        return graph.operator("RESHAPE", [value, target], output, schema.ReshapeOptionsT())

    columns = reshaped(total, "accumulator_columns", (n, 1))
    # The sums are exact, and so are the products of thresholds within their reach.
    marks = constant("thresholds", (1, 1, most), np.float32, thresholds * scale)
    reached = graph.tensor("reached", (1, n, most), np.bool_)
    graph.operator("GREATER_EQUAL", [columns, marks], reached, schema.GreaterEqualOptionsT())
    counts = graph.tensor("reached_count", (1, n, most), np.float32)
    graph.operator("CAST", [reached], counts, schema.CastOptionsT())
    axis = constant("code_numbers", (1,), np.int32, (2,))
    whole = graph.tensor("code_numbers", (1, n), np.float32)
    graph.operator("SUM", [counts, axis], whole, schema.ReducerOptionsT())
    codes = graph.tensor(CODES, (1, n), np.uint8)
    graph.operator("CAST", [whole], codes, schema.CastOptionsT())
    # The engine's order of float operations; another might round an action the other way.
    low, high = actions.bounds
    steps: tuple[tuple[str, Any, str, Any], ...] = (
        ("MUL", 2, "codes_doubled", schema.MulOptionsT()),
        ("DIV", most, "shares_from_0", schema.DivOptionsT()),
        ("SUB", 1, "shares", schema.SubOptionsT()),
        ("ADD", 1, "shares_above", schema.AddOptionsT()),
        ("MUL", 0.5, "shares_halved", schema.MulOptionsT()),
        ("MUL", high - low, "parts", schema.MulOptionsT()),
        ("ADD", low, "actions_unclipped", schema.AddOptionsT()),
        ("MAXIMUM", low, "actions_above_low", schema.MaximumMinimumOptionsT()),
        ("MINIMUM", high, "actions_flat", schema.MaximumMinimumOptionsT()),
    )
    value = whole
    for kind, operand, name, options in steps:
        by = constant(name, (np.size(operand),), np.float32, operand)
        value = graph.operator(kind, [value, by], graph.tensor(name, (1, n), np.float32), options)
    reshaped(value, ACTIONS, actions.shape)
