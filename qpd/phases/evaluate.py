"""The evaluation that ends a run: teacher, distilled, PTQ and QAT students on the same games."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any

from qpd.environments.acting import ActingRule
from qpd.environments.policy import Policy, network_policy
from qpd.environments.registry import VectorEnvironment
from qpd.evaluation.games import evaluate
from qpd.files.atomic import safetensors_bytes
from qpd.integer.integer_student import IntegerEngine
from qpd.numerics.random_seeds import seed_for
from qpd.phases.runner import already_done
from qpd.phases.session import Session
from qpd.phases.shared_games import SharedGames
from qpd.runs.epoch_metrics import final_scalars
from qpd.runs.manifest import EvaluatedPolicy, date_now
from qpd.runs.results import metrics_checksum
from qpd.runs.run_directory import RunDirectory
from qpd.student_files.distilled import load_student
from qpd.student_files.quantized import load_integer_student


@dataclass(frozen=True)
class _Entrant:
    """A policy to evaluate; `checksum` where another run may evaluate the very same one."""

    name: EvaluatedPolicy
    policy: Policy
    rule: ActingRule
    checksum: str | None = None


def evaluate_run(session: Session, shared_games: SharedGames | None = None) -> None:
    """Evaluate what the run directory holds and record each result; finished ones are kept.

    All policies play the same episodes (one seed), which no checkpoint was chosen on. Where the
    recipe sharpens the student, the teacher is also evaluated at the student's sharpness.
    Games of teacher and distilled student that `shared_games` holds are not played again.
    """
    if already_done(session, "evaluate"):
        return
    session.run.set_phase("evaluate", "running")
    settings, run = session.recipe.evaluation, session.run
    env: VectorEnvironment | None = None
    for entrant in _entrants(session):
        if entrant.name in run.manifest.evaluations:
            continue
        if _is_known(session, entrant, shared_games):
            continue
        if env is None:
            env = session.make_env(settings.num_envs or min(settings.episodes, 64))
        evaluation = _evaluate(session, entrant, env)
        if shared_games is not None and entrant.checksum is not None:
            try:
                shared_games.keep(session, entrant.checksum, entrant.rule, evaluation)
            except OSError as error:  # this run has what it needs
                session.progress.note(f"{entrant.name}: other runs play it, too: {error}")
    if env is not None:
        env.close()
    for sink in session.sinks():
        sink.evaluated(final_scalars(run.manifest.evaluations))
    run.set_phase("evaluate", "done", metrics_crc32=metrics_checksum(run))


def _is_known(session: Session, entrant: _Entrant, shared_games: SharedGames | None) -> bool:
    """Whether its games have been played under another name or by another run; records them."""
    run, name = session.run, entrant.name
    if name == "qat" and "ptq" in run.manifest.evaluations and _phase_3_kept_the_student(run):
        found, reason = run.manifest.evaluations["ptq"], "phase 3 kept phase 2's student"
    elif shared_games is not None and entrant.checksum is not None:
        other = shared_games.find(session, entrant.checksum, entrant.rule)
        if other is None:
            return False
        found, reason = other, "another run of this sweep evaluated it"
    else:
        return False
    run.record_evaluation(name, {**found, "seconds": 0.0})
    session.progress.note(f"{name}: {reason}, so its games are the same")
    return True


def _evaluate(session: Session, entrant: _Entrant, env: VectorEnvironment) -> dict[str, Any]:
    """Play, record and report; returns what was recorded."""
    name, count = entrant.name, session.recipe.evaluation.episodes
    began = time.perf_counter()
    result = evaluate(
        entrant.policy,
        env,
        count,
        entrant.rule,
        seed_for(session.recipe.seed, "evaluation"),
        lambda done: session.progress.episodes(f"evaluating {name}", done, count),
    )
    about = {"seconds": time.perf_counter() - began, "date": date_now()}
    evaluation = result.to_json() | about
    session.run.record_evaluation(name, evaluation)
    low, high = result.interval()
    session.progress.note(f"{name}: return {result.mean:.1f} [{low:.1f}, {high:.1f}]")
    return evaluation


def _phase_3_kept_the_student(run: RunDirectory) -> bool:
    """Whether no epoch of phase 3 was validated better than what it began with."""
    before, after = load_integer_student(run.ptq_file), load_integer_student(run.quantized_file)
    return before == after


def _entrants(session: Session) -> list[_Entrant]:
    run, sharpness = session.run, session.recipe.student.sharpness
    rule = session.acting_rule()
    teacher, checksum = network_policy(session.teacher), session.teacher.sha256
    entrants = [_Entrant("teacher", teacher, rule, checksum)]
    if sharpness != 1.0 and rule.kind == "sample":
        sharper = session.acting_rule(sharpness=sharpness)
        entrants.append(_Entrant("teacher_sharpened", teacher, sharper, checksum))
    if run.phase("distill").state == "done":
        student = load_student(run.distilled_file).to(session.device)
        weights = safetensors_bytes(student.state_dict())  # without the file's notes on its origin
        checksum = hashlib.sha256(weights).hexdigest()
        entrants.append(_Entrant("distilled", network_policy(student), rule, checksum))
    if run.phase("quantize").state == "done":
        ptq = IntegerEngine(load_integer_student(run.ptq_file))
        entrants.append(_Entrant("ptq", ptq, rule))
    if run.phase("finetune").state == "done":
        qat = IntegerEngine(load_integer_student(run.quantized_file))
        entrants.append(_Entrant("qat", qat, rule))
    return entrants
