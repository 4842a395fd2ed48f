"""Regular files alone are read, and never more of them than was asked for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from qpd.files.atomic import copy_file
from qpd.files.bounded_read import TooLargeError, open_regular, read_file
from qpd.files.json_input import parse_json, read_json
from qpd.files.tensors import read_tensors


def test_files_of_up_to_the_bound(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"a\r\nb\x1a\0")
    link.symlink_to(path)
    for most in (6, 7, None):
        assert read_file(path, most) == read_file(str(link), most) == b"a\r\nb\x1a\0"
    with pytest.raises(TooLargeError, match="^6 bytes; at most 5 are read$"):
        read_file(path, 5)


def test_a_file_that_says_it_is_empty() -> None:
    path = Path("/proc/self/maps")
    assert path.stat().st_size == 0 < len(read_file(path, 1 << 24))
    with pytest.raises(TooLargeError, match="at most 10 are read"):
        read_file(path, 10)


def special_files(folder: Path) -> list[Path]:
    """A pipe that nobody writes to, a device without end, a socket, a folder."""
    os.mkfifo(folder / "pipe")
    (folder / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as opened:
        before = Path.cwd()
        os.chdir(folder)  # a socket's path is short
        opened.bind("socket")
        os.chdir(before)
    (folder / "folder").mkdir()
    return [folder / name for name in ("pipe", "zero", "socket", "folder")]


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    for path in special_files(tmp_path):
        for read in (open_regular, read_json, read_tensors, lambda p: read_file(p, None)):
            with pytest.raises(OSError) as caught:
                read(path)
            assert caught.value.filename == str(path) and caught.value.strerror
        with pytest.raises(OSError):
            copy_file(path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    with pytest.raises(OSError, match="is not a regular file"):
        open_regular(tmp_path / "zero")


def test_no_file_stays_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(OSError):
            read_file(tmp_path / "pipe", 10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_numbers_that_only_other_programs_write() -> None:
    text = '{"a": NaN, "b": -Infinity, "c": 1e999, "d": 1' + "0" * 400 + "}"
    read = parse_json(text, any_number=True)
    assert read["a"] != read["a"] and read["b"] == -float("inf") == -read["c"]
    assert read["d"] == 10**400
    with pytest.raises(ValueError, match="NaN is not a JSON number"):
        parse_json(text)
    for any_number in (False, True):
        with pytest.raises(ValueError, match="the key 'a' is given twice"):
            parse_json('{"b": {"a": 1, "a": 2}}', any_number=any_number)
        with pytest.raises(ValueError, match="surrogate"):
            parse_json('"\\ud800"', any_number=any_number)
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json("[" * 100_000, any_number=any_number)
