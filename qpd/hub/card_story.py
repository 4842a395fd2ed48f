"""Sections of a model card: how the student was made, its limits, and its files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from qpd.environments.registry import atari_rom, default_max_frames
from qpd.hub.contents import PushSource, published_source
from qpd.hub.markdown import code, escape
from qpd.quantization.bit_widths import bit_widths
from qpd.runs.manifest import PhaseName
from qpd.teachers.archive.agent_identity import algorithm_name, library_name
from qpd.teachers.sources.hub import is_hub_id
from qpd.teachers.sources.teacher_source import comes_with_qpd

_PHASES: dict[PhaseName, str] = {"distill": "1, distillation", "finetune": "3, finetuning"}


def origin(source: PushSource) -> str:
    """Return the section on how it was made: teacher, command, phases, versions."""
    run, teacher = source.run, source.teacher
    settings = run.recipe.quantize
    layers = source.export.student.layers
    widths = bit_widths([layer.shape for layer in layers], [layer.bits for layer in layers])
    named = run.recipe.teacher.source
    is_own = comes_with_qpd(named)
    agent = f"QPD's own agent, {code(named)}" if is_own else code(published_source(teacher.source))
    # Nobody else has a file of this machine: the command on the card asks readers for theirs.
    needs_agent = not is_own and (not is_hub_id(named) or Path(named).exists())
    # A new folder: the published one is a finished run, and `qpd run` would find nothing to do.
    command = f"qpd run recipe.yaml -o again{' --teacher AGENT.zip' if needs_agent else ''}"
    if source.is_agent:
        command = _rounding(source, "AGENT.zip" if needs_agent else named)
    versions = ", ".join(f"{escape(k)} {escape(v)}" for k, v in run.manifest.versions.items())
    licence = "MIT, as QPD" if is_own else "unknown to QPD: ask whoever made it"
    is_named = run.manifest.has_recipe
    made_from = f", made from the recipe {code(run.recipe.name)}" if is_named else ""
    return "\n".join(
        [
            "## How it was made",
            "",
            f"- {'Agent' if source.is_agent else 'Teacher'}: {agent}, "
            f"{escape(algorithm_name(teacher.algo))} of {library_name(teacher.algo)}, "
            f"{teacher.num_parameters:,} parameters, sha256 `{teacher.sha256[:16]}`. "
            f"Its licence: {licence}.",
            f"- Quantizers: bits per weight {widths}, {settings.activation_bits}-bit activations, "
            f"scheme `{settings.scheme}`; all settings are in `recipe.yaml`{made_from}.",
            f"- Seed {run.manifest.seed}; {versions}{_commit(source)}.",
            "",
            "```bash",
            f"{command}   # makes such {'integers' if source.is_agent else 'a student'} again",
            "```",
            "",
            *_phase_table(source),
        ]
    )


def _rounding(source: PushSource, agent: str) -> str:
    """Return the command that rounds the agent so, and what finetunes it."""
    settings, recipe = source.run.recipe.quantize, source.run.recipe
    per = source.run.phase("quantize").metrics.get("per")  # not in earlier versions' runs
    shared = f" --per {per}" if per in ("tensor", "channel", "column") else ""
    command = (
        f"qpd quantize {agent} --bits {settings.weight_bits} --activations "
        f"{settings.activation_bits} --scheme {settings.scheme}{shared} --seed {recipe.seed} "
        f"--episodes {recipe.evaluation.episodes}{_environment(source)} -o again"
    )
    return f"{command} && qpd finetune again/*/W*/" if source.policy == "qat" else command


def _environment(source: PushSource) -> str:
    """Return the options that name what an agent plays, which its own files may not."""
    words = source.environment.options()
    if "--env" not in words:
        words = ["--env", source.environment.env_id, *words]
    if source.run.recipe.teacher.vecnormalize is not None:
        words += ["--vecnormalize", "vecnormalize.pkl"]
    return f" {shlex.join(words)}"


def _commit(source: PushSource) -> str:
    commit = source.run.manifest.git_commit
    changed = " with changes" if source.run.manifest.git_dirty else ""
    return f"; QPD at commit {code(commit[:12])}{changed}" if commit else ""


def _phase_table(source: PushSource) -> list[str]:
    """Return epochs, chosen epoch, its validation return and time of phases 1 and 3."""
    lines = [
        "| phase | epochs | best epoch | its validation return | divergence | minutes |",
        "|---|---|---|---|---|---|",
    ]
    for name, label in _PHASES.items():
        metrics = source.run.phase(name).metrics
        seconds = metrics.get("seconds")
        if not isinstance(seconds, dict):
            continue
        names = ("return", "divergence")
        keys = ("epochs", "best_epoch", *(f"best_validation_{name}" for name in names))
        cells = [_number(metrics.get(key)) for key in keys]
        cells.append(f"{sum(float(value) for value in seconds.values()) / 60:.1f}")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    if len(lines) == 2:  # only the header: no phase was timed
        return []
    if source.policy == "qat" and source.run.phase("finetune").metrics.get("best_epoch") == 0:
        lines += ["", "Phase 3 found nothing better than the student it began with (epoch 0)."]
    return lines


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else escape(f"{value}")


def limits(source: PushSource, is_filmed: bool) -> str:
    """Return the section on what the numbers do not show."""
    measured, env_id = source.measured, code(source.teacher.env_id)
    # Of a rounded agent the seed is that of its games; how it was trained is not known.
    seed = "" if source.is_agent else f"seed {source.run.manifest.seed}, "
    lines = [
        f"- Returns are means over full games, all lives, unclipped score, with a 95% bootstrap "
        f"interval over the games of one training run ({seed}evaluation "
        f"seed {measured.seed}). The variation from one training run to another was not "
        "measured here.",
        *["- The epoch was chosen on games other than those reported."]
        * (source.policy == "qat" or not source.is_agent),
        f"- It was played on {env_id} only{_additions(source)}, with QPD's preprocessing"
        f"{_frame_cap(source)}; {_untried(source)}.",
        "- The return is that of the integers as QPD executes them. C executes the same integers; "
        "ONNX Runtime and LiteRT may round a level the other way (their selftest.py shows it).",
        "- Speed and memory were not measured for this card: `qpd bench .` does, on your device.",
    ]
    lines += [f"- {line}" for line in measured.repetition()]
    if "teacher_sharpened" in source.returns:
        lines.append(
            f"- It imitates the teacher at a sharpness of {source.run.recipe.student.sharpness:g}: "
            'compare it with "teacher, sharpened", which acts in the same way.'
        )
    if "teacher" not in source.returns:
        lines.append("- The teacher was not evaluated in this run.")
    if not is_filmed:
        lines.append("- There is no video here.")
    lines.append("- QPD states no licence for it; whoever published it should.")
    return "\n".join(["## Limits", "", *lines])


def _untried(source: PushSource) -> str:
    if atari_rom(source.teacher.env_id) is None:
        return "no other version of it, no noise on observations or actions"
    return "no other version of the game, no sticky actions, no noise"


def _additions(source: PushSource) -> str:
    """Return what is done to the environment, in words: arguments, wrappers, stacking."""
    return "".join(f", {escape(addition)}" for addition in source.environment.additions())


def _frame_cap(source: PushSource) -> str:
    cap, rom = source.run.recipe.environment.max_frames, atari_rom(source.teacher.env_id)
    if cap is None and rom is None:
        return ""
    if rom is None:
        return f" and games cut off after {cap:,} steps"
    return f" and games cut off after {cap or default_max_frames(rom):,} emulator frames"


def files_table(source: PushSource, formats: Sequence[str], is_filmed: bool) -> str:
    """Return the table of the folder's files."""
    kept = source.run.distilled_file.is_file()
    rows = [
        ("quantized.safetensors", f"the {source.noun}: weights packed at their true bits", True),
        ("ptq.safetensors", "the same, by the name of its phase", source.policy == "ptq"),
        ("distilled.safetensors", f"the {source.noun} in fp32, before it was rounded", kept),
        (source.zip_name if "sb3" in formats else "", "as an agent of Stable-Baselines3", True),
        ("onnx/", "for ONNX Runtime: int8 and fp32", "onnx" in formats),
        ("litert/", "for LiteRT: int8", "litert" in formats),
        ("c/", "as C99", "c" in formats),
        ("bin/", "as one packed file, with a reader", "bin" in formats),
        ("recipe.yaml", "all settings" + "; `qpd run recipe.yaml`" * (not source.is_agent), True),
        ("manifest.json", "versions, phases, every game's return", True),
        ("results.json", "the return, as the RL Zoo writes it", True),
        ("replay.gif", "the game above", is_filmed),
    ]
    lines = [f"| {code(name)} | {what} |" for name, what, is_there in rows if name and is_there]
    return "\n".join(["## Files", "", "| | |", "|---|---|", *lines])
