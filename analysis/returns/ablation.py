"""Measure what each part of the method is worth: returns without it, beside those of a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.returns.policy_groups import PolicyGroup, differing_keys, policy_groups
from qpd.analysis.returns.policy_returns import TEACHERS, distinct_runs
from qpd.analysis.returns.return_rows import ShownTable
from qpd.analysis.runs.student_settings import setting_text
from qpd.errors.codes import ErrorCode
from qpd.evaluation.holm import holm
from qpd.evaluation.studentized import student_t_quantile, student_t_survival
from qpd.runs.run_directory import RunDirectoryError

if TYPE_CHECKING:
    from pandas import DataFrame

NOTES = [
    "differences by seed; 95% intervals of Student's t over seeds, no less wide than games alone "
    "give, each for itself; p: two-sided, Holm's over all rows"
]
_NAMES = {"distilled": "fp32", "ptq": "phase 2", "qat": "phase 3"}


def ablation_table(frame: DataFrame, baseline: Path) -> DataFrame:
    """Compare each recipe of `frame` (a `run_frame`) with that of the run `baseline`.

    A row per recipe and policy: `changed` are the settings that differ and their values, and other
    commits than the baseline's; `means` the mean return of each seed that both have, `difference`
    the mean over these seeds of the recipe's return minus the baseline's, with `difference_low` and
    `_high`, Student's t interval over seeds, NaN for one seed: seeds that agree by chance have no
    less variance than their games alone give. `p` is two-sided, Holm's over all rows that have one.
    Rows of the baseline have no difference; networks that nothing has trained have no row. Raises
    RunDirectoryError where `baseline` is not among the runs.
    """
    import pandas as pd

    played = frame[(frame["returns"].map(len) > 0) & ~frame["policy"].isin(TEACHERS)]
    own = played[played["run"].map(lambda run: Path(run).resolve()) == baseline.resolve()]
    if own.empty:
        raise RunDirectoryError(
            [f"{baseline}: --baseline names no evaluated run among those given"],
            ErrorCode.NOTHING_MEASURED,
        )
    groups = [group for group in policy_groups(played) if _is_trained(group)]
    base = {group.policy: group for group in groups if own["run"].iloc[0] in group.runs}
    rows = [
        _row(group, base[group.policy], played)
        for group in groups
        if group.policy in base and _is_comparable(group, base[group.policy])
    ]
    if not rows:
        raise RunDirectoryError(
            [f"{baseline}: none of its networks was trained and played"],
            ErrorCode.NOTHING_MEASURED,
        )
    table = pd.DataFrame(rows)
    known = table["p"].notna()
    table.loc[known, "p"] = holm(list(table.loc[known, "p"]))
    turn = table["policy"].map(list(_NAMES).index)
    return table.assign(turn=turn).sort_values("turn", kind="stable").drop(columns="turn")


def left_out(frame: DataFrame, table: DataFrame) -> list[str]:
    """Return a note on the runs of `frame` of which `table` has no row; none where it has all."""
    missing = sorted(set(frame["run"]) - {run for runs in table["runs"] for run in runs})
    if not missing:
        return []
    reason = "no trained network that played the baseline's games, for its teacher, by its rule"
    return [f"left out, {reason}: {', '.join(missing)}"]


def _is_trained(group: PolicyGroup) -> bool:
    """Tell whether any phase trained it: phase 3 alone begins with random networks."""
    settings = group.settings
    is_agent = settings.get("method") == "agent"
    return group.policy == "qat" or settings.get("distill.epochs") != 0 or is_agent


def _is_comparable(group: PolicyGroup, base: PolicyGroup) -> bool:
    """Tell whether both imitate one teacher, in one environment, and act alike."""
    return (group.agent, group.acting) == (base.agent, base.acting)


def _row(group: PolicyGroup, base: PolicyGroup, played: DataFrame) -> dict[str, Any]:
    ours, theirs = _by_seed(group, played), _by_seed(base, played)
    seeds = sorted(ours.keys() & theirs.keys())
    changed = {key: group.settings.get(key, "not set") for key in differing_keys(group, base)}
    if group.students_sharing != base.students_sharing:
        changed["students that share the play"] = group.students_sharing
    if group.code != base.code:
        changed["commit"] = "/".join(group.code)
    if group is not base and not changed:  # it differs in a key that the baseline lacks
        changed["runs"] = group.folders
    row: dict[str, Any] = {
        "policy": group.policy,
        "runs": tuple(group.runs),
        "changed": ", ".join(f"{key}={setting_text(value)}" for key, value in changed.items()),
        "seeds": tuple(seeds),
        "games": sum(len(ours[seed]) for seed in seeds),
        "means": tuple(float(ours[seed].mean()) for seed in seeds),
        "mean": float(np.mean([ours[seed].mean() for seed in seeds])) if seeds else np.nan,
        "difference": np.nan, "difference_low": np.nan, "difference_high": np.nan, "p": np.nan,
    }  # fmt: skip
    if group is base or not seeds:
        return row
    each = np.array([ours[seed].mean() - theirs[seed].mean() for seed in seeds])
    row["difference"] = float(each.mean())
    if len(each) > 1:
        error = _error(each, [(ours[seed], theirs[seed]) for seed in seeds])
        if error == 0.0:  # nothing varies: no interval, and no p-value of 0
            return row
        far = student_t_quantile(0.975, len(each) - 1) * error
        row |= {
            "difference_low": row["difference"] - far,
            "difference_high": row["difference"] + far,
            "p": 2.0 * student_t_survival(abs(row["difference"]) / error, len(each) - 1),
        }
    return row


def _error(each: np.ndarray, games: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the standard error of the mean of `each`, the differences of pairs of `games`."""
    of_means = [side.var(ddof=1) / len(side) for pair in games for side in pair if len(side) > 1]
    floor = float(np.sum(of_means)) / len(each) ** 2
    return float(max(each.var(ddof=1) / len(each), floor)) ** 0.5


def _by_seed(group: PolicyGroup, played: DataFrame) -> dict[int, np.ndarray]:
    """Return the games of each seed, those of all students that have it."""
    mine = played[played["run"].isin(group.runs) & (played["policy"] == group.policy)]
    found: dict[int, list[np.ndarray]] = {}
    for seed, games in distinct_runs(mine):
        found.setdefault(seed, []).append(games)
    return {seed: np.concatenate(games) for seed, games in found.items()}


def ablation_tables(table: DataFrame) -> list[ShownTable]:
    """Tabulate `ablation_table`, one table per policy."""
    header = ["changed", "games", "return of each seed", "mean", "minus baseline [95%]", "p"]
    tables = []
    for policy, mine in table.groupby("policy", sort=False):
        rows = [_cells(row) for _, row in mine.iterrows()]
        tables.append(ShownTable(_NAMES[str(policy)], header, rows))
    return tables


def _cells(row: Any) -> list[str]:
    difference = "-" if np.isnan(row["difference"]) else f"{row['difference']:+.1f}"
    if not np.isnan(row["difference_low"]):
        difference += f" [{row['difference_low']:+.1f}, {row['difference_high']:+.1f}]"
    return [
        row["changed"] or "nothing: the baseline",
        str(row["games"]),
        ", ".join(f"{each:.1f}" for each in row["means"]),
        f"{row['mean']:.1f}",
        difference,
        "-" if np.isnan(row["p"]) else f"{row['p']:.2g}",
    ]
