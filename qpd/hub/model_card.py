"""The model card of a published student: README.md in the hub's format, metadata included."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from qpd.actions import Box
from qpd.environments.registry import atari_rom
from qpd.environments.source import EnvironmentSource
from qpd.environments.wrappers import is_known
from qpd.export.action_texts import bin_texts, c_texts, onnx_texts, sb3_texts
from qpd.export.environment_code import environment_code
from qpd.export.observation_words import form_words, parts_words
from qpd.export.runtime_files import bundle_text
from qpd.hub.action_words import acting_in_words, actions_in_words
from qpd.hub.card_story import files_table, limits, origin
from qpd.hub.contents import PushSource
from qpd.hub.markdown import code, escape
from qpd.quantization.bit_widths import BitWidths, bit_widths
from qpd.runs.manifest import EvaluatedPolicy
from qpd.student_files.quantized import stored_constant_bytes
from qpd.teachers.archive.agent_identity import algorithm_name, library_name
from qpd.teachers.archive.algorithm import CONTRIB_ALGORITHMS, SEARCH_ALGORITHM

# In the order of the table, from what was imitated, or rounded, to what came of it.
_ROWS: dict[EvaluatedPolicy, str] = {
    "teacher": "teacher",
    "teacher_sharpened": "teacher, sharpened",
    "distilled": "student in fp32",
    "ptq": "student, quantized only",
    "qat": "student, finetuned",
}
_AGENT_ROWS: dict[EvaluatedPolicy, str] = {
    "teacher": "the agent in float",
    "distilled": "its actor in fp32",
    "ptq": "in integers",
    "qat": "in integers, finetuned",
}


def model_card(source: PushSource, repo_id: str, formats: Sequence[str], is_filmed: bool) -> str:
    """Return the card's text. `formats` are the folder's exports, `is_filmed` if it has a GIF.

    Every number comes from the run's manifest or files; text from files is escaped.
    """
    from huggingface_hub import ModelCard

    parts = [
        f"# {_title(source)}",
        _summary(source),
        _film_line(source) if is_filmed else "",
        _results(source),
        _student(source),
        *_how_to_run(source, repo_id, formats),
        origin(source),
        limits(source, is_filmed),
        files_table(source, formats, is_filmed),
    ]
    metadata = _metadata(source, formats).to_yaml()
    body = "\n\n".join(part.strip() for part in parts if part)
    # ModelCard parses the metadata again, so that malformed ones fail here.
    return str(ModelCard(f"---\n{metadata}\n---\n\n{body}\n"))


def _size(source: PushSource) -> str:
    return source.run.recipe.student.size or source.export.student.architecture.widths


def _bits(source: PushSource) -> BitWidths:
    layers = source.export.student.layers
    return bit_widths([layer.shape for layer in layers], [layer.bits for layer in layers])


def _title(source: PushSource) -> str:
    teacher, bits = source.teacher, _bits(source).by_layer
    if source.is_agent:
        algo, env_id = escape(algorithm_name(teacher.algo)), escape(teacher.env_id)
        return f"{algo} on {env_id} in {bits}-bit integers"
    return (
        f"{bits}-bit {escape(_size(source))} student of {escape(algorithm_name(teacher.algo))} "
        f"on {escape(teacher.env_id)}"
    )


def _metadata(source: PushSource, formats: Sequence[str]) -> Any:
    """Return metadata like that of the RL Zoo's cards: tags, and the return as a result."""
    from huggingface_hub import EvalResult, ModelCardData

    env_id, measured = source.teacher.env_id, source.measured
    tags = [env_id, "deep-reinforcement-learning", "reinforcement-learning", "stable-baselines3"]
    tags += ["sb3-contrib"] if source.teacher.algo in CONTRIB_ALGORITHMS else []
    tags += ["quantization", "int8" if _bits(source).by_layer == "8" else "low-bit"]
    if not source.is_agent:
        tags += ["policy-distillation"]
    if source.policy == "qat":
        tags += ["quantization-aware-training"]
    tags += ["qpd"]
    tags += [name for name in ("onnx", "litert") if name in formats]
    result = EvalResult(
        task_type="reinforcement-learning",
        task_name="reinforcement-learning",
        dataset_type=env_id,
        dataset_name=env_id,
        metric_type="mean_reward",
        metric_name="mean_reward",
        metric_value=f"{measured.mean:.2f} +/- {measured.std:.2f}",  # the form leaderboards parse
        verified=False,  # only evaluations that the hub ran itself are verified
    )
    return ModelCardData(
        # The hub's download snippet follows this name: SB3's works only with the zip.
        library_name="stable-baselines3" if "sb3" in formats else "qpd",
        pipeline_tag="reinforcement-learning",
        tags=tags,
        model_name=_model_name(source),
        eval_results=[result],
    )


def _model_name(source: PushSource) -> str:
    algo = algorithm_name(source.teacher.algo)
    if source.is_agent:
        return f"QPD {algo} in integers"
    return f"QPD {_size(source)} student of {algo}"


def _summary(source: PushSource) -> str:
    measured, teacher = source.measured, source.teacher
    size = source.run.quantized_file.stat().st_size
    agent = (
        f"n agent of {library_name(teacher.algo)} ({escape(algorithm_name(teacher.algo))}) on "
        f"{code(teacher.env_id)}"
    )
    what = (
        f"A small integer network that imitates a{agent}, made with QPD (quantization-aware policy "
        "distillation)"
    )
    if source.is_agent:
        trained = ", and finetuned in integers" if source.policy == "qat" else ""
        what = f"A{agent}, its own network rounded to integers by QPD{trained}"
    text = (
        f"{what}. It scores **{measured.mean:,.1f}** ({measured.in_words}, "
        f"{escape(measured.acting)}) in "
        f"**{size:,} bytes** ({stored_constant_bytes(source.run.quantized_file):,} of constants in "
        "the C export)"
    )
    known = source.returns.get("teacher")
    if known is None:
        return f"{text}. Its teacher was not evaluated in this run."
    whose = "the agent in float" if source.is_agent else "its teacher"
    text = f"{text}; {whose} scores {known.mean:.1f} in {4 * teacher.num_parameters:,}"
    sharper = source.returns.get("teacher_sharpened")
    if sharper is None:
        return f"{text}."
    return f"{text} ({sharper.mean:.1f} if it acts as sharply as the student)."


def _film_line(source: PushSource) -> str:
    return (
        f"![The {source.noun} plays {escape(source.teacher.env_id)}](replay.gif)\n\n"
        f"The first {source.video_seconds:.0f} seconds of a game with the evaluation's seed; it "
        "was not selected."
    )


def _results(source: PushSource) -> str:
    """Return the table of returns, with the published student in bold."""
    architecture = source.export.student.architecture
    teacher, run = source.teacher, source.run
    # The teacher counts as bare fp32 weights: its zip also holds an optimizer's state, which would
    # flatter the student.
    student_bytes, teacher_bytes = run.quantized_file.stat().st_size, 4 * teacher.num_parameters
    packed = stored_constant_bytes(run.quantized_file)
    lines = [
        "## Results",
        "",
        "| | return, 95% interval | std | games | acting | parameters | bits | file bytes "
        "| constants |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    names = _AGENT_ROWS if source.is_agent else _ROWS
    rows = [name for name in names if name in source.returns]
    for name in rows:
        measured = source.returns[name]
        parameters, bits, size = architecture.num_parameters, str(_bits(source)), ""
        constants = f"{4 * parameters:,}"
        if name.startswith("teacher"):
            parameters, bits, size = teacher.num_parameters, "32", f"{teacher_bytes:,}"
            constants = size
        elif name == "distilled":
            bits = "32"
            size = f"{run.distilled_file.stat().st_size:,}" if run.distilled_file.is_file() else ""
        # Only the published student's file is there: phase 3's has replaced phase 2's.
        else:
            # Phases 2 and 3 pack the same layers at the same bits.
            constants = f"{packed:,}"
            size = f"{student_bytes:,}" if name == source.policy else ""
        cells = [names[name], measured.with_interval, f"{measured.std:.1f}"]
        cells += [str(measured.episodes), escape(measured.acting)]
        cells += [f"{parameters:,}", bits, size, constants]
        if name == source.policy:
            cells = [f"**{cell}**" for cell in cells]
        lines.append(f"| {' | '.join(cells)} |")
    # Parameters compare the networks, bytes the files that have to be shipped.
    parameters_apart = _apart(teacher.num_parameters / architecture.num_parameters)
    bytes_apart = _apart(teacher_bytes / student_bytes)
    has_none = source.export.student.actions.has_values or teacher.algo == SEARCH_ALGORITHM
    critic = "" if has_none else ", critic included"
    bold, other, counted = "student", "its teacher", "the teacher"
    if source.is_agent:
        bold, other, counted = "network", "the agent", "the agent"
    lines += [
        "",
        f"In bold: the {bold} in `quantized.safetensors`. It has {parameters_apart} "
        f"parameters than {other} and takes {bytes_apart} bytes ({counted} at 4 "
        f"bytes per parameter{critic}; the {bold} as its file on disk, scales and header "
        "included; its constants alone, as the C export holds them, take "
        f"{packed:,} bytes).",
    ]
    return "\n".join(lines)


def _apart(ratio: float) -> str:
    # What is small already may grow: an agent of a few weights, or XXL.
    how = "fewer" if ratio >= 1.0 else "more"
    ratio = max(ratio, 1 / ratio)
    return f"{ratio:.0f} times {how}" if ratio >= 100 else f"{ratio:.1f} times {how}"


def _student(source: PushSource) -> str:
    student = source.export.student
    layers = [
        f"| {layer.shape.name} | {'x'.join(str(n) for n in layer.weight.shape)} | {layer.bits} |"
        for layer in student.layers
    ]
    # The file keeps the top level 2^k - 1, not k.
    activation_bits = (student.layers[0].levels + 1).bit_length() - 1
    function = "after ReLU"
    if student.tables:
        function = f"{student.architecture.activation} by a table of {len(student.tables[0])} bytes"
    # Preprocessing is spelled out: nothing else on the hub tells how frames were made, and a
    # student fed others plays badly without a word.
    env_id = source.teacher.env_id
    is_atari = atari_rom(env_id) is not None
    shape = student.architecture.observation_shape
    if student.architecture.stacks_frames:
        inputs = (
            "4 grey frames of 84x84 as Stable-Baselines3's AtariWrapper makes them (maximum of the "
            "last two of 4 emulator frames, area resize), oldest first, uint8 0 to 255, not "
            "divided by 255"
        )
    elif student.architecture.is_image:
        inputs = f"an image of {'x'.join(map(str, shape))}, channels first, uint8 0 to 255"
    elif (image := student.architecture.image_shape) is not None:
        inputs = (
            f"the environment's image, {'x'.join(map(str, image))}, channels first, 0 to 255, and "
            f"then its {student.architecture.num_features} other numbers, in one float32 vector"
        )
    else:
        bits, parts = student.input_bits, parts_words(source.export.about)
        what = f"the environment's vector of {shape[0]}"
        if form := form_words(source.export.about):
            what = f"the environment's observation in one vector of {shape[0]}, {form}"
        if parts:
            what = f"the parts of the environment's Dict in one vector of {shape[0]}: {parts}"
        inputs = f"{escape(what)}, float32; {bits}-bit levels inside"
    return "\n".join(
        [
            "## The network" if source.is_agent else "## The student",
            "",
            "| layer | weights | bits |",
            "|---|---|---|",
            *layers,
            "",
            f"- Activations: {activation_bits} bits, unsigned, {function}. Accumulators and "
            "biases: int32. Integer arithmetic throughout, from the observation to the "
            f"{'actions' if isinstance(student.actions, Box) else 'logits'}.",
            f"- Observation: {inputs}.",
            f"- Actions: {escape(actions_in_words(student.actions, env_id))}.",
            f"- To act: {acting_in_words(source.export, is_atari)}.",
        ]
    )


def _how_to_run(source: PushSource, repo_id: str, formats: Sequence[str]) -> list[str]:
    from qpd.export.c.description import program_sources
    from qpd.export.c.sizes import arena_bytes, c_constant_bytes
    from qpd.export.sb3_zip import sb3_algorithm

    export = source.export
    architecture = export.student.architecture
    fields = {
        "repo": repo_id,
        "folder": repo_id.split("/")[1],
        "policy": source.policy,
        "shape": repr(tuple(architecture.observation_shape)),
        "dtype": "uint8" if architecture.is_image else "float32",
        "zip": source.zip_name,
        "algo": sb3_algorithm(export),
        "env_id": source.teacher.env_id,
        # Who names it lets its module be imported.
        "env": _named_modules(source.environment),
        # The snippet acts as the reported return was measured.
        "deterministic": str(source.measured.acting == "greedy"),
        "constant_bytes": f"{c_constant_bytes(export.student):,}",
        "arena_bytes": f"{arena_bytes(export.student):,}",
        **onnx_texts(export.student),
        **bin_texts(export.student),
        **c_texts(export.student),
        **sb3_texts(export.student),
        **environment_code(source.environment),
        "c_sources": " ".join(f"c/{name}" for name in program_sources(export)),
    }
    # Two texts, as the environments are made in different ways.
    kind = "vector" if atari_rom(source.teacher.env_id) is None else "atari"
    names = ["download"] + [f"sb3_{kind}"] * ("sb3" in formats)
    names += [name for name in ("onnx", "litert", "c", "bin") if name in formats]
    return [bundle_text(f"card_{name}.md", fields).decode() for name in names]


def _named_modules(environment: EnvironmentSource) -> str:
    """Return the options that let an environment's modules be imported; a run takes no others."""
    asked = tuple(wrapper for wrapper in environment.wrappers if not is_known(wrapper))
    named = environment.env_id if ":" in environment.env_id else ""
    # A run's wrappers are given as a whole.
    wrappers = environment.wrappers if asked else ()
    words = EnvironmentSource(named, wrappers=wrappers).options()
    return f" {shlex.join(words)}" if words else ""
