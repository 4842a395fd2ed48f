"""Figures as data URIs of SVG that follow the page's light or dark."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from analysis.figure_style import new_figure, paper_style
from analysis.report.inputs import ReportError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 4.2  # inches: at 100 pixels an inch, half of the page, or a whole phone
_THEME = (
    "<style>svg{color:#1b1f24}text{fill:currentColor}"
    "@media(prefers-color-scheme:dark){svg{color:#e6e8eb}}</style>"
)


@contextmanager
def _report_style() -> Iterator[None]:
    try:
        import matplotlib
    except ImportError as error:
        raise ReportError('a report needs matplotlib: pip install "qpd[analysis]"') from error
    with paper_style(), matplotlib.rc_context({"text.parse_math": False, "axes.axisbelow": True}):
        yield


def figure_uri(draw: Callable[[Figure], None], height: float = 2.4) -> str:
    """What `draw` draws on an empty figure, `height` inches high, as a data URI.

    Black becomes the page's own text colour, and the background the page's.
    """
    with _report_style():
        figure = new_figure(WIDTH, height)
        draw(figure)
        data = io.BytesIO()
        figure.savefig(data, format="svg", metadata={"Date": None}, transparent=True)
    svg = data.getvalue().decode("utf-8")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(<svg[^>]*>)", rf"\1{_THEME}", svg[svg.index("<svg") :], count=1)
    svg = svg.replace("#000000", "currentColor")
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode("utf-8")).decode("ascii")
