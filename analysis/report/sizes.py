"""Report section: where a student's bytes are, tensor by tensor in the real files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qpd.analysis.figure_style import COLOURS, NEUTRAL
from qpd.analysis.report.blocks import Picture, Pictures, Section, Table
from qpd.analysis.report.figure_uri import figure_uri
from qpd.analysis.report.inputs import ReportInputs
from qpd.analysis.runs.run_table import LABELS
from qpd.files.bounded_read import read_file
from qpd.files.json_input import parse_json
from qpd.student_files.distilled import MAX_FILE_BYTES, StudentFileError, check_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADER = "header, metadata"


def tensor_bytes(path: Path) -> dict[str, int]:
    """Return the bytes of each tensor of a safetensors file and of its header.

    Together they are the file's size. Raises StudentFileError for any other file.
    """
    try:
        check_size(path)
        data = read_file(path, MAX_FILE_BYTES)
        # safetensors: 8 bytes with the header's length, the header in JSON, then the tensors. The
        # library gives names and shapes, but not where the bytes lie.
        end = 8 + int.from_bytes(data[:8], "little")
        entries = parse_json(data[8:end].decode("utf-8"))
        entries.pop("__metadata__", None)
        sizes = {
            name: int(e["data_offsets"][1] - e["data_offsets"][0]) for name, e in entries.items()
        }
    except StudentFileError:
        raise
    except (OSError, ValueError, AttributeError, KeyError, IndexError, TypeError) as error:
        raise StudentFileError(f"{path}: is damaged, or no safetensors file: {error}") from error
    return {**sizes, HEADER: len(data) - sum(sizes.values())}


def part_bytes(path: Path) -> dict[str, int]:
    """Return `tensor_bytes` added up by layer, in the network's order; `HEADER` comes last.

    Integer students keep the biases, multipliers and shifts of all layers in one tensor each.
    """
    parts: dict[str, int] = {}
    for name, size in tensor_bytes(path).items():
        layer = name.removeprefix("layers.")
        layer = layer.removesuffix(".weight").removesuffix(".bias")
        parts[layer] = parts.get(layer, 0) + size
    # By the first four letters: conv1, linear1, actor, critic; unknown names before the header.
    order = {"conv": 0, "line": 1, "acto": 2, "crit": 3, HEADER[:4]: 5}
    return dict(sorted(parts.items(), key=lambda item: (order.get(item[0][:4], 4), item[0])))


def sizes_section(inputs: ReportInputs) -> Section:
    """Show the bytes of each student's file by layer."""
    files = {
        str(name): part_bytes(file)
        for name, file in inputs.run.student_files.items()
        if name in inputs.summary["policies"] and file.is_file()
    }
    if not files:
        left_out = "This run directory holds no student file."
        return Section("sizes", "Where the bytes are", left_out=left_out)
    names = list(dict.fromkeys(part for parts in files.values() for part in parts))
    # Files have different layers; the header moves to the end again after they are merged.
    names.append(names.pop(names.index(HEADER)))
    rows = [[name, *(_shown(parts.get(name)) for parts in files.values())] for name in names]
    rows.append(["file", *(f"{sum(parts.values()):,}" for parts in files.values())])
    header = ["bytes", *(LABELS[name] for name in files)]
    uri = figure_uri(lambda figure: _draw(figure, files), 1.1 + 0.4 * len(files))
    alt = "Bytes by layer, as in the table beside it."
    caption = (
        "A layer's bytes are its weights, in the fp32 student with its biases. Integer students "
        "keep biases, multipliers and shifts of all layers in one tensor each."
    )
    pictures = Pictures([Picture(uri, alt, caption)], Table(header, rows, last_is_total=True))
    return Section("sizes", "Where the bytes are", [pictures])


def _shown(size: int | None) -> str:
    return "-" if size is None else f"{size:,}"


def _draw(figure: Figure, files: dict[str, dict[str, int]]) -> None:
    ax = figure.add_subplot()
    largest = {
        name: max(parts.get(name, 0) for parts in files.values())
        for name in dict.fromkeys(part for parts in files.values() for part in parts)
    }
    # As many parts as there are colours, the rest together in grey.
    biggest = sorted(largest, key=lambda name: -largest[name])[: len(COLOURS) - 1]
    named = [name for name in largest if name in biggest]  # in the network's order
    for row, parts in enumerate(files.values()):
        sizes = {name: parts.get(name, 0) for name in named}
        sizes["others"] = sum(parts.values()) - sum(sizes.values())
        left = 0.0
        for (name, size), colour in zip(sizes.items(), [*COLOURS[:-1], NEUTRAL], strict=False):
            label = name if row == 0 else None
            ax.barh(row, size / 1000, left=left, height=0.6, color=colour, label=label)
            left += size / 1000
    ax.set_yticks(range(len(files)), [LABELS[name] for name in files])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("kB (1,000 bytes)")
    figure.legend(loc="outside upper center", ncols=4)
