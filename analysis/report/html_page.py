"""A report: its sections in order, rendered into one HTML file by `page/report.html`."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import TYPE_CHECKING

from qpd.analysis.report.actions import actions_section
from qpd.analysis.report.blocks import Section
from qpd.analysis.report.feature_map import feature_map_section
from qpd.analysis.report.gradients import gradients_section
from qpd.analysis.report.headline import headline_section
from qpd.analysis.report.inputs import ReportInputs
from qpd.analysis.report.latency import latency_section
from qpd.analysis.report.provenance import provenance_section, recipe_section
from qpd.analysis.report.returns import returns_section
from qpd.analysis.report.sizes import sizes_section
from qpd.analysis.report.training import training_section
from qpd.analysis.report.usage import usage_section
from qpd.analysis.report.video import video_section
from qpd.analysis.runs.run_identity import agent_title
from qpd.version import __version__

if TYPE_CHECKING:
    from markupsafe import Markup

# In the order of the page. A section that returns None is left out without a word.
SECTIONS: tuple[Callable[[ReportInputs], Section | None], ...] = (
    headline_section,
    video_section,
    actions_section,
    returns_section,
    training_section,
    gradients_section,
    feature_map_section,
    sizes_section,
    latency_section,
    recipe_section,
    provenance_section,
    usage_section,
)


def report_sections(inputs: ReportInputs) -> list[Section]:
    """Return the sections of the page, in order."""
    return [section for make in SECTIONS if (section := make(inputs)) is not None]


def render_page(inputs: ReportInputs, sections: Sequence[Section]) -> str:
    """Render the page: all text escaped, under a policy that lets the browser fetch nothing."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("qpd.analysis.report", "page"),
        # Names of runs, devices and environments come from files that others may have written.
        autoescape=True,
        # A misspelt name in the template fails instead of rendering as nothing.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code_spans"] = _code_spans
    teacher = inputs.run.manifest.teacher
    assert teacher is not None  # `read_inputs` refuses runs that have not begun
    style, script = _page_file("report.css"), _page_file("player.js")
    # The page's content security policy allows this one script by its hash, and no other.
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return environment.get_template("report.html").render(
        manifest=inputs.run.manifest,
        name=inputs.summary["name"],
        agent=agent_title(teacher.algo, teacher.env_id),
        sections=sections,
        style=style,
        script=script,
        script_sha256=digest,
        version=__version__,
    )


def _code_spans(text: str) -> Markup:
    """Escape a sentence for HTML; what stands between backquotes becomes code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _page_file(name: str) -> str:
    return resources.files("qpd.analysis.report").joinpath("page", name).read_text(encoding="utf-8")
