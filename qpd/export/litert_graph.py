"""A LiteRT model under construction: its tensors and operators, and how they become bytes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from qpd.actions import Box
from qpd.errors.codes import ErrorCode
from qpd.export.bundle import ExportError, ExportSource
from qpd.version import pip_install

INPUT, OUTPUT = "observations", "logits"
ACTIONS, CODES = "actions", "codes"  # the outputs where actions are continuous
ZERO_POINT = -128  # TensorFlow Lite's 8-bit kernels take signed activations only


class Graph:
    """Tensors and operators under construction; tensors are referred to by index."""

    def __init__(self, source: ExportSource) -> None:
        try:
            import flatbuffers
            from ai_edge_litert import schema_py_generated as schema
        except ImportError as error:
            message = f"the litert export needs ai-edge-litert: {pip_install('litert')}"
            raise ExportError(message, ErrorCode.PACKAGE_MISSING) from error
        self.flatbuffers, self.schema, self.student = flatbuffers, schema, source.student
        self.tensors: list[Any] = []
        self.operators: list[Any] = []
        self.buffers: list[Any] = [schema.BufferT()]  # the schema reserves buffer 0 for "no data"
        self.codes: list[int] = []
        self.features: int | None = None  # levels beside an image

    def buffer(self, data: bytes) -> int:
        """Add a buffer and return its index."""
        stored = self.schema.BufferT()
        stored.data = np.frombuffer(data, np.uint8)
        self.buffers.append(stored)
        return len(self.buffers) - 1

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: Any,
        scale: np.ndarray | float | None = None,
        data: Any = None,
    ) -> int:
        """Add a tensor and return its index.

        A scalar `scale` makes it a tensor of levels, an array of one scale per entry of the first
        dimension makes it one of weights or biases, without a zero point.
        """
        tensor, types = self.schema.TensorT(), self.schema.TensorType
        tensor.name, tensor.shape, tensor.hasRank = name, list(shape), True
        tensor.type = {np.int8: types.INT8, np.int32: types.INT32, np.float32: types.FLOAT32,
                       np.int64: types.INT64, np.bool_: types.BOOL,
                       np.uint8: types.UINT8}[dtype]  # fmt: skip
        if data is not None:
            tensor.buffer = self.buffer(np.ascontiguousarray(data, dtype).tobytes())
        if scale is not None:
            quantization, scales = self.schema.QuantizationParametersT(), np.atleast_1d(scale)
            quantization.scale = scales.astype(np.float32)
            point = ZERO_POINT if np.ndim(scale) == 0 else 0
            quantization.zeroPoint = np.full(len(scales), point, np.int64)
            tensor.quantization = quantization
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def operator(self, kind: str, inputs: list[int], output: int, options: Any = None) -> int:
        """Add an operator of the schema's name `kind`; return the index of its output."""
        code = getattr(self.schema.BuiltinOperator, kind)
        if code not in self.codes:
            self.codes.append(code)
        operator = self.schema.OperatorT()
        operator.opcodeIndex = self.codes.index(code)
        operator.inputs, operator.outputs = inputs, [output]
        if options is not None:
            name = type(options).__name__.removesuffix("T")
            operator.builtinOptionsType = getattr(self.schema.BuiltinOptions, name)
            operator.builtinOptions = options
        self.operators.append(operator)
        return output

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(self.tensors[tensor].shape)

    def serialize(self, source: ExportSource, metadata: dict[str, str]) -> bytes:
        """Return the bytes of the .tflite file, with `metadata` under the name qpd."""
        schema, model, subgraph = self.schema, self.schema.ModelT(), self.schema.SubGraphT()
        subgraph.name, subgraph.tensors, subgraph.operators = "main", self.tensors, self.operators
        # Every tensor's name is its own, so names find input and output without further
        # bookkeeping.
        names = {tensor.name: index for index, tensor in enumerate(self.tensors)}
        is_box = isinstance(self.student.actions, Box)
        wanted = (ACTIONS, CODES) if is_box else (OUTPUT,)
        subgraph.inputs, subgraph.outputs = [names[INPUT]], [names[name] for name in wanted]
        model.version, model.description = 3, f"QPD student {source.name}"  # schema version 3: TFL3
        model.subgraphs, model.buffers = [subgraph], self.buffers
        model.operatorCodes = [self._operator_code(code) for code in self.codes]
        note = schema.MetadataT()
        note.name, note.buffer = "qpd", self.buffer(json.dumps(metadata).encode())
        model.metadata = [note]
        builder = _aligned_builder(self.flatbuffers)
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())

    def _operator_code(self, code: int) -> Any:
        stored, operators = self.schema.OperatorCodeT(), self.schema.BuiltinOperator
        stored.builtinCode = code
        # The old field is one byte: interpreters from before the new one read it first.
        stored.deprecatedBuiltinCode = min(code, operators.PLACEHOLDER_FOR_GREATER_OP_CODES)
        # The versions that introduced int8, and per-channel weights of matrix products: a runtime
        # refuses an operator whose version it does not know, instead of computing it wrongly.
        versions = {operators.CONV_2D: 3, operators.FULLY_CONNECTED: 12, operators.CONCATENATION: 2,
                    operators.SUB: 2, operators.DEQUANTIZE: 2}  # fmt: skip
        stored.version = versions.get(code, 1)
        return stored


def _aligned_builder(flatbuffers: Any) -> Any:
    """Return a builder that aligns buffers to 16 bytes, as the schema demands.

    The Python packer ignores the schema's alignment, and ARM kernels read int32 and vectors from
    these buffers.
    """

    class AlignedBuilder(flatbuffers.Builder):
        def StartVector(self, elemSize: int, numElems: int, alignment: int) -> Any:
            return super().StartVector(elemSize, numElems, 16 if elemSize == 1 else alignment)

    return AlignedBuilder(1 << 16)
