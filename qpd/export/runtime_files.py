"""Files in the bundles of all runtimes: golden vectors, a self-test, a README."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from qpd.actions import Box, Discrete, MultiDiscrete
from qpd.environments.registry import action_names
from qpd.errors.terminal_text import printable, visible
from qpd.export.bundle import ExportSource, GoldenVectors
from qpd.export.device_actions import device_actions, environment_actions
from qpd.export.observation_words import (
    form_words,
    is_plain,
    one_observation,
    parts_words,
    stack_words,
)
from qpd.integer.integer_student import IntegerStudent
from qpd.student_files.origin import acting_hint
from qpd.version import __version__, pip_install


def golden_npz(
    source: ExportSource, golden: GoldenVectors, shown: Mapping[str, np.ndarray] | None = None
) -> bytes:
    """Return the bytes of golden.npz: `observations`, `logits` (int32) and their `logit_scale`.

    With `shown`, these arrays stand in place of `observations`.

    Unless actions are one choice, there are `actions` as the environment takes them, and where they
    are continuous their `codes`, uint8, and `action_bits`; `choices` counts those of each part.
    `logits` are the head's accumulators.
    """
    file, student = io.BytesIO(), source.student
    answers: dict[str, Any] = dict(shown or {"observations": golden.observations})
    if not isinstance(student.actions, Discrete):
        answers["actions"] = environment_actions(student, golden.logits)
    if isinstance(student.actions, Box):
        answers["codes"] = device_actions(student, golden.logits)
        answers["action_bits"] = np.uint8(student.action_bits)
    if isinstance(student.actions, MultiDiscrete):
        answers["choices"] = np.array(student.actions.nvec)
    np.savez_compressed(
        file,
        logits=golden.logits,
        logit_scale=np.float32(student.output_scale),
        **answers,
    )
    return file.getvalue()


def bundle_text(name: str, fields: Mapping[str, str]) -> bytes:
    """Return the text of `bundle_files/<name>` in UTF-8 with every `$field` filled in."""
    text = files("qpd.export").joinpath("bundle_files", name).read_text(encoding="utf-8")
    shown = {key: visible(value) for key, value in fields.items()}
    # substitute(), not safe_substitute(): a field that was forgotten fails here and not in a
    # reader's shell.
    return Template(text).substitute({"pip_install_train": pip_install("train"), **shown}).encode()


def model_metadata(source: ExportSource) -> dict[str, str]:
    """Return a model file's metadata as text: origin, preprocessing, meaning of the outputs."""
    student = source.student
    env_id = printable(" ".join(str(source.about.get("env_id", "unknown")).split()))
    is_atari = bool(student.architecture.stacks_frames)
    names = action_names(env_id) if isinstance(student.actions, Discrete) else None
    return {
        "student": source.name,
        "env_id": env_id,
        "preprocessing": _preprocessing(student, source.about),
        "logit_scale": repr(student.output_scale),
        "actions": json.dumps(names) if names else _actions_in_words(student),
        "acting": acting_hint(source.about, student.actions, is_atari),
        **_actions_in_numbers(student),
        "weight_bits": json.dumps([layer.bits for layer in student.layers]),
        "qpd_version": __version__,
    }


def _preprocessing(student: IntegerStudent, about: dict[str, Any]) -> str:
    """Return how observations are made, in words."""
    if student.architecture.stacks_frames:
        return (
            "4 grey frames of 84x84 as Stable-Baselines3's AtariWrapper makes them (maximum of the "
            "last two of 4 emulator frames, area resize), oldest first, uint8 0..255, not divided "
            "by 255"
        )
    as_it_is, own = " as it is" * is_plain(about), one_observation(about)
    parts = parts_words(about)
    if student.architecture.image_shape is not None:
        size = "x".join(map(str, student.architecture.image_shape))
        text = f"the image of {own}{as_it_is}, "
        if stacked := stack_words(about, "images"):
            text += f"{stacked}, along the channels: "
        if student.architecture.is_image:
            return f"{text}{size} channels first, uint8 0..255, not divided by 255"
        text += f"{size} channels first, pixels 0..255 not divided by 255, and behind it "
        return text + (parts or f"{student.architecture.num_features} numbers of its other parts")
    text = f"the parts of {own}, {parts}" if parts else f"the vector of {own}{as_it_is}"
    if form := form_words(about):
        text = f"the observation of {own}{as_it_is} in one vector, {form}"
    return ", ".join(filter(None, [text, stack_words(about, "vectors")]))


def _actions_in_words(student: IntegerStudent) -> str:
    if isinstance(student.actions, Discrete):
        return f"0..{student.architecture.num_outputs - 1}"
    return str(student.actions)


def _actions_in_numbers(student: IntegerStudent) -> dict[str, str]:
    actions, found = student.actions, {"action_kind": student.actions.kind}
    if isinstance(actions, Box):
        found["action_low"] = json.dumps(actions.low)
        found["action_high"] = json.dumps(actions.high)
        found["action_shape"] = json.dumps(actions.shape)
        found["action_bits"] = str(student.action_bits)
    if isinstance(actions, MultiDiscrete):
        found["action_nvec"] = json.dumps(actions.nvec)
    return found
