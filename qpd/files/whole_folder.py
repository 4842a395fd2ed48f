"""Folders that appear whole: built beside their place under a hidden name, then renamed.

A process killed meanwhile leaves a hidden `.NAME.*.new` or `.NAME.*.old`; whoever next writes a
folder into the same parent removes it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from qpd.files.abandoned import hold, put_back_abandoned, remove_abandoned
from qpd.files.atomic import sync_folder

_LEFTOVER = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.(?P<kind>new|old)")


@contextmanager
def whole_folder(place: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `place` when the block ends, and vanishes if it raises.

    A folder that is there is replaced: `place` is as it was, or complete. Of a link the folder that
    it leads to is meant. Raises OSError.
    """
    place = Path(os.path.realpath(place))  # `.` and `..` have no name
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_made(place, error) from error
    _remove_leftovers(place.parent)
    with ExitStack() as held:
        # On the same file system, where a rename is atomic; random names keep two writers apart.
        fresh = _held_new(place, held)
        former = fresh.with_suffix(".old")
        try:
            yield fresh
            _sync(fresh)  # else a power cut may leave the name without the bytes
            try:
                # A rename cannot replace a folder that holds files: the former one steps aside.
                if place.exists():
                    _hold(place, held)
                    place.rename(former)
                fresh.rename(place)
            except BaseException:  # Ctrl-C as well
                if former.exists() and not place.exists():
                    former.rename(place)
                raise
            sync_folder(place.parent)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
            if place.exists():  # else the next writer puts the former one back
                shutil.rmtree(former, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Have every file and folder below on the disk."""
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        elif not path.is_symlink():
            # Windows syncs no file that is open for reading, nor one that is read-only.
            mode = "r+b" if os.name == "nt" else "rb"
            with suppress(PermissionError), path.open(mode) as file:
                os.fsync(file.fileno())
    sync_folder(folder)


def is_current_folder(folder: Path) -> bool:
    """Return whether the process works in `folder`, which then cannot be replaced."""
    return folder.is_dir() and folder.samefile(Path.cwd())


def _held_new(place: Path, held: ExitStack) -> Path:
    while True:
        fresh = place.with_name(f".{place.name}.{secrets.token_hex(4)}.new")
        try:
            fresh.mkdir()
        except OSError as error:
            raise _not_made(place, error) from error
        if _hold(fresh, held):
            return fresh


def _not_made(place: Path, error: OSError) -> OSError:
    """Return the error of a folder under the name that the user has heard of."""
    return OSError(error.errno, f"cannot be made: {error.strerror}", str(place))


def _hold(folder: Path, held: ExitStack) -> bool:
    if os.name == "nt":  # Windows cannot open folders
        return True
    descriptor = os.open(folder, os.O_RDONLY)
    held.callback(os.close, descriptor)
    return hold(descriptor, folder)


def _remove_leftovers(parent: Path) -> None:
    for path in list(parent.glob(".*.*")):
        found = _LEFTOVER.fullmatch(path.name)
        if found is None:
            continue
        if found["kind"] == "old":  # killed between the two renames: it is the only one
            put_back_abandoned(path, parent / found["name"])
        remove_abandoned(path)
