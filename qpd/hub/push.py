"""Upload of a folder to the Hugging Face hub, as one commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qpd.errors.codes import ErrorCode
from qpd.hub.contents import HubPushError


def check_repo_id(repo_id: str) -> None:
    """Raise HubPushError unless `repo_id` is `organisation/name` as the hub allows it."""
    # Imported here: the package is slow to load, and --dry-run needs no client.
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
        is_valid = repo_id.count("/") == 1
    except HFValidationError:
        is_valid = False
    if not is_valid:
        raise HubPushError(
            f"{repo_id!r}: is not a repository name: it must be org/name, letters, digits, "
            "'-', '_' and '.', at most 96 characters, for example me/qpd-breakout-xxs",
            ErrorCode.COMMAND_LINE,
        )


def hub_client(repo_id: str) -> Any:
    """Return the hub's client for a logged-in user; nothing is written there yet.

    Raises HubPushError offline, without a token, or if the hub does not know it.
    """
    import huggingface_hub
    from huggingface_hub.constants import HF_HUB_OFFLINE

    # Checked first, for an error that names the variable.
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
        # Asked before the exports and the film are made, which take minutes.
        client.whoami()
    except Exception as error:  # which type depends on the HTTP library underneath
        raise _refusal(repo_id, error) from error
    return client


def upload(client: Any, folder: Path, repo_id: str, private: bool) -> str:
    """Create the repository if it does not exist, commit the folder, and return its address.

    An existing repository keeps its visibility: HubPushError if `private` is asked for and it is
    public. Raises HubPushError for anything that the hub refuses.
    """
    try:
        # None leaves the choice to the organisation's default; False would make it public.
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
    """Return a one-line error for what the hub's client raised."""
    response = getattr(error, "response", None)
    # No answer at all: a network that is down, a proxy, a wrong address.
    if response is None:
        reason = f"the hub cannot be reached ({type(error).__name__})"
        return HubPushError(
            f"{repo_id}: {reason}; --dry-run -o DIR writes a folder only", ErrorCode.HUB_UNREACHABLE
        )
    status = response.status_code
    # The two that a user can mend get a remedy; for the rest the hub's words are passed on.
    if status == 401:
        return HubPushError(f"{repo_id}: the hub does not know this token: `hf auth login`")
    if status == 403:
        return HubPushError(
            f"{repo_id}: this token may not write there: it needs write access to "
            f"{repo_id.split('/')[0]}"
        )
    # Only the client's own HTTP errors carry the server's words.
    said = getattr(error, "server_message", None) or str(error).splitlines()[0]
    return HubPushError(f"{repo_id}: the hub refuses ({status}): {' '.join(said.split())}")
