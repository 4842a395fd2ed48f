"""The integer student as ONNX graphs: quantized (QDQ, int8 kernels) and fp32.

Tensors between layers hold the integer student's levels themselves, so every scale between
quantized tensors is 1 and a layer's weight scale is its requantization gain. Saturation at 0 and
255 acts as the ReLU and the top level.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.actions import Box
from qpd.errors.codes import ErrorCode
from qpd.export.action_texts import onnx_texts
from qpd.export.bundle import ExportError, ExportSource, GoldenVectors
from qpd.export.runtime_files import bundle_text, golden_npz, model_metadata
from qpd.export.signed_bytes import requantization_gain, signed_layer
from qpd.integer.integer_student import INT32_MAX, IntegerLayer, IntegerStudent
from qpd.students.student import FIRST_LINEAR
from qpd.version import __version__, pip_install

if TYPE_CHECKING:
    import onnx

# The oldest opset with BitwiseNot, and an IR version that runtimes since 2022 read: by default onnx
# writes the newest, which ONNX Runtime may refuse.
OPSET, IR_VERSION = 18, 8
INPUT, OUTPUT = "observations", "logits"
ACTIONS, CODES = "actions", "codes"  # the outputs where actions are continuous
ONE, ZERO = "one", "zero"  # the scale and zero point of every tensor of levels
# With int8 weights ONNX Runtime adds two products in 16 bits, those of neighbouring inputs on x86
# without VNNI, which may overflow; where it may, weights are stored as w + 128 in uint8. That costs
# nothing but in convolutions, whose int8 kernels are faster.
WEIGHT_ZERO = 128
PAIR_BOUND = np.iinfo(np.int16).max


def export_onnx(source: ExportSource, golden: GoldenVectors) -> dict[str, bytes]:
    """Return the bundle's files by name. Raises ExportError without the onnx package."""
    metadata = model_metadata(source)
    return {
        "student_int8.onnx": quantized_graph(source, metadata).SerializeToString(),
        "student_fp32.onnx": float_graph(source, metadata).SerializeToString(),
        "golden.npz": golden_npz(source, golden),
        "selftest.py": bundle_text("onnx_selftest.py", {}),
        "golden_check.py": bundle_text("golden_check.py", {}),
        "README.md": bundle_text("onnx.md", {**metadata, **onnx_texts(source.student)}),
    }


def quantized_graph(source: ExportSource, metadata: dict[str, str]) -> onnx.ModelProto:
    """Build the QDQ graph (QuantizeLinear, DequantizeLinear): observations -> float32 logits.

    Continuous actions are the output in place of logits, with their codes; their head is
    MatMulInteger, whose int32 accumulators are compared with the thresholds themselves.
    Observations are uint8 frames or float32 vectors. A runtime fuses each layer into one integer
    kernel with int32 accumulators; it differs from the integer engine only in the requantization
    factor, rounded to 24 bits, and in ties. Layers with tables are exact: MatMulInteger, then
    `_table_levels`.
    """
    graph = _Graph(source.student)
    graph.constant(ONE, np.float32(1))
    graph.constant(ZERO, np.uint8(0))
    levels, graph.features = _encode(graph)
    image = source.student.architecture.image_shape
    size = image[1:] if image is not None else ()
    for layer in source.student.layers:
        levels = _quantized_layer(graph, layer, levels, size)
        size = layer.shape.output_shape[1:]
    return graph.model(source, metadata)


def float_graph(source: ExportSource, metadata: dict[str, str]) -> onnx.ModelProto:
    """Build the same student with its integers carried in fp32; needs no quantized kernels.

    Sums stay exact as long as they are below 2^24, float32's integers. An index into a table is
    computed in int64.
    """
    graph = _Graph(source.student)
    graph.constant("half", np.float32(0.5))
    graph.constant("bottom", np.float32(0))
    graph.constant("top", np.float32(source.student.layers[0].levels))
    levels, features = _encode(graph)
    levels = graph.node("Cast", [levels], "levels", to=1)  # 1: float32
    if features is not None:
        graph.features = graph.node("Cast", [features], "feature_levels", to=1)
    for layer in source.student.layers:
        levels = _float_layer(graph, layer, levels)
    return graph.model(source, metadata)


class _Graph:
    """Nodes and constants under construction; every node is named after its only output."""

    def __init__(self, student: IntegerStudent) -> None:
        try:
            import onnx
        except ImportError as error:
            raise ExportError(
                f"the onnx export needs onnx: {pip_install('onnx')}", ErrorCode.PACKAGE_MISSING
            ) from error
        self.onnx, self.student = onnx, student
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.features: str | None = None  # levels beside an image

    def constant(self, name: str, value: Any) -> str:
        # ascontiguousarray makes a scalar one-dimensional; QuantizeLinear wants true scalars.
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        self.constants[name] = self.onnx.numpy_helper.from_array(array, name)
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        make = self.onnx.helper.make_node
        self.nodes.append(make(kind, inputs, [output], name=output, **attributes))
        return output

    def linear_map(self, layer: IntegerLayer, inputs: list[str], output: str) -> str:
        """Add the layer's convolution or matrix product; the latter takes flattened images."""
        if layer.shape.kind == "conv":
            kernel, stride = list(layer.shape.weight_shape[2:]), [layer.shape.stride] * 2
            return self.node("Conv", inputs, output, kernel_shape=kernel, strides=stride)
        return self.node("Gemm", inputs, output, transB=1)

    def model(self, source: ExportSource, metadata: dict[str, str]) -> onnx.ModelProto:
        helper, types = self.onnx.helper, self.onnx.TensorProto
        architecture, actions = self.student.architecture, self.student.actions
        outputs: list[tuple[str, int, tuple[int, ...]]] = [
            (OUTPUT, types.FLOAT, (architecture.num_outputs,))
        ]
        if isinstance(actions, Box):
            outputs = [
                (ACTIONS, types.FLOAT, actions.shape),
                (CODES, types.UINT8, (architecture.num_outputs,)),
            ]
        used = {name for node in self.nodes for name in node.input}
        kind = types.UINT8 if architecture.is_image else types.FLOAT
        shape = ["batch", *architecture.observation_shape]
        graph = helper.make_graph(
            self.nodes,
            "qpd_student",
            [helper.make_tensor_value_info(INPUT, kind, shape)],
            [
                helper.make_tensor_value_info(name, dtype, ["batch", *size])
                for name, dtype, size in outputs
            ],
            [value for name, value in self.constants.items() if name in used],
            doc_string=f"QPD student {source.name}",
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="qpd",
            producer_version=__version__,
            doc_string=f"QPD student {source.name}",
        )
        helper.set_model_props(model, metadata)
        # A graph that is wrong fails here, at export, and not on the machine that it is deployed
        # to.
        self.onnx.checker.check_model(model, full_check=True)
        return self.onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def _encode(graph: _Graph) -> tuple[str, str | None]:
    """Add the way to uint8 levels: what layer 1 reads, and features beside an image, if any."""
    student, image = graph.student, graph.student.architecture.image_shape
    if not student.architecture.joins_features or image is None:
        return _feature_levels(graph, INPUT), None
    size = prod(image)
    bounds = {"zeroth": 0, "pixels": size, "all": INT32_MAX, "axis": 1}
    for name, bound in bounds.items():
        graph.constant(f"slice_{name}", np.array([bound], np.int64))
    axis = "slice_axis"
    pixels = graph.node("Slice", [INPUT, "slice_zeroth", "slice_pixels", axis], "flat_pixels")
    shape = graph.constant("image_shape", np.array([-1, *image], np.int64))
    pixels = graph.node("Reshape", [pixels, shape], "pixels")
    scale = graph.constant("pixel_scale", np.float32(1))
    point = graph.constant("pixel_zero", np.uint8(0))
    levels = graph.node("QuantizeLinear", [pixels, scale, point], "image_levels")
    values = graph.node("Slice", [INPUT, "slice_pixels", "slice_all", axis], "features")
    return levels, _feature_levels(graph, values)


def _feature_levels(graph: _Graph, values: str) -> str:
    """Add Eq. 4, from vectors to uint8 levels, with the engine's order of float operations.

    Another order could round a level the other way. Images are levels already.
    """
    student = graph.student
    if student.input_low is None or student.input_high is None:
        return values
    graph.constant("input_low", student.input_low)
    graph.constant("input_span", student.input_high - student.input_low)
    names = [graph.constant(f"unit_{i}", np.float32(i)) for i in (0, 1)]
    top = graph.constant("input_top", np.float32(student.input_levels))
    scale = graph.constant("input_scale", np.float32(1))
    point = graph.constant("input_zero", np.uint8(0))
    above = graph.node("Sub", [values, "input_low"], "above_low")
    unit = graph.node("Div", [above, "input_span"], "unit_unclipped")
    unit = graph.node("Clip", [unit, *names], "unit")
    scaled = graph.node("Mul", [unit, top], "scaled")
    return graph.node("QuantizeLinear", [scaled, scale, point], "input_levels")


def _flat(graph: _Graph, layer: IntegerLayer, levels: str) -> str:
    """Return levels as the layer reads them: flattened for the first linear layer after images."""
    if layer.shape.name != FIRST_LINEAR or graph.student.architecture.image_shape is None:
        return levels
    flat = graph.node("Flatten", [levels], "flat")
    if graph.features is None:
        return flat
    return graph.node("Concat", [flat, graph.features], "flat_and_features", axis=1)


def _quantized_layer(graph: _Graph, layer: IntegerLayer, levels: str, size: tuple[int, ...]) -> str:
    """Add a layer from uint8 levels to uint8 levels, or to float32 logits for the actor head.

    `size` is the height and width of a convolution's inputs.
    """
    name, signed = layer.shape.name, signed_layer(layer)
    is_head = layer.multiplier is None
    is_box = isinstance(graph.student.actions, Box)
    levels = _flat(graph, layer, levels)
    weight, zero = _unsigned(signed.weight), WEIGHT_ZERO
    if signed.reads_complement:
        complement = graph.node("BitwiseNot", [levels], f"{name}_complement")
        if layer.shape.kind == "conv":
            both = paired_channels(signed.weight)
            levels = _paired(graph, name, levels, complement, (both.shape[1], *size))
            weight, zero = (_unsigned(both), WEIGHT_ZERO) if wraps_on_arm(both) else (both, 0)
        else:
            levels = graph.node("Concat", [levels, complement], f"{name}_both", axis=1)
    elif (
        layer.shape.kind == "conv" and largest_pair(signed.weight, layer.input_levels) <= PAIR_BOUND
    ):
        weight, zero = signed.weight, 0
    if (is_head and is_box) or layer.table is not None:
        stored = graph.constant(f"{name}_weight_integers", weight.T)
        point = graph.constant("weight_zero", np.uint8(zero))
        products = graph.node("MatMulInteger", [levels, stored, "", point], f"{name}_products")
        bias = graph.constant(f"{name}_bias_integers", signed.bias)
        total = graph.node("Add", [products, bias], f"{name}_accumulators")
        if layer.table is None:
            return add_actions(graph, total)
        return _table_levels(graph, layer, total, layer.table)
    unit = np.full(len(signed.bias), graph.student.output_scale, np.float32)
    scale = graph.constant(f"{name}_scale", unit if is_head else requantization_gain(layer))
    # Exactly the pattern that ONNX Runtime fuses into QLinearConv and QGemm: input, weight and
    # bias all come from DequantizeLinear, with the bias at input scale times weight scale.
    inputs = [graph.node("DequantizeLinear", [levels, ONE, ZERO], f"{name}_input")]
    parts = (("weight", weight, zero), ("bias", signed.bias, 0))
    for role, value, its_zero in parts:
        stored = graph.constant(f"{name}_{role}_integers", value)
        point = graph.constant(f"{name}_{role}_zero", np.full(len(value), its_zero, value.dtype))
        whole = [stored, scale, point]
        inputs.append(graph.node("DequantizeLinear", whole, f"{name}_{role}", axis=0))
    output = graph.linear_map(layer, inputs, OUTPUT if is_head else f"{name}_output")
    if is_head:
        return output
    levels = graph.node("QuantizeLinear", [output, ONE, ZERO], f"{name}_saturated")
    if layer.levels == 255:  # uint8 saturates there by itself
        return levels
    top = graph.constant("top", np.uint8(layer.levels))
    return graph.node("Clip", [levels, "", top], f"{name}_levels")


def paired_channels(weight: np.ndarray) -> np.ndarray:
    """Return weights `[out, 2 * in, ...]` with each channel's followed by its complement's.

    A kernel then adds a x + b (255 - x) in 16 bits, which is at most 128 * 255 for any x.
    """
    half = weight.shape[1] // 2
    return np.stack([weight[:, :half], weight[:, half:]], axis=2).reshape(weight.shape)


def wraps_on_arm(weight: np.ndarray) -> bool:
    """Tell whether weights `[out, in, ...]`, int8, have two products that wrap on ARM64.

    Without dot products its kernels add those of inputs that are 8 apart in 16 bits, with 128 taken
    from the levels: (-128)(-128) twice is 1 more than fits. They go through the channels of each
    position in turn.
    """
    rows = np.moveaxis(weight, 1, -1).reshape(len(weight), -1)
    return bool(((rows[:, :-8] == -128) & (rows[:, 8:] == -128)).any())


def _paired(graph: _Graph, name: str, levels: str, complement: str, size: tuple[int, ...]) -> str:
    """Add an image of a `size` whose channels are each followed by their complement."""
    axis = graph.constant("pair_axis", np.array([2], np.int64))
    pair = [
        graph.node("Unsqueeze", [each, axis], f"{each}_of_pair") for each in (levels, complement)
    ]
    pairs = graph.node("Concat", pair, f"{name}_pairs", axis=2)
    shape = graph.constant(f"{name}_both_shape", np.array([0, *size], np.int64))  # 0: as it is
    return graph.node("Reshape", [pairs, shape], f"{name}_both")


def largest_pair(weight: np.ndarray, top: int) -> int:
    """Return the largest absolute sum of two of an output's products, with levels up to `top`."""
    rows = np.sort(weight.reshape(len(weight), -1).astype(np.int64), axis=1)
    above, below = rows[:, -2:].clip(min=0).sum(1), rows[:, :2].clip(max=0).sum(1)
    return int(top * max(above.max(), -below.min()))


def _unsigned(weight: np.ndarray) -> np.ndarray:
    """Return int8 weights as uint8 ones with the zero point 128."""
    return weight.view(np.uint8) ^ np.uint8(WEIGHT_ZERO)


def _table_levels(graph: _Graph, layer: IntegerLayer, total: str, table: np.ndarray) -> str:
    """Add the engine's requantization of accumulators to an index, and the table's level there.

    In int64, as no float32 holds the product. `table` has the dtype that the next layer reads.
    """
    assert layer.multiplier is not None and layer.shift is not None
    name, shift = layer.shape.name, layer.shift.astype(np.int64)
    zero = graph.constant("no_index", np.int64(0))
    last = graph.constant("last_index", np.int64(layer.largest_number))
    steps: list[tuple[str, np.ndarray, str]] = [
        ("Mul", layer.multiplier.astype(np.int64), "product"),
        ("Add", np.int64(1) << (shift - 1), "half_up"),
        # Of numbers from 0 on the quotient is what a shift leaves.
        ("Div", np.int64(1) << shift, "quotient"),
    ]
    whole = graph.node("Cast", [total], f"{name}_wide", to=7)  # 7: int64
    value = graph.node("Max", [whole, zero], f"{name}_from_zero")
    for kind, operand, output in steps:
        constant = graph.constant(f"{name}_{output}_by", operand)
        value = graph.node(kind, [value, constant], f"{name}_{output}")
    index = graph.node("Min", [value, last], f"{name}_index")
    entries = graph.constant(_table_name(graph, table), table)
    return graph.node("Gather", [entries, index], f"{name}_levels")


def _table_name(graph: _Graph, table: np.ndarray) -> str:
    tables = graph.student.tables
    return f"table_{next(i for i, each in enumerate(tables) if np.array_equal(each, table))}"


def add_actions(graph: _Graph, accumulators: str, dtype: type = np.int32) -> str:
    """Add the way from the head's accumulators `[batch, n]`, of `dtype`, to actions and codes.

    In float32 comparisons are exact as long as accumulators are, whose thresholds are integers.
    """
    student = graph.student
    actions, thresholds = student.actions, student.action_thresholds
    assert isinstance(actions, Box) and thresholds is not None
    graph.constant("thresholds", thresholds.astype(dtype))
    graph.constant("last_axis", np.array([-1], np.int64))
    columns = graph.node("Unsqueeze", [accumulators, "last_axis"], "accumulator_columns")
    reached = graph.node("GreaterOrEqual", [columns, "thresholds"], "reached")
    count = graph.node("Cast", [reached], "reached_count", to=1)  # 1: float32
    whole = graph.node("ReduceSum", [count, "last_axis"], "code_numbers", keepdims=0)
    graph.node("Cast", [whole], CODES, to=2)  # 2: uint8
    # The engine's order of float operations; another might round an action the other way.
    low, high = actions.bounds
    steps: list[tuple[str, Any, str]] = [
        ("Mul", 2, "codes_doubled"),
        ("Div", 2**student.action_bits - 1, "shares_from_0"),
        ("Sub", 1, "shares"),
        ("Add", 1, "shares_above"),
        ("Mul", 0.5, "shares_halved"),
        ("Mul", high - low, "parts"),
        ("Add", low, "actions_unclipped"),
        ("Max", low, "actions_above_low"),
        ("Min", high, "actions_flat"),
    ]
    value = whole
    for kind, operand, name in steps:
        constant = graph.constant(f"{name}_by", np.asarray(operand, np.float32))
        value = graph.node(kind, [value, constant], name)
    shape = graph.constant("actions_shape", np.array([-1, *actions.shape], np.int64))
    return graph.node("Reshape", [value, shape], ACTIONS)


def _float_layer(graph: _Graph, layer: IntegerLayer, levels: str) -> str:
    name, is_head = layer.shape.name, layer.multiplier is None
    levels = _flat(graph, layer, levels)
    weight = graph.constant(f"{name}_weight", layer.weight.astype(np.float32))
    bias = graph.constant(f"{name}_bias", layer.bias.astype(np.float32))
    total = graph.linear_map(layer, [levels, weight, bias], f"{name}_accumulators")
    if is_head and isinstance(graph.student.actions, Box):
        return add_actions(graph, total, np.float32)
    if layer.table is not None:
        return _table_levels(graph, layer, total, layer.table.astype(np.float32))
    if is_head:
        unit = graph.constant("logit_scale", np.float32(graph.student.output_scale))
        return graph.node("Mul", [total, unit], OUTPUT)
    view = (-1, 1, 1) if layer.shape.kind == "conv" else (-1,)
    gain = graph.constant(f"{name}_gain", requantization_gain(layer).reshape(view))
    scaled = graph.node("Mul", [total, gain], f"{name}_scaled")
    # Floor of x + 1/2, as the engine rounds; ONNX's Round takes halves to even.
    rounded = graph.node(
        "Floor", [graph.node("Add", [scaled, "half"], f"{name}_up")], f"{name}_whole"
    )
    return graph.node("Clip", [rounded, "bottom", "top"], f"{name}_levels")
