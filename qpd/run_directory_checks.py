"""What a folder must be before a run directory is made or opened there."""

from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError

from qpd.json_input import read_json
from qpd.manifest import FORMAT_VERSION, Manifest
from qpd.recipe import Recipe, RecipeError
from qpd.recipe_loading import load_recipe

LOCK_NAME = ".lock"
LOG_NAME = "sweep.log"  # what the process of a sweep's cell prints


class RunDirectoryError(ValueError):
    """What is wrong with a run directory, one line each, in `lines`."""

    def __init__(self, lines: list[str]) -> None:
        """Keep `lines` (at least one); the message is their join."""
        super().__init__("\n".join(lines))
        self.lines = list(lines)


def refuse_foreign(path: Path) -> None:
    """Raise if `path` is a file, or a folder that holds files which no run wrote."""
    if not path.exists():
        return
    if not path.is_dir():
        raise RunDirectoryError([f"{path}: is a file; a run needs a folder"])
    names = sorted(item.name for item in path.iterdir())
    before_any_run = (LOCK_NAME, LOG_NAME)
    foreign = [n for n in names if n not in before_any_run and not n.startswith(".manifest.json.")]
    if foreign and "manifest.json" not in names:
        raise RunDirectoryError(
            [f"{path}: holds other files ({foreign[0]}) and no manifest.json; choose a new folder"]
        )


def acquire_lock(path: Path) -> FileLock:
    """Lock the directory for this process; a killed owner's lock frees itself."""
    lock = FileLock(path / LOCK_NAME, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise RunDirectoryError([f"{path}: another process is working in it"]) from None
    except OSError as error:
        raise RunDirectoryError([f"{path}: cannot be locked: {error.strerror}"]) from error
    return lock


def read_manifest(path: Path) -> Manifest:
    """Return the checked manifest of the run directory `path`.

    Raises:
        RunDirectoryError: It cannot be read, or is not one of this version.
    """
    file = path / "manifest.json"
    try:
        content = read_json(file)
    except (OSError, ValueError) as error:
        raise RunDirectoryError([f"{file}: cannot be read: {error}"]) from error
    version = content.get("format_version") if isinstance(content, dict) else None
    if version is None:
        raise RunDirectoryError([f"{file}: is no manifest of QPD: it has no format_version"])
    if version != FORMAT_VERSION:
        raise RunDirectoryError(
            [f"{file}: format_version {version!r:.40}; this QPD reads {FORMAT_VERSION}"]
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


def read_recipe(path: Path) -> Recipe:
    """Return the resolved recipe of the run directory `path`.

    Raises:
        RunDirectoryError: It is missing or wrong.
    """
    file = path / "recipe.yaml"
    if not file.is_file():
        raise RunDirectoryError([f"{path}: is not a whole run directory: recipe.yaml is missing"])
    try:
        return load_recipe(file)
    except RecipeError as error:
        raise RunDirectoryError(error.lines) from error
