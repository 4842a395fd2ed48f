"""The C export on 10,000 real observations: x86-64, aarch64 and armhf programs, and a Cortex-M4."""

import subprocess
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from qpd.actions import ActingRule
from qpd.environments.registry import make_vector_env
from qpd.evaluation.played_observations import played_observations
from qpd.export.bundle import ExportSource, golden_vectors, load_export_source
from qpd.export.c.code import export_c
from qpd.integer.integer_student import IntegerEngine, reference_outputs
from tests.export.c_programs import needs

ROOT = Path(__file__).resolve().parents[2]
STUDENTS = ["xxs", "xxs-4bit", "xxs-2bit", "s"]
AARCH64 = ("aarch64-linux-gnu-gcc", "qemu-aarch64-static")
# name -> compiler, its flags, what runs the program
TARGETS = {
    "x86-64": ("gcc", ["-march=native"], []),
    "x86-64-portable": ("gcc", ["-march=native", "-DQPD_PORTABLE"], []),
    "x86-64-baseline": ("gcc", ["-DQPD_PORTABLE"], []),
    "aarch64": (AARCH64[0], ["-static"], [AARCH64[1]]),
    "aarch64-dotprod": (AARCH64[0], ["-static", "-march=armv8.2-a+dotprod"], [AARCH64[1]]),
    "aarch64-i8mm": (AARCH64[0], ["-static", "-march=armv8.6-a"], [AARCH64[1], "-cpu", "max"]),
    "armhf": ("arm-linux-gnueabihf-gcc", ["-static"], ["qemu-arm-static"]),
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def play() -> np.ndarray:
    """10,000 observations of the XXS student's own play."""
    engine = IntegerEngine(load_export_source(ROOT / "runs-reference/breakout-ppo-xxs").student)
    with closing(make_vector_env("BreakoutNoFrameskip-v4", 8)) as env:
        return played_observations(engine, env, 10_000, ActingRule("sample"), 0)


def exported(folder: Path, name: str) -> ExportSource:
    source = load_export_source(ROOT / f"runs-reference/breakout-ppo-{name}")
    for file, content in export_c(source, golden_vectors(source.student)).items():
        (folder / file).write_bytes(content)
    return source


def answers(folder: Path) -> np.ndarray:
    """int32 `[n, 1 + actions]`: qpd_stream's action and logits."""
    return np.fromfile(folder / "logits.bin", dtype="<i4").reshape(-1, 5)


def check(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == (len(wanted), 5)
    assert (got[:, 1:] == wanted).all()
    assert (got[:, 0] == wanted.argmax(1)).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", STUDENTS)
def test_ten_thousand_real_observations(
    name: str, target: str, play: np.ndarray, tmp_path: Path
) -> None:
    compiler, flags, runner = TARGETS[target]
    needs(compiler, *runner[:1])
    source = exported(tmp_path, name)
    wanted = IntegerEngine(source.student).integer_outputs(play)
    assert (wanted[:300] == reference_outputs(source.student, play[:300])).all()
    command = [compiler, "-std=c99", "-O3", *flags, "-o", "stream"]
    subprocess.run([*command, "qpd_stream.c", "qpd_network.c"], cwd=tmp_path, check=True)
    play.tofile(tmp_path / "observations.bin")
    subprocess.run([*runner, "./stream"], cwd=tmp_path, check=True, timeout=1500)
    check(answers(tmp_path), wanted)


@pytest.mark.parametrize("name", ["xxs", "xxs-4bit"])
@pytest.mark.parametrize(
    ("cpu", "board"), [("cortex-m4", "mps2-an386"), ("cortex-m3", "mps2-an385")]
)
def test_ten_thousand_real_observations_on_a_microcontroller(
    cpu: str, board: str, name: str, play: np.ndarray, tmp_path: Path
) -> None:
    needs("arm-none-eabi-gcc", "qemu-system-arm")
    source = exported(tmp_path, name)
    machine = ROOT / "benchmarks" / "device" / "cortex_m"
    command = ["arm-none-eabi-gcc", "-std=c99", "-O2", f"-mcpu={cpu}", "-mthumb", "-o", "stream"]
    command += ["-T", str(machine / "mps2.ld"), "--specs=rdimon.specs", str(machine / "boot.c")]
    subprocess.run([*command, "qpd_stream.c", "qpd_network.c"], cwd=tmp_path, check=True)
    play.tofile(tmp_path / "observations.bin")
    emulator = ["qemu-system-arm", "-M", board, "-nographic", "-kernel", "stream"]
    emulator += ["-semihosting-config", "enable=on,target=native"]
    subprocess.run(emulator, cwd=tmp_path, check=True, timeout=1500, stdin=subprocess.DEVNULL)
    check(answers(tmp_path), IntegerEngine(source.student).integer_outputs(play))
