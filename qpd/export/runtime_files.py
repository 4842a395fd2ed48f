"""Files in the bundles of all runtimes: golden vectors, a self-test, a README."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from importlib.resources import files
from string import Template

import numpy as np

from qpd.environments.registry import action_names
from qpd.export.bundle import ExportSource, GoldenVectors
from qpd.student_files.origin import acting_hint
from qpd.version import __version__, pip_install


def golden_npz(source: ExportSource, golden: GoldenVectors) -> bytes:
    """Return the bytes of golden.npz: `observations`, `logits` (int32) and their `logit_scale`."""
    file = io.BytesIO()
    np.savez_compressed(
        file,
        observations=golden.observations,
        logits=golden.logits,
        logit_scale=np.float32(source.student.output_scale),
    )
    return file.getvalue()


def bundle_text(name: str, fields: Mapping[str, str]) -> bytes:
    """Return the text of `bundle_files/<name>` in UTF-8 with every `$field` filled in."""
    text = files("qpd.export").joinpath("bundle_files", name).read_text(encoding="utf-8")
    # substitute(), not safe_substitute(): a field that was forgotten fails here and not in a
    # reader's shell.
    return Template(text).substitute({"pip_install_train": pip_install("train"), **fields}).encode()


def model_metadata(source: ExportSource) -> dict[str, str]:
    """Return a model file's metadata as text: origin, preprocessing, meaning of the outputs."""
    student, env_id = source.student, str(source.about.get("env_id", "unknown"))
    frames = (
        "4 grey frames of 84x84 as Stable-Baselines3's AtariWrapper makes them (maximum of the last"
        " two of 4 emulator frames, area resize), oldest first, uint8 0..255, not divided by 255"
    )
    names = action_names(env_id)
    return {
        "student": source.name,
        "env_id": env_id,
        "preprocessing": frames if student.architecture.is_image else f"{env_id}'s vector as it is",
        "logit_scale": repr(student.output_scale),
        "actions": json.dumps(names) if names else f"0..{student.architecture.num_outputs - 1}",
        "acting": acting_hint(source.about, student.architecture.is_image),
        "weight_bits": json.dumps([layer.bits for layer in student.layers]),
        "qpd_version": __version__,
    }
