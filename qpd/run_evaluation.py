"""The evaluation that ends a run: teacher, distilled, PTQ and QAT students on the same games."""

from __future__ import annotations

import time

from qpd.acting import ActingRule
from qpd.environment import VectorEnvironment
from qpd.evaluation import evaluate
from qpd.manifest import EvaluatedPolicy, date_now
from qpd.phase_results import metrics_checksum
from qpd.phase_runner import already_done
from qpd.policy import Policy, network_policy
from qpd.quantization.integer_student import IntegerEngine
from qpd.quantization.packing import load_integer_student
from qpd.random_seeds import seed_for
from qpd.run_directory import RunDirectory
from qpd.session import Session
from qpd.student_files import load_student
from qpd.teacher_games import TeacherGames
from qpd.tracking.epoch_metrics import final_scalars


def evaluate_run(session: Session, teacher_games: TeacherGames | None = None) -> None:
    """Evaluate what the run directory holds and record each result; finished ones are kept.

    All policies play the same episodes (one seed), which no checkpoint was chosen on. Where the
    recipe sharpens the student, the teacher is also evaluated at the student's sharpness.
    What `teacher_games` holds of the teacher is not played again.
    """
    if already_done(session, "evaluate"):
        return
    session.run.set_phase("evaluate", "running")
    settings, run = session.recipe.evaluation, session.run
    env: VectorEnvironment | None = None
    for name, policy, rule in _policies(session):
        if name in run.manifest.evaluations:
            continue
        if name == "qat" and "ptq" in run.manifest.evaluations and _phase_3_kept_the_student(run):
            run.record_evaluation("qat", {**run.manifest.evaluations["ptq"], "seconds": 0.0})
            session.progress.note("qat: phase 3 kept phase 2's student, so its games are the same")
            continue
        shared = teacher_games if name.startswith("teacher") else None
        known = shared.find(session, rule) if shared is not None else None
        if known is not None:
            run.record_evaluation(name, {**known, "seconds": 0.0})
            session.progress.note(f"{name}: another run of this sweep played the same games")
            continue
        if env is None:
            env = session.make_env(settings.num_envs or min(settings.episodes, 64))
        began = time.perf_counter()
        result = evaluate(
            policy,
            env,
            settings.episodes,
            rule,
            seed_for(session.recipe.seed, "evaluation"),
            lambda done, name=name: session.progress.episodes(  # type: ignore[misc]
                f"evaluating {name}", done, settings.episodes
            ),
        )
        about = {"seconds": time.perf_counter() - began, "date": date_now()}
        evaluation = result.to_json() | about
        run.record_evaluation(name, evaluation)
        if shared is not None:
            shared.keep(session, rule, evaluation)
        low, high = result.interval()
        session.progress.note(f"{name}: return {result.mean:.1f} [{low:.1f}, {high:.1f}]")
    if env is not None:
        env.close()
    for sink in session.sinks():
        sink.evaluated(final_scalars(run.manifest.evaluations))
    run.set_phase("evaluate", "done", metrics_crc32=metrics_checksum(run))


def _phase_3_kept_the_student(run: RunDirectory) -> bool:
    """Whether no epoch of phase 3 was validated better than what it began with."""
    before, after = load_integer_student(run.ptq_file), load_integer_student(run.quantized_file)
    return before == after


def _policies(session: Session) -> list[tuple[EvaluatedPolicy, Policy, ActingRule]]:
    run, sharpness = session.run, session.recipe.student.sharpness
    rule = session.acting_rule()
    teacher = network_policy(session.teacher)
    policies: list[tuple[EvaluatedPolicy, Policy, ActingRule]] = [("teacher", teacher, rule)]
    if sharpness != 1.0 and rule.kind == "sample":
        sharper = session.acting_rule(sharpness=sharpness)
        policies.append(("teacher_sharpened", teacher, sharper))
    if run.phase("distill").state == "done":
        student = load_student(run.distilled_file).to(session.device)
        policies.append(("distilled", network_policy(student), rule))
    if run.phase("quantize").state == "done":
        ptq = IntegerEngine(load_integer_student(run.ptq_file))
        policies.append(("ptq", ptq, rule))
    if run.phase("finetune").state == "done":
        qat = IntegerEngine(load_integer_student(run.quantized_file))
        policies.append(("qat", qat, rule))
    return policies
