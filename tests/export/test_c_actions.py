"""The C export of students that do not choose one action: codes, choices, switches, bit for bit."""

import re
import subprocess
from fractions import Fraction
from math import floor
from pathlib import Path

import numpy as np
import pytest

from qpd.actions import Box, Discrete
from qpd.export.action_texts import c_texts
from qpd.export.bundle import ExportSource, golden_vectors
from qpd.export.c.arduino import export_arduino
from qpd.export.c.code import export_c
from qpd.export.c.sizes import c_constant_bytes, weight_bytes
from qpd.export.device_actions import device_actions, environment_actions
from qpd.integer.integer_student import IntegerEngine, IntegerStudent, reference_outputs
from tests.export.action_students import (
    KINDS,
    observations_of,
    student_at_every_threshold,
    student_of,
)
from tests.export.c_programs import (
    KERNELS,
    LIBRARY,
    TARGETS,
    WARNINGS,
    c_library,
    needs,
    needs_gcc,
    pointer,
    write_c,
)

BOXES = [name for name in KINDS if name[:4] in ("clip", "tanh")]


def action_row(student: IntegerStudent) -> np.ndarray:
    numbers = device_actions(student, np.zeros((1, student.actions.num_outputs), np.int32))
    return np.zeros(numbers.shape[1], np.uint16 if student.actions.kind[6:] == "discrete" else "u1")


@needs_gcc
@pytest.mark.parametrize(
    ("name", "kernels"),
    [("clip-8", "-march=native"), *((name, "-DQPD_PORTABLE") for name in KINDS)],
)
def test_floats_in_actions_out(name: str, kernels: str, tmp_path: Path) -> None:
    student = student_of(name)
    library = c_library(write_c(tmp_path / "c", student), student, [kernels])
    observations = observations_of(student)
    outputs = IntegerEngine(student).integer_outputs(observations)
    wanted = device_actions(student, outputs)
    assert len(np.unique(wanted, axis=0)) >= 4
    action, row = action_row(student), np.zeros(outputs.shape[1], np.int32)
    for values, levels, numbers, head in zip(
        observations, student.encode(observations), wanted, outputs, strict=True
    ):
        library.qpd_act_on_floats(pointer(values), pointer(action))
        assert (action == numbers).all()
        library.qpd_outputs(pointer(levels), pointer(row))
        assert (row == head).all()
        action[:] = 99
        library.qpd_act(pointer(levels), pointer(action))
        assert (action == numbers).all()
    # An ADC whose counts 100 and 100 + 8 * top are the ends: counts in, no float anywhere.
    top = student.input_levels
    ends = [np.full(len(levels), 100 + 8 * level, np.int32) for level in (0, top)]
    for levels, numbers in zip(student.encode(observations)[:50], wanted[:50], strict=True):
        counts = (100 + 8 * levels.astype(np.int32)).astype(np.int32)
        outside = library.qpd_act_on_counts(pointer(counts), *map(pointer, ends), pointer(action))
        assert outside == 0 and (action == numbers).all()


@needs_gcc
@pytest.mark.parametrize("name", BOXES)
def test_every_code_at_its_threshold_and_in_both_units(name: str, tmp_path: Path) -> None:
    student = student_of(name)
    library = c_library(write_c(tmp_path / "c", student), student, KERNELS["portable"])
    thresholds = student.action_thresholds
    assert thresholds is not None
    ends = np.array([-(2**31), 2**31 - 1], np.int32)
    tried = np.concatenate([thresholds, thresholds - 1, thresholds + 1, ends])
    n = student.actions.num_outputs
    action, top = action_row(student), len(thresholds)
    seen = set()
    for accumulator in tried:
        outputs = np.full(n, accumulator, np.int32)
        library.qpd_decide(pointer(outputs), pointer(action))
        assert (action == device_actions(student, outputs[None])[0]).all()
        seen.add(int(action[0]))
    assert seen == set(range(top + 1))
    # What the engine's own path (codes to shares to actions) makes of every code.
    steps = np.concatenate([[thresholds[0] - 1], thresholds]).astype(np.int32)
    engine_actions = environment_actions(student, np.repeat(steps[:, None], n, 1)).reshape(-1, n)
    for code in range(top + 1):
        values = [library.qpd_action_value(code, i) for i in range(n)]
        assert np.array(values, np.float32).tobytes() == engine_actions[code].tobytes()
        for start, end in [(0, 4095), (2000, 1000), (-7, 8), (-(2**31), 2**31 - 1), (5, 5)]:
            exact = Fraction(code, top) * (end - start) + Fraction(1, 2)
            assert library.qpd_action_scaled(code, start, end) == start + floor(exact)
    box = student.actions
    assert isinstance(box, Box)
    assert engine_actions[0].tolist() == list(box.bounds[0])
    assert engine_actions[-1].tolist() == list(box.bounds[1])


@needs_gcc
def test_an_accumulator_on_the_threshold_has_the_higher_code(tmp_path: Path) -> None:
    student = student_at_every_threshold()
    accumulators = np.arange(-128, 128, dtype=np.int32)[:, None]
    assert set(student.action_thresholds.tolist()) <= set(accumulators.ravel().tolist())  # type: ignore[union-attr]
    library = c_library(write_c(tmp_path / "c", student), student, KERNELS["portable"])
    action = np.zeros(1, np.uint8)
    for level, wanted in enumerate(device_actions(student, accumulators)):
        library.qpd_act(pointer(np.array([level], np.uint8)), pointer(action))
        assert action == wanted


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["clip-8", "tanh-3", "controller-2", "parts", "switches"])
def test_golden_vectors_pass_on_every_target(name: str, target: str, tmp_path: Path) -> None:
    compiler, runner = TARGETS[target]
    needs(compiler[0], *runner[:1])
    folder = write_c(tmp_path / "c", student_of(name))
    command = [
        *compiler,
        "-std=c99",
        "-DQPD_PORTABLE",
        "-o",
        "test",
        "qpd_test.c",
        "qpd_check.c",
        *LIBRARY,
    ]
    subprocess.run(command, cwd=folder, check=True)

    def played() -> str:
        ran = subprocess.run(
            [*runner, "./test"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return ran.stdout + ran.stderr

    assert "ok: 32 golden vectors" in played()
    if target == "x86-64" and name == "clip-8":  # and it notices codes that are wrong
        tables = folder / "qpd_action_tables.h"
        right = tables.read_text()
        for wrong in (
            re.sub(r"(qpd_thresholds\[255\] = {)[^}]*", r"\g<1>0", right),  # C fills in zeros
            right.replace("qpd_action_low[3] = {\n", "qpd_action_low[3] = {\n1 +"),
        ):
            assert wrong != right
            tables.write_text(wrong)
            subprocess.run(command, cwd=folder, check=True)
            assert "FAILED: vector 1" in played()


_FROM_COUNTS = """
#include "qpd.h"
volatile int32_t counts[QPD_INPUT_BYTES], low[QPD_INPUT_BYTES], high[QPD_INPUT_BYTES], pulse;
int main(void)
{
    qpd_action action[QPD_ACTIONS];
    qpd_act_on_counts((int32_t *)counts, (int32_t *)low, (int32_t *)high, action);
    pulse = qpd_action_scaled(action[0], 1000, 2000);
    return 0;
}
"""


@pytest.mark.parametrize("name", ["clip-8", "tanh-3", "controller-2", "controller-8"])
def test_from_counts_to_a_pulse_no_float_is_linked(name: str, tmp_path: Path) -> None:
    needs("arm-none-eabi-gcc")
    folder = write_c(tmp_path / "c", student_of(name))
    (folder / "main.c").write_text(_FROM_COUNTS)
    flags = ["-std=c99", "-Os", "-mcpu=cortex-m0", "-mthumb", "--specs=nosys.specs"]
    flags += ["-ffunction-sections", "-Wl,--gc-sections", "-o", "program.elf"]
    command = ["arm-none-eabi-gcc", *flags, "main.c", *LIBRARY]
    subprocess.run(command, cwd=folder, check=True)

    def symbols() -> list[str]:
        listed = ["arm-none-eabi-nm", "program.elf"]
        ran = subprocess.run(listed, cwd=folder, capture_output=True, text=True, check=True)
        return [line.split()[-1] for line in ran.stdout.splitlines()]

    def of_floats() -> list[str]:
        return [
            each
            for each in symbols()
            if re.search(r"__aeabi_(c?[fd]|u?[il]2[fd])|[sd]f[23]?$", each)
        ]

    assert "qpd_act_on_counts" in symbols() and not of_floats()
    # With a float in the program there are some.
    (folder / "main.c").write_text(
        _FROM_COUNTS.replace("pulse = ", "pulse = (int32_t)qpd_action_value(action[0], 0) + ")
    )
    subprocess.run(command, cwd=folder, check=True)
    assert of_floats()


@pytest.mark.parametrize("name", ["clip-5", "parts"])
def test_golden_vectors_pass_on_an_emulated_uno(name: str, tmp_path: Path) -> None:
    from tests.export.test_arduino_export import needs, uno_program

    needs("avr-gcc", "avr-g++", "simavr")
    student = student_of(name, 5, (12,))
    folder = tmp_path / "library"
    files = export_arduino(ExportSource(student, {}, "test"), golden_vectors(student))
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    uno_program(folder, tmp_path)
    command = ["simavr", "-m", "atmega328p", "-f", "16000000", str(tmp_path / "program.elf")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "PASS: 32 golden vectors of test" in ran.stdout + ran.stderr


@pytest.mark.parametrize("name", ["clip-5", "parts"])
def test_avr_reads_the_tables_from_flash(name: str, tmp_path: Path) -> None:
    needs("avr-gcc")
    folder = write_c(tmp_path / "c", student_of(name))
    command = ["avr-gcc", "-std=gnu11", "-mmcu=atmega328p", "-Os", "-Wall", "-Wextra", "-Werror"]
    for file in (*LIBRARY, "qpd_check.c"):
        subprocess.run([*command, "-c", file, "-o", "out.o"], cwd=folder, check=True)
        if file == "qpd_actions.c":
            sizes = subprocess.run(
                ["avr-size", "out.o"], cwd=folder, capture_output=True, text=True, check=True
            ).stdout.split()
            assert sizes[7:9] == ["0", "0"]  # data and bss: nothing is copied to RAM


def test_thresholds_count_as_constants_and_files_are_those_that_are_needed() -> None:
    student = student_of("clip-5")
    assert c_constant_bytes(student) == weight_bytes(student) + 4 * 31
    exported = export_c(ExportSource(student, {}, "test"), golden_vectors(student))
    assert {"qpd_actions.c", "qpd_action_tables.h"} <= set(exported)
    assert "qpd_sample.c" not in exported and b"@" not in exported["README.md"]
    choice = student_of("parts")
    for labels, samples in (("logits", True), ("q_values", False)):
        actions = Discrete(choice.actions.num_outputs, labels)  # type: ignore[arg-type]
        one = IntegerStudent(choice.architecture, choice.layers, 0.1, actions, choice.input_low,
                             choice.input_high)  # fmt: skip
        exported = export_c(ExportSource(one, {}, "test"), golden_vectors(one))
        assert ("qpd_sample.c" in exported) == samples
        assert ("qpd_sample" in exported["README.md"].decode()) == samples
        assert "qpd_actions.c" not in exported and b"@" not in exported["README.md"]
        assert c_constant_bytes(one) == weight_bytes(one)


BROUGHT = """
static uint8_t observation[QPD_INPUT_BYTES];
static float values[QPD_INPUT_BYTES];
static int32_t counts[QPD_INPUT_BYTES], low[QPD_INPUT_BYTES], high[QPD_INPUT_BYTES];
"""


@needs_gcc
@pytest.mark.parametrize("name", ["clip-8", "parts", "switches"])
def test_a_program_of_all_that_the_readme_shows_links_with_its_cc_line(
    name: str, tmp_path: Path
) -> None:
    folder = write_c(tmp_path / "c", student_of(name))
    readme = (folder / "README.md").read_text()
    shown = [line[4:] for line in readme.splitlines() if line.startswith("    ")]
    (command,) = [line.split() for line in shown if line.startswith("cc ")]
    statements = [line for line in shown if not line.startswith(("cc ", "make ", "#include"))]
    assert any("qpd_act(" in line for line in statements) and "logits[" not in readme
    body = "\n".join(statements)
    (folder / "main.c").write_text(
        f'#include "qpd.h"\n{BROUGHT}int main(void)\n{{\n{body}\n    return 0;\n}}\n'
    )
    subprocess.run([*command, "-O0", "-w", "-DQPD_PORTABLE"], cwd=folder, check=True)
    subprocess.run([folder / command[command.index("-o") + 1]], check=True)
    # What the card of a model on the hub shows
    texts = c_texts(student_of(name))
    program = '#include <stdio.h>\n#include "qpd.h"\nint main(void)\n{\n'
    program += (
        f"    static uint8_t observation[QPD_INPUT_BYTES];\n{texts['act']}\n    return 0;\n}}\n"
    )
    (folder / "main.c").write_text(program)
    flags = [*WARNINGS, "-O0", "-DQPD_PORTABLE"]
    subprocess.run([*command, *flags], cwd=folder, check=True)
    printed = subprocess.run(
        [folder / "program"], capture_output=True, text=True, check=True
    ).stdout
    assert len(printed.split()) >= 3


@needs_gcc
@pytest.mark.parametrize("name", ["tanh-8", "parts"])
def test_a_stream_of_observations_becomes_actions_and_outputs(name: str, tmp_path: Path) -> None:
    student = student_of(name)
    folder, levels = write_c(tmp_path / "c", student), student.encode(observations_of(student))
    sources = ["qpd_stream.c", "qpd_network.c", "qpd_actions.c"]
    command = ["gcc", *WARNINGS, "-DQPD_PORTABLE", "-o", "stream", *sources]
    subprocess.run(command, cwd=folder, check=True)
    (folder / "observations.bin").write_bytes(levels.tobytes())
    subprocess.run(["./stream"], cwd=folder, check=True)
    outputs = reference_outputs(student, observations_of(student))
    wanted = np.concatenate([device_actions(student, outputs), outputs], axis=1)
    found = np.fromfile(folder / "logits.bin", "<i4").reshape(wanted.shape)
    assert (found == wanted).all()
    before = (folder / "logits.bin").read_bytes()
    for words in (["missing"], ["missing", "logits.bin"]):
        done = subprocess.run(["./stream", *words], cwd=folder, check=False, capture_output=True)
        assert done.returncode == 2 and (folder / "logits.bin").read_bytes() == before
