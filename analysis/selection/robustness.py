"""Returns over noise on observations: which policy keeps more of its own, and of the float's.

Kresse & Lampert (arXiv 2511.07046), Figure 3. The games are those of `qpd evaluate --noise --json`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from qpd.analysis.figure_style import (
    NEUTRAL,
    PAGE_WIDTH,
    as_label,
    error_lengths,
    new_figure,
    say_below,
    series_look,
)
from qpd.analysis.returns.mean_bootstrap import (
    RESAMPLES,
    ScorePair,
    mean_estimate,
    mean_of_ratios_estimate,
)
from qpd.analysis.returns.return_rows import ShownTable
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError
from qpd.evaluation.studentized import StudentizedEstimate, studentized_draws, t_estimate
from qpd.files.json_input import read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTES = [
    "noise in standard deviations of each feature; all levels begin alike; kept: "
    "of the policy's own return without noise; of the float's: at the same noise; 95% intervals; "
    "-: nothing to divide by, or a return that is not above 0"
]
_STUDENT, _AGENT, _INTEGERS = "distilled", "teacher", ("ptq", "qat")
_AT_ONCE = 500  # resamples
_LEGEND_LINE, _AROUND = 0.115, 0.6  # inches: one line of 6 points; title and labels of an axis


@dataclass(frozen=True)
class NoisyGames:
    """A policy's games by noise.

    `policy` is teacher, distilled, ptq or qat; `returns[sigma]` float64 `[episodes]`; noise is in
    units of `deviations`, one for each feature (None in files of earlier versions); `seed` is of
    the games. An agent may be `quantized`, an integer controller.
    """

    target: str
    policy: str
    env_id: str
    returns: dict[float, np.ndarray]
    deviations: tuple[float, ...] | None = None
    seed: int | None = None
    quantized: bool = False

    def __str__(self) -> str:
        """Return its run's or agent's folder, and which policy of it."""
        return f"{Path(self.target).name}, {self.policy}"

    @property
    def has_few_bits(self) -> bool:
        """Tell whether it is what the claim about noise is of: integers, by whichever way."""
        return self.policy in _INTEGERS or self.quantized

    def has_noise_of(self, other: NoisyGames) -> bool:
        """Tell whether both saw noise of the same size; one run's policies always do."""
        if self.deviations is None or other.deviations is None:
            return self.target == other.target
        return self.deviations == other.deviations


def read_noisy_games(files: Sequence[Path]) -> list[NoisyGames]:
    """Read what `qpd evaluate TARGET --noise SIGMA,... --json` printed into `files`.

    Raises TargetError for any other file.
    """
    return [_read(file) for file in files]


def _read(file: Path) -> NoisyGames:
    try:
        content = read_json(file)
        levels = {
            float(level["sigma"]): np.array(level["return"]["returns"], dtype=np.float64)
            for level in content["noise"]
        }
        target, policy, env_id = (content[key] for key in ("target", "policy", "env_id"))
        if not all(isinstance(each, str) for each in (target, policy, env_id)) or not levels:
            raise ValueError
        if any(each.ndim != 1 or len(each) < 2 for each in levels.values()):
            raise ValueError
        given = content.get("deviations")
        deviations = None if given is None else tuple(float(each) for each in given)
        quantized = bool(content.get("quantized", False))
        seed = content["noise"][0]["return"].get("seed")
    except FileNotFoundError as error:
        raise TargetError(f"{file}: no such file", ErrorCode.RUN_DAMAGED) from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise TargetError(
            f"{file}: holds no games; expected what `qpd evaluate TARGET --noise 0,0.1,0.5 --json` "
            "prints, of two games or more",
            ErrorCode.RUN_DAMAGED,
        ) from error
    return NoisyGames(target, policy, env_id, levels, deviations, seed, quantized)


def unequal_noise(played: Sequence[NoisyGames]) -> list[str]:
    """Return lines for policies that saw other noise or games than their environment's first."""
    found = []
    for place, each in enumerate(played):
        first = next(other for other in played[: place + 1] if other.env_id == each.env_id)
        if not each.has_noise_of(first):
            found.append(f"{first} and {each}: each noise is in units of its own play; "
                         "qpd evaluate --noise-like FILE makes it equal")  # fmt: skip
        if each.seed != first.seed:
            found.append(f"{first} and {each}: other games, of seeds {first.seed} and {each.seed}; "
                         "qpd evaluate --seed makes them equal")  # fmt: skip
    return found


def noisy_pairs(
    played: Sequence[NoisyGames],
) -> list[tuple[NoisyGames, NoisyGames, list[ScorePair]]]:
    """Return each policy in integers, its float, and pairs of their games by noise above 0.

    The float is the same run's float student. Without one it is a float agent that played in the
    same environment: rather one under equal noise, that no student's run lent, and whose folder
    ends in the same number, which is a training's seed.
    """
    found = []
    for each in played:
        its = _float_of(each, played)
        if each.has_few_bits and its is not None:
            pairs = [
                (games[None], its.returns[sigma][None])
                for sigma, games in sorted(each.returns.items())
                if sigma > 0.0 and sigma in its.returns
            ]
            found += [(each, its, pairs)] if pairs else []
    return found


def ratio_over_noise(pairs: Sequence[ScorePair]) -> StudentizedEstimate | None:
    """Estimate the mean over levels of noise of mean(first) / mean(second), each `[1, episodes]`.

    Games of one number begin alike at all levels and see the same draws of noise: a policy's are
    resampled together, as what they share does not average out. None if a mean of the second may
    be 0, or where levels have unlike numbers of games.
    """
    if any(len({pair[side].shape for pair in pairs}) > 1 for side in (0, 1)):
        return None
    first, second = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    rng = np.random.default_rng(zlib.crc32(first.tobytes() + second.tobytes()))
    few, base = (_resampled(games, rng) for games in (first, second))
    if (base.means <= 0.0).any():
        return None
    ratios = (few.means / base.means).mean(-1)
    slopes = 1.0 / base.means / len(pairs), -few.means / base.means**2 / len(pairs)
    parts = np.stack([
        np.einsum("ri,rij,rj->r", slope, each.covariances, slope)
        for slope, each in zip(slopes, (few, base), strict=True)
    ])  # fmt: skip
    variances = parts.sum(0)
    draws = studentized_draws(ratios[0], ratios[1:], np.sqrt(variances[1:]))
    freedoms = np.array([first.shape[1] - 1.0, second.shape[1] - 1.0])
    below = float((parts[:, 0] ** 2 / freedoms).sum())
    freedom = float(variances[0]) ** 2 / below if below > 0.0 else np.inf
    return StudentizedEstimate(float(ratios[0]), float(variances[0]) ** 0.5, draws, freedom)


@dataclass(frozen=True)
class _LevelMeans:
    """Means `[1 + resamples, levels]` of games and their covariances; the games as played first."""

    means: np.ndarray
    covariances: np.ndarray


def _resampled(games: np.ndarray, rng: np.random.Generator) -> _LevelMeans:
    """Resample games `[levels, episodes]`, the same ones at all levels."""
    levels, count = games.shape
    means = np.empty((1 + RESAMPLES, levels))
    covariances = np.empty((1 + RESAMPLES, levels, levels))
    for start in range(0, len(means), _AT_ONCE):
        block = slice(start, start + _AT_ONCE)
        which = rng.integers(count, size=(len(means[block]), count))
        if start == 0:
            which[0] = np.arange(count)
        drawn = games[:, which].transpose(1, 0, 2)
        means[block] = drawn.mean(2)
        off = drawn - means[block][:, :, None]
        covariances[block] = off @ off.transpose(0, 2, 1) / (count - 1) / count
    return _LevelMeans(means, covariances)


def _float_of(one: NoisyGames, played: Sequence[NoisyGames]) -> NoisyGames | None:
    for each in played:
        if each.policy == _STUDENT and each.target == one.target:
            return each
    agents = [
        each
        for each in played
        if each.policy == _AGENT and not each.quantized and each.env_id == one.env_id
    ]
    if not agents:
        return None
    lent = {each.target for each in played if each.policy != _AGENT}

    def unlike(agent: NoisyGames) -> tuple[bool, bool, bool, bool]:
        is_equal = agent.has_noise_of(one) and agent.seed == one.seed
        is_twin = _last_number(agent.target) == _last_number(one.target)
        return agent is not one, not is_equal, agent.target in lent, not is_twin

    return min(agents, key=unlike)


def _last_number(target: str) -> str:
    found = re.search(r"\d*$", Path(target).name)
    return found.group() if found else ""


def robustness(played: Sequence[NoisyGames]) -> pd.DataFrame:
    """Return a row for each policy and noise: return, what is kept, and its ratio to the float's.

    Ratios are NaN without noise-free games, or a float to compare with.
    """
    rows = []
    for each in played:
        its, clean = _float_of(each, played), each.returns.get(0.0)
        for sigma, games in sorted(each.returns.items()):
            row: dict[str, Any] = {
                "env_id": each.env_id,
                "target": each.target,
                "policy": each.policy,
                "noise": sigma,
                "episodes": len(games),
            }
            row |= _estimate("mean", mean_estimate(games[None]))
            row |= _estimate("kept", _kept(games, clean if sigma else None))
            other = its.returns.get(sigma) if its is not None and its is not each else None
            row |= _estimate("ratio", _ratio(games, other))
            rows.append(row)
    return pd.DataFrame(rows)


def _kept(games: np.ndarray, clean: np.ndarray | None) -> StudentizedEstimate | None:
    """Estimate mean(games) / mean(clean), game by game, as games of one number begin alike.

    By Student's t of what each game moves the ratio by (the delta method).
    """
    if clean is None or clean.mean() <= 0.0:
        return None
    if games.shape != clean.shape or len(games) < 2:
        return _ratio(games, clean)
    share = games.mean() / clean.mean()
    return t_estimate(share + (games - share * clean) / clean.mean())


def _ratio(games: np.ndarray, base: np.ndarray | None) -> StudentizedEstimate | None:
    return None if base is None else mean_of_ratios_estimate([(games[None], base[None])])


def _estimate(name: str, found: StudentizedEstimate | None) -> dict[str, float]:
    low, high = (np.nan, np.nan) if found is None else found.interval()
    value = np.nan if found is None else found.value
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def robustness_tables(table: pd.DataFrame) -> list[ShownTable]:
    """Tabulate `robustness`, one table for each environment."""
    header = ["policy", "noise", "games", "return", "kept", "of the float's"]
    tables = []
    for env_id, mine in table.groupby("env_id", sort=False):
        rows = [
            [
                f"{Path(str(row['target'])).name}, {row['policy']}",
                f"{row['noise']:g}",
                str(row["episodes"]),
                _said(row, "mean", "{:,.0f}"),
                _said(row, "kept", "{:.2f}"),
                _said(row, "ratio", "{:.2f}"),
            ]
            for row in mine.to_dict("records")
        ]
        tables.append(ShownTable(str(env_id), header, rows))
    return tables


def _said(row: dict[Any, Any], name: str, form: str) -> str:
    if np.isnan(row[name]):
        return "-"
    return f"{form} [{form}, {form}]".format(row[name], row[f"{name}_low"], row[f"{name}_high"])


def robustness_figure(table: pd.DataFrame) -> Figure:
    """Draw returns over noise, a panel for each environment; agents grey."""
    tasks = list(table.groupby("env_id", sort=False))
    most_lines = max(len(mine.groupby(["target", "policy"])) for _, mine in tasks)
    height = 2.4 + _LEGEND_LINE * most_lines
    figure = new_figure(PAGE_WIDTH, height)
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, (env_id, mine) in zip(panels, tasks, strict=True):
        policies = mine.groupby(["target", "policy"], sort=False)
        for place, ((target, policy), part) in enumerate(policies):
            look = series_look(place)
            if policy == _AGENT:
                look["color"] = NEUTRAL
            errors = error_lengths(part["mean"], part["mean_low"], part["mean_high"])
            axes.errorbar(
                part["noise"], part["mean"], errors, capsize=1.5, elinewidth=0.8,
                label=as_label(f"{Path(str(target)).name}, {policy}"), **look,
            )  # fmt: skip
        axes.set_title(str(env_id), loc="left")
        axes.set_xlabel("noise, standard deviations of each feature")
        least, most = min(0.0, float(mine["mean_low"].min())), float(mine["mean_high"].max())
        strip = _LEGEND_LINE * (len(policies) + 1)  # inches, free above for the legend
        share = strip / (height - _AROUND - strip)
        axes.set_ylim(least - 0.05 * abs(least), most + share * (most - least))
        axes.legend(fontsize=6, loc="upper right")
    panels[0].set_ylabel("return")
    say_below(figure, "bars: 95% intervals")
    return figure
