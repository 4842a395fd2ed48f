"""Returns over bits as a figure: each kind has a look and a name, and each agent its title."""

from __future__ import annotations

import pandas as pd

from qpd.analysis.suites.sweet_spot import bits_figure


def rows_of(agent: str, kinds: list[str]) -> list[dict[str, object]]:
    fp32 = {"agent": agent, "kind": "fp32", "bits": 32, "return": 9.0, "low": 8.0, "high": 10.0}
    cells = [
        {"agent": agent, "kind": kind, "bits": bits, "return": bits, "low": 1.0, "high": 9.0}
        for kind in kinds
        for bits in (4, 8)
    ]
    return [{**row, "random": 0.0} for row in (fp32, *cells)]


def test_kinds_that_the_first_agent_lacks_are_named_too() -> None:
    kinds = [f"kind {number}" for number in range(8)]  # more than there are colours
    table = pd.DataFrame([*rows_of("a$_$b", kinds[:1]), *rows_of("b", kinds)])
    figure = bits_figure(table)
    figure.canvas.draw()  # a name is no formula
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == kinds
    looks = {(line.get_color(), line.get_marker()) for line in legend.get_lines()}
    assert len(looks) == len(kinds)
