"""The C export: memory of every size, the boards it fits, and speed beside the SB3 teacher.

    python -m benchmarks.device.c_export       # needs gcc and make; uses what else is installed
    python -m benchmarks.device.c_export --sizes-only
    python -m benchmarks.device.c_export --continuous   # a student of 17 numbers, 6 actions

Speed is that of one observation at a time on one thread. Programs and the teacher are measured in
turn for several rounds, and the figures are medians over rounds. Real observations are 16 of an XXS
student's own play; noise has neither black areas nor equal frames on which to save work.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from benchmarks.device.onnx_baseline import onnx_fp32_forward
from benchmarks.random_students import random_student
from benchmarks.timing import print_rates
from qpd.actions import ActingRule, Box
from qpd.environments.registry import make_vector_env
from qpd.evaluation.played_observations import played_observations
from qpd.export.bundle import ExportSource, golden_vectors, load_export_source
from qpd.export.c.code import export_c
from qpd.export.c.sizes import arena_bytes, c_constant_bytes, weight_bytes
from qpd.integer.integer_student import IntegerEngine
from qpd.students import SIZE_GRID, StudentArchitecture, architecture_for

RUNS = Path(__file__).resolve().parents[2] / "runs-reference"
CORTEX = Path(__file__).resolve().parent / "cortex_m"
FRAMES = 4 * 84 * 84
CODE, STACK = 8_000, 4_000  # bytes, generous: `arm-none-eabi-size` says 3 to 4 KB of code

# board -> flash and RAM in KiB, from the makers' data sheets
BOARDS = {
    "STM32 Nucleo-F446RE (M4)": (512, 128),
    "STM32F4 Discovery (M4)": (1024, 192),
    "Arduino Nano 33 BLE (M4)": (1024, 256),
    "Raspberry Pi Pico (M0+)": (2048, 264),
    "Raspberry Pi Pico 2 (M33)": (4096, 520),
    "Teensy 4.1 (M7)": (7936, 1024),
}


def size_rows() -> list[list[str]]:
    """Return flash, RAM and fitting boards of each size at 8 and 4 bits."""
    rows = []
    for size in SIZE_GRID:
        for bits in (8, 4):
            student = random_student(architecture_for(size, (4, 84, 84), 4), bits)
            flash, ram = weight_bytes(student), arena_bytes(student)
            fits = [
                name
                for name, (board_flash, board_ram) in BOARDS.items()
                if flash + CODE <= 1024 * board_flash and ram + FRAMES + STACK <= 1024 * board_ram
            ]
            boards = "all" if len(fits) == len(BOARDS) else ", ".join(fits) or "none of them"
            rows.append([f"{size}, {bits} bit", f"{flash:,}", f"{ram:,}", boards])
    return rows


def real_observations(count: int = 16) -> np.ndarray:
    """Return observations of the XXS student's play, 20 steps apart: uint8 `[count, 4, 84, 84]`."""
    engine = IntegerEngine(load_export_source(RUNS / "breakout-ppo-xxs").student)
    with closing(make_vector_env("BreakoutNoFrameskip-v4", 1)) as env:
        return played_observations(engine, env, count, ActingRule("sample"), 0, every=20)


def write_export(folder: Path, source: ExportSource) -> Path:
    """Write the exported C into `folder`, which must not exist yet, and return it."""
    folder.mkdir()
    for name, content in export_c(source, golden_vectors(source.student)).items():
        (folder / name).write_bytes(content)
    return folder


def c_nanoseconds(folder: Path, observations: Path, *options: str) -> float:
    """Return the median nanoseconds of a forward pass, by the export's own benchmark."""
    command = ["make", "-s", "bench", f"BENCH_ARGS=0.3 {observations}", *options]
    # Under `make`, so that it is built before the first measurement.
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return float(json.loads(ran.stdout)["median_ns"])


def timed(forward: Callable[[int], object], count: int = 150) -> float:
    """Return the median nanoseconds of a call of `forward`, which gets 0..15 in turn."""
    times = []
    for i in range(count):
        began = time.perf_counter_ns()
        forward(i % 16)
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times)


def teacher_forward(observations: np.ndarray) -> Callable[[int], object]:
    """Return SB3's CnnPolicy up to its logits: scaling, features, action head; no sampling."""
    import gymnasium
    from stable_baselines3.common.policies import ActorCriticCnnPolicy

    space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    # Random weights: dense layers take as long whatever they hold.
    policy = ActorCriticCnnPolicy(space, gymnasium.spaces.Discrete(4), lambda _: 1e-4)
    policy.set_training_mode(False)
    inputs = [torch.from_numpy(row[None]) for row in observations]

    def forward(i: int) -> object:
        with torch.no_grad():
            return policy.action_net(policy.extract_features(inputs[i]))

    return forward


def litert_forward(
    source: ExportSource, observations: np.ndarray
) -> Callable[[int], object] | None:
    """Return the LiteRT export on row i, one thread; None where LiteRT is not installed.

    Frames are in its layout beforehand.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        return None

    from qpd.export.litert_flatbuffer import export_litert

    model = export_litert(source, golden_vectors(source.student))["student.tflite"]
    interpreter = Interpreter(model_content=model, num_threads=1)
    interpreter.allocate_tensors()
    target = interpreter.get_input_details()[0]["index"]
    answer = interpreter.get_output_details()[0]["index"]
    last = np.ascontiguousarray(observations.transpose(0, 2, 3, 1))
    inputs = [row[None] for row in (last ^ 128).view(np.int8)]

    def forward(i: int) -> object:
        interpreter.set_tensor(target, inputs[i])
        interpreter.invoke()
        return interpreter.get_tensor(answer)

    return forward


def cases(folder: Path, observations: np.ndarray) -> dict[str, Callable[[], float]]:
    """Return the cases to measure, the teacher first; each returns nanoseconds."""
    real, noise = folder / "real.bin", folder / "noise.bin"
    observations.tofile(real)
    np.random.default_rng(0).integers(0, 256, observations.shape, dtype=np.uint8).tofile(noise)
    teacher = teacher_forward(observations)
    found: dict[str, Callable[[], float]] = {"SB3 teacher, PyTorch eager": lambda: timed(teacher)}
    onnx = onnx_fp32_forward("XXS", observations)
    if onnx is not None:
        found["XXS, ONNX Runtime fp32"] = lambda: timed(onnx)
    sources = {name: load_export_source(RUNS / f"breakout-ppo-{name}") for name in ("xxs", "s")}
    sources["xl"] = ExportSource(random_student(architecture_for("XL", (4, 84, 84), 4)), {}, "XL")
    for name, source in sources.items():
        built = write_export(folder / name, source)
        label = f"{name.upper()}, C"
        # Bound as a default: a plain closure would see the loop's last folder.
        found[f"{label}, real frames"] = lambda built=built: c_nanoseconds(built, real)  # type: ignore[misc]
        found[f"{label}, noise"] = lambda built=built: c_nanoseconds(built, noise)  # type: ignore[misc]
        if name != "xl":
            litert = litert_forward(source, observations)
            if litert is not None:
                found[f"{name.upper()}, LiteRT"] = lambda litert=litert: timed(litert)  # type: ignore[misc]
        found[f"{label} portable"] = lambda built=built: c_nanoseconds(built, real, "PORTABLE=1")  # type: ignore[misc]
    return found


def speed_rows(rounds: int) -> list[list[str]]:
    """Measure microseconds, forward passes per second and ratio to the teacher of each case."""
    with tempfile.TemporaryDirectory() as temporary:
        measured = cases(Path(temporary), real_observations())
        times: dict[str, list[float]] = {name: [] for name in measured}
        for case in measured.values():
            case()  # builds, warms up
        for _ in range(rounds):
            for name, case in measured.items():
                times[name].append(case())
    medians = {name: statistics.median(values) for name, values in times.items()}
    teacher = next(iter(medians.values()))
    return [
        [name, f"{ns / 1000:.2f}", f"{1e9 / ns:,.0f}", f"{teacher / ns:.1f}"]
        for name, ns in medians.items()
    ]


def instruction_rows() -> list[list[str]]:
    """Count a forward pass's instructions on emulated Cortex-M cores: the most of golden vectors.

    Empty if the cross compiler or QEMU is missing.
    """
    if shutil.which("arm-none-eabi-gcc") is None or shutil.which("qemu-system-arm") is None:
        print("no Cortex-M counts: arm-none-eabi-gcc, qemu-system-arm missing", file=sys.stderr)
        return []
    rows = []
    for size, bits in [("XXS", 8), ("XXS", 4), ("S", 8), ("XL", 8)]:
        student = random_student(architecture_for(size, (4, 84, 84), 4), bits)
        counts = []
        with tempfile.TemporaryDirectory() as temporary:
            folder = write_export(Path(temporary) / "c", ExportSource(student, {}, size))
            for cpu, board in [("cortex-m4", "mps2-an386"), ("cortex-m3", "mps2-an385")]:
                counts.append(f"{_instructions(folder, cpu, board) / 1e6:.2f} M")
        rows.append([f"{size}, {bits} bit", *counts])
    return rows


def _instructions(folder: Path, cpu: str, board: str) -> int:
    command = ["arm-none-eabi-gcc", "-std=c99", "-O2", f"-mcpu={cpu}", "-mthumb", "-I."]
    command += ["-T", str(CORTEX / "mps2.ld"), "--specs=rdimon.specs", "-o", "count"]
    command += [str(CORTEX / "count.c"), str(CORTEX / "boot.c"), "qpd_network.c"]
    command += ["qpd_actions.c"] if (folder / "qpd_actions.c").exists() else []
    subprocess.run(command, cwd=folder, check=True)
    # With shift=0 each instruction takes one emulated nanosecond, which makes the timer a counter.
    emulator = ["qemu-system-arm", "-M", board, "-nographic", "-icount", "shift=0"]
    emulator += ["-semihosting-config", "enable=on,target=native", "-kernel", "count"]
    ran = subprocess.run(
        emulator, cwd=folder, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return int(ran.stdout)


def continuous_rows(rounds: int) -> list[list[str]]:
    """Measure a 64-64 student of 17 features and 6 continuous actions, 8 bits throughout."""
    actions = Box((-1.0,) * 6, (1.0,) * 6)
    student = random_student(StudentArchitecture((17,), 6, (), (64, 64)), actions=actions)
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_export(Path(temporary) / "c", ExportSource(student, {}, "64-64"))
        ways: dict[str, tuple[str, ...]] = {"C": (), "C, portable": ("PORTABLE=1",)}
        times: dict[str, list[float]] = {label: [] for label in ways}
        for _ in range(rounds):
            for label, options in ways.items():
                command = ["make", "-s", "bench", "BENCH_ARGS=0.3", *options]
                ran = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, check=True
                )
                times[label].append(float(json.loads(ran.stdout)["median_ns"]))
        rows = [
            [f"{label}, ns an action", f"{statistics.median(found):,.0f}"]
            for label, found in times.items()
        ]
        if shutil.which("arm-none-eabi-gcc") and shutil.which("qemu-system-arm"):
            for cpu, board in [("cortex-m4", "mps2-an386"), ("cortex-m3", "mps2-an385")]:
                count = _instructions(folder, cpu, board)
                rows.append([f"{cpu}, instructions an action", f"{count:,}"])
            rows.append(["cortex-m4, bytes of code", f"{_code_bytes(folder):,}"])
    rows.append(["constants, bytes", f"{c_constant_bytes(student):,}"])
    rows.append(["of which thresholds", f"{c_constant_bytes(student) - weight_bytes(student):,}"])
    rows.append(["RAM: arena, bytes", f"{arena_bytes(student):,}"])
    return rows


def _code_bytes(folder: Path) -> int:
    """Return the code of network, actions and encoding on a Cortex-M4, without the constants."""
    command = ["arm-none-eabi-gcc", "-std=c99", "-O2", "-mcpu=cortex-m4", "-mthumb", "-c"]
    names = ["qpd_network", "qpd_actions", "qpd_encode"]
    subprocess.run([*command, *(f"{name}.c" for name in names)], cwd=folder, check=True)
    sizes = subprocess.run(
        ["arm-none-eabi-size", "-A", *(f"{name}.o" for name in names)],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    rows = [line.split() for line in sizes.splitlines()]
    return sum(int(row[1]) for row in rows if row and row[0].startswith(".text"))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes-only", action="store_true")
    parser.add_argument("--continuous", action="store_true")
    arguments = parser.parse_args()
    # As the C code, which has one thread.
    torch.set_num_threads(1)
    if arguments.continuous:
        header = ["64-64 student, 17 numbers in, 6 actions out", "8 bits"]
        print_rates("Continuous actions in C", header, continuous_rows(arguments.rounds))
        return
    sizes = ["student", "flash: constants", "RAM: arena", f"fits, with {FRAMES:,} bytes of frames"]
    print_rates("Memory of the C export, bytes", sizes, size_rows())
    if arguments.sizes_only:
        return
    header = ["one observation, one thread", "us", "forwards/s", "x teacher"]
    print_rates("Speed of the C export", header, speed_rows(arguments.rounds))
    rows = instruction_rows()
    if rows:
        header = ["instructions a forward pass", "Cortex-M4 (SMLAD)", "Cortex-M3"]
        print_rates("Microcontrollers, counted by QEMU", header, rows)


if __name__ == "__main__":
    main()
