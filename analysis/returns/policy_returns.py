"""The return of each policy of each recipe, over its seeds and games, beside its teacher's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.returns.mean_bootstrap import (
    FEW_RUNS,
    mean_estimate,
    mean_of_ratios_estimate,
)
from qpd.analysis.returns.return_statistics import (
    Statistic,
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
    score_matrix,
)
from qpd.errors.codes import ErrorCode
from qpd.runs.run_directory import RunDirectoryError
from qpd.students import SIZE_GRID

if TYPE_CHECKING:
    from pandas import DataFrame, Series

TEACHERS = ("teacher", "teacher_sharpened")
_GROUP = ["env_id", "world", "teacher", "teacher_sha256", "policy", "recipe_key", "acting"]
_SHARED = (
    *_GROUP, "recipe", "recipe_key_but_lambda", "size", "parameters", "weight_bits", "layer_bits",
    "mean_bits", "activation_bits", "scheme", "lambda", "temperature",
)  # fmt: skip
_INTERNAL = ("world", "names", "recipe_key", "recipe_key_but_lambda")
_POLICY_ORDER = ("teacher", "teacher_sharpened", "distilled", "ptq", "qat")


def policy_returns(frame: DataFrame, seed: int = 0) -> DataFrame:
    """Return a row per recipe and policy of `frame` (a `run_frame`) that was evaluated.

    Runs whose recipes differ only in the seed share a row (`num_runs`); of several runs with the
    same student (equal seed and tensors), the one with the most episodes counts. A teacher's row
    joins its evaluations with different seeds or games. Besides what the runs have in common, the
    columns are: `mean`, `iqm` (interquartile mean), `relative` (the mean as a multiple of the
    teacher's; NaN if that may not be positive), `improvement` (the probability that a game ends
    above the teacher's), each with `_low` and `_high`, the ends of a 95% bootstrap interval (NaN
    for `iqm` and `improvement` of two to five runs, which are too few to be resampled). The
    teacher is the same file, in the same environment, acting by the same rule (a sharpened teacher
    is compared with the plain one); NaN if it was not evaluated, and for the teacher itself.

    `seed` is that of the bootstrap of `iqm` and `improvement`; a row's intervals depend on no other
    row but the teacher's. Raises RunDirectoryError if no policy was evaluated.
    """
    import pandas as pd

    played = frame[frame["returns"].map(len) > 0]
    if played.empty:
        names = sorted(set(frame["run"]))
        where = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
        raise RunDirectoryError(
            [f"{where or 'the runs given'}: no policy was evaluated yet; see `qpd evaluate`"],
            ErrorCode.NOTHING_MEASURED,
        )
    groups = dict(tuple(played.groupby(_GROUP, sort=False)))
    scores = {key: score_matrix(distinct_games(group)) for key, group in groups.items()}
    rows = []
    for key, group in groups.items():
        base = _teacher_scores(scores, key)
        # A fresh generator per row: the same games get the same interval in every table.
        rng = np.random.default_rng(seed)
        rows.append(_common(group) | _statistics(scores[key], base, rng))
    table = _told_apart(pd.DataFrame(rows))
    places = {"place": size_places(table), "turn": table["policy"].map(_POLICY_ORDER.index)}
    order = ["env_id", "teacher", "place", "parameters", "experiment", "turn"]
    ordered = table.assign(**places).sort_values(order, ignore_index=True)
    return ordered.drop(columns=list(places))


def _told_apart(table: DataFrame) -> DataFrame:
    """Name students of unlike recipes whose folders have one name by the folder above, too."""
    students = table[~table["policy"].isin(TEACHERS)]
    same = students[students.duplicated(["env_id", "policy", "experiment"], keep=False)]
    longer = [
        f"{Path(runs[0]).resolve().parent.name}/{name}"
        for runs, name in zip(same["runs"], same["experiment"], strict=True)
    ]
    table.loc[same.index, "experiment"] = longer
    return table


def size_places(table: DataFrame) -> Series:
    """Return numbers that order rows by size: the grid's, then other students, then teachers."""
    grid = {name: place for place, name in enumerate(SIZE_GRID)}
    place = table["size"].map(grid).fillna(len(grid))
    return place.mask(table["policy"].isin(TEACHERS), len(grid) + 1)


def final_students(table: DataFrame) -> DataFrame:
    """Drop the PTQ students of `policy_returns` whose runs also have a finetuned one."""
    finetuned = {run for runs in table["runs"][table["policy"] == "qat"] for run in runs}
    superseded = [
        policy == "ptq" and not finetuned.isdisjoint(runs)
        for policy, runs in zip(table["policy"], table["runs"], strict=True)
    ]
    return table[~np.array(superseded, dtype=bool)].reset_index(drop=True)


def returns_csv(table: DataFrame) -> DataFrame:
    """Return `table` for CSV: the runs' names as one text, without this package's own keys."""
    return table.assign(runs=table["runs"].map(";".join)).drop(columns=list(_INTERNAL))


def distinct_games(group: DataFrame) -> list[np.ndarray]:
    """Return the returns of each run that is no copy of another (`distinct_runs`).

    A teacher's, one agent whoever has it play, are one run's.
    """
    found = [returns for _, returns in distinct_runs(group)]
    is_teacher = group["policy"].iloc[0] in TEACHERS
    return [np.concatenate(found)] if is_teacher and found else found


def distinct_runs(group: DataFrame) -> list[tuple[int, np.ndarray]]:
    """Return seed and returns of each run that is no copy of another, by seed.

    A teacher's evaluations of one seed may share games: each counts once. Students are told apart
    by their seed and tensors: the same recipe and seed make a different student on another machine.
    A run without the student's file is taken to be the first of its seed.
    """
    kept = distinct_rows(group)
    seed = "evaluation_seed" if kept["policy"].iloc[0] in TEACHERS else "seed"
    return [(int(one), returns) for one, returns in zip(kept[seed], kept["returns"], strict=True)]


def distinct_rows(group: DataFrame) -> DataFrame:
    """Return the rows of `distinct_runs`, in its order."""
    if group["policy"].iloc[0] in TEACHERS:
        return _distinct_evaluations(group)
    best: dict[Any, int] = {}
    with_file = group[group["student_digest"] != ""]
    # Backwards, so that the first run of each seed is the one that stays in the dictionary.
    digests = dict(zip(with_file["seed"][::-1], with_file["student_digest"][::-1], strict=True))
    games = list(group["returns"])
    keys = zip(group["seed"], group["student_digest"], strict=True)
    for place, (seed, digest) in enumerate(keys):
        key = (seed, digest or digests.get(seed, ""))
        if key not in best or len(games[place]) > len(games[best[key]]):
            best[key] = place
    return group.iloc[list(best.values())].sort_values("seed", kind="stable")


def _distinct_evaluations(group: DataFrame) -> DataFrame:
    """Return the rows with the games that no longer evaluation of their seed holds.

    Game k of a seed begins in one state wherever it is played; another version or number of
    environments may still go on otherwise.
    """
    seen: set[tuple[float, ...]] = set()
    rows = []
    for _, row in group.iloc[group["returns"].map(len).argsort(kind="stable")[::-1]].iterrows():
        games = zip(row["returns"], row["lengths"], strict=True)
        keys = [(row["evaluation_seed"], k, *game) for k, game in enumerate(games)]
        new = np.array([key not in seen for key in keys], dtype=bool)
        seen.update(keys)
        if new.any():
            kept = {name: row[name][new] for name in ("returns", "lengths")}
            fewest = min(row["distinct_games"], int(new.sum()))
            rows.append(row.to_dict() | kept | {"distinct_games": fewest})
    found = type(group)(rows, columns=group.columns)
    return found.sort_values("evaluation_seed", kind="stable")


def _teacher_scores(scores: dict[Any, np.ndarray], key: tuple[str, ...]) -> np.ndarray | None:
    """Return the scores that the policy `key` is compared with; None for the teacher itself."""
    env_id, world, _, sha256, policy, _, acting = key
    if policy == "teacher":
        return None
    plain = {
        rule: matrix
        for (env, place, _, sha, name, _, rule), matrix in scores.items()
        if (env, place, sha, name) == (env_id, world, sha256, "teacher")
    }
    return plain.get("sampled" if policy == "teacher_sharpened" else acting)


def _common(group: DataFrame) -> dict[str, Any]:
    """Return what the rows of a group share, and which runs they are."""
    first = group.iloc[0]
    sizes = group["size_bytes"].dropna()
    names = list(dict.fromkeys(group["experiment"]))
    return {
        "experiment": names[0] if len(names) == 1 else f"{names[0]} + {len(names) - 1} more",
        **{name: first[name] for name in _SHARED},
        "size_bytes": sizes.iloc[0] if len(sizes) else np.nan,
        "runs": tuple(dict.fromkeys(group["run"])),
        "names": tuple(dict.fromkeys(group["name"])),
    }


def _statistics(
    scores: np.ndarray, base: np.ndarray | None, rng: np.random.Generator
) -> dict[str, Any]:
    """Return the counts, and each statistic with its interval; `base` is the teacher's scores."""
    found: dict[str, Any] = {
        "num_runs": len(scores),
        "num_episodes": int((~np.isnan(scores)).sum()),
    }
    whole = mean_estimate(scores)
    relative = None if base is None else mean_of_ratios_estimate([(scores, base)])
    for name, estimate in (("mean", whole), ("relative", relative)):
        ends = (np.nan, np.nan) if estimate is None else estimate.interval()
        value = np.nan if estimate is None else estimate.value
        found |= {name: value, f"{name}_low": ends[0], f"{name}_high": ends[1]}
    wanted: list[tuple[str, Statistic, tuple[np.ndarray | None, ...]]] = [
        ("iqm", interquartile_mean, (scores,)),
        ("improvement", probability_of_improvement, (scores, base)),
    ]
    for name, statistic, inputs in wanted:
        known = [matrix for matrix in inputs if matrix is not None]
        value, low, high = np.nan, np.nan, np.nan
        if len(known) == len(inputs):
            low, high = bootstrap_interval(statistic, *known, rng=rng)
            value = np.nan if np.isnan(low) else float(statistic(*known))
            # Resampled, two to five runs would have far too narrow an interval.
            low, high = (np.nan, np.nan) if 2 <= len(scores) <= FEW_RUNS else (low, high)
        found |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return found
