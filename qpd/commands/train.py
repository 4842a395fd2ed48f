"""`qpd train`: a Stable-Baselines3 agent trained with the RL Zoo's hyperparameters."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from qpd.commands.environment_options import environment_kwargs, environment_wrappers
from qpd.commands.output import (
    AsJson,
    Device,
    EnvKwargs,
    FrameStack,
    Quiet,
    WrapperOption,
    print_json,
    print_table,
    print_text,
    print_warnings,
    progress,
)
from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean
from qpd.errors.user_error import TargetError
from qpd.evaluation.return_words import games_text, interval_text
from qpd.recipe.bounds import MAX_SEED, MAX_TIMESTEPS
from qpd.recipe.plain_values import Algorithm

_ALGORITHMS = get_args(Algorithm)
_CONTROLLED = ("sac", "td3", "ddpg")  # train integer controllers
_ALGO_HELP = f"{', '.join(_ALGORITHMS[:-1])} or {_ALGORITHMS[-1]}; or, alone, a training's recipe"
_PARTS, _BITS = ("input", "core", "output", "all"), tuple("2345678")


def train(
    algo: Annotated[str, typer.Argument(help=_ALGO_HELP)],
    env: Annotated[str | None, typer.Argument(help="environment id, or module:id")] = None,
    timesteps: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_TIMESTEPS, help="agent steps; default: the RL Zoo's"),
    ] = None,
    bits: Annotated[
        str | None,
        typer.Option(
            metavar="BITS",
            help="learn with weights and activations of 2 to 8 bits; or an integer controller "
            "(sac, td3, ddpg): core=3,input=8,output=8, or all=3; default: float",
        ),
    ] = None,
    quant_delay: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="share of the steps learned in float before --bits; 0.5, of a controller 0",
        ),
    ] = None,
    per: Annotated[
        str | None,
        typer.Option(help="weights that share a range: tensor, channel or column, the default"),
    ] = None,
    scheme: Annotated[
        str | None,
        typer.Option(
            help="levels of --bits: affine (QuaRL's, the default), or dorefa_scaled, QPD's "
            "integers, which `qpd export` takes"
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="learn in fp16, bf16 or eXmY: SAC wholly, others in mixed precision; default: "
            "float32, and on Atari's frames bfloat16 products where the processor has units for "
            "them; fp32: float32 there, too"
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="SAC's --precision without the six methods that keep it from failing"
        ),
    ] = False,
    from_: Annotated[
        str | None,
        typer.Option("--from", help="a trained float agent to start from: zip, folder or hub id"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="run directory; default runs/ALGO-ENV")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="hyperparameter=value, or a key of the recipe, for example "
            "train.checkpoint_every=50000; repeatable",
        ),
    ] = None,
    env_kwargs: EnvKwargs = None,
    wrapper: WrapperOption = None,
    frame_stack: FrameStack = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=MAX_SEED, help="root of all randomness; default 0")
    ] = None,
    device: Device = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train an SB3 agent as the RL Zoo does; resume a training that was interrupted.

    The folder is a run directory and an agent: `qpd run --teacher FOLDER`. Needs the extra `train`.
    """
    from qpd import api
    from qpd.recipe.loading import refuse_repeated

    if env is None and algo.lower() in _ALGORITHMS:
        raise TargetError(
            f"{algo}: name the environment, too: `qpd train {algo} ENV`", ErrorCode.COMMAND_LINE
        )
    changes = [f"train.timesteps={timesteps}"] if timesteps is not None else []
    quantization = _quantization(bits, quant_delay, per, scheme)
    if bits and "=" in bits and algo in _ALGORITHMS and algo not in _CONTROLLED:
        raise TargetError(
            f"--bits {bits}: integer controllers are trained by SAC, TD3 or DDPG, not by {algo}",
            ErrorCode.COMMAND_LINE,
        )
    changes += quantization
    changes += _precision(precision, plain)
    changes += [f"train.start_from={json.dumps(from_)}"] if from_ is not None else []
    refuse_repeated(changes, set_ or ())
    changes = [*(set_ or ()), *changes]
    done = api.train(
        algo,
        env,
        env_kwargs=environment_kwargs(env_kwargs),
        wrappers=environment_wrappers(wrapper),
        frame_stack=frame_stack,
        overrides=changes,
        seed=seed,
        device=device,
        output=output,
        progress=progress(quiet),
    )
    print_training(done.path, as_json, quiet)


def _quantization(
    bits: str | None, delay: float | None, per: str | None, scheme: str | None
) -> list[str]:
    """Return the assignments of --bits and of what says how."""
    for option, value in (("--quant-delay", delay), ("--per", per), ("--scheme", scheme)):
        if bits is None and value is not None:
            raise TargetError(
                f"{option}: needs --bits, such as 8 or core=3", ErrorCode.COMMAND_LINE
            )
    wanted = _bits(bits)
    for option, value in (("--per", per), ("--scheme", scheme)):
        if value is not None and wanted.get("bits") is None:
            raise TargetError(
                f"{option} {value}: needs --bits of one number, such as 8; with --bits {bits} the "
                "levels are the controller's own",
                ErrorCode.COMMAND_LINE,
            )
    given = {**wanted, "delay": delay, "per": per, "scheme": scheme}
    return [f"quantization.{key}={value}" for key, value in given.items() if value is not None]


def _bits(text: str | None) -> dict[str, str | None]:
    """Return the recipe's keys of `--bits 8` or of `--bits core=3,input=8`; others have 8."""
    if text is None or text in _BITS:
        return {"bits": text}
    whole: str | None = None
    found: dict[str, str | None] = {}
    for part in text.split(","):
        name, _, number = (each.strip() for each in part.partition("="))
        wrong = ""
        if "=" not in part:
            wrong = "expected 2 to 8, or parts such as core=3,input=8,output=8 or all=3"
        elif name not in _PARTS:
            wrong = f"{name}: expected one of {', '.join(_PARTS)}{did_you_mean(name, _PARTS)}"
        elif number not in _BITS:
            wrong = f"{part.strip()}: expected 2 to 8 bits"
        elif f"{name}_bits" in found or (name == "all" and whole is not None):
            wrong = f"{name} is given twice"
        if wrong:
            raise TargetError(f"--bits {text}: {wrong}", ErrorCode.COMMAND_LINE)
        if name == "all":
            whole = number
        else:
            found[f"{name}_bits"] = number
    return {**{f"{key}_bits": whole or "8" for key in _PARTS[:3]}, **found}


def _precision(form: str | None, plain: bool) -> list[str]:
    """Return the assignments of --precision and --plain."""
    if form is None and plain:
        raise TargetError("--plain: needs --precision", ErrorCode.COMMAND_LINE)
    if form is not None:
        from pydantic import TypeAdapter, ValidationError  # `--help` needs neither

        from qpd.recipe.value_types import TrainFormat

        try:
            TypeAdapter(TrainFormat).validate_python(form)
        except ValidationError as error:
            raise TargetError(
                f"--precision {form}: {error.errors()[0]['msg']}", ErrorCode.COMMAND_LINE
            ) from error
    if form == "fp32" and plain:
        raise TargetError("--plain: --precision fp32 has no methods", ErrorCode.COMMAND_LINE)
    methods = ["precision.methods=[]"] if plain else []
    return [] if form is None else [f"precision.format={form}", *methods]


def print_training(path: Path, as_json: bool, quiet: bool = False) -> None:
    """Print how a training is: a table (nothing if `quiet`), or one JSON object; warn on stderr."""
    summary = training_summary(path)
    if as_json:
        print_json(summary)
    elif not quiet:
        _print_training(path, summary)
    if summary["lacks_integers"]:
        from qpd.runs.training_run import TrainingRun

        begin = TrainingRun.open(path).recipe.few_bits_begin
        line = f"{path}: is a float agent, nothing was learned in few bits: {begin}"
        print_warnings([f"{line}; give more --timesteps"])


def _print_training(path: Path, summary: dict[str, Any]) -> None:
    print_text(f"{path}: training of {summary['algo']} on {summary['env_id']}")
    rows = [[key, _shown(value)] for key, value in summary.items() if key not in _IN_TITLE]
    # `qpd teacher info` counts the network that acts, without critics' and targets' copies.
    rows = [[key, f"{text}, all networks" * bool(text)] if key == "num_parameters" else [key, text]
            for key, text in rows]  # fmt: skip
    print_table(["training", ""], [row for row in rows if row[1]])
    if _has_vanished(summary):
        print_text(
            f"its loss scale fell to {summary['loss_scale']:.1e} in "
            f"{summary['skipped_updates']:,} skipped updates: gradients vanish in its format, and "
            "it no longer learns"
        )
    for name, played in summary["evaluations"].items():
        interval = interval_text(played["interval"], played["episodes"])
        said = f"{played['mean']:,.1f} {interval} over {games_text(played['episodes'])}"
        print_text(f"return of {'its integers' if name == 'qat' else 'the agent'}: {said}")
    if summary["file_bytes"] is not None:
        needed = [] if summary["agent"] is None else _needed(path)  # integers play without it
        play = shlex.join(["qpd", "evaluate", str(path), "--policy", "qat", *needed])
        export = shlex.join(["qpd", "export", str(path), "--format", "c"])
        print_text(f"its integers: {play}; {export}")
    elif (
        summary["state"] == "done"
        and summary["agent"] is not None
        and not summary["lacks_integers"]
    ):
        print_text(f"make a student of it: {student_command(path)}")


def _has_vanished(summary: dict[str, Any]) -> bool:
    """Tell whether SAC's loss scale fell so far that gradients are no numbers of its format."""
    scale = summary["loss_scale"]
    if scale is None or summary["algo"] != "sac" or not summary["skipped_updates"]:
        return False
    from qpd.numerics.float_format import FloatFormat

    form = FloatFormat.parse(summary["precision"].partition(",")[0])
    # hAdam's second moment has 3% of a gradient: of one of 1 it is subnormal from here on. Losses
    # that are not scaled have 1, which is no fall.
    return bool(scale < min(1.0, 32 * form.smallest_normal))


def student_command(path: Path) -> str:
    """Return the command that makes a student of a training, as a shell takes it."""
    return shlex.join(["qpd", "run", "--teacher", str(path), *_needed(path)])


def _needed(path: Path) -> list[str]:
    """Return the options without which a training's environment is not made."""
    from qpd.runs.played_environment import needed_options
    from qpd.teachers.sources.teacher_source import find_teacher_files

    return list(needed_options(find_teacher_files(path)))


_IN_TITLE = ("kind", "run", "algo", "env_id", "evaluations", "lacks_integers")


def training_summary(path: Path) -> dict[str, Any]:
    """Return what is known of a training, JSON types. Raises RunDirectoryError."""
    from qpd.runs.metrics_log import last_number, read_metrics
    from qpd.runs.training_run import TrainingRun
    from qpd.teachers.archive.stored_quantization import QUANTIZATION_FILE, read_quantization

    run = TrainingRun.open(path)
    phase, manifest = run.phase, run.manifest
    rows = read_metrics(run.metrics_file) if run.metrics_file.is_file() else []
    skipped = last_number(rows, "train/skipped_updates")
    loss_scale = last_number(rows, "train/loss_scale")
    total = phase.total_timesteps
    agent = run.agent_file  # which may have been left out
    found = path / QUANTIZATION_FILE
    stored = read_quantization(found) if found.is_file() else None
    return {
        "kind": manifest.kind,
        "run": str(path),
        "algo": manifest.algo,
        "env_id": manifest.env_id,
        "state": phase.state if phase.failed_at is None else "failed",
        "seed": manifest.seed,
        "timesteps": phase.timesteps,
        "total_timesteps": total,
        "episodes": phase.episodes,
        "mean_return_of_last_100": phase.episode_return,
        "seconds": round(phase.seconds, 1),
        "num_parameters": phase.num_parameters,
        "resumed_at": list(phase.resumed_at),
        "refilled_at": list(phase.refilled_at),
        "failed_at": phase.failed_at,
        "precision": run.recipe.precision.named(manifest.algo),
        "skipped_updates": None if skipped is None else int(skipped),
        "loss_scale": loss_scale,
        "quantization": None if stored is None else str(stored),
        "lacks_integers": phase.state == "done"
        and run.recipe.quantization.share_in_float < 1
        and (
            not run.quantized_file.is_file()
            if run.recipe.quantization.controller is not None
            else stored is not None and stored.begun_at is None
        ),
        "file_bytes": run.quantized_file.stat().st_size if run.quantized_file.is_file() else None,
        "agent": None if agent is None or not agent.is_file() else str(agent),
        "evaluations": {
            name: {key: played[key] for key in ("mean", "interval", "episodes")}
            for name, played in manifest.evaluations.items()
        },
    }


def _shown(value: object) -> str:
    if value is None or value == []:
        return ""
    if isinstance(value, list):
        return ", ".join(f"{item:,}" for item in value)
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
