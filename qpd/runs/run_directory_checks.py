"""What a folder must be before a run directory is made or opened there."""

import json
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout
from pydantic import ValidationError

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.files.json_input import read_json
from qpd.files.tensors import crc32_of
from qpd.recipe.loading import load_recipe
from qpd.recipe.schema import Recipe, RecipeError
from qpd.recipe.yaml_text import MAX_RECIPE_BYTES
from qpd.runs.manifest import FORMAT_VERSION, Manifest

LOCK_NAME = ".lock"
_SEAL: Final = "crc32"
LOG_NAME = "sweep.log"  # what the process of a sweep's cell prints
# Keys that recipes had once: runs made with them stay readable, whatever their value.
REMOVED_KEYS = (("distill", "processes"), ("finetune", "processes"))


class RunDirectoryError(UserError, ValueError):
    """What is wrong with a run directory, one line each, in `lines`."""

    code = ErrorCode.RUN_DAMAGED


def refuse_foreign(path: Path) -> None:
    """Raise if `path` is a file, or a folder that holds files which no run wrote."""
    if not path.exists():
        return
    if not path.is_dir():
        raise RunDirectoryError(
            [f"{path}: is a file; a run needs a folder"], ErrorCode.RUN_NOT_A_RUN
        )
    names = sorted(item.name for item in path.iterdir())
    before_any_run = (LOCK_NAME, LOG_NAME)
    foreign = [n for n in names if n not in before_any_run and not n.startswith(".manifest.json.")]
    if foreign and "manifest.json" not in names:
        raise RunDirectoryError(
            [
                f"{path}: holds other files ({foreign[0]}) and no manifest.json; put a copy of it "
                "back if there was one, or choose a new folder"
            ],
            ErrorCode.OUTPUT_TAKEN,
        )


def acquire_lock(path: Path) -> FileLock:
    """Lock the directory for this process; a killed owner's lock frees itself."""
    lock = FileLock(path / LOCK_NAME, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise RunDirectoryError(
            [f"{path}: another process is working in it"], ErrorCode.RUN_IN_USE
        ) from None
    except OSError as error:
        raise RunDirectoryError(
            [f"{path}: cannot be locked: {error.strerror}"], ErrorCode.RUN_UNWRITABLE
        ) from error
    return lock


def read_manifest(path: Path) -> Manifest:
    """Return the checked manifest of the run directory `path`.

    Raises:
        RunDirectoryError: It cannot be read, or is not one of this version.
    """
    file = path / "manifest.json"
    way = f"put a copy of it back, or delete the folder {path} to begin anew"
    try:
        content = read_json(file)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RunDirectoryError([f"{file}: cannot be read: {reason}; {way}"]) from error
    seal = content.pop(_SEAL, None) if isinstance(content, dict) else None
    if seal is not None and sealed(content)[_SEAL] != seal:
        raise RunDirectoryError([f"{file}: is damaged (its checksum does not fit); {way}"])
    version = content.get("format_version") if isinstance(content, dict) else None
    if version is None:
        raise RunDirectoryError(
            [f"{file}: is no manifest of QPD: it has no format_version"], ErrorCode.RUN_NOT_A_RUN
        )
    if version != FORMAT_VERSION:
        raise RunDirectoryError(
            [f"{file}: format_version {version!r:.40}; this QPD reads {FORMAT_VERSION}"],
            ErrorCode.RUN_FORMAT,
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        raise RunDirectoryError(
            [
                f"{file}: {'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
                for item in error.errors(include_url=False)
            ]
        ) from error


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """A manifest's content (JSON types) with its CRC-32, which `read_manifest` checks."""
    return {**content, _SEAL: crc32_of(json.dumps(content, sort_keys=True).encode())}


def read_recipe(path: Path, manifest: Manifest) -> Recipe:
    """Return the resolved recipe of the run directory `path`.

    Raises:
        RunDirectoryError: It is missing or wrong, or not the one that its `manifest` means.
    """
    file = path / "recipe.yaml"
    way = "`qpd run` with the recipe that the run began with writes it anew"
    if not file.is_file():
        raise RunDirectoryError(
            [f"{path}: is not a whole run directory: recipe.yaml is missing; {way}"]
        )
    if file.stat().st_size > MAX_RECIPE_BYTES:
        raise RunDirectoryError([f"{file}: is larger than {MAX_RECIPE_BYTES >> 10} KiB; {way}"])
    known = manifest.recipe_crc32
    if known and crc32_of(file.read_bytes()) not in known:
        raise RunDirectoryError(
            [f"{file}: is damaged or was edited; put a copy of it back, or {way}"]
        )
    try:
        return load_recipe(file, ignored=REMOVED_KEYS)
    except RecipeError as error:
        raise RunDirectoryError(error.lines) from error
