"""Evaluations that several runs of a sweep would play alike, played by one of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from qpd.actions import ActingRule
from qpd.files.atomic import to_plain, write_json
from qpd.files.json_input import read_json
from qpd.files.tensors import crc32_of
from qpd.machine.description import cxx_compiler
from qpd.numerics.numerics_record import record_numerics
from qpd.phases.student_run import StudentRun
from qpd.runs.manifest import Evaluation


class SharedGames:
    """A folder of evaluations, one file for each set of games; runs read and write it at will."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, student: StudentRun, policy: str, rule: ActingRule) -> dict[str, Any] | None:
        """Return what a run recorded of the games that `policy` (a checksum) would play here.

        None where there is nothing, or nothing whole.
        """
        games = _games(student, policy, rule)
        try:
            found = read_json(self._file(games))
            evaluation: dict[str, Any] = TypeAdapter(Evaluation).validate_python(
                found["evaluation"]
            )
            whole = found["games"] == games and found["crc32"] == _checksum(evaluation)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return evaluation if whole else None

    def keep(
        self, student: StudentRun, policy: str, rule: ActingRule, evaluation: dict[str, Any]
    ) -> None:
        """Let other runs find it. Raises OSError."""
        games, plain = _games(student, policy, rule), to_plain(evaluation)
        self._folder.mkdir(parents=True, exist_ok=True)
        content = {"games": games, "evaluation": plain, "crc32": _checksum(plain)}
        write_json(self._file(games), content)

    def _file(self, games: dict[str, Any]) -> Path:
        digest = hashlib.sha256(_canonical(games)).hexdigest()
        return self._folder / f"{digest[:16]}.json"


def _games(student: StudentRun, policy: str, rule: ActingRule) -> dict[str, Any]:
    """Return everything that decides which games are played."""
    recipe, manifest = student.recipe, student.run.manifest
    numerics = record_numerics(student.prepared.device, cxx_compiler() is not None)
    return {
        "policy": policy,
        "environment": student.prepared.environment.to_json(),
        "max_frames": recipe.environment.max_frames,
        "acting": asdict(rule),
        "seed": recipe.seed,
        "episodes": recipe.evaluation.episodes,
        "num_envs": recipe.evaluation.num_envs,
        "arithmetic": numerics.model_dump(),
        "versions": manifest.versions,
        "git_commit": manifest.git_commit,
    }


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _checksum(evaluation: dict[str, Any]) -> str:
    return crc32_of(_canonical(evaluation))
