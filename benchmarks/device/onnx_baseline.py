"""A float student as anyone would run it in ONNX Runtime: the baseline of the exports."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qpd.students import Student, architecture_for


def onnx_fp32_forward(size: str, observations: np.ndarray) -> Callable[[int], object] | None:
    """Return a function that runs row i of uint8 `[n, 4, 84, 84]`; None without onnx.

    The student of `size` has random weights.
    """
    try:
        import onnx
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        return None
    student = Student(architecture_for(size, (4, 84, 84), 4))
    nodes = [helper.make_node("Cast", ["frames"], ["f"], to=TensorProto.FLOAT)]
    nodes.append(helper.make_node("Mul", ["f", "unit"], ["x0"]))
    tensors = [numpy_helper.from_array(np.array(1 / 255, dtype=np.float32), "unit")]
    for i, shape in enumerate(student.shapes):
        layer = student.layer(shape.name)
        weight, bias = layer.weight.detach().numpy(), student.bias(shape.name).detach().numpy()
        tensors += [
            numpy_helper.from_array(weight, f"w{i}"),
            numpy_helper.from_array(bias, f"b{i}"),
        ]
        inputs = [f"x{i}", f"w{i}", f"b{i}"]
        if shape.kind == "conv":
            nodes.append(helper.make_node("Conv", inputs, [f"y{i}"], strides=[shape.stride] * 2))
        else:
            # The first linear layer reads the convolutions' output as one row.
            if student.shapes[i - 1].kind == "conv":
                nodes.append(helper.make_node("Flatten", [f"x{i}"], [f"flat{i}"]))
                inputs[0] = f"flat{i}"
            nodes.append(helper.make_node("Gemm", inputs, [f"y{i}"], transB=1))
        if shape.name != "actor":
            nodes.append(helper.make_node("Relu", [f"y{i}"], [f"x{i + 1}"]))
    last = f"y{len(student.shapes) - 1}"
    graph = helper.make_graph(
        nodes,
        "student",
        [helper.make_tensor_value_info("frames", TensorProto.UINT8, [1, 4, 84, 84])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, 4])],
        tensors,
    )
    # By default onnx writes its newest IR version, which ONNX Runtime may refuse.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    # Made beforehand: only `run` is timed.
    inputs_by_row = [{"frames": row[None]} for row in observations]
    return lambda i: session.run(None, inputs_by_row[i])
