"""The folders of the code, ranked: a folder imports only what stands before it.

python -m docs_build.layers          # writes the list into CONTRIBUTING.md

`tests/packaging/test_layers.py` reads every import and holds them to this order. What a folder is
for is the first line of its docstring.
"""

from __future__ import annotations

import ast
from pathlib import Path

from docs_build.markdown import markdown_table

ROOT = Path(__file__).resolve().parent.parent
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- layers: made by `python -m docs_build.layers` -->", "<!-- end of layers -->"

# Lowest first. A folder stands for its own files and for those of its subfolders that are not
# listed. qpd/__init__.py, the face of it all, imports lazily and is above everything.
LAYERS = (
    "qpd/version.py",
    "qpd/actions",
    "students/shared_background",
    "students",
    "qpd/errors",
    "qpd/files",
    "qpd/machine",
    "qpd/numerics",
    "qpd/recipe",
    "qpd/quantization",
    "qpd/integer",
    "qpd/environments",
    "teachers/archive",
    "teachers/sources",
    "teachers/low_precision",
    "teachers/off_policy",
    "teachers/training",
    "teachers",
    "qpd/student_files",
    "qpd/evaluation",
    "qpd/replay",
    "qpd/losses",
    "qpd/runs",
    "qpd/training",
    "qpd/phases",
    "qpd/agents",
    "qpd/export",
    "qpd/export/c",
    "qpd/export/systemverilog",
    "qpd/fpga",
    "qpd/bench",
    "qpd/hub",
    "qpd/sweep",
    "analysis/figure_style.py",
    "analysis/runs",
    "analysis/returns",
    "analysis/networks",
    "analysis/speed",
    "analysis/suites",
    "analysis/precision",
    "analysis/selection",
    "analysis/paper",
    "analysis/report",
    "qpd/api.py",
    "qpd/commands",
    "qpd/cli.py",
)


def layer_of(file: str) -> str | None:
    """Return the layer of a file, a path relative to the repository; None for no layer's.

    Of several that hold it the innermost counts.
    """
    holding = [layer for layer in LAYERS if file == layer or file.startswith(f"{layer}/")]
    return max(holding, key=len, default=None)


def purpose(layer: str) -> str:
    """Return the first sentence or line of the layer's docstring."""
    path = ROOT / layer
    source = path if path.is_file() else path / "__init__.py"
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return text.split("\n", 1)[0]


def layers_table() -> str:
    """Return the Markdown table of CONTRIBUTING.md, lowest layer first."""
    return markdown_table(
        ["Folder", "Content"], [[f"`{layer}`", purpose(layer)] for layer in LAYERS]
    )


def with_layers(page: str) -> str:
    """Return CONTRIBUTING's text with the present table between the two marks.

    Raises ValueError where a mark is missing.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{CONTRIBUTING.name} lacks the line {BEGIN if not begin else END}")
    return f"{before}{BEGIN}\n\n{layers_table()}\n\n{END}{after}"


if __name__ == "__main__":
    CONTRIBUTING.write_text(with_layers(CONTRIBUTING.read_text(encoding="utf-8")), encoding="utf-8")
