"""The README of a C export."""

from __future__ import annotations

from qpd.actions import Box, Discrete, MultiDiscrete
from qpd.export.bundle import ExportSource
from qpd.export.c import sizes
from qpd.export.c.description import (
    actions,
    agent,
    can_sample,
    features,
    inputs,
    program_sources,
)
from qpd.export.c.geometry import is_own_image
from qpd.export.observation_words import form_words, one_observation, parts_words, stack_words

_SENSORS = """\
`qpd_encode.c` makes them from sensor values:

    uint8_t levels[QPD_FEATURES];
    int outside = qpd_levels_from_floats(values, levels);        /* float, in the table's units */
    outside = qpd_levels_from_counts(counts, low, high, levels); /* int32: no float on the device */

`low[i]` and `high[i]` are the counts at which feature i has the values below (`QPD_LOW_0` and so
on in `qpd_student.h`); for a sensor that reads `at_zero` at count 0 and `per_count` more with every
count, `QPD_COUNT(QPD_LOW_0, at_zero, per_count)`. Counts may be any fixed point: multiply counts
and ends alike where an end falls between two counts. `high < low` turns a sensor round.

@RANGES@ What lies beyond saturates at
level 0 or @TOP@, infinities included; NaN is level 0. Both functions return how many features lay
beyond their range or were NaN: a program that wants to stop then can."""

_PLAYED = """\
The ranges are those of each feature in the play that the student was distilled from: of its values
one in 2,000 may lie beyond either end. A twentieth of the width is added at either end; a feature
that never varied has a width of 1."""
_ROUNDED = """\
The ranges are those of each feature in 16 games that the agent itself played: of its values one in
2,000 may lie beyond either end. A twentieth of the width is added at either end. A feature that
never varied, or hardly, has a range of a hair's width: a sensor's value of it counts as outside."""
_WATCHED = """\
The ranges are those of each feature in the agent's training. A twentieth of the width is added at
either end."""
_LEARNED = """\
The ranges are the ends of the grid of inputs that the controller has learned, in the units of the
raw observation: its normalization is in them."""

_SCREENS = """\
frames uint8 [4][84][84], oldest first (no scaling). `qpd_preprocess.c` makes them from an
emulator's 210x160 RGB screens."""
_IMAGE = """\
uint8 [@CHANNELS@][@HEIGHT@][@WIDTH@], that is `[QPD_CHANNELS][QPD_HEIGHT][QPD_WIDTH]` (no scaling):
the environment's image, channels first, as Stable-Baselines3 has it. The level of channel c, row y,
column x is `observation[(c * QPD_HEIGHT + y) * QPD_WIDTH + x]`. @STACK@"""
_JOINED = """\
@IMAGE@

Behind the image come the levels of @NUMBER@ features, from `observation[QPD_INPUT_BYTES -
QPD_FEATURES]` on: give the functions below that address for `levels`, and write the image's bytes
before it. They are """
_ONE_CHOICE = """\
    #include "qpd.h"
    int32_t logits[QPD_ACTIONS];
    int action = qpd_act(observation, logits);    /* the best action */
@ACTING@"""
_BOX = """\
    #include "qpd.h"
    qpd_action codes[QPD_ACTIONS];                            /* uint8_t, 0 to QPD_ACTION_TOP */
    qpd_act(observation, codes);
    int32_t pulse = qpd_action_scaled(codes[0], 1000, 2000);  /* for a DAC or a PWM timer */
    float value = qpd_action_value(codes[0], 0);              /* in the environment's units */"""
_CHOICES = """\
    #include "qpd.h"
    qpd_action action[QPD_ACTIONS];    /* @NUMBERS@ */
    qpd_act(observation, action);"""
_LOGITS = "Logits are in units of @LOGIT_SCALE@ (`QPD_LOGIT_SCALE`)."
_OUTPUTS = """\
`qpd_outputs(observation, outputs)` gives the QPD_OUTPUTS logits behind the action, int32, in units
of @LOGIT_SCALE@ (`QPD_LOGIT_SCALE`); `qpd_decide(outputs, action)` acts by them."""
_CODES = """\
Code c of action i stands for low + c / QPD_ACTION_TOP * (high - low), squash included.
`qpd_action_value` gives the integer engine's float, bit for bit; `qpd_action_scaled` the nearest
integer of any range, halves up. `qpd_outputs(observation, outputs)` gives the accumulators behind
the codes, int32.

| action | low | high |
|---|---|---|
@BOUNDS@"""
_ONE_CALL = """

`qpd_act_on_floats(values, action)` and `qpd_act_on_counts(counts, low, high, action)` go from
sensor values, which are explained below, to the action in one call."""
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
used, so the static RAM is @FLASH_RAM_BYTES@ bytes there. Cortex-M4, M7 and M33 use their DSP
instructions. All give the same integers."""


def c_readme(source: ExportSource, template: str, board: bool) -> str:
    """Return the README of one student; for a `board` it has a sketch in place of `make`."""
    student = source.student
    texts = {"TEST": _MAKE, "KERNELS": _COMPUTER_KERNELS, "COMPILE": _COMPILE}
    if board:  # its build system compiles all files
        texts = {"TEST": _SKETCH, "KERNELS": _BOARD_KERNELS, "COMPILE": ""}
    constants = "weights, biases, multipliers, shifts"
    if student.tables:
        constants += f", {student.architecture.activation} as a table"
    if isinstance(student.actions, Box):
        constants += ", thresholds of codes"
    beside = sizes.range_bytes(student)
    if beside:
        constants += f"; ranges, where they are linked, take {beside:,} bytes more"
    use, meaning = _use(source)
    values = {
        **texts,
        "TITLE": f"{source.name}: {agent(source)}, {'an Arduino library' if board else 'in C'}",
        "ABOUT": _about(source),
        "USE": use,
        "MEANING": meaning,
        "CONSTANTS": constants,
        "SOURCES": " ".join(program_sources(source)),
        "INPUTS": _observation(source),
        "BITS": ", ".join(f"{layer.shape.name} {layer.bits}" for layer in student.layers),
        "CONSTANT_BYTES": f"{sizes.c_constant_bytes(student):,}",
        "FILE_BYTES": "-" if source.file_bytes is None else f"{source.file_bytes:,} bytes",
        "FLASH_RAM_BYTES": f"{sizes.flash_ram_bytes(student):,}",
        "ARENA_BYTES": f"{sizes.arena_bytes(student):,}",
        "LOGIT_SCALE": repr(student.output_scale),
    }
    for key, value in values.items():
        template = template.replace(f"@{key}@", value)
    return template


def _about(source: ExportSource) -> str:
    text = f"A student of {agent(source)}: {inputs(source)}, {actions(source)}."
    if (own := one_observation(source.about)) != source.about.get("env_id", own):
        text += f" It reads the observations of {own}."
    if form := form_words(source.about):
        text += f" The environment's observation becomes these features so: {form}."
    elif source.about.get("feature_forms") and (parts := parts_words(source.about)):
        text += f" They are {parts}."
    return text


def _stack(source: ExportSource, what: str) -> str:
    """Say how observations are stacked; of images also that they are not."""
    if stacked := stack_words(source.about, what):
        along = " along the channels" if what == "images" else ""
        return f"{stacked[0].upper()}{stacked[1:]}{along}: keep them, and shift at each step."
    return "No frames are stacked: one image, one action." if what == "images" else ""


def _use(source: ExportSource) -> tuple[str, str]:
    """Return the calls that act, and what their numbers are worth, by the kind of action."""
    student, space = source.student, source.student.actions
    if isinstance(space, Discrete):
        acting = _SAMPLE
        if not can_sample(source):
            acting = _Q_VALUES + _EPSILON * bool(student.architecture.stacks_frames)
        return _ONE_CHOICE.replace("@ACTING@", acting), _LOGITS
    one_call = "" if is_own_image(student) or student.architecture.is_image else _ONE_CALL
    if isinstance(space, Box):
        bounds = zip(*(bound.tolist() for bound in space.bounds), strict=True)
        rows = [f"| {i} | {low!r} | {high!r} |" for i, (low, high) in enumerate(bounds)]
        return _BOX, _CODES.replace("@BOUNDS@", "\n".join(rows)) + one_call
    numbers = "0 or 1 for each switch"
    if isinstance(space, MultiDiscrete):
        numbers = f"a choice in each part, of {', '.join(map(str, space.nvec))}"
    return _CHOICES.replace("@NUMBERS@", numbers), _OUTPUTS + one_call


def _observation(source: ExportSource) -> str:
    """Return how observations are made: images as they are, from screens, or from features."""
    architecture, before = source.student.architecture, ""
    if is_own_image(source.student):
        sides = ("CHANNELS", "HEIGHT", "WIDTH")
        image = _IMAGE.replace("@STACK@", _stack(source, "images"))
        for name, size in zip(sides, architecture.image_shape or (), strict=True):
            image = image.replace(f"@{name}@", str(size))
        if architecture.is_image:
            return image
        before = _JOINED.replace("@IMAGE@", image)
        before = before.replace("@NUMBER@", str(architecture.num_features))
    else:
        before = f"{stacked} " if (stacked := _stack(source, "vectors")) else ""
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
    text = "\n".join(
        [
            f"{before}uint8 levels, one a feature: "
            "`round(clip((x - low) / (high - low), 0, 1) * @TOP@)`, halves to even.",
            "",
            _SENSORS,
            "",
            head,
            *rows,
        ]
    )
    ranges = _ROUNDED if source.about.get("method") == "agent" else _PLAYED
    if source.about.get("phase") == "train":
        ranges = _WATCHED if source.about.get("scheme") == "dorefa_scaled" else _LEARNED
    return text.replace("@RANGES@", ranges).replace("@TOP@", str(source.student.input_levels))
