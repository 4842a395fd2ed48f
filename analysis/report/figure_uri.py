"""Figures as SVG data URIs that follow the page's light or dark theme."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from qpd.analysis.figure_style import new_figure, paper_style

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTH = 3.8  # inches: 8-point text is readable on half a page and on a phone
# An SVG in an <img> sees nothing of the page's CSS, but does know the reader's colour scheme.
_THEME = (
    "<style>svg{color:#1b1f24;fill:currentColor}"
    "@media(prefers-color-scheme:dark){svg{color:#e6e8eb}}</style>"
)


def figure_uri(draw: Callable[[Figure], None], height: float = 2.4) -> str:
    """Return what `draw` draws on an empty figure, `height` inches high, as a data URI.

    Black becomes the page's text colour, and the background is transparent.
    """
    import matplotlib

    with paper_style(), matplotlib.rc_context({"text.parse_math": False, "axes.axisbelow": True}):
        figure = new_figure(WIDTH, height)
        draw(figure)
        data = io.BytesIO()
        figure.savefig(data, format="svg", transparent=True)
    svg = data.getvalue().decode("utf-8")
    # The metadata hold the date; without them equal figures are equal bytes.
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # The XML prologue before <svg goes too: it names a DTD, and the page may fetch nothing.
    svg = re.sub(r"(<svg[^>]*>)", rf"\1{_THEME}", svg[svg.index("<svg") :], count=1)
    svg = svg.replace("#000000", "currentColor")
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode("utf-8")).decode("ascii")


def plain_log_ticks(axis: Axis) -> None:
    """Label a logarithmic axis 0.01, 0.1, 1, ..., with 2 and 5 in between where it is short.

    matplotlib's own labels are formulas, which are switched off in these figures: a `$` in the name
    of a run or device would start one.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    # Over so short a span the powers of ten alone would leave a label or two.
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 60 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
