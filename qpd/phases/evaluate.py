"""The evaluation that ends a run: teacher, distilled, PTQ and QAT students on the same games."""

from __future__ import annotations

import hashlib
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from qpd.actions import ActingRule
from qpd.environments.policy import Policy, network_policy
from qpd.environments.registry import VectorEnvironment
from qpd.evaluation.games import evaluate
from qpd.files.atomic import safetensors_bytes
from qpd.integer.integer_student import IntegerEngine
from qpd.phases.runner import already_done
from qpd.phases.shared_games import SharedGames
from qpd.phases.student_run import StudentRun
from qpd.phases.validation import acting_rule, make_env, plays_sharpened
from qpd.runs.epoch_report import final_scalars
from qpd.runs.manifest import EvaluatedPolicy, date_now
from qpd.runs.progress import Progress
from qpd.runs.results import metrics_checksum
from qpd.runs.run_directory import RunDirectory, evaluation_seed
from qpd.runs.time_left import EVALUATING
from qpd.student_files.distilled import load_student
from qpd.student_files.quantized import load_integer_student


@dataclass(frozen=True)
class _Entrant:
    """A policy to evaluate; `checksum` where another run may evaluate the very same one."""

    name: EvaluatedPolicy
    policy: Policy
    rule: ActingRule
    checksum: str | None = None


def evaluate_run(
    student: StudentRun, progress: Progress, shared_games: SharedGames | None = None
) -> None:
    """Evaluate what the run directory holds and record each result; finished ones are kept.

    All policies play by one seed, another than validation's; where a greedy policy has few starts,
    the games are the same nevertheless. Where the recipe sharpens the student, the teacher is also
    evaluated at the student's sharpness. Games of teacher and distilled student that `shared_games`
    holds are not played again.
    """
    run, settings = student.run, student.recipe.evaluation
    if already_done(run, "evaluate", progress):
        return
    run.set_phase("evaluate", "running")
    env: VectorEnvironment | None = None
    with ExitStack() as opened:
        for entrant in _entrants(student):
            if entrant.name in run.manifest.evaluations:  # an interrupted evaluation resumes here
                continue
            if _is_known(student, entrant, progress, shared_games):
                continue
            if env is None:
                parallel = settings.games_in_parallel
                env = make_env(student.recipe, student.prepared, parallel)
                opened.callback(env.close)
            evaluation = _evaluate(student, entrant, env, progress)
            if shared_games is not None and entrant.checksum is not None:
                try:
                    shared_games.keep(student, entrant.checksum, entrant.rule, evaluation)
                except OSError as error:  # this run has what it needs
                    progress.note(f"{entrant.name}: other runs play it, too: {error}")
    for sink in student.sinks():
        sink.evaluated(final_scalars(run.manifest.evaluations))
    run.set_phase("evaluate", "done", metrics_crc32=metrics_checksum(run))


def _is_known(
    student: StudentRun, entrant: _Entrant, progress: Progress, shared_games: SharedGames | None
) -> bool:
    """Record games that were played under another name or by another run; False if none were."""
    run, name = student.run, entrant.name
    if name == "qat" and "ptq" in run.manifest.evaluations and _phase_3_kept_the_student(run):
        found, reason = run.manifest.evaluations["ptq"], "phase 3 kept phase 2's student"
    elif shared_games is not None and entrant.checksum is not None:
        other = shared_games.find(student, entrant.checksum, entrant.rule)
        if other is None:
            return False
        found, reason = other, "another run of this sweep evaluated it"
    else:
        return False
    run.record_evaluation(name, {**found, "seconds": 0.0})
    progress.note(f"{name}: {reason}, so its games are the same")
    return True


def _evaluate(
    student: StudentRun, entrant: _Entrant, env: VectorEnvironment, progress: Progress
) -> dict[str, Any]:
    """Play, record and report; return what was recorded."""
    name, count = entrant.name, student.recipe.evaluation.episodes
    began = time.perf_counter()
    result = evaluate(
        entrant.policy,
        env,
        count,
        entrant.rule,
        evaluation_seed(student.recipe, student.run.manifest),
        lambda done: progress.episodes(f"{EVALUATING} {name}", done, count),
    )
    about = {"seconds": time.perf_counter() - began, "date": date_now()}
    evaluation = result.to_json() | about
    student.run.record_evaluation(name, evaluation)
    progress.note(f"{name}: return {result.mean:,.1f} {result.shown_interval()}")
    return evaluation


def _phase_3_kept_the_student(run: RunDirectory) -> bool:
    """Return whether no epoch of phase 3 was validated better than what it began with."""
    before, after = load_integer_student(run.ptq_file), load_integer_student(run.quantized_file)
    return before == after


def _entrants(student: StudentRun) -> list[_Entrant]:
    """Return what the run holds to be evaluated: the teacher, then the student of each phase."""
    run, prepared, sharpness = student.run, student.prepared, student.recipe.student.sharpness
    rule = acting_rule(student.recipe, prepared)
    teacher, checksum = (
        network_policy(prepared.teacher, prepared.teacher.actions),
        prepared.teacher.sha256,
    )
    entrants = [_Entrant("teacher", teacher, rule, checksum)]
    if plays_sharpened(student.recipe, prepared):
        sharper = acting_rule(student.recipe, prepared, sharpness=sharpness)
        entrants.append(_Entrant("teacher_sharpened", teacher, sharper, checksum))
    if run.phase("distill").state == "done":
        network = load_student(run.distilled_file).to(prepared.device)
        weights = safetensors_bytes(network.state_dict())  # without the file's notes on its origin
        shape = repr(network.architecture).encode()  # weights do not tell of activations
        checksum = hashlib.sha256(shape + weights).hexdigest()
        entrants.append(
            _Entrant("distilled", network_policy(network, prepared.teacher.actions), rule, checksum)
        )
    if run.phase("quantize").state == "done":
        ptq = IntegerEngine(load_integer_student(run.ptq_file))
        entrants.append(_Entrant("ptq", ptq, rule))
    if run.phase("finetune").state == "done":
        qat = IntegerEngine(load_integer_student(run.quantized_file))
        entrants.append(_Entrant("qat", qat, rule))
    return entrants
