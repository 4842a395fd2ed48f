"""Figures as data URIs of SVG that follow the page's light or dark."""

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

WIDTH = 3.8  # inches: letters of 8 points are readable on half a page and on a phone
_THEME = (
    "<style>svg{color:#1b1f24;fill:currentColor}"
    "@media(prefers-color-scheme:dark){svg{color:#e6e8eb}}</style>"
)


def figure_uri(draw: Callable[[Figure], None], height: float = 2.4) -> str:
    """What `draw` draws on an empty figure, `height` inches high, as a data URI.

    Black becomes the page's own text colour, and the background the page's.
    """
    import matplotlib

    with paper_style(), matplotlib.rc_context({"text.parse_math": False, "axes.axisbelow": True}):
        figure = new_figure(WIDTH, height)
        draw(figure)
        data = io.BytesIO()
        figure.savefig(data, format="svg", transparent=True)
    svg = data.getvalue().decode("utf-8")
    # Without the date of its making the same figure is the same bytes.
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(<svg[^>]*>)", rf"\1{_THEME}", svg[svg.index("<svg") :], count=1)
    svg = svg.replace("#000000", "currentColor")
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode("utf-8")).decode("ascii")


def plain_log_ticks(axis: Axis) -> None:
    """Label a logarithmic axis 0.01, 0.1, 1 ..., in between also 2 and 5 where it is short.

    Formulas are switched off in these figures, since names of runs and devices may hold a dollar.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 60 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
