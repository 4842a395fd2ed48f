"""Name runs in tables, figures and reports: the folder, and the agent."""

from __future__ import annotations

import re
from pathlib import Path

from qpd.teachers.archive.agent_identity import algorithm_name


def run_name(path: Path | str) -> str:
    """Return the name of a run's folder, also for `.` and `..`."""
    name = Path(path).name
    return name if name not in ("", "..") else Path(path).resolve().name


def experiment_name(path: Path | str) -> str:
    """Return a run's name without its seed: `breakout-seed-3` belongs to `breakout`."""
    name = run_name(path)
    # A sweep's cells are named `size=XXS,seed=0,bits=8`.
    return re.sub(r"[-_,]?seed[-=_]?\d+(?=$|,)", "", name).lstrip(",") or name


def agent_title(algo: str, env_id: str) -> str:
    """Return an agent's algorithm and environment: `PPO on CartPole-v1`."""
    return f"{algorithm_name(algo)} on {env_id}"
