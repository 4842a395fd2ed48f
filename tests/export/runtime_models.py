"""Exported models, run in their runtimes, for the tests of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from qpd.export.bundle import ExportSource, golden_vectors
from qpd.export.litert_flatbuffer import export_litert
from qpd.export.onnx_graph import export_onnx
from qpd.integer.integer_student import IntegerStudent


def onnx_outputs(student: IntegerStudent, model: str, observations: np.ndarray) -> list[np.ndarray]:
    models = export_onnx(ExportSource(student, {}, "test"), golden_vectors(student))
    session = onnxruntime.InferenceSession(models[model])
    return list(session.run(None, {"observations": observations}))


def litert_outputs(student: IntegerStudent, model: str, observations: np.ndarray) -> list[Any]:
    from ai_edge_litert.interpreter import Interpreter

    models = export_litert(ExportSource(student, {}, "test"), golden_vectors(student))
    interpreter = Interpreter(model_content=models[model], num_threads=1)
    source = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(source, observations.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(source, observations)
    interpreter.invoke()
    return [interpreter.get_tensor(target["index"]) for target in interpreter.get_output_details()]


RUNTIMES = {
    "student_int8.onnx": onnx_outputs,
    "student_fp32.onnx": onnx_outputs,
    "student.tflite": litert_outputs,
}
