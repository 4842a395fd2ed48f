"""Returns over bits (QuaRL's Figures 2 and 7), and the sweet spot as an interval of bits.

One agent's best number of bits is luck as much as cause: 100 games tell neighbours apart rarely. So
the sweet spot is every number of bits whose paired games are not worse than the best one's, at 5%
for all pairs of the agent's numbers of bits together (Holm). Beside it stands the fewest bits that
keep 95% of R_fp32 - R_random, and from which on all higher numbers keep it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from qpd.agents.results import AgentResult, Cell
from qpd.analysis.figure_style import NEUTRAL, PAGE_WIDTH, as_label, new_figure, series_look
from qpd.analysis.returns.return_rows import ShownTable
from qpd.evaluation.games import bootstrap_estimate, bootstrap_interval
from qpd.evaluation.holm import ERROR_RATE, holm
from qpd.evaluation.studentized import two_sided_p

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEPT = 0.95
_COLUMNS, MOST_PANELS = 5, 30


def returns_by_bits(results: Sequence[AgentResult]) -> pd.DataFrame:
    """Return a row for each agent and number of bits: mean return and its 95% interval.

    `kind` is the scheme, what shares a range, and bits of activations; fp32 has 32 bits and every
    kind. `share` is (R - R_random) / (R_fp32 - R_random).
    """
    rows = []
    for result in results:
        random = float(np.mean(result.random.returns))
        own = float(np.mean(result.fp32.played.returns))
        for kind, cells in _kinds(result).items():
            for bits, cell in [(32, result.fp32), *cells]:
                returns = np.array(cell.played.returns)
                low, high = bootstrap_interval(returns)
                mean = float(returns.mean())
                share = (mean - random) / (own - random) if own > random else np.nan
                rows.append(
                    {
                        "agent": result.name,
                        "algo": result.algo,
                        "kind": kind,
                        "bits": bits,
                        "return": mean,
                        "low": low,
                        "high": high,
                        "share": share,
                        "random": random,
                    }
                )
    return pd.DataFrame(rows)


def sweet_spots(results: Sequence[AgentResult], *, over_agents: bool = False) -> pd.DataFrame:
    """Return for each agent and kind the best number of bits, the sweet spot, the fewest that do.

    `from_bits` and `to_bits` are the sweet spot's ends; `is_whole` says whether all numbers between
    them belong to it. `fewest` is None where no number of bits keeps 95%. Comparisons are corrected
    for all of an agent's, or with `over_agents` for all there are, as what compares agents needs.
    """
    found = [
        (result, kind, {bits: np.array(cell.played.returns) for bits, cell in cells})
        for result in results
        for kind, cells in _kinds(result).items()
        if len(cells) >= 3
    ]
    # Which number is best is itself chosen by these games, so that all pairs are tested, not those
    # with the best one alone.
    each = [_p_of_pairs(games) for _, _, games in found]
    families = [0 if over_agents else place for place in range(len(found))]
    corrected: list[dict[tuple[int, int], float]] = [{} for _ in found]
    for family in dict.fromkeys(families):
        mine = [
            (place, pair)
            for place, of in enumerate(families)
            if of == family
            for pair in each[place]
        ]
        values = holm([each[place][pair] for place, pair in mine])
        for (place, pair), p in zip(mine, values, strict=True):
            corrected[place][pair] = p
    rows = [_spot(*one, p) for one, p in zip(found, corrected, strict=True)]
    return pd.DataFrame(rows)


def _spot(
    result: AgentResult,
    kind: str,
    games: dict[int, np.ndarray],
    p_values: dict[tuple[int, int], float],
) -> dict[str, Any]:
    random = float(np.mean(result.random.returns))
    own = float(np.mean(result.fp32.played.returns))
    best = max(games, key=lambda bits: (games[bits].mean(), bits))
    others = [bits for bits in games if bits != best]
    inside = sorted([best, *(b for b in others if p_values[_pair(b, best)] >= ERROR_RATE)])
    ends = [bits for bits in sorted(games) if inside[0] <= bits <= inside[-1]]
    fewest = None
    for bits in sorted(games, reverse=True):
        if own <= random or games[bits].mean() - random < KEPT * (own - random):
            break
        fewest = bits
    return {
        "agent": result.name,
        "kind": kind,
        "best": best,
        "from_bits": inside[0],
        "to_bits": inside[-1],
        "is_whole": ends == inside,
        "fewest": fewest,
    }


def sweet_spot_table(table: pd.DataFrame) -> ShownTable:
    """Return the sweet spots as text."""
    rows = [
        [
            row.agent,
            row.kind,
            str(row.best),
            f"{row.from_bits} to {row.to_bits}" + ("" if row.is_whole else ", with gaps"),
            "none" if pd.isna(row.fewest) else str(int(row.fewest)),
        ]
        for row in table.itertuples()
    ]
    header = ["agent", "quantized", "best bits", "sweet spot", "fewest that keep 95%"]
    return ShownTable("sweet spots: bits not worse than the best (16: fp16)", header, rows)


def bits_figure(table: pd.DataFrame) -> Figure:
    """Draw return over bits, a panel for each agent, a line for each kind, bands of 95%."""
    agents = list(dict.fromkeys(table["agent"]))[:MOST_PANELS]
    kinds = list(dict.fromkeys(table["kind"]))
    columns = min(_COLUMNS, len(agents))
    rows = -(-len(agents) // columns)
    figure = new_figure(PAGE_WIDTH, max(2.2, 1.3 * rows + 0.4))
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    named: dict[str, Any] = {}  # kinds that some agent has, not the first one alone
    for axis, agent in zip(axes, agents, strict=False):
        mine = table[table["agent"] == agent]
        axis.axhline(mine["random"].iloc[0], color=NEUTRAL, linewidth=0.6, linestyle=":")
        axis.axhline(mine[mine["bits"] == 32]["return"].iloc[0], color=NEUTRAL, linewidth=0.6)
        for place, kind in enumerate(kinds):
            line = mine[(mine["kind"] == kind) & (mine["bits"] < 32)].sort_values("bits")
            if line.empty:
                continue
            x = np.log2(line["bits"].to_numpy(float))
            look = series_look(place)
            axis.fill_between(x, line["low"], line["high"], color=look["color"], alpha=0.2, lw=0)
            (drawn,) = axis.plot(x, line["return"], markersize=2.5, linewidth=0.8, **look)
            named.setdefault(kind, drawn)
        axis.set_title(as_label(agent.replace("-", "\n", 1)), fontsize=5.5)  # algorithm, game
        axis.set_xticks(np.log2([2, 3, 4, 6, 8, 16]), ["2", "3", "4", "6", "8", "16"], fontsize=5)
        axis.tick_params(axis="y", labelsize=5)
    for axis in axes[len(agents) :]:
        axis.set_visible(False)
    figure.supxlabel("bits of weights (16: fp16); bands: 95% intervals", fontsize=7)
    figure.supylabel("return; grey: fp32, dotted: random", fontsize=7)
    if len(named) > 1:
        figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=3, fontsize=6)
    return figure


def _kinds(result: AgentResult) -> dict[str, list[tuple[int, Cell]]]:
    """Return the measured cells by kind, with their bits; fp16 belongs to every kind."""
    half = [(16, cell) for cell in result.cells if cell.precision == "fp16" and not cell.why_not]
    found: dict[str, list[tuple[int, Cell]]] = {}
    for cell in result.cells:
        if cell.precision == "fp16" or cell.why_not is not None:
            continue
        weights, _, activations = cell.precision.removeprefix("W").partition("A")
        kind = f"{cell.scheme}, {cell.per}" + (f", A{activations}" if activations else "")
        found.setdefault(kind, []).append((int(weights), cell))
    return {kind: [*half, *sorted(cells, key=lambda c: -c[0])] for kind, cells in found.items()}


def _pair(one: int, other: int) -> tuple[int, int]:
    return min(one, other), max(one, other)


def _p_of_pairs(games: dict[int, np.ndarray]) -> dict[tuple[int, int], float]:
    """Return the two-sided p-value of "equally good" for each pair of bits, of paired games.

    A single game tells nothing: 1.
    """
    found = {}
    for one, other in combinations(sorted(games), 2):
        if len(games[one]) < 2:
            found[one, other] = 1.0
            continue
        differences = games[one] - games[other]
        found[one, other] = two_sided_p(bootstrap_estimate(differences), len(differences))
    return found
