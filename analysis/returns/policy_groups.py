"""Policies as groups of runs that agree in everything but the seed, and their differences."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.returns.plot_series import precision_name
from qpd.analysis.returns.policy_returns import (
    TEACHERS,
    distinct_games,
    distinct_rows,
    distinct_runs,
)
from qpd.analysis.returns.return_statistics import score_matrix
from qpd.teachers.archive.agent_identity import algorithm_name

if TYPE_CHECKING:
    from pandas import DataFrame

_MOST_NAMES = 2
_NONE = object()  # of a key that a side lacks; None is a value


@dataclass(frozen=True)
class PolicyGroup:
    """One policy of the runs of one recipe, acting by one rule.

    `scores` is float `[num_runs, num_episodes]` (see `qpd.analysis.returns.return_statistics`),
    None if it was not evaluated. `settings` are those of `qpd.analysis.runs.student_settings`;
    `precision` is `fp32`, `8-bit`, ...; `size_bytes` is NaN if the file was left out; `has_file` is
    True if any of the runs still has the student. `code` are the commits (of an installed package
    the version) that the runs were made at, sorted; `students_sharing` is how many students shared
    phase 1's play. `best_validations` float `[num_runs]` are those of
    `qpd.analysis.runs.phase_metrics`, NaN left out. `seeds` are those of the rows of `scores`, none
    for a teacher, or where two students have one seed. `num_distinct_games` leaves out games that
    ended with the return and the length of another of the same evaluation: those of a greedy policy
    that begins alike; of a teacher, of any of its evaluations. `world` tells environments of one
    name apart (see `qpd.analysis.runs.run_frame`).
    """

    env_id: str
    teacher: str
    teacher_sha256: str
    policy: str
    acting: str
    size: str
    precision: str
    settings: dict[str, Any]
    scores: np.ndarray | None
    runs: tuple[str, ...]
    size_bytes: float
    has_file: bool
    code: tuple[str, ...] = ()
    students_sharing: int = 1
    best_validations: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    num_distinct_games: int = 0
    world: str = ""

    @property
    def agent(self) -> tuple[str, str, str]:
        """The agent and its environment: file, id, and what is done to it."""
        return self.teacher_sha256, self.env_id, self.world

    @property
    def num_runs(self) -> int:
        """The number of evaluated runs, copies left out; 0 if it was not evaluated."""
        return 0 if self.scores is None else len(self.scores)

    @property
    def num_episodes(self) -> int:
        """The number of games over all runs."""
        return 0 if self.scores is None else int((~np.isnan(self.scores)).sum())

    @property
    def title(self) -> str:
        """A title such as `PPO, XXS, fp32` or `PPO teacher`."""
        algo = algorithm_name(self.teacher)
        if self.policy in TEACHERS:
            return f"{algo} teacher"
        return f"{algo}, {self.size}, {self.precision}"

    @property
    def folders(self) -> str:
        """The names of the runs' folders: `seed-0, seed-1 and 3 more`."""
        names = [Path(run).name for run in self.runs]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return ", ".join(names[:_MOST_NAMES]) + more


def policy_groups(frame: DataFrame) -> list[PolicyGroup]:
    """Group the rows of `qpd.analysis.runs.run_frame`, in order; runs without returns apart.

    Of several runs with the same student, and of a teacher's evaluations with one seed, the one
    with the most games counts.
    """
    # Dictionaries are not hashable, so pandas groups by their text.
    settings = frame["settings"].map(lambda made_by: repr(sorted(made_by.items())))
    played = frame["returns"].map(len) > 0
    keys = [
        "env_id", "world", "teacher", "teacher_sha256", "policy", "acting", "settings_text",
        "played", "students_sharing",
    ]  # fmt: skip
    keyed = frame.assign(settings_text=settings, played=played)
    return [_group(rows) for _, rows in keyed.groupby(keys, sort=False)]


def differing_keys(one: PolicyGroup, other: PolicyGroup, free: tuple[str, ...] = ()) -> list[str]:
    """Return the settings that both depend on and that differ, sorted; prefixes `free` are ignored.

    An fp32 student depends on no quantizer, so it is compared with a quantized one by phase 1
    alone. A key that only one of two equal sections has is a difference, too: an option that is off
    has no keys.
    """
    shared = _sections(one) & _sections(other)
    keys = {key for key in one.settings | other.settings if key.split(".")[0] in shared}
    if {one.policy, other.policy} & {"distilled"}:
        keys.discard("replay.refilled")  # what phases 2 and 3 saw
    different = (
        key for key in keys if one.settings.get(key, _NONE) != other.settings.get(key, _NONE)
    )
    return sorted(key for key in different if not key.startswith(free))


def _sections(group: PolicyGroup) -> set[str]:
    """Return the sections of a student's settings; "environment" may have no key."""
    return {key.split(".")[0] for key in group.settings} | {"environment", "method"}


def _group(rows: DataFrame) -> PolicyGroup:
    first = rows.iloc[0]
    sizes = rows["size_bytes"].dropna()
    return PolicyGroup(
        **{
            name: first[name]
            for name in ("env_id", "world", "teacher", "teacher_sha256", "policy", "acting", "size")
        },
        precision=precision_name(first),
        settings=first["settings"],
        scores=score_matrix(distinct_games(rows)) if first["played"] else None,
        runs=tuple(dict.fromkeys(rows["run"])),
        size_bytes=float(sizes.iloc[0]) if len(sizes) else np.nan,
        has_file=bool((rows["student_digest"] != "").any()),
        code=tuple(sorted(set(rows["code"]))),
        students_sharing=int(first["students_sharing"]),
        best_validations=_best_validations(rows),
        seeds=_seeds(rows),
        num_distinct_games=_num_distinct_games(rows),
    )


def _num_distinct_games(rows: DataFrame) -> int:
    kept = distinct_rows(rows)
    known = int(kept["distinct_games"].sum())
    if rows.iloc[0]["policy"] not in TEACHERS:
        return known
    # One agent: what a greedy one plays with one seed it may play with each.
    games = [zip(row.returns, row.lengths, strict=True) for row in kept.itertuples()]
    has_lengths = all(row.lengths.any() for row in kept.itertuples())
    return min(known, len(set(chain(*games)))) if has_lengths else known


def _seeds(rows: DataFrame) -> tuple[int, ...]:
    """Return the seeds of the students that were played, if each has its own."""
    first = rows.iloc[0]
    if first["policy"] in TEACHERS or not first["played"]:
        return ()
    seeds = tuple(seed for seed, _ in distinct_runs(rows))
    return seeds if len(set(seeds)) == len(seeds) else ()


def _best_validations(rows: DataFrame) -> tuple[float, ...]:
    """Return the best validation of each run, copies left out."""
    known = rows.dropna(subset="best_validation").drop_duplicates(["seed", "best_validation"])
    return tuple(known["best_validation"])
