"""The place of the UMAP figure: how the student's last shared layer sees the states it meets."""

from __future__ import annotations

from analysis.report.blocks import Picture, Pictures, Section
from analysis.report.inputs import ReportInputs


def feature_map_picture(inputs: ReportInputs) -> Picture | None:
    """The map as a picture, drawn through `figure_uri`; None where there is none, as yet always."""
    return None


def feature_map_section(inputs: ReportInputs) -> Section | None:
    """The map in a section of its own; None leaves the section out."""
    picture = feature_map_picture(inputs)
    if picture is None:
        return None
    return Section("features", "What the student tells apart", [Pictures([picture])])
