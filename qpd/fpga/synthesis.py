"""Read what a core takes of a device: Yosys' cells, and nextpnr's after placing and routing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qpd.export.systemverilog.code import SOURCES
from qpd.fpga.devices import Device
from qpd.fpga.tools import FpgaError, run_tool

TOP, TOP_OF_FEW_PINS = "qpd_core", "qpd_pins"
# nextpnr's names of cells: LUTs, flip-flops, block RAMs, DSPs. A cell of an iCE40 is a LUT and a
# flip-flop.
_ROUTED = {
    "nextpnr-ecp5": (("TRELLIS_COMB",), ("TRELLIS_FF",), ("DP16KD",), ("MULT18X18D",)),
    "nextpnr-ice40": (("ICESTORM_LC",), (), ("ICESTORM_RAM",), ("ICESTORM_DSP",)),
}
_LUTS_OF_A_RAM = {"RAM32M": 4, "RAM64M": 4, "RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1D": 4}


@dataclass(frozen=True)
class Resources:
    """Cells of one core on one device; `fmax_mhz` is None where it was not routed."""

    luts: int
    flip_flops: int
    block_rams: float
    dsps: int
    fmax_mhz: float | None = None


def synthesise(folder: Path, device: Device) -> Resources:
    """Synthesise the core in `folder` (an export) with Yosys, and count its cells.

    Multipliers are DSPs if there are enough of them, else LUTs.

    Leaves `synthesis.json`, the netlist that `route` takes. Raises FpgaError.
    """
    found = _synthesised(folder, device, device.dsp)
    return found if found.dsps <= device.dsps else _synthesised(folder, device, device.no_dsp)


def _synthesised(folder: Path, device: Device, dsp: str) -> Resources:
    top = TOP_OF_FEW_PINS if device.few_pins else TOP
    sources = " ".join((*SOURCES, "qpd_pins.sv") if device.few_pins else SOURCES)
    script = (
        f"read_verilog -sv -defer {sources}; {device.synthesis} {dsp} -top {top}; "
        "tee -q -o cells.json stat -json; write_json synthesis.json"
    )
    run_tool("yosys", ["-q", "-p", script], folder)
    cells = _read(folder / "cells.json")["design"]["num_cells_by_type"]
    return count_cells(cells)


def count_cells(cells: dict[str, int]) -> Resources:
    """Count Yosys' cells by kind, for an Artix-7, an ECP5 or an iCE40.

    An Artix-7's block RAM of 18 kbit is half of one of 36. Memory in LUTs counts as these, and so
    do inverters, which placing may do away with.
    """
    luts = flip_flops = dsps = 0
    block_rams = 0.0
    for name, count in cells.items():
        if name in _LUTS_OF_A_RAM:
            luts += _LUTS_OF_A_RAM[name] * count
        elif name.startswith(("LUT", "INV", "SB_LUT4", "SRL", "TRELLIS_DPR")):
            luts += (8 if name.startswith("TRELLIS_DPR") else 1) * count
        elif name.startswith(("FD", "TRELLIS_FF", "SB_DFF")):
            flip_flops += count
        elif name.startswith(("RAMB36", "DP16KD", "SB_RAM40")):
            block_rams += count
        elif name.startswith("RAMB18"):
            block_rams += count / 2
        elif name.startswith(("DSP48", "MULT18X18D", "SB_MAC16")):
            dsps += count
        elif name == "CCU2C":  # a carry cell of an ECP5 is made of two LUTs
            luts += 2 * count
    return Resources(luts, flip_flops, block_rams, dsps)


def route(folder: Path, device: Device, seed: int = 1) -> Resources:
    """Place and route `synthesise`'s netlist with nextpnr; the cells, and the fastest clock.

    Raises FpgaError, also where it does not fit.
    """
    given = ["--json", "synthesis.json", "--report", "routed.json", "--freq", "100"]
    allowed = ["--lpf-allow-unconstrained"] if device.router == "nextpnr-ecp5" else []
    given += [*allowed, "--timing-allow-fail", "--seed", str(seed), "--quiet"]
    run_tool(device.router, [*device.place, *given], folder)
    report = _read(folder / "routed.json")
    used = {name: int(cell["used"]) for name, cell in report["utilization"].items()}
    luts, flip_flops, rams, dsps = (
        sum(used.get(name, 0) for name in names) for names in _ROUTED[device.router]
    )
    clocks = [float(clock["achieved"]) for clock in report["fmax"].values()]
    if not clocks:
        raise FpgaError(f"{device.router}: its report names no clock")
    return Resources(luts, flip_flops or luts, float(rams), dsps, min(clocks))


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
