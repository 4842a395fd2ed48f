"""Read a state_dict that `torch.save` wrote, without torch.load.

Since PyTorch 1.6 such a file is a zip of uncompressed members: PREFIX/data.pkl says which tensors
there are, and PREFIX/data/KEY holds their numbers; `legacy_torch_file` reads older ones. The pickle
is read inertly, so that nothing in it can run or reach native code, and no more memory is used than
the file is long.
"""

import io
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any

import torch
from torch import Tensor

from qpd.teachers.archive.inert_pickle import Recorded, Reference, load_inert
from qpd.teachers.archive.legacy_torch_file import LEGACY_MAGIC, read_legacy
from qpd.teachers.archive.storage_types import storage_dtype
from qpd.teachers.archive.zip_input import open_zip, read_member

# A convolution's weight has 4.
_MAX_DIMENSIONS = 8
_MAX_TENSORS = 10_000  # a NatureCNN's agent has some 30
_MOST_NAMES = 3  # of one tensor: a shared extractor is the actor's, the critic's and the policy's
_MAX_SETTINGS = 100_000  # of an optimizer: a number for each tensor, and a dozen more


def read_state_dict(content: bytes, max_elements: int) -> dict[str, Tensor]:
    """Return the tensors by name; they are views of one copy of their numbers.

    Raises ValueError, or another exception, where `content` is damaged, holds more than plain
    tensors, or declares more than `max_elements` numbers. A view may repeat them, and then they
    count each time; a whole tensor under several names, as of a shared extractor, counts once.
    """
    root, numbers = _read_file(content)
    storages = _Storages(numbers)
    tensors: dict[str, Tensor] = {}
    names: Counter[tuple[int, int, tuple[int, ...]]] = Counter()
    num_elements = 0
    items = _items(root)
    if len(items) > _MAX_TENSORS:
        raise ValueError(f"it names {len(items)} tensors; at most {_MAX_TENSORS} are read")
    for name, record in items:
        if not isinstance(name, str):
            raise ValueError(f"the name of a tensor is of type {type(name).__name__}")
        flat, shape, stride, offset = _view(record, storages, name)
        place = (flat.data_ptr(), offset, shape)
        if not (_is_taken_as_it_is(flat, shape, stride) and 0 < names[place] < _MOST_NAMES):
            num_elements += prod(shape)  # a view of stride 0 can be far larger than its file
        names[place] += 1
        if num_elements > max_elements:
            raise ValueError(
                f"it declares {num_elements:.4g} numbers; at most {max_elements} are read"
            )
        is_empty = 0 in shape
        tensors[name] = (
            # as_strided checks nothing that `_view` has not: offsets beyond the storage were
            # refused there.
            flat.new_empty(shape) if is_empty else flat.as_strided(shape, stride, offset)
        )
    if not tensors:
        raise ValueError("it contains no tensors")
    return tensors


def read_param_groups(content: bytes) -> list[dict[str, Any]]:
    """Return the settings of an optimizer's state_dict: plain numbers, no tensors.

    Raises ValueError, or another exception, where `content` is damaged or holds something else.
    """
    root, _numbers = _read_file(content)
    groups = root.get("param_groups") if isinstance(root, dict) else None
    if not isinstance(groups, list) or not groups:
        raise ValueError("it contains no param_groups")
    num_values = 0  # counted as often as they are named: a pickle may name one list a million times
    for group in groups:
        if not isinstance(group, dict):
            raise ValueError("its param_groups contain more than plain numbers")
        num_values += 1 + len(group)
        for value in group.values():
            # Flat: `betas` and `params` are lists of numbers.
            parts = value if isinstance(value, list | tuple) else (value,)
            num_values += len(parts)
            if num_values > _MAX_SETTINGS:
                raise ValueError(f"its param_groups name more than {_MAX_SETTINGS} values")
            if not all(x is None or isinstance(x, bool | int | float | str) for x in parts):
                raise ValueError("its param_groups contain more than plain numbers")
    return groups


def _read_file(content: bytes) -> tuple[Any, dict[str, bytes]]:
    """Return the record of what was saved, and the bytes of each storage by its key."""
    if content.startswith(LEGACY_MAGIC):
        return read_legacy(content)
    members = _read_members(content)
    prefix = _prefix(members)
    # Files of before PyTorch 2.1 lack this member: they count as this machine's.
    if members.get(f"{prefix}byteorder", sys.byteorder.encode()) != sys.byteorder.encode():
        raise ValueError("its numbers are in the other byte order")
    root = load_inert(members[f"{prefix}data.pkl"], references=True)
    folder = f"{prefix}data/"
    return root, {n.removeprefix(folder): m for n, m in members.items() if n.startswith(folder)}


def _read_members(content: bytes) -> dict[str, bytes]:
    """Read all members; uncompressed, together they are no longer than `content`."""
    if not content.startswith(b"PK"):
        raise ValueError("it is not a file of torch.save: damaged")
    with open_zip(io.BytesIO(content)) as archive:
        infos = archive.infolist()
        # Of two members with one name, readers differ in which they take.
        if len({info.filename for info in infos}) < len(infos):
            raise ValueError("it has two members of one name")
        if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
            raise ValueError("it is compressed; PyTorch never does that")
        if any(info.compress_size != info.file_size for info in infos):
            raise ValueError("a member has two sizes")
        if sum(info.file_size for info in infos) > len(content):
            raise ValueError("its members are larger than the file, or overlap")
        return {info.filename: read_member(archive, info) for info in infos}


def _prefix(members: Iterable[str]) -> str:
    # The prefix is the name that the file had when it was saved: archive/, policy/ ...
    pickles = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise ValueError(f"it has {len(pickles)} members data.pkl instead of one")
    return pickles[0].removesuffix("data.pkl")


def _items(root: Any) -> list[tuple[Any, Any]]:
    if isinstance(root, dict):
        return list(root.items())
    if isinstance(root, Recorded) and root.global_name == "collections.OrderedDict":
        return root.items
    found = root.global_name if isinstance(root, Recorded) else type(root).__name__
    raise ValueError(f"it contains {found} instead of a state_dict")


class _Storages:
    """The numbers that tensors are views of, each member converted once."""

    def __init__(self, numbers: dict[str, bytes]) -> None:
        self._numbers = numbers
        self._flat: dict[str, Tensor] = {}

    def flat(self, reference: Any) -> Tensor:
        """Return the flat tensor that `('storage', TYPE, KEY, device, size)` names."""
        key = reference.key if isinstance(reference, Reference) else None
        # A sixth part was once the view that a storage is of another one.
        is_view = isinstance(key, tuple) and len(key) == 6 and key[5] is not None
        if not isinstance(key, tuple) or len(key) not in (5, 6) or key[0] != "storage" or is_view:
            raise ValueError("a tensor refers to no storage")
        name, dtype = key[2], storage_dtype(key[1])
        content = self._numbers.get(name) if type(name) is str else None
        if content is None or dtype is None:
            raise ValueError("a storage is missing, or of an unknown type")
        if name not in self._flat:
            # A bool other than 0 and 1 is undefined: bytes are compared instead.
            raw = torch.uint8 if dtype == torch.bool else dtype
            empty = torch.empty(0, dtype=raw)
            flat = torch.frombuffer(bytearray(content), dtype=raw) if content else empty
            self._flat[name] = flat != 0 if dtype == torch.bool else flat
        if self._flat[name].dtype != dtype:
            raise ValueError(f"storage {name[:20]!r} is of two types")
        return self._flat[name]


def _view(
    record: Any, storages: _Storages, name: str
) -> tuple[Tensor, tuple[int, ...], tuple[int, ...], int]:
    """Return numbers, shape, stride and offset of the tensor that a recorded call would build.

    The call is `_rebuild_tensor_v2(storage, offset, shape, stride, ...)`, or a parameter's of one.
    """
    # nn.Parameter wraps a tensor's call; gradients and hooks, its other arguments, are of no use
    # here.
    if _is_call(record, "torch._utils._rebuild_parameter", 3):
        record = record.arguments[0]
    if not _is_call(record, "torch._utils._rebuild_tensor_v2", 6):
        kind = record.global_name if isinstance(record, Recorded) else type(record).__name__
        raise ValueError(f"{name[:100]!r} is {kind[:100]}; expected plain tensors")
    reference, offset, shape, stride = record.arguments[:4]
    flat = storages.flat(reference)
    if not _are_sizes((offset,)) or not _are_sizes(shape) or not _are_sizes(stride):
        raise ValueError(f"the shape of {name[:100]!r} is damaged")
    if len(shape) != len(stride):
        raise ValueError(f"the shape of {name[:100]!r} is damaged")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if 0 not in shape and last >= flat.numel():
        raise ValueError(f"{name[:100]!r} reaches beyond its storage")
    return flat, shape, stride, offset


def _is_taken_as_it_is(flat: Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether a network needs no copy of such a view: float32, its numbers in a row."""
    steps = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return flat.dtype == torch.float32 and stride == tuple(steps)


def _is_call(record: Any, global_name: str, num_arguments: int) -> bool:
    """Return whether it is such a call; newer versions may have appended arguments."""
    return (
        isinstance(record, Recorded)
        and record.global_name == global_name
        and len(record.arguments) >= num_arguments
    )


def _are_sizes(values: Any) -> bool:
    if not isinstance(values, tuple) or len(values) > _MAX_DIMENSIONS:
        return False
    return all(type(n) is int and 0 <= n < 1 << 40 for n in values)
