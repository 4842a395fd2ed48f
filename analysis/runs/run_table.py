"""One run's summary: returns with intervals, parameters and bytes of teacher and students."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from qpd.analysis.runs.phase_metrics import metrics_rows
from qpd.analysis.runs.run_identity import agent_title, run_name
from qpd.analysis.runs.student_bits import run_architecture
from qpd.errors.terminal_text import printable
from qpd.evaluation.return_words import games_text, interval_text
from qpd.quantization.bit_widths import FLOAT_BITS, BitWidths, configured_widths, float_widths
from qpd.runs.manifest import MADE_BY, Manifest
from qpd.runs.run_directory import RunDirectory
from qpd.runs.run_folder import is_in_use
from qpd.student_files.quantized import stored_constant_bytes
from qpd.teachers.archive.agent_identity import agent_name

LABELS = {
    "teacher": "teacher",
    "teacher_sharpened": "teacher, sharpened",
    "distilled": "distilled, fp32",
    "ptq": "quantized (PTQ)",
    "qat": "finetuned (QAT)",
}


def run_summary(path: Path) -> dict[str, Any]:
    """Return what the run at `path` measured, as plain data.

    `name` is the folder's, `recipe` the recipe's. Policies that were not evaluated have no
    `return`. `size_bytes` is the file's size, for the teacher 4 bytes per parameter; None if a
    student's file was left out of a committed run. `constant_bytes` leaves the file's header out:
    what the C export puts into flash, 4 bytes per parameter in fp32. `weight_bits` is the fewest of
    any layer; a student also has `layer_bits`, actor head last, and `mean_bits` over its weights.
    `warnings` are lines of text. `under_way` says how far a phase is that has begun and is not
    done, else None. `method` is `agent` where the student is the agent itself
    (`qpd quantize AGENT`), else missing.
    Raises RunDirectoryError, StudentFileError.
    """
    run = RunDirectory.open(path, read_only=True)
    manifest = run.manifest
    summary: dict[str, Any] = {
        "run": str(path),
        "name": run_name(path),
        "recipe": manifest.name,
        "seed": manifest.seed,
        "phases": {name: record.state for name, record in manifest.phases.items()},
        "policies": {},
        "warnings": _warnings(manifest),
        "seconds": _seconds(manifest),
        "under_way": _under_way(run),
    }
    if manifest.is_agent:
        summary["method"] = "agent"
    policies = summary["policies"]
    evaluations = {str(k): v for k, v in manifest.evaluations.items()}
    if manifest.teacher is not None:
        count = manifest.teacher.num_parameters
        summary["teacher"] = manifest.teacher.model_dump()
        # The plain teacher has a row even before it is evaluated; the sharpened one plays only for
        # recipes whose sharpness is not 1.
        for name in ("teacher", "teacher_sharpened"):
            if name == "teacher" or name in evaluations:
                bits = {"weight_bits": FLOAT_BITS}
                policies[name] = _entry(count, 4 * count, bits, evaluations.get(name))
    architecture = run_architecture(run)
    for name, file in run.student_files.items():
        if manifest.phases[MADE_BY[name]].state == "done" and architecture:
            shapes, set_ = architecture.layer_shapes(), run.recipe.quantize
            widths = (
                float_widths(shapes)
                if name == "distilled"
                else configured_widths(
                    shapes, set_.weight_bits, set_.first_layer_bits, set_.last_layer_bits
                )
            )
            size = file.stat().st_size if file.is_file() else None
            count, played = architecture.num_parameters, evaluations.get(name)
            policies[name] = _entry(count, size, widths.to_json(), played)
            if file.is_file() and name != "distilled":
                policies[name]["constant_bytes"] = stored_constant_bytes(file)
    return summary


def _under_way(run: RunDirectory) -> str | None:
    """Say which phase a process is at, or which one has begun and is not done; else None."""
    phases = run.manifest.phases
    begun = next((name for name in phases if phases[name].state == "running"), None)
    in_use = is_in_use(run.path)
    # The first games and the filling of the memory come before a phase is said to run.
    name = begun or next((each for each in phases if phases[each].state == "pending"), None)
    if name is None or (begun is None and not in_use):
        return None
    place = str(name)
    rows = [row for row in metrics_rows(run) if row["phase"] == name]
    if rows and name in ("distill", "finetune"):
        settings = run.recipe.distill if name == "distill" else run.recipe.finetune
        place += f", epoch {rows[-1]['epoch']} of {settings.epochs}"
    if in_use is None:
        return f"not done: {place}"
    return f"at work: {place}" if in_use else f"interrupted: {place}; rerun its command to resume"


def _warnings(manifest: Manifest) -> list[str]:
    """Return what the run warned of and its results suffer from: a teacher that plays badly."""
    first_games = manifest.phases["distill"].metrics.get("first_games") or {}
    return [first_games["warning"]] if first_games.get("warning") else []


def _seconds(manifest: Manifest) -> dict[str, float]:
    """Add up the run's seconds by part: collect, gather, train, validate, evaluate."""
    total: dict[str, float] = {}
    for record in manifest.phases.values():
        for what, seconds in record.metrics.get("seconds", {}).items():
            total[what] = total.get(what, 0.0) + seconds
    played = [e["seconds"] for e in manifest.evaluations.values() if "seconds" in e]
    return total | ({"evaluate": sum(played)} if played else {})


def time_line(summary: dict[str, Any]) -> str:
    """Return where the time went, in one line; empty if nothing was timed."""
    spent = summary["seconds"]
    total = sum(spent.values())
    if total <= 0:
        return ""
    order = [
        name for name in ("collect", "gather", "train", "validate", "evaluate") if name in spent
    ]
    parts = [f"{name} {_clock(spent[name])} ({spent[name] / total:.0%})" for name in order]
    return f"time {_clock(total)}: {', '.join(parts)}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _entry(
    parameters: int,
    size_bytes: int | None,
    bits: dict[str, Any],
    evaluation: dict[str, Any] | None,
) -> dict[str, Any]:
    entry = {"num_parameters": parameters, "size_bytes": size_bytes, **bits}
    # Weights and biases alone, 4 bytes each in fp32; of integers the file says how they are packed.
    entry["constant_bytes"] = 4 * parameters if bits["weight_bits"] == FLOAT_BITS else None
    return entry | ({"return": evaluation} if evaluation is not None else {})


def entry_widths(entry: dict[str, Any]) -> BitWidths:
    """Return the bits per weight of one of a summary's policies."""
    if "layer_bits" not in entry:  # a teacher
        return BitWidths((entry["weight_bits"],), entry["weight_bits"])
    return BitWidths(tuple(entry["layer_bits"]), entry["mean_bits"])


def summary_title(summary: dict[str, Any]) -> str:
    """Return the run's folder, its agent and the recipe's name if it has one, in one line."""
    teacher = summary.get("teacher")
    if teacher is None:
        return f"{summary['name']}, recipe {summary['recipe']}"
    algo, env_id = teacher["algo"], teacher["env_id"]
    what = agent_title(algo, env_id)
    if summary.get("method") != "agent":
        what = f"student of {what}"
    title = f"{summary['name']}, {what}"
    # Without a recipe the agent gives the run its name: no recipe is called that.
    is_recipe = summary["recipe"] != agent_name(algo, env_id)
    return f"{title}, recipe {summary['recipe']}" if is_recipe else title


def summary_rows(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table that `qpd run` ends with."""
    header = [
        "policy",
        "return [95%]",
        "of teacher",
        "parameters",
        "bits",
        "file bytes",
        "constants",
    ]
    base = summary["policies"].get("teacher", {}).get("return")
    rows = []
    for name, entry in summary["policies"].items():
        evaluation, shown, ratio = entry.get("return"), "not evaluated", "-"
        if evaluation is not None:
            interval = interval_text(evaluation["interval"], evaluation["episodes"])
            shown = f"{evaluation['mean']:,.1f} {interval}"
            ratio = share_of_teacher(evaluation, base)
        sizes = [f"{entry['num_parameters']:,}", str(entry_widths(entry))]
        for size in (entry["size_bytes"], entry["constant_bytes"]):
            sizes.append("-" if size is None else f"{size:,}")
        rows.append([LABELS[name], shown, ratio, *sizes])
    return header, rows


def share_of_teacher(evaluation: dict[str, Any], base: dict[str, Any] | None) -> str:
    """Return the return as a share of the teacher's; `-` unless that is known to be above 0.

    A share of a negative return (LunarLander's) would rank policies upside down, and one of a
    return near 0 may be anything.
    """
    if base is None or base["interval"][0] <= 0:
        return "-"
    return f"{evaluation['mean'] / base['mean']:.0%}"


def summary_caption(summary: dict[str, Any]) -> str:
    """Return how the table's returns were measured, and why no share of the teacher's is shown.

    Empty if none was measured.
    """
    measured = [e["return"] for e in summary["policies"].values() if "return" in e]
    if not measured:
        return ""
    base = summary["policies"].get("teacher", {}).get("return")
    missing = ""
    if base is None:
        missing = (
            "; of teacher: -, as the teacher was not evaluated: "
            "`qpd evaluate RUN --policy teacher` does that"
        )
    elif base["interval"][0] <= 0:
        where = "is not above 0" if base["mean"] <= 0 else "may as well be below 0"
        missing = f"; of teacher: -, as its return {where}"
    text = f"{_each(games_text, 'episodes', summary)}, {printable(measured[0]['acting'])}"
    if "teacher_sharpened" in summary["policies"]:
        sharpened = summary["policies"]["teacher_sharpened"]["return"]["acting"]
        text += f"; teacher, sharpened: {printable(sharpened)}"
    seeds = _each("evaluation seed {}".format, "seed", summary)
    return f"{text}; mean with bootstrap interval; {seeds}{missing}"


def _each(said: Callable[[int], str], key: str, summary: dict[str, Any]) -> str:
    """Say what all policies' games have in common, or which policies have what."""
    holders: dict[Any, list[str]] = {}
    for name, entry in summary["policies"].items():
        if "return" in entry:
            holders.setdefault(entry["return"][key], []).append(LABELS[name])
    if len(holders) == 1:
        every = " each" if key == "episodes" else ""
        return said(*holders) + every
    parts = [f"{said(value)} ({', '.join(names)})" for value, names in holders.items()]
    return " and ".join(parts)
