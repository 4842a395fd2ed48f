"""Action spaces as JSON: written and read back, and anything else refused in one line."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpd.actions import (
    ActionSpace,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    actions_from_json,
    actions_to_json,
)

COUNTS = st.integers(1, 65_536)
BOXES = st.builds(
    lambda bounds, squash, labels, flat, mean_bound: Box(
        tuple(low for low, _ in bounds),
        tuple(low + width for low, width in bounds),
        squash,
        labels,
        (len(bounds),) if flat else (1, len(bounds)),
        mean_bound,
    ),
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(1e-2, 1e3)), min_size=1, max_size=5),
    st.sampled_from(["clip", "tanh"]),
    st.sampled_from(["gaussian", "deterministic"]),
    st.booleans(),
    st.none() | st.floats(1e-3, 1e3),
)
SPACES = st.one_of(
    st.builds(Discrete, COUNTS, st.sampled_from(["logits", "q_values"])),
    st.builds(MultiBinary, COUNTS),
    st.builds(lambda nvec: MultiDiscrete(tuple(nvec)), st.lists(COUNTS, min_size=1, max_size=9)),
    BOXES,
)


@given(SPACES)
def test_what_is_written_is_read_back(actions: ActionSpace) -> None:
    assert actions_from_json(json.loads(json.dumps(actions_to_json(actions)))) == actions


def test_the_text_is_that_of_earlier_files() -> None:
    text = '{"kind": "discrete", "n": 4, "labels": "q_values"}'
    assert json.dumps(actions_to_json(Discrete(4, "q_values"))) == text
    assert actions_to_json(Box((0.0, -1.0), (1.0, 1.0), "tanh")) == {
        "kind": "box",
        "low": [0.0, -1.0],
        "high": [1.0, 1.0],
        "squash": "tanh",
        "labels": "gaussian",
        "shape": [2],
    }


BOX = actions_to_json(Box((0.0, 0.0), (1.0, 1.0)))
DISCRETE = actions_to_json(Discrete(3))
PARTS = actions_to_json(MultiDiscrete((2, 3)))
HOSTILE: list[Any] = [
    *(None, [], "discrete", 3, {}, [BOX]),
    *({"kind": kind} for kind in ("", "Box", "tuple", None, 1, [], {}, ["box"], {"box": 1})),
    *({"kind": kind} for kind in ("discrete", "multi_discrete", "multi_binary", "box")),
    *(DISCRETE | {"n": n} for n in (0, -1, 65_537, 10**400, 3.0, "3", True, None, [3], math.nan)),
    *(DISCRETE | {"labels": labels} for labels in ("", "gaussian", None, 1, [], {})),
    *({"kind": "multi_binary", "n": n} for n in (0, 65_537, True, 2.5, "2")),
    *(PARTS | {"nvec": nvec} for nvec in ([], 2, "22", None, {}, [2, 0], [2, True], [2, 2.0])),
    *(PARTS | {"nvec": nvec} for nvec in ([[2]], [2, "2"], [10**9], [1] * 5000)),
    *(BOX | {"low": [0.0, low]} for low in (math.nan, -math.inf, -1e39, 1.0, 2.0, "0", True)),
    *(BOX | {"low": [0.0, low]} for low in (None, -(10**400), [0.0])),
    *(BOX | {"high": high} for high in ([1.0], [1.0] * 3, [1.0, math.inf], [1.0, 10**400], 1.0)),
    *(BOX | {"shape": shape} for shape in ([], [3], [1, 1], [-1, -2], [2.0], [True, 2], 2, None)),
    *(BOX | {"shape": shape} for shape in ([4096] * 4096, [2, 10**400])),
    *(BOX | {"squash": squash} for squash in ("", "none", None, 1, ["tanh"])),
    *(BOX | {"labels": labels} for labels in ("", "logits", None, 1, {})),
    *({key: BOX[key] for key in BOX if key != left_out} for left_out in BOX),
]


@pytest.mark.parametrize("found", HOSTILE, ids=lambda found: repr(found)[:80])
def test_anything_else_is_refused_in_one_line(found: Any) -> None:
    with pytest.raises(ValueError) as caught:
        actions_from_json(found)
    said = str(caught.value)
    assert said and "\n" not in said and len(said) < 300


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["kind", "n", "nvec", "low", "high", "shape", "squash", "labels"]),
                inner | st.sampled_from(["box", "discrete", "multi_binary", "tanh", "logits"]),
            )
        ),
        max_leaves=10,
    )
)
def test_whatever_is_found_is_read_or_refused(found: Any) -> None:
    try:
        actions = actions_from_json(found)
    except ValueError:
        return
    assert actions_from_json(actions_to_json(actions)) == actions
