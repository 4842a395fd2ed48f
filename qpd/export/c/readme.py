"""The README of a C export."""

from __future__ import annotations

from qpd.export.bundle import ExportSource
from qpd.export.c import sizes
from qpd.export.c.description import actions, agent, features, inputs, program_sources
from qpd.student_files.origin import imitates_policy

_SENSORS = """\
`qpd_encode.c` makes them from sensor values:

    uint8_t levels[QPD_INPUT_BYTES];
    int outside = qpd_levels_from_floats(values, levels);        /* float, in the table's units */
    outside = qpd_levels_from_counts(counts, low, high, levels); /* int32: no float on the device */

`low[i]` and `high[i]` are the counts at which feature i has the values below (`QPD_LOW_0` and so
on in `qpd_student.h`); for a sensor that reads `at_zero` at count 0 and `per_count` more with every
count, `QPD_COUNT(QPD_LOW_0, at_zero, per_count)`. Counts may be any fixed point: multiply counts
and ends alike where an end falls between two counts. `high < low` turns a sensor round.

The ranges are the least and the largest value of each feature in the play that the student was
distilled from, with a twentieth of the width added at either end. What lies beyond saturates at
level 0 or 255, infinities included; NaN is level 0. Both functions return how many features lay
beyond their range or were NaN: a program that wants to stop then can."""

_SCREENS = """\
frames uint8 [4][84][84], oldest first (no scaling). `qpd_preprocess.c` makes them from an
emulator's 210x160 RGB screens."""
_SAMPLE = """\
    action = qpd_sample(logits, &random_state);   /* or one drawn from their softmax */"""
_Q_VALUES = """
Act by the largest logit: the logits stand for Q-values, which are no policy to sample from."""
_EPSILON = """
QPD evaluates students of Q-learners on Atari with a uniform action, in place of the best one, with
probability 0.01."""
_COMPILE = """\
Compile it with your program, here main.c:

    cc -std=c99 -O3 main.c @SOURCES@ -o program

"""
_MAKE = """\
    make test     # golden vectors: every level and logit must be the reference engine's
    make bench    # one JSON line: median and p99 time of a forward pass, memory"""
_COMPUTER_KERNELS = """\
With `-march=native` the fastest kernels that the CPU has are compiled in (AVX512-VNNI, NEON dot
products, the DSP instructions of Cortex-M4); all give the same integers. `PORTABLE=1` leaves them
out. Run `make test` wherever you compile: compilers have bugs too."""
_SKETCH = """\
This is an Arduino and PlatformIO library: copy the folder into the sketchbook's `libraries`, or
name it in `lib_deps` of platformio.ini (`symlink://PATH`). The example GoldenVectors prints PASS
over Serial, at 115,200 baud, if every level and logit on the board is the reference engine's. Run
it on every kind of board: compilers have bugs too."""
_BOARD_KERNELS = """\
On AVR the constants stay in flash (qpd_flash.h); rows of weights are copied to RAM as they are
used, so the static RAM is @FLASH_ARENA_BYTES@ bytes there. Cortex-M4, M7 and M33 use their DSP
instructions. All give the same integers."""


def c_readme(source: ExportSource, template: str, board: bool) -> str:
    """Return the README of one student; for a `board` it has a sketch in place of `make`."""
    student = source.student
    texts = {"TEST": _MAKE, "KERNELS": _COMPUTER_KERNELS, "COMPILE": _COMPILE}
    if board:  # its build system compiles all files
        texts = {"TEST": _SKETCH, "KERNELS": _BOARD_KERNELS, "COMPILE": ""}
    acting = _SAMPLE
    if not imitates_policy(source.about):
        acting = _Q_VALUES + _EPSILON * student.architecture.is_image
    values = {
        **texts,
        "TITLE": f"{source.name}: {agent(source)}, {'an Arduino library' if board else 'in C'}",
        "ABOUT": f"A student of {agent(source)}: {inputs(source)}, {actions(source)}.",
        "ACTING": acting,
        "SOURCES": " ".join(program_sources(source)),
        "INPUTS": _observation(source),
        "BITS": ", ".join(f"{layer.shape.name} {layer.bits}" for layer in student.layers),
        "CONSTANT_BYTES": f"{sizes.weight_bytes(student):,}",
        "FILE_BYTES": "-" if source.file_bytes is None else f"{source.file_bytes:,} bytes",
        "FLASH_ARENA_BYTES": f"{sizes.flash_arena_bytes(student):,}",
        "ARENA_BYTES": f"{sizes.arena_bytes(student):,}",
        "LOGIT_SCALE": repr(student.output_scale),
    }
    for key, value in values.items():
        template = template.replace(f"@{key}@", value)
    return template


def _observation(source: ExportSource) -> str:
    """Return how observations are made: from screens, or each feature from its range."""
    low, high, names = source.student.input_low, source.student.input_high, features(source)
    if low is None or high is None:
        return _SCREENS
    head = (
        "| feature | what it is | low | high |\n|---|---|---|---|"
        if names
        else ("| feature | low | high |\n|---|---|---|")
    )
    rows = [
        f"| {i} |{f' {names[i]} |' if names else ''} {one!r} | {other!r} |"
        for i, (one, other) in enumerate(zip(low.tolist(), high.tolist(), strict=True))
    ]
    return "\n".join(
        [
            "uint8 levels, one a feature: `round(clip((x - low) / (high - low), 0, 1) * 255)`, "
            "halves to even.",
            "",
            _SENSORS,
            "",
            head,
            *rows,
        ]
    )
