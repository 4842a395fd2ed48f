"""Checkpoints: one file, replaced atomically, that a killed run goes on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from qpd.atomic_files import write_safetensors
from qpd.json_input import parse_json


def checkpoint_file(folder: Path) -> Path:
    """The file of the checkpoint in `folder`; without it the unfinished phase starts anew."""
    return folder / "state.safetensors"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; one line names the file and the way on."""


def save_checkpoint(folder: Path, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
    """Replace the checkpoint by these tensors and this plain (JSON) state."""
    write_safetensors(checkpoint_file(folder), tensors, {"state": json.dumps(plain)})


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and plain state; None where there is no checkpoint. Raises CheckpointError."""
    path = checkpoint_file(folder)
    if not path.is_file():
        return None
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            plain = parse_json((file.metadata() or {})["state"])
        return safetensors.torch.load_file(path), plain
    except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path}: is damaged ({reason}); delete it to start the unfinished phase anew"
        ) from error
