"""The recycling of dormant units between epochs, of float students and of quantized ones."""

from __future__ import annotations

from collections.abc import Callable

import torch

from qpd.phases.play import Play
from qpd.phases.student_run import StudentRun
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.runs.progress import Progress
from qpd.students import Student
from qpd.training.dormant_units import RECYCLED, recycle_dormant_units
from qpd.training.state import PhaseState

SAMPLE = 4096  # observations that decide which units are dormant


def recycler(
    student: StudentRun,
    network: Student | QuantizedStudent,
    wanted: bool,
    state: PhaseState,
    play: Play,
    progress: Progress,
) -> Callable[[], None] | None:
    """Return what reinitialises `network`'s dormant units, judged by the memory's states.

    None unless it is `wanted`, and for functions that have no dormant units. A quantized unit is
    dormant where its level is 0 for each of them; those of tables are left alone.
    """
    known = ("relu",) if isinstance(network, QuantizedStudent) else RECYCLED
    activation = student.prepared.architecture.activation
    if not wanted or activation not in known:
        return None
    floats = network.student if isinstance(network, QuantizedStudent) else network

    def recycle() -> None:
        count = min(len(play.memory), SAMPLE)
        rows = state.shuffle.choice(play.memory.transition_rows(), count, False)
        observations = play.memory.gather(torch.from_numpy(rows)).observations
        hidden = network.hidden_activations(observations.to(student.prepared.device))
        seed = int(state.shuffle.integers(2**31))
        found = recycle_dormant_units(floats, state.optimizer, hidden, seed)
        if isinstance(network, QuantizedStudent):
            for layer, units in found.items():
                network.refit_scales(layer, units)
        if found:
            prefix = f"{student.label}: " if student.label else ""
            total = sum(int(units.sum()) for units in found.values())
            progress.note(f"{prefix}epoch {state.epoch}: {total} dormant units start anew")

    return recycle
