"""What a report is made from, for the tests of its sections."""

from __future__ import annotations

from pathlib import Path

from qpd.analysis.report.inputs import ReportInputs, read_inputs
from qpd.bench.device_record import read_device_record


def inputs_of(path: Path, *devices: Path) -> ReportInputs:
    """The inputs of a report on the run at `path`, without a film."""
    return read_inputs(path, [read_device_record(d) for d in devices], None, 0, lambda text: None)
