"""Report section: headline numbers, and the table of `qpd show`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qpd.analysis.report.blocks import Block, Card, Cards, Section, Table, Text
from qpd.analysis.report.inputs import ReportInputs
from qpd.analysis.runs.run_table import LABELS, entry_widths, summary_caption, summary_rows
from qpd.evaluation.return_words import interval_text, interval_words
from qpd.quantization.bit_widths import FLOAT_BITS


def headline_section(inputs: ReportInputs) -> Section:
    """Return the returns with their intervals, and how much smaller the student is."""
    policies = inputs.summary["policies"]
    teacher = policies["teacher"]
    cards = [_return_card("Teacher's return", teacher, _teacher_notes(policies))]
    # A report of a run in progress opens with the teacher alone.
    if inputs.student is not None:
        student = policies[inputs.student]
        label = "Student's return"
        cards.insert(0, _return_card(label, student, (LABELS[inputs.student],)))
        cards += _size_cards(inputs, teacher, student)
    header, rows = summary_rows(inputs.summary)
    blocks: list[Block] = [Cards(cards), Table(header, rows, summary_caption(inputs.summary))]
    if inputs.student is None:
        blocks.append(Text("Phase 1 is not finished: there is no student yet."))
    return Section("summary", "Summary", blocks)


def _return_card(label: str, entry: dict[str, Any], notes: tuple[str, ...]) -> Card:
    evaluation = entry.get("return")
    if evaluation is None:
        return Card(label, "not evaluated", notes)
    measured = interval_words(evaluation["interval"], evaluation["episodes"])
    return Card(label, f"{evaluation['mean']:,.1f}", (measured, *notes))


def _teacher_notes(policies: dict[str, Any]) -> tuple[str, ...]:
    sharpened = policies.get("teacher_sharpened", {}).get("return")
    if sharpened is None:
        return ()
    interval = interval_text(sharpened["interval"], sharpened["episodes"])
    return (
        f"{sharpened['mean']:,.1f} {interval} {sharpened['acting']}, "
        "which is what the student learns",
    )


def _size_cards(
    inputs: ReportInputs, teacher: dict[str, Any], student: dict[str, Any]
) -> list[Card]:
    counts = (teacher["num_parameters"], student["num_parameters"])
    cards = [_ratio_card("parameters", *counts, "the teacher's {:,}")]
    size = student["size_bytes"]
    if size is not None:
        note = "{:,}, the teacher's parameters as floats"
        card, constants = (
            _ratio_card("bytes", teacher["size_bytes"], size, note),
            student["constant_bytes"],
        )
        if constants is not None:
            packed = f"as files; the student's constants alone take {constants:,}"
            card = replace(card, notes=(*card.notes, packed))
        cards.append(card)
    settings = inputs.run.recipe.quantize
    widths = entry_widths(student)
    if widths.fewest == FLOAT_BITS:
        return [*cards, Card("Bits", str(FLOAT_BITS), ("floats: not quantized",))]
    activations = f"activations {settings.activation_bits}"
    if widths.is_uniform:
        return [*cards, Card("Bits", widths.by_layer, (f"a weight; {activations}",))]
    notes = ("a weight, mean over all", f"by layer {widths.by_layer}", activations)
    return [*cards, Card("Bits", f"{widths.mean:.1f}", notes)]


def _ratio_card(what: str, teachers: int, students: int, note: str) -> Card:
    # A student may be larger than its teacher (XXL): "0.5x fewer" would be nonsense.
    ratio = teachers / students
    label = f"Fewer {what}" if ratio >= 1 else f"More {what}"
    ratio = max(ratio, 1 / ratio)
    value = f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.1f}x"
    return Card(label, value, (f"{students:,} beside {note.format(teachers)}",))
