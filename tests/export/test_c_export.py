"""The C export computes the reference engine's integers, on every compiler that is there."""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ale_py import ALEInterface, roms
from ale_py.vector_env import AtariVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.random_students import random_student
from qpd.actions import ActingRule, Discrete
from qpd.environments.registry import make_vector_env
from qpd.evaluation.played_observations import played_observations
from qpd.export.bundle import ExportError, ExportSource, golden_vectors, load_export_source
from qpd.export.c.code import export_c
from qpd.export.c.golden import run_lengths
from qpd.export.c.sizes import arena_bytes, weight_bytes
from qpd.integer.integer_student import (
    IntegerEngine,
    IntegerLayer,
    IntegerStudent,
    reference_outputs,
)
from qpd.students import StudentArchitecture, architecture_for
from tests.export.c_programs import KERNELS, WARNINGS, c_library, c_logits, needs_gcc, write_c

RUNS = Path(__file__).resolve().parents[2] / "runs-reference"


@pytest.fixture(scope="session")
def play() -> Callable[[int], np.ndarray]:
    """Real observations, uint8 `[n, 4, 84, 84]`, of the XXS student's own play."""

    def collect(n: int) -> np.ndarray:
        engine = IntegerEngine(load_export_source(RUNS / "breakout-ppo-xxs").student)
        with closing(make_vector_env("BreakoutNoFrameskip-v4", 4)) as env:
            return played_observations(engine, env, n, ActingRule("sample"), 0)

    return collect


@pytest.fixture(scope="session")
def some_play(play: Callable[[int], np.ndarray]) -> np.ndarray:
    return play(200)


@needs_gcc
@pytest.mark.parametrize(
    ("name", "kernels"), [("xxs", "native"), ("xxs-4bit", "native"), ("xxs", "portable")]
)
def test_real_observations_give_the_reference_logits(
    name: str, kernels: str, some_play: np.ndarray, tmp_path: Path
) -> None:
    student = load_export_source(RUNS / f"breakout-ppo-{name}").student
    library = c_library(write_c(tmp_path / "out", student, 8), student, KERNELS[kernels])
    noise = np.random.default_rng(0).integers(0, 256, (20, 4, 84, 84), dtype=np.uint8)
    for observations in (some_play, noise, golden_vectors(student, 1).observations):
        wanted = IntegerEngine(student).integer_outputs(observations)
        assert (c_logits(library, student, observations) == wanted).all()


ODD = [
    (StudentArchitecture((4, 84, 84), 18, (5, 7, 3), (10, 9)), 3, 8),  # no multiple of 4 anywhere
    (StudentArchitecture((4, 84, 84), 6, (20, 36, 68), (70,)), 5, 4),  # blocks of 16 cut off
    (StudentArchitecture((4, 84, 84), 1, (33, 12, 16), (17,)), 8, 8),
    (StudentArchitecture((7,), 3, (), (33, 5)), 6, 8),
    (StudentArchitecture((8,), 2, (), (200,)), 8, 3),
    (StudentArchitecture((4, 84, 84), 4, (6, 9, 5, 12), (23,)), 6, 8),  # 7x7 shrunk to 3x3
    (StudentArchitecture((4, 84, 84), 4, (4, 8, 8, 20, 17), (5, 6)), 8, 8),  # and to 1x1
]


@needs_gcc
@pytest.mark.parametrize(
    ("case", "kernels"),
    [(case, "native") for case in (0, 1, 3, 5, 6)] + [(case, "portable") for case in (0, 4, 5, 6)],
)
def test_any_architecture_gives_the_reference_logits(
    case: int, kernels: str, tmp_path: Path
) -> None:
    architecture, bits, activation_bits = ODD[case]
    student = random_student(architecture, bits, case, activation_bits)
    observations = golden_vectors(student, 5).observations
    library = c_library(write_c(tmp_path / "out", student, 8), student, KERNELS[kernels])
    got = c_logits(library, student, observations)
    assert (got == reference_outputs(student, observations)).all()
    assert len(np.unique(got, axis=0)) > 8


def extreme_student() -> IntegerStudent:
    """Gains from the smallest to the largest, biases at int32's ends, multipliers of 0."""
    architecture, rng = StudentArchitecture((4, 84, 84), 4, (64, 32, 16), (62,)), np.random
    draw, layers = rng.default_rng(3), []
    for layer in random_student(architecture, 8, 3).layers:
        out = len(layer.weight)
        room = 2**31 - 1 - 255 * np.abs(layer.weight.astype(np.int64)).reshape(out, -1).sum(1)
        extreme = draw.integers(0, 4, out) == 0
        bias = np.where(extreme, room * draw.choice([-1, 1], out), layer.bias).astype(np.int32)
        multiplier, shift = layer.multiplier, layer.shift
        if multiplier is not None and shift is not None:
            shift = np.where(extreme, draw.integers(1, 63, out), shift).astype(np.int32)
            multiplier = np.where(
                draw.integers(0, 8, out) == 0, draw.choice([0, 1, 2**31 - 1], out), multiplier
            ).astype(np.int32)
        layers.append(IntegerLayer(layer.shape, 8, layer.weight, bias, multiplier, shift, 255))
    return IntegerStudent(architecture, tuple(layers), 0.01, Discrete(architecture.num_outputs))


@needs_gcc
@pytest.mark.parametrize("kernels", KERNELS)
def test_extreme_requantization_is_exact(kernels: str, tmp_path: Path) -> None:
    student = extreme_student()
    observations = golden_vectors(student, 6).observations
    library = c_library(write_c(tmp_path / "out", student, 8), student, KERNELS[kernels])
    wanted = reference_outputs(student, observations)
    assert (c_logits(library, student, observations) == wanted).all()


@needs_gcc
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_test_tells_right_from_wrong(tmp_path: Path) -> None:
    student = load_export_source(RUNS / "breakout-ppo-xxs-4bit").student
    folder = write_c(tmp_path / "out", student, 8)
    command = ["make", "test", "CFLAGS=-O1 -Werror", "PORTABLE=1"]
    right = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert right.returncode == 0 and "ok: 8 golden vectors" in right.stdout, right.stderr
    header = folder / "qpd_layers.h"
    numbers = header.read_text()
    start = numbers.index("qpd_linear1_bias[32] = {") + len("qpd_linear1_bias[32] = {\n")
    header.write_text(numbers[:start] + "1" + numbers[start:])  # one more digit, or -: 1-5 is one
    wrong = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert wrong.returncode != 0 and "FAILED: vector" in wrong.stdout


@needs_gcc
@pytest.mark.parametrize("kernels", KERNELS)
def test_sanitizers_find_nothing(kernels: str, tmp_path: Path) -> None:
    student = random_student(ODD[1][0], 4, 1, 4)
    folder = write_c(tmp_path / "out", student, 8)
    program = folder / "test"
    flags = ["-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = ["qpd_test.c", "qpd_check.c", "qpd_network.c", "qpd_sample.c", "qpd_preprocess.c"]
    command = ["gcc", *WARNINGS, *flags, *KERNELS[kernels], "-o", str(program), *sources]
    if subprocess.run(command, cwd=folder, check=False, capture_output=True).returncode:
        plain = ["gcc", "-xc", "-fsanitize=address,undefined", "-", "-o", str(program)]
        if subprocess.run(plain, input=b"int main(void){return 0;}", check=False).returncode:
            pytest.skip("gcc has no sanitizers here")
        subprocess.run(command, cwd=folder, check=True)
    ran = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and "ok:" in ran.stdout, ran.stderr


@needs_gcc
def test_samples_follow_the_softmax(tmp_path: Path) -> None:
    student = load_export_source(RUNS / "breakout-ppo-xxs").student
    library = c_library(write_c(tmp_path / "out", student, 8), student, KERNELS["portable"])
    unit = 1.0 / student.output_scale
    logits = np.array([0.0, -1.0, -2.5, 0.5]) * unit
    exact = np.exp(logits * student.output_scale)
    exact /= exact.sum()
    row, state, n = logits.round().astype(np.int32), ctypes.c_uint32(7), 200_000
    pointer = row.ctypes.data_as(ctypes.c_void_p)
    draws = [library.qpd_sample(pointer, ctypes.byref(state)) for _ in range(n)]
    share = np.bincount(draws, minlength=4) / n
    assert np.abs(share - exact).max() < 0.006  # 0.3% of approximation, and 3 standard errors
    far = np.array([-(2**31), 2**31 - 1, -(2**31), 0], dtype=np.int32)
    pointer = far.ctypes.data_as(ctypes.c_void_p)
    assert {library.qpd_sample(pointer, ctypes.byref(state)) for _ in range(1000)} == {1}


@needs_gcc
@pytest.mark.parametrize("scale", [0.5, 0.9, 1.5, 3.0, 100.0, 1e30])
def test_samples_of_coarse_logits_follow_the_softmax(scale: float, tmp_path: Path) -> None:
    student = replace(load_export_source(RUNS / "breakout-ppo-xxs").student, output_scale=scale)
    library = c_library(write_c(tmp_path / "out", student, 8), student, KERNELS["portable"])
    row, state, n = np.array([3, 4, 2, -2], np.int32), ctypes.c_uint32(7), 100_000
    exact = np.exp((row - 4) * scale)
    pointer = row.ctypes.data_as(ctypes.c_void_p)
    draws = [library.qpd_sample(pointer, ctypes.byref(state)) for _ in range(n)]
    assert np.abs(np.bincount(draws, minlength=4) / n - exact / exact.sum()).max() < 0.006


@needs_gcc
def test_preprocessing_is_ales_in_breakout(tmp_path: Path) -> None:
    student = random_student(architecture_for("XXS", (4, 84, 84), 4))
    library = c_library(write_c(tmp_path / "out", student, 8), student, KERNELS["portable"])
    games = AtariVectorEnv(
        "breakout", 1, noop_max=0, use_fire_reset=False, repeat_action_probability=0.0
    )
    games.reset(seed=3)
    ale = ALEInterface()
    ale.setInt("random_seed", 3)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path("breakout"))
    buttons, rng = ale.getMinimalActionSet(), np.random.default_rng(0)
    stack, lit = np.full((4, 84, 84), 9, dtype=np.uint8), set()
    library.qpd_clear(stack.ctypes.data_as(ctypes.c_void_p))
    for _ in range(100):
        action = int(rng.integers(len(buttons)))
        observation = games.step(np.array([action]))[0]
        screens = []
        for _ in range(4):
            ale.act(buttons[action])
            screens.append(ale.getScreenRGB().copy())
        pointers = [screen.ctypes.data_as(ctypes.c_void_p) for screen in screens[2:]]
        library.qpd_push_rgb(stack.ctypes.data_as(ctypes.c_void_p), *pointers)
        lit |= set(np.unique(stack[3]).tolist())
        assert (stack[3] == observation[0, 3]).all()
    assert (stack == observation[0]).all() and len(lit) > 10
    games.close()


@given(st.lists(st.tuples(st.integers(1, 600), st.integers(0, 255)), min_size=1, max_size=20))
@settings(deadline=None)
def test_run_lengths_come_back(runs: list[tuple[int, int]]) -> None:
    levels = np.concatenate([np.full(count, level, dtype=np.uint8) for count, level in runs])
    pairs = run_lengths(levels)
    assert pairs.min(0)[0] >= 1
    assert (np.repeat(pairs[:, 1], pairs[:, 0]) == levels).all()


def test_constants_are_the_packed_student() -> None:
    four = load_export_source(RUNS / "breakout-ppo-xxs-4bit").student
    assert weight_bytes(four) < 20_000
    assert weight_bytes(load_export_source(RUNS / "breakout-ppo-xxs").student) < 37_000
    assert arena_bytes(four) < 16_000


def test_accumulators_beyond_int32_are_refused() -> None:
    student = random_student(StudentArchitecture((4,), 2, (), (3,)))
    layer = student.layers[0]
    bias = np.full(3, 2**31 - 1, dtype=np.int32)
    wide = IntegerLayer(
        layer.shape, 8, layer.weight, bias, layer.multiplier, layer.shift, layer.levels
    )
    broken = IntegerStudent(
        student.architecture,
        (wide, student.layers[1]),
        0.1,
        student.input_low,
        student.input_high,
    )
    with pytest.raises(ExportError, match=r"linear1: accumulators may exceed int32"):
        export_c(ExportSource(broken, {}, "broken"), golden_vectors(student))


def test_more_outputs_than_the_runtime_counts_are_refused() -> None:
    student = random_student(StudentArchitecture((1,), 65_536, (), (1,)))
    with pytest.raises(ExportError, match=r"actor: the C runtime takes at most 65,535 outputs"):
        export_c(ExportSource(student, {}, "many"), golden_vectors(student, n=1))


def test_names_cannot_break_out_of_comments_and_strings() -> None:
    student = random_student(StudentArchitecture((4,), 2, (), (3,)))
    name = 'a*/ "b\\'
    header = export_c(ExportSource(student, {}, name), golden_vectors(student))["qpd_student.h"]
    assert re.search(r'#define QPD_NAME "a\*/ _b_"', header.decode())
    assert header.decode().splitlines()[0].count("*/") == 1
