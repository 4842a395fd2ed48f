"""Evaluations that several runs of a sweep would play alike, played by one of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from qpd.acting import ActingRule
from qpd.atomic_files import write_json
from qpd.json_input import read_json
from qpd.manifest_measurements import Evaluation
from qpd.session import Session


class SharedGames:
    """A folder of evaluations, one file for each set of games; runs read and write it at will."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, session: Session, policy: str, rule: ActingRule) -> dict[str, Any] | None:
        """What a run recorded of the games that `policy` (a checksum) would play in `session`.

        None where there is nothing, or nothing readable.
        """
        try:
            found = read_json(self._file(session, policy, rule))
            evaluation: dict[str, Any] = TypeAdapter(Evaluation).validate_python(found)
        except (OSError, ValueError, ValidationError):
            return None
        return evaluation

    def keep(
        self, session: Session, policy: str, rule: ActingRule, evaluation: dict[str, Any]
    ) -> None:
        """Let other runs find it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_json(self._file(session, policy, rule), evaluation)

    def _file(self, session: Session, policy: str, rule: ActingRule) -> Path:
        """Named by all that decides the games."""
        recipe = session.recipe
        games = {
            "policy": policy,
            "environment": session.env_id,
            "max_frames": recipe.environment.max_frames,
            "acting": asdict(rule),
            "seed": recipe.seed,
            "episodes": recipe.evaluation.episodes,
            "num_envs": recipe.evaluation.num_envs,
        }
        digest = hashlib.sha256(json.dumps(games, sort_keys=True).encode()).hexdigest()
        return self._folder / f"{digest[:16]}.json"
