"""The parts that `qpd fpga` knows, and what each has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Device:
    """One part: its tools' names for it, and its resources, in cells of its own kind.

    `synthesis` is Yosys' command, to which `dsp` or `no_dsp` is added. `place` are nextpnr's
    arguments; without a `router` no open tool places and routes the part. `block_ram_kbit` is the
    size of a block RAM. With `few_pins` the core's ports go through shift registers.
    """

    name: str
    title: str
    synthesis: str
    dsp: str
    no_dsp: str
    luts: int
    flip_flops: int
    block_rams: int
    block_ram_kbit: int
    dsps: int
    router: Literal["nextpnr-ecp5", "nextpnr-ice40", ""] = ""
    place: tuple[str, ...] = ()
    few_pins: bool = False

    def fits(self, luts: int, flip_flops: int, block_rams: float, dsps: int) -> bool:
        """Tell whether so many cells are there."""
        have = (self.luts, self.flip_flops, self.block_rams, self.dsps)
        return all(a <= b for a, b in zip((luts, flip_flops, block_rams, dsps), have, strict=True))


DEVICES = {
    device.name: device
    for device in (
        # The part of Kresse and Lampert (arXiv 2511.07046), speed grade 1.
        Device(
            "xc7a15t", "AMD Artix-7 XC7A15T",
            "synth_xilinx -family xc7 -flatten -noiopad", "", "-nodsp",
            10_400, 20_800, 25, 36, 45,
        ),
        Device(
            "ecp5-25k", "Lattice ECP5 LFE5U-25F, speed grade 6", "synth_ecp5", "", "-nodsp",
            24_288, 24_288, 56, 18, 28,
            "nextpnr-ecp5", ("--25k", "--package", "CABGA381", "--speed", "6"),
        ),
        Device(
            "ice40up5k", "Lattice iCE40 UP5K", "synth_ice40 -device u", "-dsp", "",
            5_280, 5_280, 30, 4, 8,
            "nextpnr-ice40", ("--up5k", "--package", "sg48"), True,
        ),
    )
}  # fmt: skip
