"""One run's summary: returns with intervals, parameters and bytes of teacher and students."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qpd.run_directory import RunDirectory
from qpd.student_files import load_student

LABELS = {
    "teacher": "teacher",
    "teacher_sharpened": "teacher, sharpened",
    "distilled": "distilled, fp32",
    "ptq": "quantized (PTQ)",
    "qat": "finetuned (QAT)",
}


def run_summary(path: Path) -> dict[str, Any]:
    """What the run at `path` measured, as plain data; policies not evaluated yet have no return.

    `size_bytes` is the file's size for students, and 4 bytes a parameter for the teacher.
    """
    run = RunDirectory.open(path, read_only=True)
    manifest = run.manifest
    evaluations = {str(k): v for k, v in manifest.evaluations.items()}
    summary: dict[str, Any] = {
        "run": str(path),
        "name": manifest.name,
        "seed": manifest.seed,
        "phases": {name: record.state for name, record in manifest.phases.items()},
        "policies": {},
    }
    policies = summary["policies"]
    if manifest.teacher is not None:
        count = manifest.teacher.num_parameters
        summary["teacher"] = manifest.teacher.model_dump()
        for name in ("teacher", "teacher_sharpened"):
            if name == "teacher" or name in evaluations:
                policies[name] = _entry(count, 4 * count, 32, evaluations.get(name))
    if run.distilled_file.is_file():
        count = load_student(run.distilled_file).architecture.num_parameters
        size = run.distilled_file.stat().st_size
        policies["distilled"] = _entry(count, size, 32, evaluations.get("distilled"))
        bits = run.recipe.quantize.weight_bits
        if run.phase("quantize").state == "done":
            size = run.ptq_file.stat().st_size
            policies["ptq"] = _entry(count, size, bits, evaluations.get("ptq"))
        if run.phase("finetune").state == "done":
            size = run.quantized_file.stat().st_size
            policies["qat"] = _entry(count, size, bits, evaluations.get("qat"))
    return summary


def _entry(
    parameters: int, size_bytes: int, bits: int, evaluation: dict[str, Any] | None
) -> dict[str, Any]:
    entry = {"num_parameters": parameters, "size_bytes": size_bytes, "weight_bits": bits}
    return entry | ({"return": evaluation} if evaluation is not None else {})


def summary_rows(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table that `qpd run` ends with."""
    header = ["policy", "return [95%]", "of teacher", "parameters", "bits", "bytes"]
    base = summary["policies"].get("teacher", {}).get("return")
    rows = []
    for name, entry in summary["policies"].items():
        evaluation, shown, ratio = entry.get("return"), "not evaluated", "-"
        if evaluation is not None:
            low, high = evaluation["interval"]
            shown = f"{evaluation['mean']:.1f} [{low:.1f}, {high:.1f}]"
            if base and base["mean"] > 0:
                ratio = f"{evaluation['mean'] / base['mean']:.0%}"
        sizes = [f"{entry['num_parameters']:,}", str(entry["weight_bits"])]
        rows.append([LABELS[name], shown, ratio, *sizes, f"{entry['size_bytes']:,}"])
    return header, rows


def summary_caption(summary: dict[str, Any]) -> str:
    """How the returns of the table were measured; empty where none was."""
    measured = [e["return"] for e in summary["policies"].values() if "return" in e]
    if not measured:
        return ""
    text = f"{measured[0]['episodes']} full games each, {measured[0]['acting']}"
    if "teacher_sharpened" in summary["policies"]:
        text += (
            f"; teacher, sharpened: {summary['policies']['teacher_sharpened']['return']['acting']}"
        )
    return f"{text}; mean with bootstrap interval; evaluation seed {measured[0]['seed']}"
