"""A CRC-32 in every safetensors file of QPD's: one flipped bit is an error, not another student.

It stands in the file's metadata as `crc32`, 8 hexadecimal digits, over the header without it (JSON
with sorted keys, no spaces) and the tensors' bytes. Files without one are read unchecked.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpd.files.json_input import parse_json

if TYPE_CHECKING:
    from torch import Tensor

_KEY = "crc32"


class DamagedFileError(ValueError):
    """A file's bytes are not those that were written; says how that was seen, without the path."""


def crc32_of(*parts: bytes | memoryview) -> str:
    """CRC-32 of the parts as if they were one, 8 hexadecimal digits."""
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return f"{value:08x}"


def seal_header(header: dict[str, Any], data: memoryview) -> bytes:
    """The header of a safetensors file as bytes, with the checksum of itself and of `data`.

    Keys are sorted: the library writes metadata in random order, and so the same student is the
    same file.
    """
    metadata = {**header.get("__metadata__", {}), _KEY: _checksum(header, data)}
    text = _canonical({**header, "__metadata__": metadata})
    return text + b" " * (-len(text) % 8)


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata (without the checksum) and tensors of a safetensors file.

    Raises:
        OSError: It cannot be read.
        DamagedFileError: It is no safetensors file, or not as it was written.
    """
    import safetensors.torch

    data = path.read_bytes()
    try:
        tensors = safetensors.torch.load(data)
        start = 8 + int.from_bytes(data[:8], "little")
        header = parse_json(data[8:start].decode())
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DamagedFileError(reason) from error
    metadata = header.pop("__metadata__", None) or {}  # null is as good as nothing
    expected = metadata.pop(_KEY, None)
    if metadata:
        header["__metadata__"] = metadata
    if expected is not None and expected != _checksum(header, memoryview(data)[start:]):
        raise DamagedFileError("its checksum does not fit")
    return metadata, tensors


def _checksum(header: dict[str, Any], data: memoryview) -> str:
    return crc32_of(_canonical(header), data)


def _canonical(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
