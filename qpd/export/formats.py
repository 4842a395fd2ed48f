"""The formats of `qpd export`, and the one way to write a student in one of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean

# Imported only when asked for: some need packages that are extras.
EXPORTERS = {
    "c": "qpd.export.c.code:export_c",
    "onnx": "qpd.export.onnx_graph:export_onnx",
    "litert": "qpd.export.litert_flatbuffer:export_litert",
    "sb3": "qpd.export.sb3_zip:export_sb3",
    "bin": "qpd.export.c.binary:export_bin",
    "systemverilog": "qpd.export.systemverilog.code:export_systemverilog",
}
# Another arrangement of a format's files: (format, layout) -> exporter.
LAYOUTS = {("c", "arduino"): "qpd.export.c.arduino:export_arduino"}


@dataclass(frozen=True)
class Exported:
    """Hold where an export lies, its files' sizes in bytes by name, and lines worth a warning."""

    folder: Path
    sizes: dict[str, int]
    warnings: tuple[str, ...] = ()


def write_export(
    run: Path,
    format_: str,
    output: Path | None = None,
    *,
    layout: str | None = None,
    multipliers: str | None = None,
    constants: str | None = None,
) -> Exported:
    """Write the student of a run directory, or of a quantized.safetensors, with golden vectors.

    `multipliers` and `constants` are for systemverilog, as text: see `qpd export --help`. Raises
    ExportError, StudentFileError, RunDirectoryError.
    """
    from qpd.export.bundle import (
        MANIFEST,
        ExportError,
        golden_vectors,
        load_export_source,
        write_bundle,
    )

    if format_ not in EXPORTERS:
        raise ExportError(
            f"--format {format_}: one of {', '.join(EXPORTERS)}{did_you_mean(format_, EXPORTERS)}",
            ErrorCode.COMMAND_LINE,
        )
    exporter, target = EXPORTERS[format_], format_
    if layout is not None:
        if (format_, layout) not in LAYOUTS:
            known = ", ".join(f"--format {of} --layout {name}" for of, name in LAYOUTS)
            raise ExportError(
                f"--layout {layout}: not a layout of --format {format_}; there is {known}",
                ErrorCode.COMMAND_LINE,
            )
        exporter, target = LAYOUTS[format_, layout], f"{format_}-{layout}"
    options: dict[str, Any] = {}
    for name, text in (("multipliers", multipliers), ("constants", constants)):
        if text is not None:
            options[name] = resolve_name(f"qpd.export.systemverilog.code:{name}_of")(text)
    if options and format_ != "systemverilog":
        raise ExportError(
            f"--{next(iter(options))}: --format {format_} has none; it is for --format "
            "systemverilog",
            ErrorCode.COMMAND_LINE,
        )
    source = load_export_source(run)
    files = resolve_name(exporter)(source, golden_vectors(source.student), **options)
    # Of another student than the run's last, such as ptq.safetensors, in a folder of its own.
    is_last = run.is_dir() or run.name == "quantized.safetensors"
    name = target if is_last else f"{run.stem}-{target}"
    folder = output or (run if run.is_dir() else run.parent) / "exports" / name
    write_bundle(folder, target, source, files)
    names = sorted([*files, MANIFEST])
    sizes = {name: (folder / name).stat().st_size for name in names}
    return Exported(folder, sizes, _unfinished(run) if is_last else ())


def _unfinished(run: Path) -> tuple[str, ...]:
    """Say that phase 3, which would write another student, was interrupted."""
    from qpd.runs.run_directory import RunDirectory, RunDirectoryError
    from qpd.runs.training_run import is_training

    folder = run if run.is_dir() else run.parent
    if is_training(folder) or not (folder / "manifest.json").is_file():
        return ()
    try:
        opened = RunDirectory.open(folder, read_only=True)
    except RunDirectoryError:  # the student's file is whole all the same
        return ()
    if opened.phase("finetune").state != "running":
        return ()
    return (
        f"{folder}: phase 3 has begun and is not done: this is phase 2's student, which "
        f"`qpd finetune {folder}` trains further",
    )
