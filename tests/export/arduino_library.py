"""The Arduino library, written and compiled as the IDE does it, for the tests of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from qpd.export.bundle import ExportSource, golden_vectors, write_bundle
from qpd.export.c.arduino import export_arduino
from qpd.integer.integer_student import IntegerStudent

STUB = Path(__file__).parent / "arduino_stub"
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


def library(folder: Path, student: IntegerStudent, name: str = "test") -> Path:
    source = ExportSource(student, {}, name)
    files = export_arduino(source, golden_vectors(student))
    write_bundle(folder, "c-arduino", source, files)
    return folder


def uno_program(folder: Path, sections: Path) -> dict[str, int]:
    """Compile library and example as Arduino's IDE does, C as C and the sketch as C++.

    Returns bytes of `text`, `data` and `bss`; the program is `folder`/program.elf.
    """
    board, objects = ["-mmcu=atmega328p", "-Os", "-ffunction-sections", "-fdata-sections"], []
    sources = sorted((folder / "src").glob("*.c"))
    sketches = [*(folder / "examples").rglob("*.ino"), STUB / "emulated_board.cpp"]
    for source in sources + sketches:
        objects.append(sections / f"{source.stem}.o")
        compiler = ["avr-gcc", "-std=gnu11", "-x", "c"]
        if source in sketches:
            compiler = ["avr-g++", "-std=gnu++11", "-x", "c++", "-include", "Arduino.h"]
        includes = ["-I", str(STUB), "-I", str(folder / "src")]
        command = [*compiler, *board, *WARNINGS, *includes, "-c", str(source), "-o"]
        subprocess.run([*command, str(objects[-1])], check=True)
    link = ["avr-g++", *board, "-Wl,--gc-sections", "-o", str(sections / "program.elf")]
    subprocess.run([*link, *map(str, objects)], check=True)
    size = ["avr-size", str(sections / "program.elf")]
    numbers = subprocess.run(size, capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(numbers[:3], map(int, numbers[6:9]), strict=True))
