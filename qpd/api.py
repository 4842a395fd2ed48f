"""The Python API: what the commands do, as functions. Import them from `qpd`.

    import qpd

    run = qpd.distill(teacher="ppo-CartPole-v1.zip", overrides={"distill.epochs": 10})
    run = qpd.quantize(run, weight_bits=4)
    run = qpd.finetune(run)
    print(qpd.evaluate(run, episodes=50))
    student = qpd.load_student_policy(run)

Nothing is printed unless `progress` asks for it; without it, what is probably wrong is a Python
warning. Whatever a user can mend raises a `qpd.UserError`:
`lines` say what is wrong, where and what would be right; `code` is an entry of the error reference.
A run that was interrupted, or killed, resumes when the same function is called again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qpd.agents.precision import DEFAULT_BITS, precisions_of
from qpd.agents.precision_table import PrecisionTable, measure
from qpd.agents.suite import DEFAULT_SUITE, Suite
from qpd.agents.trained_integers import write_trained_integers
from qpd.environments.source import EnvironmentSource, Maker
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.evaluation.games import EvaluationResult
from qpd.export.formats import write_export
from qpd.machine.allocator import keep_freed_memory
from qpd.phases.agent_recipe import (
    AgentSource,
    Overrides,
    RecipeSource,
    agent_lines,
    environment_lines,
    resolve_recipe,
)
from qpd.phases.distill import distill as distill_phase
from qpd.phases.finetune import finetune as finetune_phase
from qpd.phases.later_phase import open_later
from qpd.phases.preparation import prepare
from qpd.phases.quantize import quantize as quantize_phase
from qpd.phases.student_run import open_student
from qpd.phases.train import train as train_phase
from qpd.phases.whole_run import default_output, run_all_phases
from qpd.recipe.loading import override_lines, refuse_repeated, with_arguments
from qpd.recipe.train_schema import (
    TrainRecipe,
    load_train_recipe,
    override_train_recipe,
    train_override_lines,
)
from qpd.runs.observation_noise import with_deviations, with_noise
from qpd.runs.played_environment import wish_of
from qpd.runs.progress import ProgressChoice, shown
from qpd.runs.run_directory import RunDirectory
from qpd.runs.target import Target, load_target, play, record
from qpd.runs.training_run import TrainingRun
from qpd.teachers.sources.teacher_source import refuse_object
from qpd.teachers.training.algorithms import check_algorithm

RunSource = str | os.PathLike[str]  # a RunDirectory is a path, too


def run(
    recipe: RecipeSource | None = None,
    *,
    teacher: AgentSource | None = None,
    vecnormalize: AgentSource | None = None,
    env: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str | Mapping[str, Any]] | None = None,
    frame_stack: int | None = None,
    overrides: Overrides = None,
    seed: int | None = None,
    device: str | None = None,
    output: str | os.PathLike[str] | None = None,
    progress: ProgressChoice = False,
) -> RunDirectory:
    """Distil, quantize, finetune and evaluate; resume where an earlier call was interrupted.

    Training sets glibc's malloc thresholds for the whole process (`qpd.machine.allocator`).

    Args:
        recipe: A recipe file, the name of a shipped one (`quickstart`), or a `Recipe`; default:
            the shipped one that fits the teacher.
        teacher: SB3 zip, RL Zoo folder or hub id to imitate in place of the recipe's.
        vecnormalize: VecNormalize's statistics, if they do not lie beside the teacher.
        env: Environment id, or `module:id`, if the teacher's files don't name it. It,
            `env_kwargs`, `wrappers` and `frame_stack` are as in `evaluate`, and stored.
        overrides: Recipe keys and values, `{"distill.lr": 1e-3}`, or lines `"distill.lr=1e-3"`.
        seed: Root of all randomness.
        device: auto, cpu, cuda or cuda:N.
        output: The run directory; default `runs/NAME`, or `runs/NAME-student` beside its agent.
        progress: True for what the terminal shows, on stderr; or an object of your own.

    Returns:
        The run directory, open for reading.

    Raises:
        UserError: What a user can mend: RecipeError, TeacherError, RunDirectoryError and others
            before any work, TrainingError and CheckpointError during it.
        OSError: A full disk, or a folder that may not be written.
    """
    keep_freed_memory()
    wish = wish_of(env, env_kwargs, wrappers, frame_stack)
    resolved = resolve_recipe(
        recipe, overrides, seed=seed, device=device, teacher=teacher, vecnormalize=vecnormalize,
        wish=wish,
    )  # fmt: skip
    folder = default_output(resolved) if output is None else Path(output)
    with shown(progress) as display:
        run_all_phases(resolved, folder, display)
    return open_run(folder)


def train(
    algo_or_recipe: str | os.PathLike[str] | TrainRecipe,
    env: str | None = None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str | Mapping[str, Any]] | None = None,
    frame_stack: int | None = None,
    overrides: Overrides = None,
    seed: int | None = None,
    device: str | None = None,
    output: str | os.PathLike[str] | None = None,
    progress: ProgressChoice = False,
) -> TrainingRun:
    """Train a Stable-Baselines3 agent with the RL Zoo's hyperparameters; resume where it stopped.

    Args:
        algo_or_recipe: ppo, a2c, trpo, ars, dqn, qrdqn, sac, tqc, ddpg or td3, and `env` beside
            it; or alone a training's recipe, as a file or a `TrainRecipe`.
        env: Environment id, or `module:id`. `env_kwargs`, `wrappers` and `frame_stack` are as in
            `evaluate`, in place of the RL Zoo's.
        overrides: Recipe keys and values, `{"train.timesteps": 50_000}`; other keys are
            hyperparameters, `{"n_steps": 3}`.
        seed: Root of all randomness.
        device: auto, cpu, cuda or cuda:N.
        output: The run directory; default `runs/<algorithm>-<environment>`.
        progress: As in `run`.

    Returns:
        The run directory, which `teacher` of `run` and `evaluate` take as an agent.

    Raises:
        UserError: RecipeError, TeacherError, EnvironmentConfigError, RunDirectoryError.
        OSError: A full disk, or a folder that may not be written.
    """
    told = environment_lines(wish_of(None, env_kwargs, wrappers, frame_stack))
    changes = with_arguments(train_override_lines(overrides), seed=seed, device=device)
    refuse_repeated(told, changes)
    changes = [*changes, *told]
    if isinstance(algo_or_recipe, TrainRecipe):
        resolved = override_train_recipe(algo_or_recipe, changes)
    elif env is None:
        resolved = load_train_recipe(os.fspath(algo_or_recipe), changes)
    else:
        algo = os.fspath(algo_or_recipe)
        check_algorithm(algo)
        resolved = load_train_recipe(None, changes, algo=algo, env=env)
    folder = Path("runs") / resolved.name if output is None else Path(output)
    with shown(progress) as display:
        train_phase(resolved, folder, display)
    run = TrainingRun.open(folder)
    write_trained_integers(run)
    return run


def distill(
    recipe: RecipeSource | None = None,
    *,
    teacher: AgentSource | None = None,
    vecnormalize: AgentSource | None = None,
    env: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str | Mapping[str, Any]] | None = None,
    frame_stack: int | None = None,
    overrides: Overrides = None,
    seed: int | None = None,
    device: str | None = None,
    output: str | os.PathLike[str] | None = None,
    progress: ProgressChoice = False,
) -> RunDirectory:
    """Run phase 1, full-precision distillation. Arguments, result and errors as `run`."""
    keep_freed_memory()
    wish = wish_of(env, env_kwargs, wrappers, frame_stack)
    resolved = resolve_recipe(
        recipe, overrides, seed=seed, device=device, teacher=teacher, vecnormalize=vecnormalize,
        wish=wish,
    )  # fmt: skip
    folder = default_output(resolved) if output is None else Path(output)
    prepared = prepare(resolved, resolved.device)  # what does not fit leaves no directory behind
    with (
        shown(progress) as display,
        RunDirectory.create(folder, resolved) as opened,
        open_student(opened, prepared, display) as (student, own_play),
    ):
        distill_phase(student, own_play, display)
    return open_run(folder)


def quantize(
    run: RunSource,
    *,
    weight_bits: int | None = None,
    activation_bits: int | None = None,
    overrides: Overrides = None,
    output: str | os.PathLike[str] | None = None,
    teacher: AgentSource | None = None,
    device: str | None = None,
    progress: ProgressChoice = False,
) -> RunDirectory:
    """Run phase 2, post-training quantization, of a distilled student.

    `weight_bits` and `activation_bits` (2 to 8) stand for the recipe's `quantize.*` keys;
    `overrides` may change `quantize.*`, `finetune.*` and `evaluation.*`. With `output` the result
    is a new run directory from the same distilled student. `teacher` says where the run's own agent
    is now, if it has moved. Otherwise arguments, result and errors are those of `run`.
    """
    bits = {"quantize.weight_bits": weight_bits, "quantize.activation_bits": activation_bits}
    lines = override_lines({key: value for key, value in bits.items() if value is not None})
    lines = [*lines, *override_lines(overrides), *_place_of(teacher)]
    with shown(progress) as display:
        with open_later(Path(run), "quantize", lines, device, output, display) as (
            student,
            own_play,
        ):
            quantize_phase(student, own_play, display)
    return open_run(run if output is None else output)


def quantize_agents(
    agents: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    bits: Sequence[str | int] | int | str = DEFAULT_BITS,
    activations: int | None = None,
    schemes: Sequence[str] | str | None = None,
    per: Sequence[str] | str | None = None,
    episodes: int = 100,
    seed: int = 0,
    env: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str | Mapping[str, Any]] | None = None,
    frame_stack: int | None = None,
    vecnormalize: AgentSource | None = None,
    output: str | os.PathLike[str] = DEFAULT_SUITE,
    progress: ProgressChoice = False,
) -> PrecisionTable:
    """Quantize agents as they are, without a student, and measure each precision.

    Args:
        agents: SB3 zips, RL Zoo folders or hub ids, or one.
        bits: Of weights: `fp16`, 2 to 8; weights alone.
        activations: Bits of activations, 2 to 8, measured beside.
        schemes: affine, affine-literal, dorefa_scaled; default: see `qpd.agents.precision`.
        per: Weights that share a range: tensor, channel or column.
        episodes: Games, from the same starts for every precision; `seed` is theirs.
        env: Environment id, if the agents' files don't name it. It, `env_kwargs`, `wrappers`,
            `frame_stack` and `vecnormalize` are as in `evaluate`.
        output: The suite's folder; it holds a run directory of each agent in integers.
        progress: As in `run`.

    Returns:
        A row for each agent and precision; where one fails, it says why.
    """
    if isinstance(agents, str | os.PathLike) or not isinstance(agents, Iterable):
        agents = [agents]
    agents = tuple(agents)
    for agent in agents:
        refuse_object(agent)
    asked = precisions_of(
        [bits] if isinstance(bits, int | str) else bits, activations, schemes, per
    )
    names = tuple(os.fspath(agent) for agent in agents)
    wish = wish_of(env, env_kwargs, wrappers, frame_stack)
    statistics = None if vecnormalize is None else os.path.abspath(vecnormalize)
    suite = Suite(names, asked, episodes, seed, wish, statistics)
    with shown(progress) as display:
        return measure(suite, Path(output), display)


def finetune(
    run: RunSource,
    *,
    overrides: Overrides = None,
    teacher: AgentSource | None = None,
    device: str | None = None,
    progress: ProgressChoice = False,
) -> RunDirectory:
    """Run phase 3, quantization-aware training of a quantized student.

    `overrides` may change `finetune.*`. `teacher` says where the run's own agent is now, if it has
    moved. Otherwise arguments, result and errors as `run`.
    """
    keep_freed_memory()
    lines = [*override_lines(overrides), *_place_of(teacher)]
    with shown(progress) as display:
        with open_later(Path(run), "finetune", lines, device, None, display) as (
            student,
            own_play,
        ):
            finetune_phase(student, own_play, display)
    return open_run(run)


def evaluate(
    target: RunSource | Target,
    *,
    policy: str | None = None,
    episodes: int | None = None,
    acting: str | None = None,
    epsilon: float | None = None,
    sharpness: float = 1.0,
    noise: float | None = None,
    env: str | EnvironmentSource | Maker | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str | Mapping[str, Any]] | None = None,
    frame_stack: int | None = None,
    vecnormalize: AgentSource | None = None,
    max_frames: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    progress: ProgressChoice = False,
) -> EvaluationResult:
    """Play full games with a teacher, or with a student of a run; `print` the result.

    Args:
        target: A run directory, an SB3 zip, an RL Zoo folder, a hub id, or a loaded `Target`.
        policy: Of a run: teacher, distilled, ptq or qat; default: the last one made. With `env`,
            `vecnormalize` and `device` it says how to load; a loaded `Target` has been.
        episodes: Games to play; default: the run's number, or 50.
        acting: auto, sample, epsilon or greedy; default: the run's.
        epsilon: Share of random actions under epsilon.
        sharpness: Factor on the logits when sampling.
        noise: Standard deviations of Gaussian noise on each feature of an observation.
        env: Environment id, if the agent's files don't name it; or a function that makes one
            environment, which no run directory can store.
        env_kwargs: What the environment is made with, beside what the agent's files say.
        wrappers: `module.Class`, or `{module.Class: {argument: value}}`, the innermost first, in
            place of those of the agent's files.
        frame_stack: Observations that the agent sees at once, if its files don't say it.
        vecnormalize: VecNormalize's statistics, if they do not lie beside the agent.
        max_frames: Steps, of Atari frames, after which a game is cut off.
        seed: Of the games; default: the run's, or 0.
        device: auto, cpu, cuda or cuda:N.
        progress: As in `run`.

    Returns:
        Returns and lengths of every game, mean and interval.

    A run's policy that plays as its recipe says (no option given) is recorded in its manifest.

    Raises:
        UserError: TargetError, TeacherError, RunDirectoryError, StudentFileError, DeviceError.
    """
    if not isinstance(target, Target):
        refuse_object(target)
        source = target if isinstance(target, str) else Path(target)
        statistics = None if vecnormalize is None else Path(vecnormalize)
        wish = wish_of(env, env_kwargs, wrappers, frame_stack)
        target = load_target(source, policy, wish, device, statistics)
    with shown(progress) as display:
        for line in target.notes:
            display.note(line)
        if noise is not None:
            target = with_noise(
                with_deviations(target, display), noise, target.seed if seed is None else seed
            )
        result = play(
            target,
            display,
            episodes=episodes,
            seed=seed,
            acting=acting,
            epsilon=epsilon,
            sharpness=sharpness,
            max_frames=max_frames,
        )
    asked = (episodes, seed, acting, epsilon, max_frames, noise)
    as_recipe = asked == (None,) * 6 and sharpness == 1.0
    if as_recipe and target.run_path is not None:
        try:
            record(target, result)
        except UserError as error:  # the games were played all the same
            if error.code not in (ErrorCode.RUN_IN_USE, ErrorCode.RUN_UNWRITABLE):
                raise
            display.warning(f"not recorded: {error}")
    elif target.run_path is not None and not noise:  # of several levels the first says it
        display.note("not recorded in the run, as options were given")
    return result


def export_student(
    run: RunSource,
    format: str,  # noqa: A002 - the command's word
    *,
    output: str | os.PathLike[str] | None = None,
    layout: str | None = None,
    multipliers: int | str | None = None,
    constants: str | None = None,
    progress: ProgressChoice = False,
) -> Path:
    """Write a quantized student as files that run without QPD, with golden vectors.

    Args:
        run: A run directory, or a student's file, such as its `ptq.safetensors`.
        format: c, onnx, litert, sb3, bin or systemverilog.
        output: The folder; default `RUN/exports/FORMAT`.
        layout: Of c: `arduino`, a library for Arduino and PlatformIO.
        multipliers: Of systemverilog: how many work at once, or `all`; default: one a neuron.
        constants: Of systemverilog, what lies in block RAM: block-ram (all), weights, fabric.
        progress: As in `run`.

    Returns:
        The folder. Its README.md says how to test and use the files.

    Raises:
        UserError: ExportError, StudentFileError.
    """
    place = None if output is None else Path(output)
    asked = None if multipliers is None else str(multipliers)
    done = write_export(
        Path(run), format, place, layout=layout, multipliers=asked, constants=constants
    )
    with shown(progress) as display:
        for line in done.warnings:
            display.warning(line)
    return done.folder


def _place_of(teacher: AgentSource | None) -> list[str]:
    return [] if teacher is None else agent_lines(teacher, None)[:1]


def open_run(path: RunSource) -> RunDirectory:
    """Open a run directory for reading: recipe, manifest, paths of its files.

    Raises RunDirectoryError where there is none, or a damaged one.
    """
    return RunDirectory.open(Path(path), read_only=True)
