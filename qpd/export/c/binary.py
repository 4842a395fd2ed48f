"""student.bin: a 32-byte header and the constants of the C export, in one file.

docs/bin-format.md describes every byte; `bundle_files/bin_reader.py` reads it with NumPy alone.
"""

from __future__ import annotations

import struct
import zlib
from importlib.resources import files
from math import prod

import numpy as np

from qpd.actions import Box, Discrete, MultiBinary, MultiDiscrete
from qpd.export.action_texts import bin_texts
from qpd.export.bundle import ExportError, ExportSource, GoldenVectors
from qpd.export.c.code import packed_weights
from qpd.export.c.geometry import is_own_image
from qpd.export.c.sizes import c_constant_bytes
from qpd.export.runtime_files import bundle_text, golden_npz, model_metadata
from qpd.integer.integer_student import IntegerStudent
from qpd.version import __version__

MAGIC = b"QPDB"
# Version 2 says what the outputs mean; a single choice among several needs no more than version 1.
# Version 3 has tables, whatever the outputs mean; version 4 may, and says how wide inputs are and
# whether weights are even. Version 5 says how large an image is; before, all were 4 of 84x84.
# Version 6 has features beside such an image.
ONE_CHOICE_VERSION, ACTIONS_VERSION, TABLES_VERSION, WIDE_VERSION = 1, 2, 3, 4
OWN_IMAGE_VERSION, JOINED_VERSION = 5, 6
HEADER = struct.Struct("<4s4B2HId2BHI")  # 32 bytes, the CRC last
KINDS = {Discrete: 0, Box: 1, MultiDiscrete: 2, MultiBinary: 3}
LAYER = struct.Struct("<H2B")


def export_bin(source: ExportSource, golden: GoldenVectors) -> dict[str, bytes]:
    """Return student.bin with a reader, golden vectors, a self-test and a README, by file name.

    Raises ExportError for a student too wide for the format.
    """
    student = source.student
    packed = binary_student(student)
    texts = files("qpd.export").joinpath("bundle_files")
    fields = {
        **model_metadata(source),
        **bin_texts(student),
        "bin_bytes": f"{len(packed):,}",
        "constant_bytes": f"{c_constant_bytes(student):,}",
        "qpd_version": __version__,
    }
    return {
        "student.bin": packed,
        "qpd_bin.py": texts.joinpath("bin_reader.py").read_bytes(),
        "selftest.py": texts.joinpath("bin_selftest.py").read_bytes(),
        "golden.npz": golden_npz(source, golden),
        "README.md": bundle_text("bin.md", fields),
    }


def binary_student(student: IntegerStudent) -> bytes:
    """Return the student as docs/bin-format.md describes it; ExportError if it is too wide."""
    architecture, layers = student.architecture, student.layers
    widths = [len(layer.weight) for layer in layers]
    features = architecture.num_features
    if max(*widths, features) > 0xFFFF or len(layers) > 0xFF:
        raise ExportError("student.bin holds at most 255 layers of 65,535 outputs")
    table = [
        LAYER.pack(
            len(layer.weight),
            layer.bits,
            16 * layer.weight.shape[2] + layer.shape.stride if layer.shape.kind == "conv" else 0,
        )
        for layer in layers
    ]
    ranges = [x for x in (student.input_low, student.input_high) if x is not None]
    actions = student.actions
    parts = [
        *table,
        *(x.astype("<f4").tobytes() for x in ranges),
        *_actions(student),
        *_image_sides(student),
        *_tables(student),
        *(layer.bias.astype("<i4").tobytes() for layer in layers),
        *(x.multiplier.astype("<i4").tobytes() for x in layers if x.multiplier is not None),
        *(x.shift.astype(np.uint8).tobytes() for x in layers if x.shift is not None),
        *(packed_weights(student, layer).tobytes() for layer in layers),
    ]
    body = b"".join(parts)
    header = HEADER.pack(
        MAGIC,
        _version(student),
        len(layers),
        len(architecture.conv_channels),
        layers[0].levels,
        features,
        architecture.num_outputs,
        len(body),
        student.output_scale,
        KINDS[type(actions)],
        student.action_bits if isinstance(actions, Box) else 0,
        prod(actions.shape) if actions.shape else 0,
        0,
    )[:-4]
    return header + struct.pack("<I", zlib.crc32(header + body)) + body


def _version(student: IntegerStudent) -> int:
    if student.input_bits != 8 or student.has_zero_weight:
        return WIDE_VERSION
    if student.architecture.joins_features:
        return JOINED_VERSION
    if is_own_image(student):  # these have 8 bits, odd weights and no tables
        return OWN_IMAGE_VERSION
    if student.tables:
        return TABLES_VERSION
    return ONE_CHOICE_VERSION if isinstance(student.actions, Discrete) else ACTIONS_VERSION


def _image_sides(student: IntegerStudent) -> list[bytes]:
    """Return channels, height and width of own images; nothing for other observations."""
    if not is_own_image(student):
        return []
    return [np.array(student.architecture.image_shape, "<u4").tobytes()]


def _tables(student: IntegerStudent) -> list[bytes]:
    """Return how many tables of activations there are, and they; nothing where there are none.

    Version 4 has bits of inputs and the evenness of weights before that, in four bytes.
    """
    found: list[bytes] = []
    if _version(student) == WIDE_VERSION:
        found = [struct.pack("<4B", student.input_bits, student.has_zero_weight, 0, 0)]
    elif not student.tables:
        return []
    tables = [table.tobytes() for table in student.tables]
    return [*found, struct.pack("<I", len(student.tables)), *tables]


def _actions(student: IntegerStudent) -> list[bytes]:
    """Return bounds and thresholds of continuous actions, or the choices of each part."""
    actions, thresholds = student.actions, student.action_thresholds
    if isinstance(actions, Box) and thresholds is not None:
        bounds = [bound.astype("<f4").tobytes() for bound in actions.bounds]
        return [*bounds, thresholds.astype("<i4").tobytes()]
    if isinstance(actions, MultiDiscrete):
        return [np.array(actions.nvec, "<u4").tobytes()]
    return []
