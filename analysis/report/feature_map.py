"""Report section: a UMAP of the student's last shared layer, coloured by value."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from qpd.analysis.networks.feature_umap import draw_embedding, feature_map
from qpd.analysis.report.blocks import Picture, Pictures, Section
from qpd.analysis.report.figure_uri import figure_uri
from qpd.analysis.report.inputs import ReportInputs
from qpd.environments.registry import EnvironmentConfigError
from qpd.runs.target import TargetError
from qpd.student_files.distilled import StudentFileError
from qpd.teachers import TeacherError
from qpd.version import pip_install

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

# 4 games as long as the paper's figure has of 16: play is most of what a map costs.
GAMES, THINNING = 4, 4
KEY, TITLE = "features", "What the student tells apart"


def feature_map_section(inputs: ReportInputs) -> Section | None:
    """Map `inputs.map_states` states of the teacher's play; None if that is 0."""
    if inputs.map_states == 0:
        return None
    # A missing package or teacher costs this section, never the page.
    if find_spec("umap") is None:
        return Section(KEY, TITLE, left_out=f"The map needs umap-learn: {pip_install('analysis')}")
    inputs.note("mapping the student's last layer")
    try:
        features = feature_map([inputs.path], inputs.map_states, games=GAMES, thinning=THINNING)
    except (EnvironmentConfigError, StudentFileError, TargetError, TeacherError) as error:
        return Section(KEY, TITLE, left_out=f"There is no map of states: {error}.")
    alike = features.summary["alike"].iloc[0]
    uri = figure_uri(lambda figure: _draw(figure, features.table), 3.4)
    caption = (
        f"{inputs.map_states:,} states of the teacher's play, by the fp32 student's last shared "
        "layer (UMAP: neighbours are alike, the axes have no meaning). Colours: the teacher's "
        f"value, in thirds. {alike:.0%} of a state's nearest neighbours in the layer are in its "
        "third; by chance 33% would be."
    )
    alt = f"A cloud of points in three colours; {alike:.0%} of neighbours have the same colour."
    return Section(KEY, TITLE, [Pictures([Picture(uri, alt, caption)])])


def _draw(figure: Figure, table: DataFrame) -> None:
    ax = figure.add_subplot()
    draw_embedding(ax, table)
    figure.legend(title="teacher's value", ncols=3, loc="outside lower center", markerscale=2)
