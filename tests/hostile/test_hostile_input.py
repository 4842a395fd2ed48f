"""Files from strangers: nothing in them runs, and each is refused or read within fixed bounds.

Every file is read in a process that may add 1 GiB of address space and use 10 s of processor time
(`tests.hostile.bounded_reader`); most take far less, and the test says so.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from qpd.student_files.distilled import MAX_PARAMETERS
from tests.hostile.bounded_reader import BoundedReader, refused
from tests.hostile.hostile_files import (
    DATA,
    GIB,
    Payload,
    deflated_zeros,
    float_entries,
    live,
    nested_tuple_key,
    overlapping_zip,
    plain_numbers,
    rebuilt_tensor,
    safetensors_of,
    saved,
    sharing_key,
    sharing_lists,
    student_header,
    tiny_agent,
    torch_file_with,
    with_data_pkl,
    zip_of,
    zip_with_entries,
    zip_with_one_deflated,
)

MIB = 1 << 20


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def agent(**members: bytes) -> bytes:
    """An SB3 zip that reads, unless `members` say otherwise (`policy_pth` is policy.pth)."""
    found = {name.replace("_pth", ".pth").replace("_pkl", ".pkl"): v for name, v in members.items()}
    return zip_of({"data": DATA, "policy.pth": saved(tiny_agent())} | found)


def test_a_plain_agent_reads(reader: BoundedReader, tmp_path: Path) -> None:
    outcome = reader.read("sb3_zip", write(tmp_path, "agent.zip", agent()))
    assert outcome.kind == "read", outcome


def test_no_pickle_in_an_archive_or_beside_it_runs(reader: BoundedReader, tmp_path: Path) -> None:
    target = tmp_path / "was-run"
    payload = pickle.dumps(Payload(target))
    in_tensors = tiny_agent() | {"action_net.bias": Payload(target)}
    buffer = io.BytesIO()
    torch.save(in_tensors, buffer, _use_new_zipfile_serialization=False)
    hostile = [
        agent(data=payload),
        agent(policy_pth=payload),
        agent(policy_pth=saved(in_tensors)),
        agent(policy_pth=buffer.getvalue()),
        agent(policy_pth=with_data_pkl(payload)),
    ]
    for number, content in enumerate(hostile):
        refused(reader.read("sb3_zip", write(tmp_path, f"{number}.zip", content)))
    extra = {"pytorch_variables_pth": saved(Payload(target)), "vecnormalize_pkl": payload}
    path = write(tmp_path, "extra.zip", agent(**extra, __init__py=b"import os"))
    assert reader.read("sb3_zip", path).kind == "read"  # members that nobody asks for
    folder = tmp_path / "ppo" / "CartPole-v1_1"
    folder.mkdir(parents=True)
    write(folder, "vecnormalize.pkl", payload)
    path = write(folder, "CartPole-v1.zip", agent())
    refused(reader.read("sb3_zip", path), "expected a VecNormalize, found posix.mkdir")
    assert not target.exists()
    live(payload)
    assert target.is_dir()


def _many_tensors() -> bytes:
    """A pickle of 40,000 tensors of one storage, whose key has 8 million characters."""
    key = b"X\0\0\x80\0" + b"0" * (8 << 20)
    storage = b"(U\7storagectorch\nFloatStorage\n" + key + b"U\3cpuK\3tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0)))NtRq\0" + b"0"
    names = b"".join(b"X\4\0\0\0%04xh\0" % number for number in range(40_000))
    return b"\x80\x02" + tensor + b"}(" + names + b"u."


def _statistics_of_type(number_type: bytes) -> bytes:
    """A VecNormalize whose mean has, for the name of its number type, what these opcodes push."""
    mean = b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(" + number_type + b"tRC\0tR"
    rms = b"ca.b\nRunningMeanStd\n)\x81}X\4\0\0\0mean" + mean + b"sb"
    return b"\x80\x04ca.b\nVecNormalize\n)\x81}X\7\0\0\0obs_rms" + rms + b"sb."


POLICIES = {
    "a second pickle": (torch_file_with({"other/data.pkl": b"N."}), "2 members data.pkl"),
    "TorchScript": (torch_file_with({"x/constants.pkl": b"N.", "x/data.pkl": b"N."}), "2 members"),
    "compressed": (torch_file_with({}, zipfile.ZIP_DEFLATED), "compressed"),
    "overlapping members": (overlapping_zip(1000, 1 << 20), ""),
    "many members": (zip_with_entries(60_000), "list of members is longer"),
    "other byte order": (
        with_data_pkl(b"N.").replace(b"little", b"big\0\0\0"),
        "",
    ),
    "huge view": (with_data_pkl(rebuilt_tensor((1 << 20, 1 << 20), (0, 0))), "declares 1.1e+12"),
    "overflowing view": (with_data_pkl(rebuilt_tensor((1 << 39,) * 8, (0,) * 8)), "declares"),
    "beyond its storage": (with_data_pkl(rebuilt_tensor((2, 2), (2, 1))), "reaches beyond"),
    "from elsewhere": (with_data_pkl(rebuilt_tensor((1,), (1,), 1 << 38)), "reaches beyond"),
    "backwards": (with_data_pkl(rebuilt_tensor((2,), (-1,), 2)), "shape of 'a' is damaged"),
    "negative shape": (with_data_pkl(rebuilt_tensor((-1,), (1,))), "shape of 'a' is damaged"),
    "many axes": (with_data_pkl(rebuilt_tensor((1,) * 70, (1,) * 70)), "shape of 'a'"),
    "nested tuples": (with_data_pkl(nested_tuple_key(400_000)), "has tuple as a key"),
    "tuples that share": (with_data_pkl(sharing_key()), "has tuple as a key"),
    "a pickle of 17 MB": (with_data_pkl(bytes(17 << 20)), "at most 16777216 are read"),
    "one name for many": (with_data_pkl(_many_tensors()), "at most 10000 are read"),
    "endless steps": (with_data_pkl(b"\x80\x02" + b"N0" * 2_000_000 + b"N."), "1000000 steps"),
    "many classes": (
        with_data_pkl(b"\x80\x02" + b"".join(b"ca\n%d\n0" % n for n in range(5000)) + b"N."),
        "contains NoneType",
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_tensors_that_lie(reader: BoundedReader, tmp_path: Path, name: str) -> None:
    content, expected = POLICIES[name]
    outcome = reader.read("sb3_zip", write(tmp_path, "agent.zip", agent(policy_pth=content)))
    refused(outcome, expected, most_mib=300)


def test_zip_bombs(reader: BoundedReader, tmp_path: Path) -> None:
    ten_gib = deflated_zeros(10 * GIB)
    assert len(ten_gib) < 12 * MIB
    for declared, expected in ((10 * GIB % (1 << 32), "declares"), (100, "")):
        for name in ("data", "policy.pth"):
            content = zip_with_one_deflated(name, ten_gib, declared)
            refused(reader.read("sb3_zip", write(tmp_path, "agent.zip", content)), expected)
    nested = agent()
    for _ in range(20):
        nested = zip_of({"data": nested, "policy.pth": nested[:1000]})
    refused(reader.read("sb3_zip", write(tmp_path, "agent.zip", nested)))
    refused(
        reader.read("sb3_zip", write(tmp_path, "agent.zip", zip_with_entries(1_000_000))),
        "list of members is longer",
    )
    sparse = tmp_path / "sparse.zip"
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    refused(reader.read("sb3_zip", sparse), "at most 1073741824 are read")


def test_the_largest_json_that_is_read_stays_within_bounds(
    reader: BoundedReader, tmp_path: Path
) -> None:
    lists = b"[" + b"[]," * ((16 * MIB - 4) // 3) + b"1]"
    numbers = b"[" + b"1," * (8 * MIB - 2) + b"1]"
    for data in (lists, numbers, b"[" * 16 * MIB):
        path = write(tmp_path, "agent.zip", agent(data=data))
        refused(reader.read("sb3_zip", path), "member 'data'", most_mib=700)


def test_numbers_beyond_floats_and_deep_values_are_left_out(
    reader: BoundedReader, tmp_path: Path
) -> None:
    deep = b"[" * 900 + b"]" * 900
    data = b'{"n_epochs": 4, "gamma": 1' + b"0" * 400 + b', "observation_space": {"low": %s}}'
    path = write(tmp_path, "agent.zip", agent(data=data % deep))
    outcome = reader.read("sb3_zip", path)
    assert outcome.kind == "read", outcome


def test_names_that_lead_elsewhere_are_only_names(reader: BoundedReader, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    buffer = io.BytesIO(agent(**{"../escaped": b"x", "/tmp/qpd-escaped": b"x", "..\\up": b"x"}))
    with zipfile.ZipFile(buffer, "a") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    outcome = reader.read("sb3_zip", write(folder, "agent.zip", buffer.getvalue()))
    assert outcome.kind == "read", outcome
    assert [p.name for p in tmp_path.rglob("*")] == ["a", "b", "agent.zip"]
    assert not Path("/tmp/qpd-escaped").exists()
    content = zip_of({"../data": DATA, "../policy.pth": saved(tiny_agent())})
    refused(reader.read("sb3_zip", write(folder, "agent.zip", content)), "has no member data")


PICKLES = {
    "tuples that share": sharing_key(),
    "a set of them": b"\x80\x04\x8f()" + b"2\x86" * 60 + b"\x90.",
    "a frozen set of them": b"\x80\x04()" + b"2\x86" * 60 + b"\x91.",
    "the same in old sets": b"c__builtin__\nset\n(]()" + b"2\x86" * 60 + b"etR.",
    "a number type of them": _statistics_of_type(b")" + b"2\x86" * 60),
    "numbers as keys": b"\x80\x02}("
    + b"".join(b"J" + n.to_bytes(4, "little") + b"N" for n in range(400_000))
    + b"u.",
    "one long text as a key": b"\x80\x02X\0\0\x80\0"
    + b"a" * (8 << 20)
    + b"q\0}"
    + b"h\0Ns" * 300_000
    + b".",
    "long integers": b"\x80\x02\x8b\0\0\xf0\0" + b"\x7f" * (15 << 20) + b"0N.",
    "deep objects": b"\x80\x02)ca\nb\nq\x000" + b"\x85q\1h\0h\1R" * 140_000 + b".",
    "deep states": b"\x80\x02ca\nb\nq\0)R" + b"h\0)R" * 200_000 + b"b" * 200_000 + b".",
    "marks": b"(" * 999_000 + b".",
    "nested tuples": nested_tuple_key(400_000),
    "endless steps": b"\x80\x02" + b"N0" * 8_000_000 + b"N.",
    "many classes": b"\x80\x02" + b"".join(b"ca\n%d\n0" % n for n in range(100_000)) + b"N.",
    "huge memo": b"Nr\xff\xff\xff\x7f.",
    "huge bytes": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
    "many digits": b"I" + b"9" * 1_000_000 + b"\n.",
    "deep lists": b"]" * 900_000 + b"a" * 899_999 + b".",
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_beside_an_agent(reader: BoundedReader, tmp_path: Path, name: str) -> None:
    path = write(tmp_path, "vecnormalize.pkl", PICKLES[name])
    refused(reader.read("vec_normalize", path), "vecnormalize.pkl", most_mib=300)


def test_lists_that_share_in_an_optimizer(reader: BoundedReader, tmp_path: Path) -> None:
    groups = [{"lr": 0.1, "params": sharing_lists()}]
    many: list[dict[str, list[int]]] = [{str(n): [0] * 100 for n in range(30)}] * 100
    for found in (groups, [{"lr": sharing_lists()}], many):
        optimizer = saved({"state": {}, "param_groups": found})
        content = agent(**{"policy.optimizer_pth": optimizer})
        path = write(tmp_path, "agent.zip", content)
        refused(reader.read("sb3_zip", path), "its param_groups")


LINEAR = {"observation_shape": [2], "num_actions": 2, "conv_channels": [], "hidden": [3]}
ENTRY = {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}
STUDENTS = {
    "huge header": (safetensors_of(b"{}", length=1 << 62), "at most 1048576 are read"),
    "header of keys": (
        safetensors_of(b"{" + b",".join(b'"%d":0' % n for n in range(200_000)) + b"}"),
        "a header of",
    ),
    "nested header": (safetensors_of(b'{"a":' * 100_000), "damaged, or not a safetensors"),
    "overlapping tensors": (
        safetensors_of(student_header(LINEAR, a=ENTRY, b=ENTRY), bytes(24)),
        "damaged, or not a safetensors",
    ),
    "huge shape": (
        safetensors_of(student_header(LINEAR, a={**ENTRY, "shape": [1 << 40, 1 << 40]}), bytes(24)),
        "damaged, or not a safetensors",
    ),
    "huge layers": (
        safetensors_of(student_header({**LINEAR, "hidden": [65536] * 16})),
        "layers.linear1.weight is missing",
    ),
    "wide layers": (safetensors_of(student_header({**LINEAR, "hidden": [10**12]})), "from 1 to"),
    "many layers": (safetensors_of(student_header({**LINEAR, "hidden": [1] * 99_999})), "at most"),
    "no axes": (
        safetensors_of(student_header({**LINEAR, "observation_shape": []})),
        "need 1 or 3 axes",
    ),
    "no metadata": (safetensors_of(b'{"__metadata__":null}'), "was not written as"),
    "metadata of the wrong type": (
        safetensors_of(b'{"__metadata__":{"crc32":7}}'),
        "damaged, or not a safetensors",
    ),
    "checksum of something else": (
        safetensors_of(b'{"__metadata__":{"crc32":"00000000"}}'),
        "its checksum does not match",
    ),
    "nested metadata": (
        safetensors_of(student_header(LINEAR).replace(b'"{', b'"' + b"[" * 100_000 + b"{")),
        "nested too deeply",
    ),
}


@pytest.mark.parametrize("name", STUDENTS)
def test_students_that_lie(reader: BoundedReader, tmp_path: Path, name: str) -> None:
    content, expected = STUDENTS[name]
    path = write(tmp_path, "distilled.safetensors", content)
    refused(reader.read("student", path), expected)


def test_the_largest_student_stays_within_bounds(reader: BoundedReader, tmp_path: Path) -> None:
    entries, end = float_entries(65_000, 240)
    assert 0.9 * MAX_PARAMETERS < end / 4 < MAX_PARAMETERS
    header = student_header({**LINEAR, "observation_shape": [65_000], "hidden": [240]}, **entries)
    content = safetensors_of(header, plain_numbers(entries, end))
    outcome = reader.read("student", write(tmp_path, "distilled.safetensors", content))
    assert outcome.kind == "read" and outcome.added_bytes < 500 * MIB, outcome


def test_students_of_nan_and_of_holes(reader: BoundedReader, tmp_path: Path) -> None:
    path = tmp_path / "distilled.safetensors"
    entries, end = float_entries(2, 3)
    header = student_header(LINEAR, **entries)
    nan = np.full(end // 4, np.nan, np.float32).tobytes()
    path.write_bytes(safetensors_of(header, nan))
    refused(reader.read("student", path), "weights that are not finite")
    path.write_bytes(safetensors_of(header, plain_numbers(entries, end)))
    assert reader.read("student", path).kind == "read"
    half = [entry | {"dtype": "F8_E4M3", "shape": [4 * n for n in entry["shape"][:1]] +
            entry["shape"][1:]} for entry in entries.values()]  # fmt: skip
    path.write_bytes(
        safetensors_of(student_header(LINEAR, **dict(zip(entries, half, strict=True))), bytes(end))
    )
    refused(reader.read("student", path), "not torch.float32")
    huge = {"dtype": "F32", "shape": [1 << 36], "data_offsets": [0, 1 << 38]}
    header = student_header(LINEAR, a=huge)
    path.write_bytes(safetensors_of(header))
    with path.open("r+b") as file:
        file.truncate(8 + len(header) + (1 << 38))
    refused(reader.read("student", path), "at most 67108864 are read")
    refused(reader.read("packed_student", path), "at most 67108864 are read")
