"""Read what `torch.save` wrote before PyTorch 1.6, as data: pickles one after the other.

They are a magic number, a version, the machine, the object, and the keys of its storages; then, in
the order of the keys, the size of each storage and its numbers.
"""

from __future__ import annotations

import io
import sys
from typing import Any

from qpd.teachers.archive.inert_pickle import MAX_PICKLE_BYTES, Reference, next_inert
from qpd.teachers.archive.storage_types import storage_dtype

# torch's MAGIC_NUMBER, 0x1950a86a20f9469cfc6c, as a pickle.
LEGACY_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_VERSION = 1001
_MAX_KEY = 100  # characters; torch wrote addresses


def read_legacy(content: bytes) -> tuple[Any, dict[str, bytes]]:
    """Return the record of what was saved, and the bytes of each storage by its key.

    Raises ValueError, or another exception, where `content` is damaged, or its numbers are in the
    other byte order.
    """
    # Pickles lie before all numbers: no more of a file than this is looked at as one.
    file = io.BytesIO(content[: 4 * MAX_PICKLE_BYTES])
    file.seek(len(LEGACY_MAGIC))
    version, machine = next_inert(file), next_inert(file)
    if version != _VERSION:
        raise ValueError("its version is unknown")
    is_little = machine.get("little_endian") if isinstance(machine, dict) else None
    if is_little is not True or sys.byteorder != "little":
        raise ValueError("its numbers are in the other byte order")
    references: list[Reference] = []
    root = next_inert(file, references)
    keys = next_inert(file)
    if not isinstance(keys, list) or len(set(map(_checked_key, keys))) < len(keys):
        raise ValueError("the keys of its storages are damaged")
    return root, _numbers(content, file.tell(), keys, _element_sizes(references))


def _checked_key(key: Any) -> str:
    if type(key) is not str or len(key) > _MAX_KEY:
        raise ValueError("the key of a storage is no text")
    return key


def _element_sizes(references: list[Reference]) -> dict[str, int]:
    """Return the bytes of a number in each storage that `('storage', TYPE, KEY, ...)` names."""
    sizes: dict[str, int] = {}
    for reference in references:
        key = reference.key
        dtype = storage_dtype(key[1]) if isinstance(key, tuple) and len(key) == 6 else None
        if dtype is None:
            raise ValueError("a storage is of an unknown type")
        if sizes.setdefault(_checked_key(key[2]), dtype.itemsize) != dtype.itemsize:
            raise ValueError(f"storage {key[2][:20]!r} is of two types")
    return sizes


def _numbers(content: bytes, position: int, keys: list[str], sizes: dict[str, int]) -> Any:
    found: dict[str, bytes] = {}
    for key in keys:
        if key not in sizes:
            raise ValueError("a storage belongs to no tensor")
        begin = position + 8
        count = int.from_bytes(content[position:begin], "little", signed=True)
        position = begin + count * sizes[key]
        if count < 0 or position > len(content):
            raise ValueError("a storage reaches beyond the file")
        found[key] = content[begin:position]
    return found
