"""The model card of a teacher: README.md in the hub's format, metadata included."""

from __future__ import annotations

import shlex

import yaml

from qpd.environments.registry import atari_rom
from qpd.export.environment_code import environment_code
from qpd.hub.action_words import actions_in_words
from qpd.hub.markdown import code, escape
from qpd.hub.teacher_folder import NORMALIZATION, TeacherPage
from qpd.teachers.archive.agent_identity import algorithm_name
from qpd.teachers.archive.algorithm import (
    CONTRIB_ALGORITHMS,
    OFF_POLICY_ALGORITHMS,
    Q_ALGORITHMS,
    SEARCH_ALGORITHM,
)
from qpd.teachers.archive.stored_quantization import QUANTIZATION_FILE


def teacher_card(page: TeacherPage) -> str:
    """Return the card's text; every number was measured here or comes from the agent's files."""
    from huggingface_hub import ModelCard

    parts = [
        f"# {algorithm_name(page.agent.teacher.algo)} agent playing {escape(page.agent.env_id)}",
        _summary(page),
        _facts(page),
        _usage(page),
        _training(page),
        _limits(page),
    ]
    metadata = _metadata(page)
    body = "\n\n".join(part for part in parts if part)
    return str(ModelCard(f"---\n{metadata}\n---\n\n{body}\n"))


def _class_name(algo: str) -> str:
    """Return SB3's class of an algorithm: `qrdqn` -> `QRDQN`."""
    return algo.upper()


def _metadata(page: TeacherPage) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    result = EvalResult(
        task_type="reinforcement-learning",
        task_name="reinforcement-learning",
        dataset_type=page.agent.env_id,
        dataset_name=page.agent.env_id,
        metric_type="mean_reward",
        metric_name="mean_reward",
        metric_value=f"{page.measured.mean:.2f} +/- {page.measured.std:.2f}",
        verified=False,
    )
    data = ModelCardData(
        library_name="stable-baselines3",
        pipeline_tag="reinforcement-learning",
        tags=[
            page.agent.env_id,
            "deep-reinforcement-learning",
            "reinforcement-learning",
            "stable-baselines3",
            *["sb3-contrib"] * (page.agent.teacher.algo in CONTRIB_ALGORITHMS),
        ],
        # As the RL Zoo writes it there: the name of the class.
        model_name=_class_name(page.agent.teacher.algo),
        eval_results=[result],
    )
    return str(data.to_yaml())


def _summary(page: TeacherPage) -> str:
    measured = page.measured
    return (
        f"It scores **{measured.mean:,.1f}** ({measured.in_words}, "
        f"{escape(measured.acting)}, seed "
        f"{measured.seed}). Every game's return is in `evaluation.json`."
    )


def _facts(page: TeacherPage) -> str:
    steps, seed = page.agent.teacher.num_timesteps, page.agent.files.seed
    seed = page.agent.archive.seed if seed is None else seed
    continues = page.training is not None and page.training.continues
    before = ", from a trained agent (`--from`)" if continues else ""
    stored = "as training left them"
    if page.is_half:
        stored = "float16, widened to float32 on loading; without the optimizer's state"
    rows = [
        ("Return", f"{page.measured.with_interval}, standard deviation {page.measured.std:.1f}"),
        ("Parameters", f"{page.agent.teacher.num_parameters:,}, critic included"),
        ("Observations", f"{list(page.agent.teacher.observation_shape)}"),
        ("Actions", escape(actions_in_words(page.agent.teacher.actions, page.agent.env_id))),
        ("Trained for", f"{steps:,} agent steps{before}" if steps else "a number not recorded"),
        ("Seed of the training", "not recorded" if seed is None else f"{seed}"),
        ("Stable-Baselines3", escape(page.agent.archive.sb3_version or "version not recorded")),
        ("Weights", f"{stored}; the zip has {page.num_bytes:,} bytes"),
    ]
    if page.agent.teacher.quantization is not None:
        alone = f"`{QUANTIZATION_FILE}` holds QPD's ranges; SB3's `load` alone plays in float"
        rows.append(("Arithmetic", f"{page.agent.teacher.quantization}; {alone}"))
    if page.agent.teacher.algo in (*Q_ALGORITHMS, SEARCH_ALGORITHM):
        rows[1] = ("Parameters", f"{page.agent.teacher.num_parameters:,}")
    lines = [f"| {name} | {value} |" for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *lines])


def _usage(page: TeacherPage) -> str:
    algo, measured = page.agent.teacher.algo, page.measured
    package = "sb3_contrib" if algo in CONTRIB_ALGORITHMS else "stable_baselines3"
    arguments = f'"{page.zip_name}", device="cpu"'
    # By default load() allocates the replay buffer of the training, a million observations.
    if algo in OFF_POLICY_ALGORITHMS:
        # SB3 saves the class that it chose for n-step returns, and warns about it on loading.
        arguments = f"\n    {arguments}, buffer_size=1, replay_buffer_class=None\n"
    imports, made = _environment_lines(page)
    imports.insert(1, f"from {package} import {_class_name(algo)}")  # behind gymnasium
    lines = ["## How to use it", "", "```python", *imports, ""]
    lines += [f"agent = {_class_name(algo)}.load({arguments})", *made]
    words = ["--episodes", str(measured.episodes), "--seed", str(measured.seed)]
    options = page.agent.environment.options()
    again = shlex.join([*words, *options])
    lines += ["```", "", "```bash", f"qpd evaluate {page.zip_name} {again}  # evaluate it again"]
    if atari_rom(page.agent.env_id) is not None:
        # The quickstart's settings are Breakout's.
        recipe = "quickstart " * page.agent.env_id.startswith("Breakout")
        lines.append(f"qpd run {recipe}--teacher {page.zip_name}  # make a small student of it")
    lines.append("```")
    return "\n".join(lines)


def _environment_lines(page: TeacherPage) -> tuple[list[str], list[str]]:
    """Return imports and code that make the agent's environment, where its id alone does not."""
    source = page.agent.environment
    is_normalized = page.agent.teacher.normalization is not None
    if not source.additions() and not is_normalized:
        return [], []
    fields = environment_code(source)
    imports = ["import gymnasium", "from stable_baselines3.common.monitor import Monitor"]
    imports += fields["environment_imports"].splitlines()
    lines = fields["make_environment"].splitlines()
    if is_normalized:
        vectorized = "env"
        if source.frame_stack == 1:
            imports.append("from stable_baselines3.common.vec_env import DummyVecEnv")
            vectorized = "DummyVecEnv([lambda: env])"
        imports.append("from stable_baselines3.common.vec_env import VecNormalize")
        lines += [
            "# It expects this environment's normalized observations, not the plain ones.",
            f'env = VecNormalize.load("{NORMALIZATION}", {vectorized})',
            "env.training = env.norm_reward = False",
        ]
    return imports, lines


def _training(page: TeacherPage) -> str:
    settings = page.agent.files.hyperparameters
    if page.training is None and not settings:
        return ""
    lines = ["## Training", ""]
    if page.training is not None:
        lines += [
            "![Return while training](training.png)",
            "",
            "Mean return of the full games that ended in each hundredth of the training, with "
            "their 10th and 90th percentiles (`training.csv`); exploration included.",
        ]
        if page.training.resumed_at:
            steps = ", ".join(f"{number:,}" for number in page.training.resumed_at)
            lines.append(f"It was interrupted, and resumed from its checkpoint at {steps} steps.")
        lines.append("")
    if settings:
        # A value with three backquotes would end the code block, and the rest would be read as
        # Markdown.
        text = yaml.safe_dump(settings, sort_keys=True).strip().replace("```", "'''")
        lines += ["Hyperparameters, as the RL Zoo wrote them:", "", "```yaml", text, "```"]
    return "\n".join(lines).strip()


def _limits(page: TeacherPage) -> str:
    measured = page.measured
    is_atari = atari_rom(page.agent.env_id) is not None
    added = "".join(f", {escape(each)}" for each in page.agent.environment.additions())
    preprocessing = ", with the preprocessing of Stable-Baselines3's wrappers" if is_atari else ""
    lines = [
        "- The return is that of one training run; the variation between seeds was not "
        "measured here.",
        f"- It was played on {code(page.agent.env_id)} only{added}{preprocessing}.",
    ]
    lines += [f"- {line}" for line in measured.repetition()]
    return "\n".join(["## Limits", "", *lines])
