"""Exploration while an agent learns in few bits: QuaRL's Figure 1.

At stages of a training the policy of a checkpoint plays greedily; in each state that it meets the
variance over actions of its probabilities is taken: 0 if they are uniform, (1/m)(1 - 1/m) if one of
m actions is certain. QuaRL reads a lower variance as more exploration. A policy that plays badly
meets other states, so beside the variance on its own states stands that on common ones: those that
the float agent of the same seed meets at its end. And entropy, which says the same in nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from qpd.actions import ActingRule, Discrete
from qpd.agents.quantized_agent import agent_policy
from qpd.analysis.figure_style import NEUTRAL, PAGE_WIDTH, new_figure, series_look
from qpd.analysis.returns.return_rows import ShownTable
from qpd.environments.policy import Policy
from qpd.environments.registry import make_vector_env
from qpd.environments.source import EnvironmentSource
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError
from qpd.evaluation.games import evaluate
from qpd.evaluation.sampled_states import SampledStates
from qpd.evaluation.studentized import t_interval
from qpd.runs.played_environment import EnvironmentWish, environment_of
from qpd.runs.progress import Progress
from qpd.runs.training_run import TrainingRun
from qpd.teachers import Teacher, load_teacher
from qpd.teachers.networks.actor import actor_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOAT_BITS = 32
FLOAT, LAYER_NORM = "float", "float, layer norm"
_AS_TOLD = EnvironmentWish()  # as the agents' files say
_SEED = 2_000_000
_GREEDY = ActingRule("greedy")
_MEASURES = {"variance": "action variance", "entropy": "entropy, nats", "return": "return"}


def exploration(
    runs: Sequence[Path],
    games: int,
    progress: Progress,
    wish: EnvironmentWish = _AS_TOLD,
) -> pd.DataFrame:
    """Return a row for each checkpoint of trainings: return, variance, entropy.

    `games` greedy games for each, where `wish` and the agents' files say. `bits` are 32 of a float
    training; `kind` is "float", "float, layer norm" or such as "4 bits"; `is_quantized` says
    whether the checkpoint plays in few bits already. `common_*` are on the float agent's states,
    NaN without one of the same seed. Raises TargetError for a training without checkpoints, or
    whose policy has no probabilities of single actions.
    """
    trainings = [_Training(path, wish) for path in runs]
    common = {each.key: each for each in trainings if each.kind == FLOAT}
    rows = []
    for training in trainings:
        reference = common.get(training.key)
        states = None if reference is None else reference.last_states(games)
        for done, (steps, agent) in enumerate(training.checkpoints):
            rows.append(training.measured(steps, agent, games, states))
            progress.note(f"{training.path}: {done + 1} of {len(training.checkpoints)} checkpoints")
    return pd.DataFrame(rows)


def last_stage(table: pd.DataFrame) -> pd.DataFrame:
    """Return the means of the last quarter of each training."""
    frames = []
    for _, mine in table.groupby("run"):
        late = mine[mine["steps"] > 0.75 * mine["steps"].max()]
        numbers = late.select_dtypes("number").mean()
        first = mine.iloc[0]
        frames.append({**first.to_dict(), **numbers.to_dict()})
    return pd.DataFrame(frames)


def paired_with_float(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean difference to float over seeds for each task and kind of training.

    With Student's t's 95%, of the last quarter of the trainings: variance and entropy on own and on
    common states, returns.
    """
    late = last_stage(table)
    keys = ["algo", "env_id"]
    rows = []
    own = late[late["kind"] == FLOAT].groupby([*keys, "seed"]).mean(numeric_only=True)
    for (algo, env_id, bits, kind), mine in late.groupby([*keys, "bits", "kind"]):
        row: dict[str, object] = {"algo": algo, "env_id": env_id, "bits": int(bits), "kind": kind}
        row["seeds"] = len(mine)
        for column in ("variance", "entropy", "common_variance", "common_entropy", "return"):
            row[column] = mine[column].mean()
            pairs = [
                value - own.loc[(algo, env_id, seed), column]
                for seed, value in zip(mine["seed"], mine[column], strict=True)
                if (algo, env_id, seed) in own.index
            ]
            row[f"{column}_difference"], low, high = t_interval(pairs)
            row[f"{column}_low"], row[f"{column}_high"] = low, high
        rows.append(row)
    return pd.DataFrame(rows)


def exploration_table(paired: pd.DataFrame) -> ShownTable:
    """Return the differences as text."""
    header = ["training", "in", "seeds", "return", "variance", "- float's [95%]",
              "on common states", "- float's [95%]", "entropy"]  # fmt: skip
    rows = []
    for row in paired.to_dict("records"):
        is_float = row["kind"] == FLOAT
        rows.append(
            [
                f"{row['algo']} on {row['env_id']}",
                str(row["kind"]),
                str(row["seeds"]),
                f"{row['return']:,.1f}",
                f"{row['variance']:.4f}",
                "" if is_float else _difference(row, "variance"),
                f"{row['common_variance']:.4f}",
                "" if is_float else _difference(row, "common_variance"),
                f"{row['entropy']:.3f}",
            ]
        )
    return ShownTable(
        "exploration in the last quarter of trainings (QuaRL, Figure 1)", header, rows
    )


def exploration_figure(table: pd.DataFrame) -> Figure:
    """Draw variance, entropy and return over a training, a row of panels for each task."""
    tasks = list(table.groupby(["algo", "env_id"]))
    kinds = list(dict.fromkeys(table.sort_values("bits", kind="stable")["kind"]))
    others = [kind for kind in kinds if kind != FLOAT]
    looks = {kind: series_look(place) for place, kind in enumerate(others)}
    looks[FLOAT] = {"color": NEUTRAL, "linestyle": "--"}
    figure = new_figure(PAGE_WIDTH, 1.9 * len(tasks) + 0.3)
    axes = figure.subplots(len(tasks), len(_MEASURES), squeeze=False)
    for line, ((algo, env_id), mine) in zip(axes, tasks, strict=True):
        for axis, (column, label) in zip(line, _MEASURES.items(), strict=True):
            for kind, part in mine.groupby("kind", sort=False):
                by_steps = part.groupby("steps")[column]
                steps = np.array(list(by_steps.groups), float)
                look = {"markersize": 3, "markevery": 0.25, "linewidth": 1.0, **looks[kind]}
                low, high = by_steps.min().to_numpy(), by_steps.max().to_numpy()
                axis.fill_between(steps, low, high, color=look["color"], alpha=0.15, linewidth=0)
                axis.plot(steps, by_steps.mean(), label=kind, **look)
            axis.set_ylabel(label)
            axis.set_xlabel("agent steps")
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        line[0].set_title(f"{algo} on {env_id}", loc="left")
    figure.supxlabel("lines: means over seeds; bands: least to most of them", fontsize=7)
    shown = [Line2D([], [], linewidth=1.0, markersize=3, **looks[kind]) for kind in kinds]
    figure.legend(shown, kinds, loc="outside upper right", ncols=len(kinds))
    return figure


class _Training:
    """A training with its checkpoints, which can be played."""

    def __init__(self, path: Path, wish: EnvironmentWish) -> None:
        run = TrainingRun.open(path)
        self.path, self.manifest = path, run.manifest
        agents = sorted(path.glob("checkpoints/*/agent.zip"))
        if not agents:
            raise TargetError(
                f"{path}: keeps no checkpoints; train with --set train.keep_checkpoints=true",
                ErrorCode.RUN_CHECKPOINT,
            )
        self.checkpoints = [(int(agent.parent.name), agent) for agent in agents]
        if run.agent_file is not None and run.phase.state == "done":
            self.checkpoints.append((run.phase.timesteps, run.agent_file))
        bits = run.recipe.quantization.bits
        self.bits = bits or FLOAT_BITS
        is_normed = run.recipe.train.hyperparameters.get("layer_norm") is True
        whole = LAYER_NORM if is_normed else FLOAT
        grid = " of integers" * (run.recipe.quantization.scheme == "dorefa_scaled")
        few = f"{bits} bits{grid}" + ", layer norm" * is_normed
        self.kind = whole if bits is None else few
        self.key = (run.manifest.algo, run.manifest.env_id, run.manifest.seed)
        final = load_teacher(path, env_id=wish.env_id)
        if not isinstance(final.actions, Discrete) or final.actions.has_values:
            raise TargetError(
                f"{path}: its policy has no probabilities of single actions; expected PPO, A2C or "
                "TRPO on discrete actions",
                ErrorCode.TEACHER_SETTINGS,
            )
        self._source: EnvironmentSource = environment_of(final, wish).source
        self._last: np.ndarray | None = None

    def last_states(self, games: int) -> np.ndarray:
        """Return the states that the last checkpoint meets, `[n, ...]`; played once."""
        if self._last is None:
            sampled, _ = self._played(self._teacher(self.checkpoints[-1][1]), games)
            self._last = sampled.observations
        return self._last

    def measured(
        self, steps: int, agent: Path, games: int, common: np.ndarray | None
    ) -> dict[str, object]:
        """Return the row of a checkpoint."""
        teacher = self._teacher(agent)
        sampled, mean = self._played(teacher, games)
        variance, entropy = spread(_policy(teacher), sampled.observations)
        shared = (np.nan, np.nan) if common is None else spread(_policy(teacher), common)
        return {
            "run": str(self.path),
            "algo": self.key[0],
            "env_id": self.key[1],
            "seed": self.key[2],
            "bits": self.bits,
            "kind": self.kind,
            "is_quantized": teacher.quantization is not None,
            "steps": steps,
            "return": mean,
            "variance": variance,
            "entropy": entropy,
            "common_variance": shared[0],
            "common_entropy": shared[1],
        }

    def _teacher(self, agent: Path) -> Teacher:
        return load_teacher(agent, algo=self.key[0], env_id=self._source.env_id)

    def _played(self, teacher: Teacher, games: int) -> tuple[SampledStates, float]:
        sampled = SampledStates(_policy(teacher))
        env = make_vector_env(self._source, min(games, 16))
        try:
            result = evaluate(sampled, env, games, _GREEDY, _SEED)
        finally:
            env.close()
        return sampled, float(result.returns.mean())


def spread(policy: Policy, states: np.ndarray) -> tuple[float, float]:
    """Return the mean variance over actions of a policy's probabilities, and the mean entropy.

    states: observations `[n, ...]`; the policy returns logits `[n, m]`.
    """
    logits = np.concatenate(
        [policy(part) for part in np.array_split(states, -(-len(states) // 256))]
    )
    logits = logits.astype(float) - logits.max(1, keepdims=True)
    weights = np.exp(logits)
    probabilities = weights / weights.sum(1, keepdims=True)
    logs = logits - np.log(weights.sum(1, keepdims=True))
    entropy = -(probabilities * logs).sum(1)
    return float(probabilities.var(1).mean()), float(entropy.mean())


def _policy(teacher: Teacher) -> Policy:
    return agent_policy(teacher, actor_of(teacher.network, teacher.activation))


def _difference(row: dict[str, float], column: str) -> str:
    value, low, high = (row[f"{column}_{end}"] for end in ("difference", "low", "high"))
    return f"{value:+.4f}" + ("" if np.isnan(low) else f" [{low:+.4f}, {high:+.4f}]")
