"""The groups of runs that a claim compares: those that differ only in what it is about."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qpd.actions import ActingRule
from qpd.analysis.paper.matching import mismatches
from qpd.analysis.returns.mean_bootstrap import ScorePair, Seeds
from qpd.analysis.returns.policy_groups import PolicyGroup, differing_keys
from qpd.analysis.runs.student_settings import phase_samples, setting_text
from qpd.runs.run_directory import RunDirectory
from qpd.teachers.archive.algorithm import ACTOR_CRITIC_ALGORITHMS

_TEMPERATURE = "distill.temperature"
_TEMPERATURES = (_TEMPERATURE, "finetune.temperature")
# Of the training that begins with random weights, with the value where a phase has no such key.
_FIRST_TRAINING = {"lr": None, "recycle_dormant": False}
_FALLBACK = "quickstart"  # the recipe of commands where no run given is near


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a policy (distilled or qat) whose settings have these values.

    A tuple allows several values. Runs without phase 1, and runs at a temperature other than the
    paper's for that kind of teacher, count only if `settings` says so. Runs whose phase 1 saw fewer
    samples than `least_samples` never count, nor do students that learned from rewards, as the
    paper's did not. `also` are further keys for the command that makes
    such a run; `recipe` is a shipped recipe that makes it better than a change to another run's
    recipe.
    """

    name: str
    policy: str
    settings: Mapping[str, Any]
    also: Mapping[str, Any] | None = None
    recipe: str | None = None
    least_samples: int = 0

    @property
    def wanted(self) -> str:
        """Return what is needed where no run is on this side, with a command that makes it."""
        return f"needs {self.told}: {self.command(None)}"

    @property
    def told(self) -> str:
        """Return what this side is, with the samples that it must have learned from."""
        least = f" of {self.least_samples:,} samples or more" if self.least_samples else ""
        return f"{self.name}{least}"

    def holds(self, group: PolicyGroup) -> bool:
        """Return whether `group` is on this side."""
        if group.policy != self.policy:
            return False
        wanted: dict[str, Any] = dict(self.settings)
        if "distill.epochs" not in wanted and group.settings["distill.epochs"] == 0:
            return False
        if phase_samples(group.settings, "distill") < self.least_samples:
            return False
        if any(key.startswith("finetune.reward.") for key in group.settings):
            return False
        if _TEMPERATURE not in wanted and not _at_the_papers(group):
            return False
        return all(
            group.settings.get(key) in (value if isinstance(value, tuple) else (value,))
            for key, value in wanted.items()
        )

    def command(self, like: PolicyGroup | None) -> str:
        """Return the command for a run of this side, otherwise like `like` or a shipped recipe."""
        target = f"-o runs/{'-'.join(self.name.lower().replace('.', '').split())}"
        if self.recipe:
            return f"`qpd run {self.recipe} {target}`"
        values = {**self.settings, **(self.also or {})}
        now = {} if like is None else like.settings
        sets = [
            f"--set {key}={value[0] if isinstance(value, tuple) else value}"
            for key, value in values.items()
            # Only the keys that differ from `like`: a reader sees at once what sets the new run
            # apart.
            if now.get(key) not in (value if isinstance(value, tuple) else (value,))
        ]
        recipe = _FALLBACK if like is None else shlex.quote(f"{like.runs[0]}/recipe.yaml")
        if like is not None and _learns_by_reward(like):  # `holds` would leave it out
            sets.append("--set finetune.reward=null")
        return " ".join(["`qpd run", recipe, *sets, target]) + "`"


def _learns_by_reward(group: PolicyGroup) -> bool:
    """Return whether phase 3 of a run does, of which a student of phase 1 tells nothing."""
    return RunDirectory.open(Path(group.runs[0]), read_only=True).recipe.finetune.reward is not None


@dataclass(frozen=True)
class Pair:
    """Two groups of runs, or one and a fixed return.

    `unmatched` are the reasons why the pair does not answer the claim, if any: it is shown, but not
    judged.
    """

    first: PolicyGroup
    second: PolicyGroup | float
    unmatched: tuple[str, ...] = ()

    @property
    def scores(self) -> ScorePair:
        """The score matrices of both sides; a fixed return is a matrix of one game."""
        return _scores(self.first), _scores(self.second)

    @property
    def seeds(self) -> tuple[Seeds, Seeds]:
        """The seeds of both sides' runs, by which these are compared; a fixed return has none."""
        other = self.second.seeds if isinstance(self.second, PolicyGroup) else ()
        return self.first.seeds, other

    @property
    def fewest_episodes(self) -> int:
        """The number of games of the side with fewer."""
        return min(side.num_episodes for side in self._groups)

    @property
    def fewest_distinct_games(self) -> int:
        """The same, where games that end alike count once."""
        return min(side.num_distinct_games for side in self._groups)

    @property
    def _groups(self) -> list[PolicyGroup]:
        return [side for side in (self.first, self.second) if isinstance(side, PolicyGroup)]


@dataclass(frozen=True)
class Found:
    """The pairs for a claim, or what is `missing`: the reason, and the command that makes it."""

    pairs: tuple[Pair, ...]
    missing: str = ""


def pairs_between(
    groups: Sequence[PolicyGroup],
    first: Side,
    second: Side,
    free: tuple[str, ...],
    from_scratch: bool = False,
) -> Found:
    """Pair each group of `first` with each of `second` that agrees in all keys but `free`.

    `free` are prefixes of keys. Teacher, environment and acting rule are always equal. With
    `from_scratch`, the first side has no phase 1 and may fail: the samples of both phases together
    are equal, and the training that begins with random weights has to be alike on both sides.
    Groups without games make no pair.
    """
    candidates = [
        Pair(one, other)
        for one in filter(first.holds, groups)
        for other in filter(second.holds, groups)
        if one.agent == other.agent
        if not from_scratch or _samples(one) == _samples(other)
    ]
    alike = [pair for pair in candidates if not _differences(pair, free)]
    played = [
        replace(pair, unmatched=_unmatched(pair, from_scratch))
        for pair in alike
        if pair.fewest_episodes
    ]
    if played:
        return Found(tuple(played))
    return Found((), _missing(groups, (first, second), candidates, alike, free))


def beside_teacher(groups: Sequence[PolicyGroup], side: Side, as_imitated: bool) -> Found:
    """Pair each group of `side` with its teacher, acting by the same rule.

    With `as_imitated`, a student of a sharpened teacher that samples is compared with that teacher
    sampling as sharply; for any other student it makes no difference.
    """
    students = [group for group in groups if side.holds(group)]
    pairs = []
    for student in students:
        policy, acting = _teachers_play(student, as_imitated)
        for group in groups:
            same = group.agent == student.agent
            if same and student.num_runs and (group.policy, group.acting) == (policy, acting):
                pairs.append(Pair(student, group))
    if pairs:
        return Found(tuple(pairs))
    if not students:
        return Found((), side.wanted)
    # No pair: name the nearest thing that is missing, the student's own games first.
    unplayed = [student for student in students if not student.num_runs]
    if len(unplayed) == len(students):
        return Found((), f"{unplayed[0].folders}: {_evaluation(unplayed[0])}")
    first = next(student for student in students if student.num_runs)
    policy, acting = _teachers_play(first, as_imitated)
    command = f"`qpd evaluate {shlex.quote(first.runs[0])} --policy teacher`"
    if policy != "teacher":  # only a run's own evaluation records it
        command = f"`qpd run {shlex.quote(first.runs[0] + '/recipe.yaml')} -o runs/with-teacher`"
    return Found((), f"needs the teacher's return, {acting}: {command}")


def against_return(groups: Sequence[PolicyGroup], side: Side, value: float) -> Found:
    """Pair each evaluated group of `side` with a fixed return."""
    students = [group for group in groups if side.holds(group)]
    played = [student for student in students if student.num_runs]
    if played:
        return Found(tuple(Pair(student, value) for student in played))
    if students:
        return Found((), f"{students[0].folders}: {_evaluation(students[0])}")
    return Found((), side.wanted)


def _at_the_papers(group: PolicyGroup) -> bool:
    """Return whether every phase that the group went through was at the paper's temperature."""
    papers = 3.0 if group.teacher in ACTOR_CRITIC_ALGORITHMS else 0.01
    return all(group.settings.get(key, papers) == papers for key in _TEMPERATURES)


def _scores(side: PolicyGroup | float) -> np.ndarray:
    if not isinstance(side, PolicyGroup):
        return np.array([[side]])
    if side.scores is None:
        raise ValueError(f"{side.folders}: no games")
    return side.scores


def _differences(pair: Pair, free: tuple[str, ...]) -> list[str]:
    """Return the keys besides `free` in which a pair differs; unplayed groups fit any rule."""
    one, other = pair.first, pair.second
    if not isinstance(other, PolicyGroup):
        return []
    rules = {one.acting, other.acting} - {""}
    return differing_keys(one, other, free) + (["evaluation.acting"] if len(rules) > 1 else [])


def _unmatched(pair: Pair, from_scratch: bool) -> tuple[str, ...]:
    """Return why a pair that agrees in its settings is not judged."""
    one, other = pair.first, pair.second
    if not isinstance(other, PolicyGroup):
        return ()
    found = mismatches(one, other, may_fail=from_scratch)
    return found + (_first_training(one, other) if from_scratch else ())


def _first_training(alone: PolicyGroup, phases: PolicyGroup) -> tuple[str, ...]:
    """Compare phase 3 from random weights with the phase 1 of three phases, key by key."""
    found = []
    for key, missing in _FIRST_TRAINING.items():
        ours = alone.settings.get(f"finetune.{key}", missing)
        theirs = phases.settings.get(f"distill.{key}", missing)
        if ours != theirs:
            found.append(
                f"{key} of the first training {setting_text(ours)} against {setting_text(theirs)}"
            )
    return tuple(found)


def _samples(group: PolicyGroup) -> int:
    return phase_samples(group.settings, "distill") + phase_samples(group.settings, "finetune")


def _teachers_play(student: PolicyGroup, as_imitated: bool) -> tuple[str, str]:
    """Return policy and acting rule of the teacher that `student` is compared with."""
    sharpness = student.settings["student.sharpness"]
    if as_imitated and sharpness != 1.0 and student.acting == "sampled":
        return "teacher_sharpened", str(ActingRule("sample", sharpness=sharpness))
    return "teacher", student.acting


def _missing(
    groups: Sequence[PolicyGroup],
    sides: tuple[Side, Side],
    candidates: list[Pair],
    alike: list[Pair],
    free: tuple[str, ...],
) -> str:
    """Return why there is no pair, and the shortest way to one."""
    # From cheap to dear: games of students that exist, a run that differs in a key or two, then
    # new runs.
    silent = [
        [side for side in (pair.first, pair.second) if isinstance(side, PolicyGroup)]
        for pair in alike
    ]
    silent = [[group for group in pair if not group.num_runs] for pair in silent]
    # Pairs whose files are all there come first: evaluating them takes no training.
    silent.sort(key=lambda pair: not all(group.has_file for group in pair))
    if silent and all(group.has_file for group in silent[0]):
        return "; ".join(f"{group.folders}: {_evaluation(group)}" for group in silent[0])
    played = [pair for pair in candidates if pair.fewest_episodes]
    commands = "; ".join(side.command(None) for side in sides)
    if any(side.recipe for side in sides):  # made for each other
        return f"needs {sides[0].told} and {sides[1].told}: {commands}"
    if played:
        # The pair with the fewest other differences shows best which single change is missing.
        near = min(played, key=lambda pair: len(_differences(pair, free)))
        keys = ", ".join(_differences(near, free))
        both = f"{near.first.folders} and {getattr(near.second, 'folders', '')}"
        return f"{both} differ also in {keys}: {sides[1].command(near.first)}"
    if silent:
        return "; ".join(f"{group.folders}: {_evaluation(group)}" for group in silent[0])
    present = [[group for group in groups if side.holds(group)] for side in sides]
    for place, side in enumerate(sides):
        if not present[place] and present[1 - place]:
            like = max(present[1 - place], key=lambda group: group.num_episodes)
            return f"needs {side.told}: {side.command(like)}"
    return f"needs {sides[0].told} and {sides[1].told}: {commands}"


def _evaluation(group: PolicyGroup) -> str:
    """Return the command that plays `group`'s games, or makes its student again without a file."""
    run = shlex.quote(group.runs[0])
    if group.has_file:
        return f"`qpd evaluate {run} --policy {group.policy}`"
    recipe = shlex.quote(f"{group.runs[0]}/recipe.yaml")
    if group.policy == "distilled" and _learns_by_reward(group):  # hours that it does not need
        recipe += " --set finetune.reward=null"
    return f"`qpd run {recipe} -o runs/{Path(group.runs[0]).name}-again`"
