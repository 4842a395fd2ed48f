"""The Arduino and PlatformIO library: complete, compiled for an ATmega328P and played there."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.random_students import random_student
from qpd.cli import main
from qpd.export.bundle import load_export_source
from qpd.export.c.arduino import library_name
from qpd.export.c.sizes import flash_arena_bytes, weight_bytes
from qpd.students import StudentArchitecture
from tests.export.arduino_library import library, uno_program
from tests.export.c_programs import needs

ROOT = Path(__file__).resolve().parents[2]
CARTPOLE = ROOT / "runs-reference" / "classic-ppo-cartpole"
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


def test_the_command_writes_a_library_of_both_kinds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "my run"
    shutil.copytree(CARTPOLE, run)
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(run), "--format", "c", "--layout", "arduino", "--json"])
    assert stopped.value.code == 0
    folder = run / "exports" / "c-arduino"
    assert json.loads(capsys.readouterr().out)["folder"] == str(folder)
    properties = dict(
        line.split("=", 1) for line in (folder / "library.properties").read_text().splitlines()
    )
    assert properties["name"] == "QPD_my_run" and properties["includes"] == "qpd.h"
    assert {"version", "author", "maintainer", "sentence", "architectures"} <= set(properties)
    about = json.loads((folder / "library.json").read_text())
    assert about["name"] == "QPD_my_run" and about["version"] == "1.0.0"
    # No `main` but the sketch's, and no file that a header names is missing.
    sources = {path.name: path.read_text() for path in (folder / "src").iterdir()}
    assert not any(re.search(r"\bmain\(", text) for text in sources.values())
    computers = {"qpd_layer_vnni.h", "qpd_vnni_dot.h"}
    named = {name for text in sources.values() for name in re.findall(r'#include "(\w+\.h)"', text)}
    assert named - computers <= set(sources) and not computers & set(sources)
    readme = (folder / "README.md").read_text()
    assert "sketchbook" in readme and "make test" not in readme and "@" not in readme


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--format", "onnx", "--layout", "arduino"], "not a layout of --format onnx"),
        (["--format", "c", "--layout", "cmake"], "there is --format c --layout arduino"),
    ],
)
def test_another_layout_is_refused_in_one_line(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(CARTPOLE), *arguments, "-o", str(tmp_path / "new")])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and line in error and error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_names_are_what_arduino_allows() -> None:
    assert library_name("my run/é") == "QPD_my_run__"
    assert len(library_name("x" * 200)) == 63


@pytest.mark.parametrize("case", ["cartpole", "3 bits"])
def test_golden_vectors_pass_on_an_emulated_uno(case: str, tmp_path: Path) -> None:
    needs("avr-gcc", "avr-g++", "simavr")
    if case == "cartpole":
        student = load_export_source(CARTPOLE).student
    else:
        student = random_student(StudentArchitecture((7,), 3, (), (33, 5)), 3, 1, 6)
    folder = library(tmp_path / "library", student)
    sizes = uno_program(folder, tmp_path)
    # The constants are in flash: RAM holds the arena, an observation, and the layers' table.
    assert sizes["bss"] + sizes["data"] < flash_arena_bytes(student) + 200
    assert sizes["text"] > weight_bytes(student)
    emulator = ["simavr", "-m", "atmega328p", "-f", "16000000", str(tmp_path / "program.elf")]

    def played() -> str:
        ran = subprocess.run(emulator, capture_output=True, text=True, check=True, timeout=120)
        return ran.stdout + ran.stderr

    assert "PASS: 8 golden vectors of test" in played()
    if case == "cartpole":  # and the sketch notices a wrong number
        header = folder / "src" / "qpd_layers.h"
        numbers = header.read_text()
        start = numbers.index("qpd_actor_bias[2] = {") + len("qpd_actor_bias[2] = {\n")
        header.write_text(numbers[:start] + "1+" + numbers[start:])
        uno_program(folder, tmp_path)
        assert "FAIL: golden vector 1" in played()


@pytest.mark.parametrize("standard", ["c99", "gnu99"])
def test_strict_c_on_avr_is_refused_in_one_line(standard: str, tmp_path: Path) -> None:
    needs("avr-gcc")
    folder = library(tmp_path / "library", load_export_source(CARTPOLE).student) / "src"
    command = ["avr-gcc", f"-std={standard}", "-mmcu=atmega328p", "-Os", *WARNINGS, "-c"]
    for name in ("qpd_network.c", "qpd_encode.c", "qpd_check.c"):
        done = subprocess.run(
            [*command, str(folder / name), "-o", str(tmp_path / "out.o")],
            capture_output=True,
            text=True,
            check=False,
        )
        if standard == "gnu99":
            assert (done.returncode, done.stderr) == (0, "")
        else:
            errors = [line for line in done.stderr.splitlines() if "error:" in line]
            assert len(errors) == 1 and "-std=gnu99" in errors[0]


@pytest.mark.parametrize(
    ("cpu", "board"), [("cortex-m4", "mps2-an386"), ("cortex-m3", "mps2-an385")]
)
def test_golden_vectors_pass_on_an_emulated_cortex_m(cpu: str, board: str, tmp_path: Path) -> None:
    needs("arm-none-eabi-gcc", "qemu-system-arm")
    folder = library(tmp_path / "library", load_export_source(CARTPOLE).student)
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "qpd.h"\n'
        'int main(void)\n{\n    printf("failed %d\\n", qpd_check());\n    return 0;\n}\n'
    )
    machine = ROOT / "benchmarks" / "device" / "cortex_m"
    command = ["arm-none-eabi-gcc", "-std=gnu11", "-O2", f"-mcpu={cpu}", "-mthumb", *WARNINGS]
    command += ["-I", str(folder / "src"), "-T", str(machine / "mps2.ld"), "--specs=rdimon.specs"]
    sources = [tmp_path / "main.c", machine / "boot.c", *sorted((folder / "src").glob("*.c"))]
    program = tmp_path / "program.elf"
    subprocess.run([*command, "-o", str(program), *map(str, sources)], check=True)
    emulator = ["qemu-system-arm", "-M", board, "-nographic", "-kernel", str(program)]
    emulator += ["-semihosting-config", "enable=on,target=native"]
    ran = subprocess.run(
        emulator,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "failed 0" in ran.stdout + ran.stderr


def test_the_floats_of_the_golden_vectors_hold_what_sensors_should_not_say(tmp_path: Path) -> None:
    student = load_export_source(CARTPOLE).student
    header = (library(tmp_path / "library", student) / "src" / "qpd_golden.h").read_text()
    last = header.rstrip("}; \n").rsplit("{", 1)[1].split(",")
    values = np.array([int(number, 16) for number in last], dtype=np.uint32).view(np.float32)
    np.testing.assert_array_equal(values, np.array([np.nan, np.inf, -np.inf, 3e38], np.float32))
