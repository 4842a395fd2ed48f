"""The README of a C export."""

from __future__ import annotations

from qpd.actions import Box, Discrete, MultiDiscrete
from qpd.export.bundle import ExportSource
from qpd.export.c import sizes
from qpd.export.device_actions import can_sample
from qpd.integer.integer_student import IntegerStudent

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


_ONE_CHOICE = """\
    #include "qpd.h"
    int32_t logits[QPD_ACTIONS];
    int action = qpd_act(observation, logits);    /* the best action */
@SAMPLE@
Compile `qpd_network.c`@SAMPLE_FILE@ into your program. Logits are in units of
@LOGIT_SCALE@ (`QPD_LOGIT_SCALE`)."""
_SAMPLE = (
    "    action = qpd_sample(logits, &random_state);   /* or one drawn from their softmax */\n"
)
_BOX = """\
    #include "qpd.h"
    qpd_action codes[QPD_ACTIONS];                             /* uint8_t */
    qpd_act(observation, codes);                               /* 0 to QPD_ACTION_TOP */
    int32_t pwm = qpd_action_scaled(codes[0], 1000, 2000);     /* integers alone */
    float torque = qpd_action_value(codes[0], 0);              /* if you need it */

Compile `qpd_network.c` and `qpd_actions.c` into your program. Code c of action i stands for
low + c / QPD_ACTION_TOP * (high - low), squash included; `qpd_action_value` gives the integer
engine's float, bit for bit, and `qpd_action_scaled` the nearest integer of any range, halves
up.@ONE_CALL@

| action | low | high |
|---|---|---|
@BOUNDS@"""
_CHOICES = """\
    #include "qpd.h"
    qpd_action action[QPD_ACTIONS];    /* @MEANING@ */
    qpd_act(observation, action);

Compile `qpd_network.c` and `qpd_actions.c` into your program. The logits behind the action are
`int32_t outputs[QPD_OUTPUTS]; qpd_outputs(observation, outputs);`, in units of
@LOGIT_SCALE@ (`QPD_LOGIT_SCALE`); `qpd_decide(outputs, action)` acts by them.@ONE_CALL@"""
_ONE_CALL = """ With
`qpd_encode.c`, `qpd_act_on_floats(values, action)` and
`qpd_act_on_counts(counts, low, high, action)` go from sensor values to the action in one call."""

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
    texts = {"TEST": _SKETCH, "KERNELS": _BOARD_KERNELS}
    if not board:
        texts = {"TEST": _MAKE, "KERNELS": _COMPUTER_KERNELS}
    student = source.student
    inputs = "frames uint8 [4][84][84], oldest first (no scaling)."
    if student.input_low is not None and student.input_high is not None:
        ranges = "\n".join(
            f"| {i} | {low!r} | {high!r} |"
            for i, (low, high) in enumerate(
                zip(student.input_low.tolist(), student.input_high.tolist(), strict=True)
            )
        )
        inputs = (
            "uint8 levels, one a feature: `round(clip((x - low) / (high - low), 0, 1) * 255)`, "
            f"halves to even.\n\n{_SENSORS}\n\n| feature | low | high |\n|---|---|---|\n{ranges}"
        )
    constants = "weights, biases, multipliers, shifts"
    if isinstance(student.actions, Box):
        constants += ", thresholds of codes"
    values = {
        **texts,
        "USE": _use(student),
        "CONSTANTS": constants,
        "NAME": source.name,
        "INPUTS": inputs,
        "BITS": ", ".join(f"{layer.shape.name} {layer.bits}" for layer in student.layers),
        "CONSTANT_BYTES": f"{sizes.c_constant_bytes(student):,}",
        "FILE_BYTES": "-" if source.file_bytes is None else f"{source.file_bytes:,} bytes",
        "FLASH_ARENA_BYTES": f"{sizes.flash_arena_bytes(student):,}",
        "ARENA_BYTES": f"{sizes.arena_bytes(student):,}",
        "LOGIT_SCALE": repr(student.output_scale),
    }
    for key, value in values.items():
        template = template.replace(f"@{key}@", value)
    return template


def _use(student: IntegerStudent) -> str:
    """Return how to call it, by the kind of action."""
    actions = student.actions
    one_call = "" if student.architecture.is_image else _ONE_CALL
    if isinstance(actions, Box):
        bounds = zip(*(bound.tolist() for bound in actions.bounds), strict=True)
        rows = [f"| {i} | {low!r} | {high!r} |" for i, (low, high) in enumerate(bounds)]
        return _BOX.replace("@BOUNDS@", "\n".join(rows)).replace("@ONE_CALL@", one_call)
    if isinstance(actions, Discrete):
        sample, file = (_SAMPLE, " and `qpd_sample.c`") if can_sample(student) else ("", "")
        return _ONE_CHOICE.replace("@SAMPLE@\n", f"{sample}\n").replace("@SAMPLE_FILE@", file)
    meaning = "0 or 1 for each switch"
    if isinstance(actions, MultiDiscrete):
        meaning = f"a choice in each part, of {', '.join(map(str, actions.nvec))}"
    return _CHOICES.replace("@MEANING@", meaning).replace("@ONE_CALL@", one_call)
