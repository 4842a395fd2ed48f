"""`qpd fpga`: a student as a core on an FPGA, checked against real play and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qpd.commands.environment_options import environment_wish
from qpd.commands.output import (
    AsJson,
    EnvKwargs,
    EnvOption,
    FrameStack,
    Quiet,
    WrapperOption,
    print_json,
    print_table,
    print_text,
    progress,
)
from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean


def fpga(
    run: Annotated[Path, typer.Argument(help="run directory of a vector student")],
    device: Annotated[str, typer.Option(help="xc7a15t, ecp5-25k or ice40up5k")],
    multipliers: Annotated[
        str | None,
        typer.Option(
            help="how many work at once, or all: every layer at once; default: the fastest that "
            "fits"
        ),
    ] = None,
    constants: Annotated[
        str,
        typer.Option(help="in block RAM: block-ram (all large ones), weights, or fabric (none)"),
    ] = "block-ram",
    observations: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="of the student's own games, simulated")
    ] = 10_000,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="folder; default RUN/exports/DEVICE")
    ] = None,
    env: EnvOption = None,
    env_kwargs: EnvKwargs = None,
    wrapper: WrapperOption = None,
    frame_stack: FrameStack = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Build a student's core for a device with open tools: simulate, synthesise, place, route.

    The folder is the SystemVerilog export, with fpga.json beside it. Needs Verilator, and the extra
    `fpga`, or Yosys and nextpnr.
    """
    from qpd.export.bundle import ExportError, load_export_source, refuse_foreign
    from qpd.export.systemverilog.code import check_student, constants_of, multipliers_of
    from qpd.fpga.devices import DEVICES
    from qpd.fpga.flow import build_core, need_tools
    from qpd.fpga.simulation import played_observations
    from qpd.runs.run_directory import RunDirectory
    from qpd.runs.target import load_target
    from qpd.runs.training_run import is_training

    if device not in DEVICES:
        raise ExportError(
            f"--device {device}: one of {', '.join(DEVICES)}{did_you_mean(device, DEVICES)}",
            ErrorCode.COMMAND_LINE,
        )
    if not run.is_dir():
        raise ExportError(
            f"{run}: is no run directory, whose games it plays; `qpd export FILE --format "
            "systemverilog` takes a file alone",
            ErrorCode.COMMAND_LINE,
        )
    asked, place = multipliers_of(multipliers), constants_of(constants)
    source = load_export_source(run)
    check_student(source.student)
    need_tools(DEVICES[device])  # before games are played
    folder = output or run / "exports" / device
    refuse_foreign(folder, "systemverilog")
    display = progress(quiet)
    wish = environment_wish(env, env_kwargs, wrapper, frame_stack)
    # What quantized.safetensors holds: a training's or phase 3's integers, else phase 2's.
    is_rounded = not is_training(run) and RunDirectory.open(run, read_only=True).is_only_rounded
    target = load_target(run, "ptq" if is_rounded else "qat", wish, "cpu")
    played = played_observations(target, observations, display)
    core = build_core(source, DEVICES[device], asked, place, played, folder, display.note)
    found = core.to_json()
    if as_json:
        print_json({**found, "folder": str(folder)})
    elif not quiet:
        print_text(f"{source.name} on {DEVICES[device].title}")
        print_table(*fpga_table(found))
        if found["fmax_mhz"] is not None and found["luts"] == found["flip_flops"]:
            print_text("LUTs and flip-flops: both are this part's logic cells, with one of each")
        if DEVICES[device].few_pins:
            print_text(
                "this part has fewer pins than the core has bits: shift registers around it were "
                "routed with it, whose clocks are not in these cycles"
            )
        if found["fmax_mhz"] is None:
            print_text("no open tool places and routes this part: its clock is not known")
        print_text(
            f"{observations:,} observations of its own games gave the integer engine's outputs; "
            f"{folder}: `make test` plays them again"
        )


def fpga_table(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and the row of one core."""
    header = ["layers", "LUTs", "flip-flops", "block RAMs", "DSPs", "cycles", "of the layers"]
    row = [
        found["folding"],
        f"{found['luts']:,}",
        f"{found['flip_flops']:,}",
        f"{found['block_rams']:g}",
        str(found["dsps"]),
        f"{found['cycles']:,}",
        f"{found['layer_cycles']:,}",
    ]
    if found["fmax_mhz"] is not None:
        header += ["fmax, MHz", "latency, µs", "a second"]
        row += [
            f"{found['fmax_mhz']:.1f}",
            f"{found['latency_us']:.2f}",
            f"{found['policies_per_second']:,.0f}",
        ]
    return header, [row]
