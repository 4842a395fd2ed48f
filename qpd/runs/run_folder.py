"""Keep what run directories and trainings share: lock, sealed manifest, one recipe."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.files.atomic import sync_folder, to_plain, write_json
from qpd.files.json_input import MAX_MANIFEST_BYTES, read_json
from qpd.files.tensors import crc32_of
from qpd.recipe.differences import recipe_differences
from qpd.recipe.section import RecipeSection
from qpd.runs.manifest import FORMAT_VERSION, Evaluation, RunOrigin

AnyManifest = TypeVar("AnyManifest", bound=RunOrigin)

LOCK_NAME = ".lock"
LOG_NAME = "sweep.log"  # what the process of a sweep's cell prints
_MAX_DIFFERENCES = 8
_SEAL: Final = "crc32"


class RunDirectoryError(UserError, ValueError):
    """A run directory that cannot be used; a line in `lines` for each reason."""

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
    # A process that was killed early leaves its lock, a sweep its log, a write its temporary file.
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


def is_in_use(path: Path) -> bool | None:
    """Tell whether a process works in the directory right now; None where that cannot be told."""
    if not (path / LOCK_NAME).is_file():
        return False
    try:
        acquire_lock(path).release()
    except RunDirectoryError as error:
        return True if error.code == ErrorCode.RUN_IN_USE else None
    return False


@contextmanager
def claimed(path: Path) -> Iterator[FileLock]:
    """Make the folder and lock it; the lock stays unless the block fails. RunDirectoryError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise RunDirectoryError(
            [f"{path}: cannot be made: {error.strerror}"], ErrorCode.RUN_UNWRITABLE
        ) from error
    lock = acquire_lock(path)
    try:
        yield lock
    except OSError as error:
        lock.release()
        raise RunDirectoryError(
            [f"{path}: cannot be written: {error.strerror}"], ErrorCode.RUN_UNWRITABLE
        ) from error
    except BaseException:
        lock.release()
        raise


class RunFolder:
    """An open folder of a run or of a training: its lock, and the files that both have."""

    def __init__(self, path: Path, lock: FileLock | None) -> None:
        """Take the lock that is held, or None for reading only."""
        self.path, self._lock = path, lock

    def close(self) -> None:
        """Let other processes use the directory; nothing can be recorded afterwards."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; an error that passes learns in which run it happened."""
        if error is not None:
            with suppress(AttributeError):
                error.run_directory = self.path  # type: ignore[attr-defined]
        self.close()

    def __fspath__(self) -> str:
        """Return the folder: whatever takes a path takes an open run directory."""
        return str(self.path)

    @property
    def manifest_file(self) -> Path:
        """manifest.json."""
        return self.path / "manifest.json"

    def _write_manifest(self, manifest: RunOrigin) -> None:
        """Write it, sealed. Raises RunDirectoryError without the lock."""
        if self._lock is None:
            raise RunDirectoryError([f"{self.path}: is closed or open for reading only"])
        write_json(self.manifest_file, sealed(manifest.model_dump(mode="json")))

    @property
    def recipe_file(self) -> Path:
        """recipe.yaml."""
        return self.path / "recipe.yaml"

    @property
    def quantized_file(self) -> Path:
        """quantized.safetensors: the k-bit student, or an integer controller's integers."""
        return self.path / "quantized.safetensors"

    @property
    def metrics_file(self) -> Path:
        """metrics.csv, a row for each epoch or for so many steps."""
        return self.path / "metrics.csv"

    @property
    def tensorboard_folder(self) -> Path:
        """TensorBoard events; made when first written."""
        return self.path / "tensorboard"


def require_manifest(path: Path) -> None:
    """Raise RunDirectoryError where `path` is no run directory."""
    if not (path / "manifest.json").is_file():
        what = "has no manifest.json" if path.is_dir() else "is no folder"
        if path.suffix == ".zip" or any(path.glob("*.zip")):
            what += f"; of an agent: `qpd run --teacher {path}`"
        if (path / "suite.json").is_file():
            what = f"holds quantized agents: `qpd analyze errors {path}`"
        raise RunDirectoryError(
            [f"{path}: is not a run directory: it {what}"], ErrorCode.RUN_NOT_A_RUN
        )


def read_sealed(path: Path) -> dict[str, Any]:
    """Return what the manifest of the run directory `path` holds, its checksum and version checked.

    Raises:
        RunDirectoryError: It cannot be read, or is not one of this version.
    """
    file = path / "manifest.json"
    way = f"put a copy of it back, or delete the folder {path} to begin anew"
    try:
        content = read_json(file, MAX_MANIFEST_BYTES)
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
    found: dict[str, Any] = content
    return found


def check_manifest(path: Path, content: dict[str, Any], model: type[AnyManifest]) -> AnyManifest:
    """Return a manifest of one type. Raises RunDirectoryError with a line for each mistake."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise RunDirectoryError(
            [
                f"{path / 'manifest.json'}: {'.'.join(map(str, item['loc']))}: {item['msg']}"
                for item in error.errors(include_url=False)
            ]
        ) from error


def recorded_evaluation(path: Path, policy: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return an evaluation as the manifest of the run `path` holds it.

    Raises RunDirectoryError where it would not be read again.
    """
    plain: dict[str, Any] = to_plain(dict(result))
    try:
        TypeAdapter(Evaluation).validate_python(plain)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        raise RunDirectoryError(
            [f"{path}: the games of {policy} cannot be recorded: {reason}"]
        ) from error
    return plain


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest's content (JSON types) with its CRC-32, which `read_manifest` checks."""
    return {**content, _SEAL: crc32_of(json.dumps(content, sort_keys=True).encode())}


def unsealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return what `sealed` was given. Raises KeyError without a CRC-32, ValueError for another."""
    found = {key: value for key, value in content.items() if key != _SEAL}
    if sealed(found)[_SEAL] != content[_SEAL]:
        raise ValueError("its checksum does not fit")
    return found


def refuse_differences(path: Path, before: RecipeSection, now: RecipeSection) -> None:
    """Raise if the run directory `path` was made with another recipe; names the keys."""
    differences = recipe_differences(before, now)
    if differences:
        shown = differences[:_MAX_DIFFERENCES]
        more = len(differences) - len(shown)
        lines = [f"{path}: was made with another recipe; choose another -o, or remove it"]
        lines += [f"{path}: {line}" for line in shown]
        lines += [f"{path}: and {more} more keys differ"] if more else []
        raise RunDirectoryError(lines, ErrorCode.RUN_OTHER_RECIPE)
