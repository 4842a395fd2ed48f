"""Files that are either unchanged or complete: temporary file, fsync, rename, fsync.

A process killed while writing leaves at most a hidden `.NAME.*.tmp` beside the old file; the next
writer of NAME and `remove_leftovers` clear those away.
"""

import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from qpd.files.abandoned import CAN_TELL, hold, remove_abandoned
from qpd.files.bounded_read import open_regular
from qpd.files.tensors import seal_header

if TYPE_CHECKING:
    import torch

_SUFFIX = ".tmp"
_LEFTOVER = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.tmp")


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes `path` when the block ends, and vanishes if it raises.

    Raises:
        OSError: The folder is missing, full or not writable; `path` is then as it was.
    """
    _remove_abandoned_of(path)
    # In the same folder: a rename is atomic within one file system only. The pid and random digits
    # keep two writers of one path apart.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}")
    try:
        with _open_held(temporary) as file:
            yield file
            file.flush()
            # Before the rename: some file systems otherwise commit the new name before the bytes,
            # and a power cut leaves an empty file under the good name.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    # Also on KeyboardInterrupt: Ctrl-C must not leave temporaries behind.
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    sync_folder(path.parent)


def _open_held(temporary: Path) -> BinaryIO:
    """Make the file and lock it, so that no other process takes it for a dead one's."""
    while True:
        file = temporary.open("xb")
        if hold(file.fileno(), temporary):
            return file
        file.close()  # taken for a dead one's just now


def _remove_abandoned_of(path: Path) -> None:
    """Delete what killed writers of `path` left beside it."""
    try:
        names = os.listdir(path.parent)
    except OSError:  # opening the file says it better
        return
    for name in names:
        if name.startswith(f".{path.name}.") and _LEFTOVER.fullmatch(name):
            remove_abandoned(path.with_name(name))


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Make an OSError that names no file, such as a full disk's, name `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            # write() and fsync() fail without a name.
            error.filename = str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Flush `folder`, so that files created or renamed in it survive a power cut."""
    if os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data`."""
    with replace_file(path) as file:
        file.write(data)


def copy_file(source: str | Path, path: str | Path) -> None:
    """Replace `path` by a copy of `source`."""
    with open_regular(source) as original, replace_file(Path(path)) as file:
        shutil.copyfileobj(original, file, 1 << 20)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in UTF-8; line ends stay as they are."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by indented JSON; see `to_plain` for what `value` may hold."""
    text = json.dumps(to_plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def write_safetensors(
    path: Path, tensors: Mapping[str, "torch.Tensor"], metadata: Mapping[str, str] | None = None
) -> None:
    """Replace `path` by a safetensors file; tensors may be on any device and of any layout."""
    write_bytes(path, safetensors_bytes(tensors, metadata))


def safetensors_bytes(
    tensors: Mapping[str, "torch.Tensor"], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return what `write_safetensors` writes; `qpd.files.tensors.read_tensors` detects damage."""
    import safetensors.torch  # costs seconds, and `qpd recipes` never needs it

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    data = memoryview(safetensors.torch.save(plain, metadata=dict(metadata or {}) or None))
    start = 8 + int.from_bytes(data[:8], "little")
    header = seal_header(json.loads(bytes(data[8:start])), data[start:])
    return b"".join([len(header).to_bytes(8, "little"), header, data[start:]])


def to_plain(value: Any) -> Any:
    """Return `value` as JSON types: arrays become lists, paths text, NaN and infinities null.

    Raises:
        TypeError: `value` contains an object of another type.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    # JSON has no NaN or infinity; Python's own writer would emit them all the same.
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # numpy and torch arrays and scalars
        return to_plain(value.tolist())
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def remove_leftovers(folder: Path) -> None:
    """Delete what killed writers left under `folder`.

    Where the system cannot tell who is alive, no other process may be writing there.
    """
    for path in folder.rglob(f".*{_SUFFIX}"):
        if not _LEFTOVER.fullmatch(path.name):
            continue
        if CAN_TELL:
            remove_abandoned(path)
        else:
            path.unlink(missing_ok=True)
