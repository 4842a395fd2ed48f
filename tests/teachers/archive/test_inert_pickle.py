"""Pickles as data: plain values as pickle reads them, everything else as a record."""

from __future__ import annotations

import collections
import fractions
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qpd.teachers.archive import inert_pickle
from qpd.teachers.archive.inert_pickle import Global, Recorded, Reference, load_inert
from qpd.teachers.archive.pickled_array import as_array
from qpd.teachers.archive.torch_file import read_param_groups, read_state_dict

KEYS = st.one_of(
    st.text(max_size=5),
    st.integers(-(2**70), 2**70),
    st.none(),
    st.booleans(),
    st.binary(max_size=3),
    st.tuples(st.integers(0, 9), st.text(max_size=2)),
)
SCALARS = st.one_of(KEYS, st.floats(allow_nan=False), st.builds(bytearray, st.binary(max_size=3)))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
    ),
    max_leaves=20,
)


@given(VALUES, st.integers(0, 5))
def test_plain_values_are_those_that_were_pickled(value: Any, protocol: int) -> None:
    if protocol < 5 and _holds(value, bytearray) or protocol < 3 and _holds(value, bytes):
        return  # older protocols call a function for them
    read = load_inert(pickle.dumps(value, protocol))
    assert read == value and repr(read) == repr(value)  # repr tells True from 1


def _holds(value: Any, kind: type) -> bool:
    inside = value if isinstance(value, list | tuple) else []
    if isinstance(value, dict):
        inside = [*value.keys(), *value.values()]
    return isinstance(value, kind) or any(_holds(part, kind) for part in inside)


@pytest.mark.parametrize("protocol", range(6))
def test_what_shares_and_what_holds_itself(protocol: int) -> None:
    one: list[Any] = [1, 2]
    ring: list[Any] = [one, one]
    ring.append(ring)
    read = load_inert(pickle.dumps(ring, protocol))
    assert read[0] is read[1] and read[2] is read and read[0] == [1, 2]


def test_objects_are_records() -> None:
    ordered = load_inert(pickle.dumps(collections.OrderedDict(a=1, b=[2]), 4))
    assert (ordered.global_name, ordered.arguments) == ("collections.OrderedDict", ())
    assert ordered.items == [("a", 1), ("b", [2])]
    half = load_inert(pickle.dumps(fractions.Fraction(1, 2), 4))
    assert (half.global_name, half.arguments) == ("fractions.Fraction", (1, 2))
    name = load_inert(pickle.dumps(dict, 4))
    assert isinstance(name, Global) and name.global_name == "builtins.dict"
    argument = load_inert(pickle.dumps(np.dtype("<f4"), 4))
    assert argument.global_name == "numpy.dtype" and argument.arguments[0] == "f4"
    assert isinstance(argument.state, tuple)
    for sets in ({1, 2}, frozenset({1, 2})):
        assert isinstance(load_inert(pickle.dumps(sets, 4)), Recorded)


def test_what_lies_outside_is_a_reference() -> None:
    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return ("storage", 7) if value == "far" else None

    stream = io.BytesIO()
    Pickler(stream, 2).dump(["far", "near"])
    far, near = load_inert(stream.getvalue(), references=True)
    assert isinstance(far, Reference) and (far.key, near) == (("storage", 7), "near")
    with pytest.raises(ValueError, match="BINPERSID is refused"):
        load_inert(stream.getvalue())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x80\x02})K\x01s.", ""),  # an empty tuple is a key
        (b"\x80\x02}]K\x01s.", "has list as a key"),
        (b"\x80\x02})\x85K\x01s.", "has tuple as a key"),
        (b"\x80\x02}(" + b"N" * 9 + b"tK\x01s.", "has tuple as a key"),
        (b"\x80\x02}ca\nb\nNs.", "has Global as a key"),
        (b"\x80\x02}(K\x01u.", "zip"),  # a key without a value
        (b"\x80\x06N.", "protocol 6"),
        (b"\x80\x02K\x01)R.", "calls what is no global"),
        (b"\x80\x02]}b.", "sets the state of list"),
        (b"\x80\x02}K\x01a.", "added to dict"),
        (b"\x80\x02]K\x01K\x02s.", "set in list"),
        (b"\x80\x02h\x05.", "out of range"),
        (b"\x80\x02N", "exhausted"),
        (b"\x80\x04K\x01K\x02\x93.", "no text"),
        (b"\x80\x04(K\x01\x8c\x01a\x8c\x01b\x93)}\x92.", ""),  # NEWOBJ_EX
        (b"\x80\x02\x8a\x81" + b"\x7f" * 129 + b".", "more than 1024 bits"),
        (b"\x80\x05\x97.", "NEXT_BUFFER is refused"),
        (b"(ia\nb\n.", ""),  # INST
        (b"(ca\nb\nK\x01o.", ""),  # OBJ
    ],
)
def test_what_no_agent_needs_is_refused(content: bytes, expected: str) -> None:
    if not expected:
        load_inert(content)
        return
    with pytest.raises(ValueError, match=expected):
        load_inert(content)


def test_work_is_bounded_by_steps_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inert_pickle, "MAX_OPCODES", 10)
    assert load_inert(b"N0" * 4 + b"N.") is None  # ten steps
    with pytest.raises(ValueError, match="more than 10 steps"):
        load_inert(b"N0" * 5 + b"N.")
    monkeypatch.setattr(inert_pickle, "MAX_PICKLE_BYTES", 9)
    with pytest.raises(ValueError, match="10 bytes; at most 9 are read"):
        load_inert(b"N0" * 4 + b"N.")


def test_number_types_and_byte_orders_that_are_no_text() -> None:
    scalar = pickle.dumps(np.float64(0.5), 2)
    assert as_array(load_inert(pickle.dumps(np.float64(0.5), 4))) == 0.5
    assert b"X\x02\x00\x00\x00f8" in scalar
    record = load_inert(pickle.dumps(np.float64(0.5), 4))
    dtype = record.arguments[0]
    for change in ({"arguments": ((), *dtype.arguments[1:])}, {"state": (3, (), *dtype.state[2:])}):
        for name, value in change.items():
            before = getattr(dtype, name)
            setattr(dtype, name, value)
            with pytest.raises(ValueError, match="not text|is unknown"):
                as_array(record)
            setattr(dtype, name, before)


def _saved(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def test_settings_of_an_optimizer_are_flat() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    adam = torch.optim.Adam(parameters, lr=0.5, betas=(0.8, 0.9)).state_dict()
    (group,) = read_param_groups(_saved(adam))
    assert group == adam["param_groups"][0]
    assert (group["lr"], group["betas"], group["params"]) == (0.5, (0.8, 0.9), [0, 1, 2])
    for wrong in ({"lr": [[1]]}, {"lr": {}}, {"lr": torch.ones(1)}):
        with pytest.raises(ValueError, match="more than plain numbers"):
            read_param_groups(_saved({"state": {}, "param_groups": [wrong]}))


def test_a_shared_tensor_counts_once() -> None:
    """Of SB3's three names of a shared extractor; anything else might take more memory, or time."""
    one, other = torch.ones(4, 5), torch.ones(20)
    names = ("features_extractor", "pi_features_extractor", "vf_features_extractor")
    shared = {name: one for name in names}
    assert read_state_dict(_saved(shared), 20).keys() == shared.keys()
    wide, half = torch.ones(1).expand(4, 5), one.half()
    for more, count in (
        ({"head": other}, 40),
        ({"fourth": one}, 40),
        ({"turned": one.T, "turned again": one.T}, 60),
        ({"a": wide, "b": wide}, 60),  # a copy of it would be 20 numbers
        ({"a": half, "b": half}, 60),  # a network has them in float32
    ):
        content = _saved(shared | more)
        assert len(read_state_dict(content, count)) == 3 + len(more)
        with pytest.raises(ValueError, match=f"declares {count} numbers"):
            read_state_dict(content, count - 1)


def test_a_pickle_of_ten_thousand_tensors_reads() -> None:
    one = torch.arange(6.0).reshape(2, 3)
    tensors = read_state_dict(_saved({f"layer.{n}": one for n in range(10_000)}), 60_000)
    assert len(tensors) == 10_000 and torch.equal(tensors["layer.7"], one)
    with pytest.raises(ValueError, match="10001 tensors; at most 10000"):
        read_state_dict(_saved({f"layer.{n}": one for n in range(10_001)}), 1 << 20)
