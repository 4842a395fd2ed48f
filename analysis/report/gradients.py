"""Report section: the arithmetic of training, and where its gradients lay."""

from __future__ import annotations

from qpd.analysis.precision.exponent_histograms import draw_exponents
from qpd.analysis.precision.training_arithmetic import ParameterBytes, arithmetic_text
from qpd.analysis.report.blocks import Picture, Pictures, Section, Table
from qpd.analysis.report.figure_uri import figure_uri
from qpd.analysis.report.inputs import ReportInputs
from qpd.numerics.precision import simulated_format
from qpd.recipe.training_phases import TrainingPhase
from qpd.runs.counted_gradients import PhaseGradients
from qpd.runs.manifest import PhaseName

_PHASES: dict[PhaseName, str] = {"distill": "phase 1", "finetune": "phase 3"}


def gradients_section(inputs: ReportInputs) -> Section | None:
    """Show loss scales, skipped updates and histograms of gradients, where there are any."""
    counted = {
        name: found
        for name in _PHASES
        if (found := PhaseGradients.read(inputs.run.exponents_file(name))) is not None
    }
    recipe = inputs.run.recipe
    settings: dict[PhaseName, TrainingPhase] = {
        "distill": recipe.distill, "finetune": recipe.finetune
    }  # fmt: skip
    is_low = any(simulated_format(each.precision) is not None for each in settings.values())
    if not counted and not is_low:
        return None
    rows = [_row(inputs, name, each) for name, each in settings.items()]
    header = ["", "arithmetic", "updates skipped", "last loss scale", "bytes by parameter"]
    caption = (
        "Bytes that training keeps for a parameter, were each number stored in its format; "
        "formats are simulated in float32."
    )
    table = Table(header, rows, caption, text_columns=2)
    pictures = [_picture(name, found) for name, found in counted.items()]
    if not pictures:
        return Section("gradients", "Training arithmetic", [table])
    return Section("gradients", "Training arithmetic and gradients", [Pictures(pictures, table)])


def _row(inputs: ReportInputs, name: PhaseName, settings: TrainingPhase) -> list[str]:
    record = inputs.run.phase(name).metrics
    told = [record.get(key) for key in ("skipped_updates", "loss_scale")]
    shown = [f"{each:,.10g}" if isinstance(each, int | float) else "-" for each in told]
    size = f"{ParameterBytes.of(settings).total:g}"
    return [_PHASES[name], arithmetic_text(settings), *shown, size]


def _picture(name: PhaseName, found: PhaseGradients) -> Picture:
    total = found.total("weights")
    shares = total.shares(found.form)
    told = ", ".join(f"{where} {100 * share:.2g}%" for where, share in shares.items())
    scale = total.fitting_scale(found.form)
    caption = (
        f"Exponents of the weight gradients of {_PHASES[name]}, without the loss scale, beside "
        f"{found.form}: below the first dotted line it loses them, below the second they are "
        f"subnormal, beyond the third they overflow."
    )
    alt = (
        f"{_PHASES[name]}, {total.total:,} gradients in {found.form}: {told}; {scale:g} would fit."
    )
    uri = figure_uri(lambda figure: draw_exponents(figure.add_subplot(), total, found.form))
    return Picture(uri, alt, caption)
