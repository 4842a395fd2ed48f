"""From a student to a core that fits a device: export, simulation, synthesis, placing, routing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from qpd.export.bundle import (
    ExportSource,
    golden_vectors,
    keep_own_files,
    refuse_foreign,
    write_bundle,
)
from qpd.export.systemverilog.code import (
    Constants,
    Folding,
    Multipliers,
    accumulator_bits,
    check_student,
    export_systemverilog,
    folding_of,
)
from qpd.files.atomic import write_json
from qpd.files.whole_folder import whole_folder
from qpd.fpga.devices import Device
from qpd.fpga.simulation import Clocks, simulate
from qpd.fpga.synthesis import Resources, route, synthesise
from qpd.fpga.tools import FpgaError, need_tool, tool_version
from qpd.integer.integer_student import IntegerStudent

# A product takes about so many LUTs for each bit of its accumulator, an adder of an unrolled layer
# so many in all: what cannot fit by far is not synthesised, as that takes minutes.
_LUTS_A_BIT, _LUTS_A_WEIGHT, _HOPELESS = 0.5, 5.0, 3.0
_LEAST_VERILATOR = [5, 2]
_INTERMEDIATE = shutil.ignore_patterns("obj_dir")  # Verilator's, made anew by `make test`


@dataclass(frozen=True)
class Core:
    """One folding of a student on a device, as measured."""

    device: str
    folding: Folding
    resources: Resources
    clocks: Clocks
    observations: int
    tools: dict[str, str]  # their versions: other ones count other cells

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data, with latency (us) and throughput (1/s) if routed."""
        fmax, cycles = self.resources.fmax_mhz, self.clocks.all
        return {
            "device": self.device,
            "folding": self.folding.title,
            "multipliers": self.folding.multipliers,
            **asdict(self.resources),
            "cycles": cycles,
            "layer_cycles": self.clocks.layers,
            "latency_us": None if fmax is None else cycles / fmax,
            # The next observation begins a clock after the last output has left.
            "policies_per_second": None if fmax is None else 1e6 * fmax / (cycles + 1),
            "observations": self.observations,
            "tools": self.tools,
        }


def build_core(
    source: ExportSource,
    device: Device,
    multipliers: Multipliers,
    constants: Constants,
    observations: np.ndarray,
    folder: Path,
    note: Callable[[str], None],
) -> Core:
    """Build and measure the core of `source` in `folder`; the fastest that fits by default.

    `observations` float32 `[n, features]` are simulated, after which the core is known to give the
    engine's integers on each of them. Raises ExportError for a student that the core does not
    compute, and FpgaError where a tool is missing or fails, or where nothing fits.
    """
    check_student(source.student)
    need_tools(device)
    refuse_foreign(folder, "systemverilog")
    above = next(each for each in folder.absolute().parents if each.exists())
    if not os.access(above, os.W_OK):  # known only at the end otherwise
        raise FpgaError(f"{above}: cannot be written to")
    with TemporaryDirectory() as name:
        making = Path(name) / "core"
        core = _built(source, device, multipliers, constants, observations, making, note)
        write_json(making / "fpga.json", core.to_json())
        with whole_folder(folder) as fresh:  # an earlier core stays until this one is done
            shutil.copytree(making, fresh, ignore=_INTERMEDIATE, dirs_exist_ok=True)
            keep_own_files(folder, fresh)
    return core


def need_tools(device: Device) -> None:
    """Raise FpgaError where a tool is missing, or old, that a core for `device` is built with."""
    for tool in (*_tools(device), "make", "g++"):  # Verilator's own
        need_tool(tool)
    version = tool_version("verilator")
    if [int(each) for each in re.findall(r"\d+", version)[:2]] < _LEAST_VERILATOR:
        raise FpgaError(f"verilator {version}: expected 5.002 or later, which builds programs")


def _tools(device: Device) -> list[str]:
    return [each for each in ("verilator", "yosys", device.router) if each]


def _built(
    source: ExportSource,
    device: Device,
    multipliers: Multipliers,
    constants: Constants,
    observations: np.ndarray,
    folder: Path,
    note: Callable[[str], None],
) -> Core:
    if multipliers is not None:
        foldings, unrolled = [folding_of(source.student, multipliers)], None
    else:
        foldings = possible_foldings(source.student, device)
        unrolled = unrolled_folding(source.student, device)
    golden = golden_vectors(source.student, observations=observations)

    def made(folding: Folding) -> Resources:
        files = export_systemverilog(source, golden, folding.asked, constants)
        shutil.rmtree(folder, ignore_errors=True)  # with what was synthesised of another folding
        write_bundle(folder, "systemverilog", source, files)
        note(f"{folding.title}: synthesis")
        return synthesise(folder, device)

    def fitting() -> Iterator[tuple[Folding, Resources]]:
        """Yield what fits by Yosys' count, the fastest first, each as it is wanted."""
        if unrolled is not None:
            resources = made(unrolled)
            if _fits(resources, device):
                yield unrolled, resources
            else:
                note(f"{_said(resources)}: too large")
        folding, resources = fastest_folding(foldings, device, made, note)
        yield folding, resources
        for smaller in reversed(foldings[: foldings.index(folding)]):
            yield smaller, made(smaller)

    folding, resources = first_routed(fitting(), device, partial(route, folder, device), note)
    note(f"Verilator: {len(observations):,} observations")
    tools = {each: tool_version(each) for each in _tools(device)}
    return Core(device.name, folding, resources, simulate(folder), len(observations), tools)


def first_routed(
    fitting: Iterator[tuple[Folding, Resources]],
    device: Device,
    routed: Callable[[], Resources],
    note: Callable[[str], None],
) -> tuple[Folding, Resources]:
    """Return the first folding that can be placed and routed, with its cells.

    Yosys' count is of less than nextpnr places. Where no open tool routes the part, it is the first
    one. Raises the last FpgaError where none can be routed.
    """
    failed: FpgaError | None = None
    for folding, counted in fitting:
        if not device.router:
            return folding, counted
        note(f"{device.router}: placing and routing")
        try:
            found = routed()
            _refuse_too_large(found, folding, device)
            return folding, found
        except FpgaError as error:
            note(f"{folding.title}: {error}")
            failed = error
    assert failed is not None
    raise failed


def possible_foldings(student: IntegerStudent, device: Device) -> list[Folding]:
    """Return foldings from one lane to one for each neuron, without hopeless ones.

    Lanes are powers of two, and the widest layer or a third, a fifth or a seventh of it, rounded
    up.
    """
    widest = folding_of(student, None).multipliers
    lanes = {1 << power for power in range(widest.bit_length())}
    lanes |= {-(-widest // groups) for groups in (1, 3, 5, 7)}
    cost = _LUTS_A_BIT * accumulator_bits(student)
    return [
        Folding(count)
        for count in sorted(lanes)
        if count == 1 or count * cost <= _HOPELESS * device.luts
    ]


def unrolled_folding(student: IntegerStudent, device: Device) -> Folding | None:
    """Return the folding with all layers at once, None where that is hopeless."""
    folding = folding_of(student, "all")
    hopeless = folding.multipliers * _LUTS_A_WEIGHT > _HOPELESS * device.luts
    return None if hopeless else folding


def fastest_folding(
    foldings: list[Folding],
    device: Device,
    made: Callable[[Folding], Resources],
    note: Callable[[str], None],
) -> tuple[Folding, Resources]:
    """Return the largest of `foldings`, which are in order, that fits; it is made last.

    By bisection: what needs more multipliers needs more cells.
    """
    least, most = 0, len(foldings)  # all below `least` fit, none from `most` on
    known: dict[int, Resources] = {}
    last = -1
    while least < most:
        middle = (least + most) // 2
        known[middle] = resources = made(foldings[middle])
        last = middle
        fits = _fits(resources, device)
        note(f"{_said(resources)}: {'fits' if fits else 'too large'}")
        least, most = (middle + 1, most) if fits else (least, middle)
    if least == 0:
        _refuse_too_large(known[0], foldings[0], device)
    if last != least - 1:
        known[least - 1] = made(foldings[least - 1])
    return foldings[least - 1], known[least - 1]


def _fits(found: Resources, device: Device) -> bool:
    return device.fits(found.luts, found.flip_flops, found.block_rams, found.dsps)


def _refuse_too_large(found: Resources, folding: Folding, device: Device) -> None:
    if not _fits(found, device):
        lacks_memory = device.fits(found.luts, found.flip_flops, 0, found.dsps)
        hint = "; less of it is in block RAM with --constants weights, nothing with fabric"
        hint *= lacks_memory
        raise FpgaError(
            f"{device.title}: too small for {folding.title}, of {_said(found)}; it has "
            f"{device.luts:,} LUTs, {device.flip_flops:,} flip-flops, {device.block_rams} block "
            f"RAMs, {device.dsps} DSPs{hint}"
        )


def _said(found: Resources) -> str:
    return (
        f"{found.luts:,} LUTs, {found.flip_flops:,} flip-flops, {found.block_rams:g} block RAMs, "
        f"{found.dsps} DSPs"
    )
