"""Phase 1 of Algorithm 1: full-precision distillation, of one student or of several at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch

from qpd.environments.policy import network_policy
from qpd.numerics.random_seeds import seed_for
from qpd.phases.runner import (
    already_done,
    asked_size,
    fill,
    phase_state,
    restore,
    run_phase,
    save,
    summary,
)
from qpd.phases.session import Session
from qpd.student_files.distilled import save_student
from qpd.students import Student
from qpd.training.dormant_units import recycle_dormant_units
from qpd.training.plan import PhasePlan
from qpd.training.state import PhaseState


def distill(session: Session) -> None:
    """Phase 1; writes distilled.safetensors, with temperature and sharpness folded in."""
    distill_together([session])


def distill_together(sessions: Sequence[Session]) -> None:
    """Phase 1 of students that differ in size and seed, on the play and the labels of one stream.

    The first session's recipe decides about the stream; a member's own run directory gets what
    `distill` writes there. Sessions that are done already are left as they are.
    """
    waiting = [session for session in sessions if not already_done(session, "distill")]
    if not waiting:
        return
    stream = sessions[0].stream()
    for session in waiting:
        session.share(stream)
    students = [_student(session) for session in waiting]
    states = [_state(session, student) for session, student in zip(waiting, students, strict=True)]
    pairs = list(zip(waiting, states, strict=True))
    if not restore("distill", pairs):
        states[0].spend("collect", fill(waiting[0]))
        _tell_labels(waiting[0])
        for (session, state), student in zip(pairs, students, strict=True):
            _fit_ranges(session, student)
            state.head_factor = asked_size(session.stream().memory, session.temperature)
        save("distill", pairs)
    plans = [_plan(*parts) for parts in zip(waiting, students, states, strict=True)]
    run_phase(list(zip(waiting, plans, states, strict=True)))
    _tell_sharing(waiting)
    for parts in zip(waiting, students, states, strict=True):
        _finish(*parts)


def _tell_labels(session: Session) -> None:
    """How decided the teacher is at this temperature: what the choice of it decides."""
    entropy, best = session.stream().memory.label_entropy(session.temperature)
    session.progress.note(
        f"labels at temperature {session.temperature:g}: the best action has {best:.0%} on "
        f"average, {entropy:.2f} nats of entropy"
    )


def _tell_sharing(sessions: Sequence[Session]) -> None:
    """Note and record what background sharing left to multiply, where draws were shared."""
    memory = sessions[0].stream().memory
    blocks = memory.multiplied_blocks(sessions[0].recipe.distill.batch_size)
    if blocks is None:
        return
    sessions[0].progress.note(f"background sharing: {blocks}")
    for session in sessions:
        session.run.set_phase("distill", "running", multiplied_blocks=blocks._asdict())


def _student(session: Session) -> Student:
    seed = seed_for(session.recipe.seed, "student")
    return Student(session.architecture, seed).to(session.device)


def _state(session: Session, student: Student) -> PhaseState:
    return phase_state(student, session.recipe.distill, session.recipe.seed)


def _fit_ranges(session: Session, student: Student) -> None:
    """Input and value ranges as the memory has them."""
    memory = session.stream().memory
    if not session.architecture.is_image:
        low, high = memory.observation_range()
        margin = 0.05 * (high - low)
        student.set_input_range(low - margin, high + margin)
    student.set_value_range(*memory.value_moments())


def _fold(session: Session) -> float:
    """What turns the trained logits into those of the acting policy."""
    return session.temperature * session.recipe.student.sharpness


def _plan(session: Session, student: Student, state: PhaseState) -> PhasePlan:
    fold = _fold(session)
    return PhasePlan(
        "distill",
        session.recipe.distill,
        session.temperature,
        1.0,
        session.recipe.evaluation.validate_every,
        lambda: network_policy(copy.deepcopy(student), fold),
        lambda: session.validate(network_policy(student, fold)),
        after_early_epoch=_recycler(session, student, state),
    )


def _recycler(session: Session, student: Student, state: PhaseState) -> Callable[[], None]:
    """Recycling of dormant units, on observations drawn from the memory."""

    def recycle() -> None:
        if not session.recipe.distill.recycle_dormant:
            return
        memory = session.stream().memory
        rows = state.shuffle.choice(memory.transition_rows(), min(len(memory), 4096), False)
        observations = memory.gather(torch.from_numpy(rows)).observations.to(session.device)
        count = recycle_dormant_units(
            student, state.optimizer, observations, int(state.shuffle.integers(2**31))
        )
        if count:
            prefix = f"{session.label}: " if session.label else ""
            session.progress.note(f"{prefix}epoch {state.epoch}: {count} dormant units start anew")

    return recycle


def _finish(session: Session, student: Student, state: PhaseState) -> None:
    if state.best:
        student.load_state_dict(state.best)
    student.scale_logits(_fold(session))
    about = {"recipe": session.recipe.name, "env_id": session.env_id, "phase": "distill"}
    save_student(session.run.distilled_file, student, about)
    keeps_memory = session.store.parent == session.run.path  # no folder shared for a while
    session.run.set_phase("distill", "done", keeps_memory=keeps_memory, **summary(state))
