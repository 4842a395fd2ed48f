"""Settings without effect are told when a run is prepared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qpd.phases.preparation import prepare
from tests.tiny_run import recipe_of


@pytest.mark.parametrize(
    ("changes", "unused"),
    [
        ({"evaluation": {"epsilon": 0.3}}, "evaluation.epsilon=0.3"),
        ({"evaluation": {"epsilon": 0.3, "acting": "epsilon"}}, None),
        ({"collection": {"acting": "greedy", "sharpness": 2.0}}, "collection.sharpness=2"),
        ({"distill": {"label_entropy": 0.2}}, "distill.label_entropy=0.2"),
        ({"quantize": {"action_bits": 4}}, "quantize.action_bits=4"),
        ({"quantize": {"scheme": "dorefa", "per_channel": False}}, "quantize.per_channel=false"),
        ({"quantize": {"equalization": 0.9}}, None),
        (
            {"collection": {"student_fraction": 0.5}, "replay": {"refresh_fraction": 0}},
            "collection.student_fraction=0.5",
        ),
    ],
)
def test_a_setting_without_effect_is_told(
    teacher_zip: Path, changes: dict[str, Any], unused: str | None
) -> None:
    notes = prepare(recipe_of(teacher_zip, **changes), "cpu").notes
    assert [note.partition(" does nothing: ")[0] for note in notes] == ([unused] if unused else [])
