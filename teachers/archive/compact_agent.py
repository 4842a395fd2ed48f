"""The zip of an SB3 agent without what only training needs: half the bytes, or a quarter.

Weights become float16, which Stable-Baselines3 widens again when it loads them. The optimizer
forgets its moments, and target networks become the networks themselves. Nothing is unpickled:
tensors are read as everywhere, what else the zip holds is copied as it is.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qpd.errors.codes import ErrorCode
from qpd.files.bounded_read import open_regular
from qpd.teachers.archive.errors import TeacherError, one_line
from qpd.teachers.archive.sb3_archive import Sb3Archive
from qpd.teachers.archive.torch_file import read_param_groups
from qpd.teachers.archive.zip_input import open_zip, read_member

# SAC, TQC, TD3 and DDPG have one for each network.
_OPTIMIZERS = tuple(
    f"{name}.pth"
    for name in (
        "policy.optimizer",
        "actor.optimizer",
        "critic.optimizer",
        "ent_coef_optimizer",
    )  # fmt: skip
)
_MOST_BYTES = {  # of what else is kept; an optimizer is in memory twice
    **dict.fromkeys(_OPTIMIZERS, 320 << 20),
    "pytorch_variables.pth": 1 << 20,
    "_stable_baselines3_version": 1000,
    "system_info.txt": 10_000,
}
_TARGETS = ("q_net_target.", "quantile_net_target.", "actor_target.", "critic_target.")
# Observations of the last moment of training, three quarters of a megabyte for Breakout.
_LAST_MOMENT = ("_last_obs", "_last_original_obs", "_last_episode_starts")
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)  # the same agent gives the same bytes


def compact_agent(archive: Sb3Archive) -> bytes:
    """Return the smaller zip; `archive.path` must be a zip file.

    Weights beyond float16's range stay float32. Raises TeacherError for a folder, or where the
    rest of the zip is damaged.
    """
    if archive.path.is_dir():
        raise TeacherError(f"{archive.path}: is a folder; expected the agent's zip file")
    try:
        members = _other_members(archive.path)
    except Exception as error:  # a damaged zip or pickle may raise nearly anything
        raise TeacherError(
            f"{archive.path}: damaged beside its weights ({one_line(error)});"
            " expected a zip as Stable-Baselines3 saves it",
            ErrorCode.TEACHER_DAMAGED,
        ) from error
    # The base64 pickles in it are kept as text, never read: SB3 needs them to load the agent.
    members["data"] = json.dumps(_without_last_moment(archive.data)).encode()
    members["policy.pth"] = _saved(_compact_weights(archive.state_dict))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in members.items():
            target.writestr(zipfile.ZipInfo(name, _FIXED_TIME), content, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def _other_members(path: Path) -> dict[str, bytes]:
    """Return what an SB3 zip holds beside data and weights, optimizers without their moments.

    Unknown members are left out. One optimizer is in memory at a time.
    """
    with open_regular(path) as file, open_zip(file) as source:
        found = {info.filename: info for info in source.infolist()}
        for name, most in _MOST_BYTES.items():
            if name in found and found[name].file_size > most:
                raise ValueError(f"member '{name}' declares more than {most} bytes")
        members = {}
        for name in (name for name in _MOST_BYTES if name in found):
            content = read_member(source, found[name])
            if name in _OPTIMIZERS:
                groups = read_param_groups(content)
                content = _saved({"state": {}, "param_groups": groups})
            members[name] = content
        return members


def _without_last_moment(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: None if key in _LAST_MOMENT else value for key, value in data.items()}


def _compact_weights(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert to float16 what fits into it.

    A tensor with several names stays one tensor, and a target network becomes its network.
    """
    halves: dict[tuple[object, ...], Tensor] = {}
    compact: dict[str, Tensor] = {}
    for name, tensor in state_dict.items():
        # SB3 >= 1.7 saves a shared extractor under three names; torch.save stores a storage once,
        # as long as the names still share it.
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if key not in halves or tensor.numel() == 0:
            half = tensor.to(torch.float16)
            # Beyond 65,504 float16 is infinite.
            fits = tensor.dtype == torch.float32 and bool(torch.isfinite(half).all())
            halves[key] = half if fits else tensor.clone()
        compact[name] = halves[key]
    for name in compact:
        for prefix in _TARGETS:
            online = name.replace(prefix, prefix.replace("_target", ""), 1)
            if name.startswith(prefix) and online in compact:
                compact[name] = compact[online]
    return compact


def _saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()
