"""One flipped bit in a file of tensors, or in the memory's frames, is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from qpd.actions import Discrete
from qpd.environments.transition import TransitionBatch
from qpd.files.atomic import safetensors_bytes, write_safetensors
from qpd.files.tensors import DamagedFileError, crc32_of, read_tensors
from qpd.replay.memory import ReplayMemory

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).view(2, 3),
    "b": torch.tensor([7], dtype=torch.uint8),
}
METADATA = {"format": "x", "about": '{"name": "é"}'}
CONTENT = safetensors_bytes(TENSORS, METADATA)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    write_safetensors(file, TENSORS, METADATA)
    metadata, tensors = read_tensors(file)
    assert metadata == METADATA  # the checksum is nobody else's business
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert torch.equal(load_file(file)["a"], TENSORS["a"])  # any reader of safetensors reads it


def test_the_checksum_is_the_crc_32_of_all_else() -> None:
    assert crc32_of(b"1234", b"56789") == "cbf43926"  # the check value of CRC-32
    size = int.from_bytes(CONTENT[:8], "little")
    header = json.loads(CONTENT[8 : 8 + size])
    checksum = header["__metadata__"].pop("crc32")
    rest = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    assert checksum == crc32_of(rest, CONTENT[8 + size :])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(bit=st.integers(0, 8 * len(CONTENT) - 1))
def test_no_flipped_bit_gives_other_content(bit: int, tmp_path: Path) -> None:
    data = bytearray(CONTENT)
    data[bit // 8] ^= 1 << bit % 8
    file = tmp_path / "x.safetensors"
    file.write_bytes(data)
    try:
        metadata, tensors = read_tensors(file)
    except DamagedFileError:
        return
    # In the checksum's own name, or another spelling of the same JSON: nothing else has changed.
    assert METADATA.items() <= metadata.items()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_files_of_others_are_read_unchecked(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "x", METADATA)
    assert read_tensors(tmp_path / "x")[0] == METADATA
    save_file(TENSORS, tmp_path / "y")
    assert read_tensors(tmp_path / "y")[0] == {}


def filled(file: Path) -> ReplayMemory:
    """A memory that has come round: 3 streams of images, 40 transitions kept of 60."""
    memory, rng = (
        ReplayMemory(40, 3, (4, 84, 84), 4, Discrete(2), file, spare=6),
        np.random.default_rng(0),
    )
    for step in range(20):
        frames = rng.integers(0, 256, (3, 4, 84, 84), dtype=np.uint8)
        memory.add(
            TransitionBatch(
                frames, np.full(3, step), np.arange(3), torch.zeros(3, 2), torch.zeros(3)
            )
        )
    return memory


def test_frames_are_compared_with_their_checksums(tmp_path: Path) -> None:
    memory = filled(tmp_path / "replay.bin")
    memory.check_frames()
    again = ReplayMemory(40, 3, (4, 84, 84), 4, Discrete(2), tmp_path / "replay.bin", spare=6)
    again.load_state_dict(memory.state_dict())
    again.check_frames()
    data = np.memmap(tmp_path / "replay.bin", np.uint8, "r+").reshape(-1, 21 * 21 * 16)
    oldest, newest = memory.transition_rows()[[0, -1]]
    data[oldest, 1000] ^= 4
    with pytest.raises(DamagedFileError, match=f"row {oldest} "):
        again.check_frames()
    again.check_frames(drawn=False)  # what a rollout of phase 3 with rewards may overwrite
    data[newest, 7055] ^= 128
    with pytest.raises(DamagedFileError, match=f"row {newest} "):
        again.check_frames(drawn=False)


def test_rows_that_nothing_draws_may_be_anything(tmp_path: Path) -> None:
    memory = filled(tmp_path / "replay.bin")
    data = np.memmap(tmp_path / "replay.bin", np.uint8, "r+").reshape(-1, 21 * 21 * 16)
    next_row = memory.num_added % (len(data) - 1) + 1  # where a killed process may have written
    data[next_row] = 1
    memory.check_frames()
