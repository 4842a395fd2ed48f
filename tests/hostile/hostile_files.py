"""Builders of hostile files: bombs, lies about sizes, payloads."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

GIB = 1 << 30
DATA = b'{"gamma": 0.99, "n_epochs": 4}'


class Payload:
    """Pickles to a call that makes the folder `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def saved(value: object) -> bytes:
    """Return what torch.save writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def tiny_agent() -> dict[str, torch.Tensor]:
    """The tensors of a PPO agent that sees 3 numbers and knows 2 actions."""
    return {
        "mlp_extractor.policy_net.0.weight": torch.ones(2, 3),
        "mlp_extractor.policy_net.0.bias": torch.zeros(2),
        "mlp_extractor.value_net.0.weight": torch.ones(2, 3),
        "mlp_extractor.value_net.0.bias": torch.zeros(2),
        "action_net.weight": torch.ones(2, 2),
        "action_net.bias": torch.zeros(2),
        "value_net.weight": torch.ones(1, 2),
        "value_net.bias": torch.zeros(1),
    }


def zip_of(members: dict[str, bytes]) -> bytes:
    """An uncompressed zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def with_data_pkl(data_pkl: bytes) -> bytes:
    """A file of torch.save whose pickle is `data_pkl`."""
    with zipfile.ZipFile(io.BytesIO(saved({"a": torch.ones(3)}))) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in members if name.endswith("data.pkl"))
    return zip_of(members | {name: data_pkl})


def deflated_zeros(num_bytes: int) -> bytes:
    """A deflate stream of so many zeros (a multiple of 64 MiB), made without unpacking them."""
    block = 64 << 20
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = compressor.compress(bytes(block)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return first * (num_bytes // block) + b"\x03\x00"


def zip_with_one_deflated(name: str, stream: bytes, declared: int) -> bytes:
    """A zip whose only member claims to unpack to `declared` bytes, whatever `stream` does."""
    encoded = name.encode()
    sizes = struct.pack("<III", 0, len(stream), declared)
    common = struct.pack("<HHHHH", 20, 0, 8, 0, 33) + sizes + struct.pack("<HH", len(encoded), 0)
    local = b"PK\x03\x04" + common + encoded + stream
    central = b"PK\x01\x02" + struct.pack("<H", 20) + common
    central += struct.pack("<HHHII", 0, 0, 0, 0, 0) + encoded
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(central), len(local), 0)
    return local + central + end


def overlapping_zip(num_members: int, num_bytes: int) -> bytes:
    """Members `data/0`, `data/1` ... that all share the bytes of one."""
    first = zip_of({"data/0": bytes(num_bytes)})
    start = first.rindex(b"PK\x01\x02")
    entry = first[start : first.rindex(b"PK\x05\x06")]
    directory = b"".join(entry[:-1] + bytes([48 + number % 10]) for number in range(num_members))
    sizes = (0, 0, num_members, num_members, len(directory), start, 0)
    return first[:start] + directory + struct.pack("<4s4H2LH", b"PK\x05\x06", *sizes)


def zip_with_entries(num_members: int) -> bytes:
    """A zip64 whose list has so many entries of 46 bytes, all of the empty name."""
    entry = b"PK\x01\x02" + bytes(42)
    size = len(entry) * num_members
    zip64 = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, *[num_members] * 2, size, 0)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, size, 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, *[0xFFFF] * 2, *[0xFFFFFFFF] * 2, 0)
    return entry * num_members + zip64 + locator + end


def rebuilt_tensor(size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> bytes:
    """A pickle of `{"a": tensor}` that claims this shape over a storage of 3 floats."""
    from qpd.teachers.archive.inert_pickle import load_inert

    def integers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(_integer(value) for value in values) + b"t"

    storage = b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x03tQ"
    call = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + _integer(offset)
    call += integers(size) + integers(stride) + b"\x89ccollections\nOrderedDict\n)RtR"
    content = b"\x80\x02}X\x01\x00\x00\x00a" + call + b"s."
    load_inert(content, references=True)  # it is a complete pickle
    return content


def _integer(value: int) -> bytes:
    raw = value.to_bytes(9, "little", signed=True)
    return b"\x8a\x09" + raw


def nested_tuple_key(depth: int) -> bytes:
    """A pickle whose dict has a key of so many tuples in each other: hashing it recurses in C."""
    return b"\x80\x04}(" + b")" + b"\x85" * depth + b"K\x01u."


def sharing_key(depth: int = 60) -> bytes:
    """A pickle of 2 `depth` bytes whose key is a tree of 2^`depth` tuples: each is a pair of one.

    A dict, or a set, would visit them all to hash it.
    """
    return b"\x80\x02})" + b"2\x86" * depth + b"K\x01s."


def sharing_lists(depth: int = 60) -> list[Any]:
    """Lists nested likewise."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value, value]
    return value


def safetensors_of(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file that declares `length` bytes of header."""
    declared = len(header) if length is None else length
    return declared.to_bytes(8, "little") + header + data


def student_header(architecture: dict[str, Any], **entries: Any) -> bytes:
    """The header of a float student of this architecture."""
    about = {
        "format": "qpd-float-student",
        "format_version": "1",
        "architecture": json.dumps(architecture),
        "about": "{}",
    }
    return json.dumps({"__metadata__": about, **entries}).encode()


def float_entries(inputs: int, hidden: int) -> tuple[dict[str, Any], int]:
    """The header's entries of a student with two actions, and the bytes of its numbers."""
    layer = "layers.linear1"
    sizes = {"actor.bias": [2], "actor.weight": [2, hidden], "critic.bias": [1],
             "critic.weight": [1, hidden], "input_high": [inputs], "input_low": [inputs],
             f"{layer}.bias": [hidden], f"{layer}.weight": [hidden, inputs]}  # fmt: skip
    entries, end = {}, 0
    for name, shape in sizes.items():
        start, end = end, end + 4 * int(np.prod(shape))
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    return entries, end


def plain_numbers(entries: dict[str, Any], end: int) -> bytes:
    """Zeros for all of `float_entries`, but a range of inputs from 0 to 1."""
    content = np.zeros(end // 4, np.float32)
    start, stop = entries["input_high"]["data_offsets"]
    content[start // 4 : stop // 4] = 1.0
    return content.tobytes()


def torch_file_with(changes: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """The tensors of `tiny_agent` as torch.save writes them, with other members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(tiny_agent()))) as old:
        with zipfile.ZipFile(buffer, "w", compression) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
            for name, content in changes.items():
                new.writestr(name, content)
    return buffer.getvalue()


def live(content: bytes) -> None:
    """Run a pickle, to show that its payload works."""
    pickle.loads(content)
