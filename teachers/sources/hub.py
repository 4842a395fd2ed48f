"""Fetch RL Zoo agents from the Hugging Face hub, through its own cache.

The zoo's repositories are named `sb3/ppo-BreakoutNoFrameskip-v4` and hold the agent
twice: as `ppo-BreakoutNoFrameskip-v4.zip`, and unpacked in a folder of that name. The
unpacked tensors are tried first, because they can be fetched without the rest.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from qpd.errors.codes import ErrorCode
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.archive.sb3_archive import MAX_ARCHIVE_BYTES
from qpd.teachers.archive.stored_quantization import QUANTIZATION_FILE

logger = logging.getLogger(__name__)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*")
_SIDE_FILES = ("args.yml", "config.yml", "vec_normalize.pkl", QUANTIZATION_FILE)


@dataclass(frozen=True)
class HubAgent:
    """Local copies of an agent: a zip or unpacked folder, and the folder of its settings."""

    archive: Path
    folder: Path


class _HubUnreachableError(TeacherError):
    """The hub does not answer and its cache does not hold the file."""

    code = ErrorCode.HUB_UNREACHABLE


def is_hub_id(source: str) -> bool:
    """Return whether `source` reads like `organisation/agent` (one slash, no file suffix)."""
    is_file_name = source.endswith((".zip", ".pth", ".pkl"))
    return bool(_HUB_ID.fullmatch(source)) and not is_file_name


def download_agent(repo_id: str) -> HubAgent:
    """Download an agent or find it in the cache.

    Raises TeacherError, naming the file to fetch by hand, if the hub cannot be reached
    or does not hold the agent, and for what is no hub id.
    """
    if not is_hub_id(repo_id):
        raise TeacherError(
            f"{repo_id}: is not a hub id; give organisation/agent, such as sb3/ppo-CartPole-v1",
            ErrorCode.TEACHER_NOT_FOUND,
        )
    name = repo_id.split("/")[1]
    repository = _Repository(repo_id)
    try:
        agent = _fetch_unpacked(repository, name)
    except _HubUnreachableError:
        agent = None  # the zip may be in the cache
    agent = agent or _fetch_zip(repository, name)
    for side_file in _SIDE_FILES:
        try:
            repository.fetch(side_file)
        except _HubUnreachableError:
            logger.warning("%s: cannot ask the hub whether it has a %s", repo_id, side_file)
    return agent


def _fetch_unpacked(repository: "_Repository", name: str) -> HubAgent | None:
    policy = repository.fetch(f"{name}/policy.pth")
    if policy is None or repository.fetch(f"{name}/data") is None:
        return None
    return HubAgent(policy.parent, policy.parent.parent)


def _fetch_zip(repository: "_Repository", name: str) -> HubAgent:
    zipped = repository.fetch(f"{name}.zip")
    if zipped is None:
        raise TeacherError(
            f"{repository.repo_id}: the hub has neither {name}.zip nor {name}/policy.pth there;"
            " expected a repository in the RL Zoo's layout, like sb3/ppo-CartPole-v1",
            ErrorCode.TEACHER_NOT_FOUND,
        )
    return HubAgent(zipped, zipped.parent)


class _Repository:
    """One repository of the hub, or what its cache holds where the hub does not answer."""

    def __init__(self, repo_id: str) -> None:
        self.repo_id = repo_id
        try:
            # Optional, and imported late: local teachers need no HTTP client. Not huggingface_sb3,
            # which breaks rl_zoo3 when both are installed.
            import huggingface_hub
            import huggingface_hub.errors
        except ImportError as error:
            raise TeacherError(
                f"{repo_id}: not a local path, and huggingface_hub is not installed;"
                f" pip install huggingface_hub, or {_by_hand(repo_id)}",
                ErrorCode.PACKAGE_MISSING,
            ) from error
        self._hub = huggingface_hub
        self._offline_reason = self._why_offline()

    def _why_offline(self) -> str | None:
        """Return why the hub does not answer, or None.

        Asked once: hf_hub_download would retry for half a minute, for every file.
        """
        url = self._hub.hf_hub_url(self.repo_id, f"{self.repo_id.split('/')[1]}.zip")
        try:
            self._hub.get_hf_file_metadata(url)
        except self._hub.errors.HfHubHTTPError:
            return None  # an answer, if only "no such file"
        except Exception as error:  # which type depends on the HTTP library underneath
            return type(error).__name__
        return None

    def fetch(self, filename: str) -> Path | None:
        """Return the local path of a file, None if the repository exists without it."""
        errors = self._hub.errors
        offline = self._offline_reason
        try:
            if offline is None:
                self._check_size(filename)
            path = self._hub.hf_hub_download(
                self.repo_id, filename, local_files_only=offline is not None
            )
            return Path(path)
        except TeacherError:
            raise
        except errors.RemoteEntryNotFoundError:
            return None
        except errors.RepositoryNotFoundError as error:
            raise TeacherError(
                f"{self.repo_id}: no such local path, and no such repository on the hub"
                " (or a private one)",
                ErrorCode.TEACHER_NOT_FOUND,
            ) from error
        except Exception as error:
            cached = self._hub.try_to_load_from_cache(self.repo_id, filename)
            if cached is not None and not isinstance(cached, str):
                return None  # the cache remembers that the repository has no such file
            raise _HubUnreachableError(
                f"{self.repo_id}: no such local path, the hub cannot be reached"
                f" ({offline or type(error).__name__}) and {filename} is not in its cache;"
                f" {_by_hand(self.repo_id)}"
            ) from error

    def _check_size(self, filename: str) -> None:
        """Raise TeacherError for a file that would be refused, before it is downloaded."""
        url = self._hub.hf_hub_url(self.repo_id, filename)
        try:
            found = self._hub.get_hf_file_metadata(url).size
        except Exception:  # hf_hub_download tells what is wrong, and its cache remembers it
            return
        if found is not None and found > MAX_ARCHIVE_BYTES:
            raise TeacherError(
                f"{self.repo_id}: {filename} has {found} bytes; at most {MAX_ARCHIVE_BYTES} are"
                " fetched",
                ErrorCode.TEACHER_DAMAGED,
            )


def _by_hand(repo_id: str) -> str:
    name = repo_id.split("/")[1]
    return (
        f"download https://huggingface.co/{repo_id}/resolve/main/{name}.zip elsewhere,"
        f" put it here as {name}.zip and give that path (--teacher {name}.zip)"
    )
