"""A CRC-32 in every safetensors file of QPD: a flipped bit is an error, not a different student.

It stands in the file's metadata as `crc32`, 8 hexadecimal digits, over the header without it (JSON
with sorted keys, no spaces) and the tensors' bytes. Files without one are read unchecked.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpd.files.bounded_read import read_file
from qpd.files.json_input import parse_json

if TYPE_CHECKING:
    from torch import Tensor

_KEY = "crc32"


class DamagedFileError(ValueError):
    """A file differs from what was written; the message says how that shows, without the path."""


def crc32_of(*parts: bytes | memoryview) -> str:
    """Return the CRC-32 of the concatenated parts as 8 hexadecimal digits."""
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return f"{value:08x}"


def seal_header(header: dict[str, Any], data: memoryview) -> bytes:
    """Return a safetensors header as bytes, with the checksum of itself and of `data`.

    Keys are sorted: the library writes metadata in random order, and so the same student is the
    same file.
    """
    metadata = {**header.get("__metadata__", {}), _KEY: _checksum(header, data)}
    text = _canonical({**header, "__metadata__": metadata})
    # Spaces, which JSON ignores, so that the tensors begin at a multiple of 8 bytes, as the library
    # itself pads.
    return text + b" " * (-len(text) % 8)


def read_tensors(
    path: Path, most_bytes: int | None = None
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read the metadata (without the checksum) and tensors of a safetensors file.

    Args:
        path: The file.
        most_bytes: The longest that such a file may be; None for what QPD itself wrote.

    Raises:
        OSError: The file cannot be read, or is no regular one.
        TooLargeError: It is longer.
        DamagedFileError: It is not a safetensors file, or differs from what was written.
    """
    # Imported here: it pulls in torch, which commands that read no tensors should not wait for.
    import safetensors.torch

    data = read_file(path, most_bytes)
    try:
        tensors = safetensors.torch.load(data)
        # The format: 8 bytes of header length, little-endian, the JSON header, the tensors' bytes.
        start = 8 + int.from_bytes(data[:8], "little")
        header = parse_json(data[8:start].decode())
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DamagedFileError(reason) from error
    metadata = header.pop("__metadata__", None) or {}  # null is as good as nothing
    # The checksum cannot cover itself: both sides compute it over the header without this key.
    expected = metadata.pop(_KEY, None)
    if metadata:
        header["__metadata__"] = metadata
    if expected is not None and expected != _checksum(header, memoryview(data)[start:]):
        raise DamagedFileError("its checksum does not match")
    return metadata, tensors


def _checksum(header: dict[str, Any], data: memoryview) -> str:
    return crc32_of(_canonical(header), data)


def _canonical(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
