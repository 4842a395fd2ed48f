"""The SystemVerilog core: thresholds equal the engine, and Verilator plays the golden vectors."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.random_students import random_student
from qpd.actions import Box
from qpd.export.bundle import ExportError, ExportSource, golden_vectors
from qpd.export.systemverilog.code import (
    SOURCES,
    Multipliers,
    export_systemverilog,
    folding_of,
    multipliers_of,
)
from qpd.export.systemverilog.thresholds import (
    feature_thresholds,
    float_keys,
    key_floats,
    level_thresholds,
)
from qpd.export.systemverilog.unrolled import unrolled_network
from qpd.integer.integer_student import IntegerStudent, reference_outputs
from qpd.student_files.quantized import load_integer_student
from qpd.students.architecture import StudentArchitecture
from tests.export.action_students import student_of

REFERENCE = Path(__file__).parents[2] / "runs-reference"
PENDULUM = REFERENCE / "continuous/sac-Pendulum-v1-mlp-16-16-4bit/quantized.safetensors"
CARTPOLE = REFERENCE / "classic-ppo-cartpole/quantized.safetensors"

needs_verilator = pytest.mark.skipif(
    shutil.which("verilator") is None or shutil.which("make") is None, reason="no Verilator"
)


def with_levels(student: IntegerStudent, levels: int) -> IntegerStudent:
    """Return the student with fewer levels after its hidden layers: other integers, all valid."""
    first, *others = (replace(layer, levels=levels) for layer in student.layers)
    rest = (replace(layer, input_levels=levels) for layer in others)
    return replace(student, layers=(first, *rest))


def with_bits(student: IntegerStudent, bits: int) -> IntegerStudent:
    """Return the student with weights of fewer bits: other odd integers, all valid."""
    top = 2**bits - 1
    layers = []
    for layer in student.layers:
        weight = np.clip(layer.weight.astype(int) // 2 ** (layer.bits - bits) | 1, -top, top)
        layers.append(replace(layer, weight=weight.astype(layer.weight.dtype), bits=bits))
    return replace(student, layers=tuple(layers))


def played(folder: Path, files: dict[str, bytes]) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return subprocess.run(["make", "-s", "test"], cwd=folder, capture_output=True, text=True)


def said_by(bench: str, files: dict[str, bytes], folder: Path) -> str:
    """Return what a bench of this folder prints that plays an export's files in `folder`."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    options = ["--binary", "--timing", "-Wno-fatal", "--top-module", bench, "-O3"]
    own = str(Path(__file__).with_name(f"{bench}.sv"))
    sources = ["qpd_golden.sv", *SOURCES, "qpd_pins.sv", own]
    subprocess.run(["verilator", *options, *sources], cwd=folder, check=True)
    program = str(folder / "obj_dir" / f"V{bench}")
    return subprocess.run([program], cwd=folder, check=True, capture_output=True, text=True).stdout


def passes(student: IntegerStudent) -> str:
    """Return what the end says: 40 vectors, one of NaN and the like, two beside each threshold."""
    return f"PASS: {41 + 2 * student.input_levels} vectors"


def exported(student: IntegerStudent, multipliers: Multipliers = None) -> dict[str, bytes]:
    source = ExportSource(student, {}, "student")
    return export_systemverilog(source, golden_vectors(student, n=40), multipliers)


def test_thresholds_equal_multiplier_and_shift_at_every_accumulator() -> None:
    for layer in with_levels(load_integer_student(PENDULUM), 15).layers[:-1]:
        assert layer.multiplier is not None and layer.shift is not None
        end = layer.largest_accumulator
        accumulators = np.arange(-end, end + 1, dtype=np.int64)
        thresholds = level_thresholds(layer)
        for i, row in enumerate(thresholds):
            shift = int(layer.shift[i])
            levels = (accumulators * int(layer.multiplier[i]) + (1 << (shift - 1))) >> shift
            expected = levels.clip(0, layer.levels)
            found = np.searchsorted(row, accumulators, side="right")
            np.testing.assert_array_equal(found, expected)


def test_feature_thresholds_equal_the_encoder_on_both_neighbours() -> None:
    student = load_integer_student(PENDULUM)
    thresholds = feature_thresholds(student)
    for keys, change in ((thresholds, 0), (thresholds - np.uint32(1), 1)):
        levels = student.encode(np.ascontiguousarray(key_floats(keys).T))
        np.testing.assert_array_equal(levels, (np.arange(1, 256) - change)[:, None] + 0 * levels)


def test_keys_order_floats_and_return_them() -> None:
    values = np.array([-np.inf, -3e38, -1, -1e-45, 0, 1e-45, 1, 3e38, np.inf], dtype=np.float32)
    assert (np.diff(float_keys(values).astype(np.int64)) > 0).all()
    np.testing.assert_array_equal(key_floats(float_keys(values)), values)


@needs_verilator
@pytest.mark.parametrize(
    ("file", "multipliers", "levels", "bits"),
    [
        (CARTPOLE, 3, 255, 8),
        (PENDULUM, 10, 7, 3),
        (PENDULUM, "all", 15, 4),
        pytest.param(PENDULUM, "all", 255, 8, marks=pytest.mark.slow),
        pytest.param(CARTPOLE, "all", 3, 2, marks=pytest.mark.slow),
        pytest.param(PENDULUM, 1, 255, 4, marks=pytest.mark.slow),
        pytest.param(PENDULUM, 16, 15, 4, marks=pytest.mark.slow),
        pytest.param(PENDULUM, 10**6, 3, 2, marks=pytest.mark.slow),
    ],
)
def test_the_core_equals_the_engine(
    file: Path, multipliers: Multipliers, levels: int, bits: int, tmp_path: Path
) -> None:
    student = with_levels(load_integer_student(file), levels)
    if bits < 8:
        student = with_bits(student, bits)
    files = exported(student, multipliers)
    check_core(student, multipliers, files, tmp_path)


@needs_verilator
@pytest.mark.parametrize(
    ("name", "multipliers"),
    [
        ("controller-3", 2),  # its head of three outputs in two groups
        ("controller-2", "all"),
        pytest.param("controller-full-3", "all", marks=pytest.mark.slow),
        pytest.param("controller-2", 10**6, marks=pytest.mark.slow),
        pytest.param("controller-full-3", 7, marks=pytest.mark.slow),
        pytest.param("controller-8", 6, marks=pytest.mark.slow),
        pytest.param("inputs-5", 4, marks=pytest.mark.slow),
    ],
)
def test_the_core_of_a_controller(name: str, multipliers: Multipliers, tmp_path: Path) -> None:
    student = student_of(name)
    if name.startswith("controller-full"):  # the lowest weight of Eq. 1 too, which is -2^bits
        layers = [replace(layer, weight=layer.weight.copy()) for layer in student.layers]
        for layer in layers:
            layer.weight.flat[::5] = -(2**layer.bits)
        student = replace(student, layers=tuple(layers))
    check_core(student, multipliers, exported(student, multipliers), tmp_path)


def check_core(
    student: IntegerStudent, multipliers: Multipliers, files: dict[str, bytes], tmp_path: Path
) -> None:
    done = played(tmp_path, files)
    assert done.returncode == 0 and passes(student) in done.stdout, done.stdout + done.stderr
    lint = subprocess.run(["make", "-s", "lint"], cwd=tmp_path, capture_output=True, text=True)
    assert lint.returncode == 0, lint.stderr
    # One changed weight, and it has to fail.
    changed = exported(with_another_weight(student), multipliers)
    name = "qpd_network.sv" if multipliers == "all" else "weights.hex"
    assert changed[name] != files[name]
    done = played(tmp_path, {name: changed[name]})
    assert done.returncode != 0 and "FAIL" in done.stdout + done.stderr


@needs_verilator
@pytest.mark.parametrize(
    ("lanes", "clocks"),
    [
        # A hidden layer takes 5 clocks from its last input to its accumulators, 7 more to its first
        # level, and then one a neuron; the head 5 to its accumulator, and 5 to its output.
        (16, 2 * (5 + 7 + 16) + 5 + 5),
        # Two groups: the first layer's second one waits for the 8 neurons of the first to leave.
        # The second layer has its last level when the second 8 have left; its second group takes
        # 16 inputs more, and leaves likewise.
        (8, 8 + (5 + 7 + 8) + 16 + (5 + 7 + 8) + 5 + 5),
    ],
)
def test_layers_and_groups_overlap(lanes: int, clocks: int, tmp_path: Path) -> None:
    done = played(tmp_path, exported(load_integer_student(PENDULUM), lanes))  # 3 -> 16 -> 16 -> 1
    assert f"{clocks} of them for the layers" in done.stdout, done.stdout + done.stderr


@needs_verilator
def test_layers_of_one_neuron_and_one_feature(tmp_path: Path) -> None:
    actions = Box((-1.0,) * 5, (1.0,) * 5, "tanh")
    student = random_student(StudentArchitecture((1,), 5, (), (5, 1, 3)), 8, 1, 8, actions)
    check_core(student, 2, exported(student, 2), tmp_path)


def with_another_weight(student: IntegerStudent) -> IntegerStudent:
    """Change one weight of the head, the first that the golden vectors see."""
    golden, head = golden_vectors(student, n=40), student.layers[-1]
    for unit, value in enumerate(head.weight.flat):
        weight = head.weight.copy()
        weight.flat[unit] -= 2 * (np.sign(value) or 1)
        changed = replace(student, layers=(*student.layers[:-1], replace(head, weight=weight)))
        if (reference_outputs(changed, golden.observations) != golden.logits).any():
            return changed
    raise AssertionError("no weight of the head has an effect")


def test_foldings_range_from_one_multiplier_to_all() -> None:
    student = load_integer_student(PENDULUM)
    assert folding_of(student, 1).multipliers == 1
    assert folding_of(student, 10**9).multipliers == 16  # no more lanes than neurons
    assert folding_of(student, "all").multipliers == 16 * (3 + 16 + 1)  # odd weights: none is 0
    with pytest.raises(ExportError, match="at least 1"):
        folding_of(student, 0)


def test_multipliers_are_a_number_or_all() -> None:
    assert [multipliers_of(text) for text in (None, "all", "1", "64")] == [None, "all", 1, 64]
    for text in ("0", "-1", "1.5", "ALL", "", "²", "9" * 5000):
        with pytest.raises(ExportError, match="must be a number from 1 to 1,000,000, or all"):
            multipliers_of(text)


def test_weights_of_zero_and_what_nothing_reads_are_left_out() -> None:
    student = student_of("controller-2")
    layers = [replace(layer, weight=layer.weight.copy()) for layer in student.layers]
    layers[1].weight[:] = 0
    layers[1].weight[0, 3] = 2  # of all inputs of the second layer one
    layers[2].weight[:] = 0
    layers[2].weight[:, 0] = -2
    text = unrolled_network(replace(student, layers=tuple(layers)))
    assert "x1_3;" in text and "x1_2;" not in text and "x2_0;" in text and "x2_1;" not in text


@needs_verilator
@pytest.mark.parametrize("multipliers", [5, "all"])
def test_a_reset_leaves_no_outputs_behind(multipliers: Multipliers, tmp_path: Path) -> None:
    said = said_by("reset_test", exported(student_of("controller-2"), multipliers), tmp_path)
    assert "0 outputs without an observation, 0 wrong" in said


@needs_verilator
@pytest.mark.parametrize("file", [PENDULUM, CARTPOLE])
def test_shift_registers_bring_the_same_outputs(file: Path, tmp_path: Path) -> None:
    student = load_integer_student(file)
    said = said_by("pins_test", exported(student, 4), tmp_path)
    assert f"{8 * student.architecture.num_outputs} outputs as the engine's, 0 wrong" in said


@needs_verilator
def test_a_head_of_zeros_answers_its_biases(tmp_path: Path) -> None:
    student = student_of("controller-2")
    head = replace(student.layers[2], weight=np.zeros_like(student.layers[2].weight))
    student = replace(student, layers=(*student.layers[:2], head))
    done = played(tmp_path, exported(student, "all"))
    assert done.returncode == 0 and passes(student) in done.stdout, done.stdout + done.stderr


@needs_verilator
@pytest.mark.parametrize(("features", "bits"), [(3, 4), (4, 6)])
def test_accumulators_narrower_than_a_product_lint(
    features: int, bits: int, tmp_path: Path
) -> None:
    architecture = StudentArchitecture((features,), 1, (), (8, 8))
    actions = Box((-1.0,), (1.0,), "tanh")
    student = random_student(architecture, bits, 1, 4, actions, input_bits=4)
    done = played(tmp_path, exported(student, 8))
    assert done.returncode == 0 and passes(student) in done.stdout, done.stdout + done.stderr
    lint = subprocess.run(["make", "-s", "lint"], cwd=tmp_path, capture_output=True, text=True)
    assert lint.returncode == 0, lint.stderr


def test_students_of_images_are_refused_in_one_line() -> None:
    image = load_integer_student(REFERENCE / "breakout-ppo-xxs/quantized.safetensors")
    with pytest.raises(ExportError, match="images"):
        export_systemverilog(ExportSource(image, {}, "image"), golden_vectors(image, n=1))


@needs_verilator
def test_a_threshold_that_is_one_bit_off_is_seen(tmp_path: Path) -> None:
    student = load_integer_student(PENDULUM)
    assert played(tmp_path, exported(student)).returncode == 0
    for name in ("features0.hex", "features3.hex", "features7.hex"):
        words = (tmp_path / name).read_text().split()
        changed = [f"{int(words[0], 16) ^ 1:0{len(words[0])}x}", *words[1:]]
        (tmp_path / name).write_text("\n".join(changed) + "\n")
        done = subprocess.run(["obj_dir/Vqpd_test"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode != 0 and "outputs are wrong" in done.stdout + done.stderr
        (tmp_path / name).write_text("\n".join(words) + "\n")


@needs_verilator
def test_sums_narrower_than_their_summands_lint(tmp_path: Path) -> None:
    folder = REFERENCE / "controllers/hopper/core-2-width-16-input-8"
    student = load_integer_student(folder / "quantized.safetensors")
    for name, content in exported(student, "all").items():
        (tmp_path / name).write_bytes(content)
    lint = subprocess.run(["make", "-s", "lint"], cwd=tmp_path, capture_output=True, text=True)
    assert lint.returncode == 0, lint.stderr


@needs_verilator
def test_a_core_that_never_answers_fails(tmp_path: Path) -> None:
    files = exported(load_integer_student(PENDULUM))
    core = files["qpd_test.sv"].replace(b"idle > 100000000", b"idle > 10000")
    mute = files["qpd_core.sv"].replace(b"assign m_valid = ", b"assign m_valid = 1'b0 && ")
    assert mute != files["qpd_core.sv"] and core != files["qpd_test.sv"]
    done = played(tmp_path, files | {"qpd_test.sv": core, "qpd_core.sv": mute})
    assert done.returncode != 0 and "no answer" in done.stdout + done.stderr


def test_constants_fit_their_widths_where_a_neuron_has_no_weights() -> None:
    """Its product is 0, whatever its multiplier: a large one needs a width of its own."""
    student = random_student(StudentArchitecture((3,), 2, (), (4, 4)), 4)
    layers = list(student.layers)
    for place in (0, 1):
        one = layers[place]
        made = {
            name: getattr(one, name).copy() for name in ("weight", "bias", "multiplier", "shift")
        }
        for name, value in zip(made, (0, 0, 2**30 + 5, 20), strict=True):
            made[name][1] = value
        layers[place] = replace(one, **made)
    text = unrolled_network(replace(student, layers=tuple(layers)))
    assert "sd1073741829" in text
    for bits, value in re.findall(r"(\d+)'sd(\d+)", text):
        assert int(value) < 2 ** (int(bits) - 1), f"{bits}'sd{value}"
