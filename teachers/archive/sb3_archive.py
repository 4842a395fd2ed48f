"""Read a Stable-Baselines3 archive as data: no pickle in it is ever executed.

An archive is a zip file (or a folder holding it unpacked) with the JSON member `data`
and the tensors `policy.pth`. Reading one takes less than 1 GiB of memory, whatever it holds.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from qpd.errors.codes import ErrorCode
from qpd.files.bounded_read import TooLargeError, open_regular, read_file
from qpd.files.json_input import parse_json
from qpd.teachers.archive.algorithm import proven_algorithm
from qpd.teachers.archive.errors import TeacherError, one_line
from qpd.teachers.archive.plain_data import (
    ObservationSpace,
    read_float,
    read_int,
    read_observation_space,
    space_fields,
    space_name,
)
from qpd.teachers.archive.stored_actions import StoredActions, read_stored_actions
from qpd.teachers.archive.torch_file import read_state_dict
from qpd.teachers.archive.zip_input import open_zip, read_member

# A NatureCNN takes 7 MB, and `data` a few hundred kB.
MAX_ARCHIVE_BYTES = 1 << 30
# SAC's entropy coefficient, which is no parameter of its policy; the second name is an old one.
_VARIABLES = ("pytorch_variables.pth", "tensors.pth")
MAX_MEMBER_BYTES = {"data": 16 << 20, "policy.pth": 256 << 20, "_stable_baselines3_version": 1000,
                    **dict.fromkeys(_VARIABLES, 1 << 20)}  # fmt: skip
MAX_TENSOR_ELEMENTS = 1 << 26
_EXPECTED = "expected a Stable-Baselines3 zip with the members 'data' and 'policy.pth'"


@dataclass(frozen=True)
class Sb3Archive:
    """The content of one archive; fields are None where the archive does not say.

    `sha256` is that of the zip file; for an unpacked folder, that of `data` followed
    by `policy.pth`. `algo` is what tensors and plain data prove, None if they leave it open.
    """

    path: Path
    sha256: str
    state_dict: Mapping[str, Tensor]
    data: Mapping[str, Any]
    algo: str | None
    actions: StoredActions
    observation_space: ObservationSpace
    gamma: float | None
    num_timesteps: int | None
    seed: int | None  # of its training
    sb3_version: str | None
    log_ent_coef: float | None = None


def read_sb3_archive(path: str | Path) -> Sb3Archive:
    """Read a zip file or an unpacked folder of an agent.

    Raises TeacherError if it is something else. An action space that is not supported is refused
    before the tensors are read: such agents may hold theirs in ways that are not read either.
    """
    path = Path(path)
    try:
        members, sha256 = _read_folder(path) if path.is_dir() else _read_zip(path)
    except FileNotFoundError as error:
        raise TeacherError(
            f"{path}: no such file; {_EXPECTED}", ErrorCode.TEACHER_NOT_FOUND
        ) from error
    except OSError as error:
        raise TeacherError(
            f"{path}: cannot be read ({one_line(error)}); {_EXPECTED}", ErrorCode.TEACHER_DAMAGED
        ) from error
    data = _parse_data(members["data"], path)
    actions = read_stored_actions(data)
    if actions.kind == "other":
        raise TeacherError(
            f"{path}: its actions are {space_name(space_fields(data, 'action_space'))}; expected"
            " Discrete, MultiDiscrete or MultiBinary, flat and counted from 0, or Box"
        )
    state_dict = _parse_tensors(members["policy.pth"], path)
    # Absent from old archives.
    version = members.get("_stable_baselines3_version")
    return Sb3Archive(
        path=path,
        sha256=sha256,
        state_dict=state_dict,
        data=data,
        algo=proven_algorithm(state_dict, data),
        actions=actions,
        observation_space=read_observation_space(data),
        gamma=read_float(data, "gamma"),
        num_timesteps=read_int(data, "num_timesteps"),
        seed=read_int(data, "seed"),
        sb3_version=version.decode("utf-8", "replace").strip() if version else None,
        log_ent_coef=_log_ent_coef(members),
    )


def _log_ent_coef(members: Mapping[str, bytes]) -> float | None:
    """Return the entropy coefficient's logarithm where it was learned; playing needs none of it."""
    for name in _VARIABLES:
        try:
            found = read_state_dict(members[name], MAX_TENSOR_ELEMENTS)["log_ent_coef"]
        except Exception:  # absent, or nearly anything for a damaged one
            continue
        if found.numel() == 1 and bool(found.isfinite().all()):
            return float(found)
    return None


def _read_folder(path: Path) -> tuple[dict[str, bytes], str]:
    members: dict[str, bytes] = {}
    for name in MAX_MEMBER_BYTES:
        member = path / name
        if not member.exists():
            continue
        try:
            members[name] = read_file(member, MAX_MEMBER_BYTES[name])
        except TooLargeError as error:
            raise TeacherError(f"{member}: {error}", ErrorCode.TEACHER_DAMAGED) from error
    _check_members(path, members)
    digest = hashlib.sha256(members["data"])
    digest.update(members["policy.pth"])
    return members, digest.hexdigest()


def _read_zip(path: Path) -> tuple[dict[str, bytes], str]:
    with open_regular(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes > MAX_ARCHIVE_BYTES:
            raise TeacherError(
                f"{path}: {num_bytes} bytes; at most {MAX_ARCHIVE_BYTES} are read",
                ErrorCode.TEACHER_DAMAGED,
            )
        # Of the file as it is, before anything in it is parsed: the manifest names a teacher by it.
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        members = _read_members(path, file)
    _check_members(path, members)
    return members, sha256


def _read_members(path: Path, file: BinaryIO) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    try:
        with open_zip(file) as archive:
            names = set(archive.namelist())
            # Not in the directory, which of a cut agent is that of the policy within it.
            if _first_name(file).endswith(b"/data.pkl"):  # of a zip of torch.save
                raise TeacherError(
                    f"{path}: holds tensors alone, as `policy.save` writes them, and not the "
                    "agent's settings; expected the zip that `model.save` writes",
                    ErrorCode.TEACHER_DAMAGED,
                )
            for name in MAX_MEMBER_BYTES:
                if name in names:
                    # Before reading: the size that a zip declares is also all that read_member
                    # unpacks.
                    _check_size(path, name, archive.getinfo(name).file_size)
                    members[name] = read_member(archive, archive.getinfo(name))
    except TeacherError:
        raise
    except Exception as error:  # zipfile raises many types for damaged archives
        raise TeacherError(
            f"{path}: damaged or not a zip file ({one_line(error)}); {_EXPECTED}",
            ErrorCode.TEACHER_DAMAGED,
        ) from error
    return members


def _first_name(file: BinaryIO) -> bytes:
    """Return the name in a zip's first local header."""
    file.seek(0)
    header = file.read(30)
    return file.read(int.from_bytes(header[26:28], "little"))


def _check_size(path: Path, name: str, num_bytes: int) -> None:
    if num_bytes > MAX_MEMBER_BYTES[name]:
        raise TeacherError(
            f"{path}: member '{name}' declares {num_bytes} bytes;"
            f" at most {MAX_MEMBER_BYTES[name]} are read",
            ErrorCode.TEACHER_DAMAGED,
        )


def _check_members(path: Path, members: Mapping[str, bytes]) -> None:
    missing = [name for name in ("data", "policy.pth") if name not in members]
    if missing:
        raise TeacherError(
            f"{path}: has no member {' or '.join(missing)} (truncated, or not an SB3 zip);"
            f" {_EXPECTED}",
            ErrorCode.TEACHER_DAMAGED,
        )


def _parse_data(content: bytes, path: Path) -> dict[str, Any]:
    try:
        # SB3 writes NaN and infinities, for example for `max_grad_norm`.
        data = parse_json(content.decode("utf-8"), any_number=True)
    except ValueError as error:
        raise TeacherError(
            f"{path}: member 'data' is not JSON ({one_line(error)}); {_EXPECTED}",
            ErrorCode.TEACHER_DAMAGED,
        ) from error
    if not isinstance(data, dict):
        raise TeacherError(
            f"{path}: member 'data' is not a JSON object; {_EXPECTED}", ErrorCode.TEACHER_DAMAGED
        )
    return data


def _parse_tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    try:
        return read_state_dict(content, MAX_TENSOR_ELEMENTS)
    except Exception as error:  # a damaged zip or pickle may raise nearly anything
        raise TeacherError(
            f"{path}: member 'policy.pth' is damaged or contains more than tensors"
            f" ({one_line(error) or type(error).__name__});"
            " expected a state_dict saved by Stable-Baselines3",
            ErrorCode.TEACHER_DAMAGED,
        ) from error
