"""Equations as MathML, which browsers draw by themselves: no script, no font, no request."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

# What pymdownx.arithmatex (generic) leaves of $...$ and $$...$$.
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def render_equations(page: str) -> str:
    """The HTML of a page with every LaTeX formula in it replaced by MathML."""
    page = _INLINE.sub(lambda found: _mathml(found[1], "inline"), page)
    return _DISPLAY.sub(
        lambda found: f'<div class="equation">{_mathml(found[1], "block")}</div>', page
    )


def _mathml(latex: str, display: str) -> str:
    return convert(html.unescape(latex).strip(), display=display)
