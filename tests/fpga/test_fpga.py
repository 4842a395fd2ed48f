"""`qpd fpga`: resources of real tools, the largest folding that fits, one line where it fails."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qpd.errors.codes import ErrorCode
from qpd.export.bundle import ExportSource, load_export_source
from qpd.export.systemverilog.code import Constants, Folding
from qpd.fpga.devices import DEVICES
from qpd.fpga.flow import (
    build_core,
    fastest_folding,
    first_routed,
    need_tools,
    possible_foldings,
    unrolled_folding,
)
from qpd.fpga.simulation import played_observations
from qpd.fpga.synthesis import Resources, count_cells
from qpd.fpga.tools import FpgaError, find_tool, need_tool
from qpd.runs.progress import SilentProgress
from qpd.runs.target import load_target
from tests.command_line import call
from tests.export.action_students import student_of

PENDULUM = Path(__file__).parents[2] / "runs-reference/continuous/sac-Pendulum-v1-mlp-16-16-4bit"
needs_tools = pytest.mark.skipif(
    find_tool("yosys") is None or shutil.which("verilator") is None, reason="no Yosys or Verilator"
)


def silent(_: str) -> None:
    """Take no note."""


def source() -> ExportSource:
    return load_export_source(PENDULUM)


def test_cells_of_an_artix() -> None:
    cells = {
        "LUT2": 3,
        "LUT6": 4,
        "SRL16E": 1,
        "RAM32M": 2,
        "INV": 3,
        "FDRE": 5,
        "FDSE": 1,
        "CARRY4": 9,
    }
    found = count_cells(cells | {"RAMB36E1": 1, "RAMB18E1": 3, "DSP48E1": 2})
    assert (found.luts, found.flip_flops, found.block_rams, found.dsps) == (19, 6, 2.5, 2)


def test_foldings_rise_from_one_lane_to_what_is_not_hopeless() -> None:
    student, artix = source().student, DEVICES["xc7a15t"]  # 16 neurons at most
    lanes = [1, 2, 3, 4, 6, 8, 16]  # 6 lanes: three groups of the 16 neurons, 3 lanes: six
    assert [each.multipliers for each in possible_foldings(student, artix)] == lanes
    assert max(each.multipliers for each in possible_foldings(student, replace(artix, luts=20))) < 8


def test_observations_are_those_of_its_own_games() -> None:
    target = load_target(PENDULUM, "qat", None, "cpu")
    found = played_observations(target, 300, SilentProgress())
    assert found.shape == (300, 3) and found.dtype == np.float32
    np.testing.assert_allclose(np.hypot(found[:, 0], found[:, 1]), 1.0, atol=1e-5)
    np.testing.assert_array_equal(found, played_observations(target, 300, SilentProgress()))


@needs_tools
def test_a_core_is_simulated_and_synthesised(tmp_path: Path) -> None:
    observations = np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)
    core = build_core(
        source(), DEVICES["xc7a15t"], 4, "fabric", observations, tmp_path / "core", silent
    )
    found = core.to_json()
    assert found["multipliers"] == 4 and found["folding"] == "4 lanes"
    assert set(found["tools"]) == {"verilator", "yosys"}
    assert all(version[0].isdigit() for version in found["tools"].values())
    assert found["observations"] == 50 and 10 < found["layer_cycles"] < found["cycles"]
    assert found["block_rams"] == 0  # its constants are in the fabric
    assert 100 < found["luts"] < 10_400 and 100 < found["flip_flops"] < 20_800
    assert found["fmax_mhz"] is None and found["latency_us"] is None and found["cycles"] > 50
    assert json.loads((tmp_path / "core" / "manifest.json").read_text())
    assert json.loads((tmp_path / "core" / "fpga.json").read_text()) == found


@needs_tools
def test_thresholds_and_biases_leave_block_ram_to_weights(tmp_path: Path) -> None:
    student = student_of("tanh-7", hidden=(64, 64))
    observations, artix = np.zeros((5, 7), np.float32), DEVICES["xc7a15t"]
    places: tuple[Constants, ...] = ("block-ram", "weights")
    many, few = (
        build_core(
            ExportSource(student, {}, "test"),
            artix,
            4,
            place,
            observations,
            tmp_path / place,
            silent,
        ).resources
        for place in places
    )
    assert 0 < few.block_rams < many.block_rams and few.luts > many.luts


def test_a_controller_is_unrolled_where_that_fits() -> None:
    student, artix = source().student, DEVICES["xc7a15t"]
    folding = unrolled_folding(student, artix)
    assert folding is not None and folding.title == "unrolled, 320 weights"
    assert unrolled_folding(student, replace(artix, luts=500)) is None


def cells_of(folding: Folding) -> Resources:
    """Cells of a made-up core: 100 LUTs a multiplier."""
    return Resources(100 * folding.multipliers, 10, 1.0, 0)


@pytest.mark.parametrize(("luts", "multipliers"), [(100, 1), (450, 4), (1_500, 8), (10**6, 16)])
def test_the_most_multipliers_that_fit_are_chosen_and_made_last(
    luts: int, multipliers: int
) -> None:
    foldings = possible_foldings(source().student, DEVICES["xc7a15t"])
    made = []

    def make(folding: Folding) -> Resources:
        made.append(folding)
        return cells_of(folding)

    device = replace(DEVICES["xc7a15t"], luts=luts)
    folding, found = fastest_folding(foldings, device, make, silent)
    assert folding.multipliers == multipliers and found == cells_of(folding)
    assert made[-1] == folding and len(made) <= 6


def test_what_cannot_be_routed_gives_way_to_less() -> None:
    foldings, tried = possible_foldings(source().student, DEVICES["xc7a15t"])[:4], []
    ice40, fits = DEVICES["ice40up5k"], Resources(5_280, 10, 1.0, 0, 38.6)

    def routed() -> Resources:
        tried.append(1)
        if len(tried) == 1:
            raise FpgaError("nextpnr-ice40 failed with status 255: ERROR: no place")
        return replace(fits, luts=5_281) if len(tried) == 2 else fits

    told: list[str] = []
    largest_first = ((each, cells_of(each)) for each in reversed(foldings))
    folding, found = first_routed(largest_first, ice40, routed, told.append)
    assert folding == foldings[1] and found == fits
    assert any("no place" in line for line in told) and any("5,281 LUTs" in line for line in told)
    with pytest.raises(FpgaError, match="5,281 LUTs"):
        first_routed(iter([(foldings[0], fits)]), ice40, lambda: replace(fits, luts=5_281), silent)
    unrouted = first_routed(iter([(foldings[3], fits)]), DEVICES["xc7a15t"], routed, silent)
    assert unrouted == (foldings[3], fits) and len(tried) == 3


def test_what_does_not_fit_is_one_line() -> None:
    device = replace(DEVICES["xc7a15t"], luts=99)
    foldings = possible_foldings(source().student, DEVICES["xc7a15t"])
    with pytest.raises(
        FpgaError, match=r"^AMD Artix-7 XC7A15T: too small for 1 lane, of 100 LUTs.*99"
    ):
        fastest_folding(foldings, device, cells_of, silent)


def test_a_missing_tool_names_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(FpgaError, match=r"verilator is not installed: install your") as caught:
        need_tool("verilator")
    assert caught.value.code == ErrorCode.PACKAGE_MISSING


def test_what_verilator_needs_is_asked_for_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("yosys", "verilator"):
        (tmp_path / name).write_text("#!/bin/sh\necho Verilator 4.038 2020-07-11\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FpgaError, match="make is not installed"):
        need_tools(DEVICES["xc7a15t"])
    for name in ("make", "g++", "sh"):
        (tmp_path / name).symlink_to("/bin/sh")
    with pytest.raises(FpgaError, match=r"verilator 4\.038: expected 5\.002 or later"):
        need_tools(DEVICES["xc7a15t"])


def test_a_file_has_no_games(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = PENDULUM / "quantized.safetensors"
    code, _, err = call(capsys, "fpga", file, "--device", "xc7a15t")
    assert code == 2 and "is no run directory, whose games it plays" in err
