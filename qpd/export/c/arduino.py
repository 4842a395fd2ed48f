"""The C export as an Arduino and PlatformIO library: the same files, in the folders they expect."""

from __future__ import annotations

import json
import re

from qpd.export.bundle import ExportSource, GoldenVectors
from qpd.export.c.code import export_c
from qpd.export.c.description import actions, agent, inputs
from qpd.export.c.sizes import c_constant_bytes
from qpd.export.runtime_files import bundle_text
from qpd.version import __version__

EXAMPLE = "GoldenVectors"
# Programs and kernels of computers, which no board compiles.
_LEFT_OUT = ("Makefile", "qpd_test.c", "qpd_bench.c", "qpd_stream.c")
_X86_KERNELS = ("qpd_layer_vnni.h", "qpd_vnni_dot.h")


def export_arduino(source: ExportSource, golden: GoldenVectors) -> dict[str, bytes]:
    """Return the files of a library with an example that plays the golden vectors over Serial.

    Raises ExportError for a student whose numbers do not fit the runtime's types.
    """
    exported = export_c(source, golden, board=True)
    readme = exported.pop("README.md")
    library = {
        f"src/{name}": content
        for name, content in exported.items()
        if name not in _LEFT_OUT + _X86_KERNELS
    }
    about = (
        f"{source.name}, a student of {agent(source)}: {inputs(source)}, {actions(source)}, "
        f"{c_constant_bytes(source.student):,} bytes of integer constants"
    )
    fields = {
        "library": library_name(source.name),
        "about": re.sub(r"[^ -~]", "_", about),
        "qpd_version": __version__,
    }
    sketch = f"examples/{EXAMPLE}/{EXAMPLE}.ino"
    return library | {
        "README.md": readme,
        "library.properties": bundle_text("arduino.properties", fields),
        "library.json": _platformio(fields["library"], fields["about"]),
        sketch: bundle_text("arduino_golden.ino", {}),
    }


def library_name(student: str) -> str:
    """Return the name as Arduino allows it: letters, digits, `_`, `.`, `-`, 63 in all."""
    return "QPD_" + re.sub(r"[^A-Za-z0-9_.-]", "_", student)[:59]


def _platformio(library: str, sentence: str) -> bytes:
    about = {
        "name": library,
        "version": "1.0.0",
        "description": f"{sentence}; exported by QPD {__version__}",
        "headers": "qpd.h",
        "frameworks": "*",
        "platforms": "*",
        "build": {"srcDir": "src"},
    }
    return (json.dumps(about, indent=2) + "\n").encode()
