"""Uploads a folder to the Hugging Face hub, as one commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qpd.errors.codes import ErrorCode
from qpd.hub.contents import HubPushError


def check_repo_id(repo_id: str) -> None:
    """Raise HubPushError unless `repo_id` is `organisation/name` as the hub allows it."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
        is_valid = repo_id.count("/") == 1
    except HFValidationError:
        is_valid = False
    if not is_valid:
        raise HubPushError(
            f"{repo_id!r}: is no repository's name: it must be org/name, letters, digits, "
            "'-', '_' and '.', at most 96 characters, for example me/qpd-breakout-xxs",
            ErrorCode.COMMAND_LINE,
        )


def hub_client(repo_id: str) -> Any:
    """The hub's client for a user that is logged in; nothing is written there yet.

    Raises HubPushError without a token, offline, and where the hub does not know the token.
    """
    import huggingface_hub
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        raise HubPushError(
            f"{repo_id}: HF_HUB_OFFLINE is set; --dry-run -o DIR writes a folder",
            ErrorCode.HUB_UNREACHABLE,
        )
    token = huggingface_hub.get_token()
    if token is None:
        raise HubPushError(
            f"{repo_id}: no token of the Hugging Face hub: `hf auth login` (or HF_TOKEN), "
            "or --dry-run -o DIR to write a folder only"
        )
    client = huggingface_hub.HfApi(token=token)
    try:
        client.whoami()
    except Exception as error:  # which type depends on the HTTP library underneath
        raise _refusal(repo_id, error) from error
    return client


def upload(client: Any, folder: Path, repo_id: str, private: bool) -> str:
    """Make the repository where there is none, commit the folder, and return its address.

    A repository that is there keeps its visibility: HubPushError where `private` is asked for and
    it is public. Raises HubPushError for all that the hub refuses.
    """
    try:
        address = client.create_repo(repo_id, private=private or None, exist_ok=True)
        if private and not client.model_info(repo_id).private:
            raise HubPushError(
                f"{repo_id}: exists and is public; make it private on the hub, or leave --private"
            )
        client.upload_folder(
            repo_id=repo_id, folder_path=folder, commit_message="Upload a QPD student"
        )
    except HubPushError:
        raise
    except Exception as error:  # which type depends on the HTTP library underneath
        raise _refusal(repo_id, error) from error
    return str(address)


def _refusal(repo_id: str, error: Exception) -> HubPushError:
    """One line for what the hub's client raised."""
    response = getattr(error, "response", None)
    if response is None:
        reason = f"the hub cannot be reached ({type(error).__name__})"
        return HubPushError(
            f"{repo_id}: {reason}; --dry-run -o DIR writes a folder only", ErrorCode.HUB_UNREACHABLE
        )
    status = response.status_code
    if status == 401:
        return HubPushError(f"{repo_id}: the hub does not know this token: `hf auth login`")
    if status == 403:
        return HubPushError(
            f"{repo_id}: this token may not write there: it needs write access to "
            f"{repo_id.split('/')[0]}"
        )
    said = getattr(error, "server_message", None) or str(error).splitlines()[0]
    return HubPushError(f"{repo_id}: the hub refuses ({status}): {' '.join(said.split())}")
