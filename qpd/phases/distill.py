"""Phase 1 of Algorithm 1: full-precision distillation, of one student or of several at once."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from qpd.environments.errors import EnvironmentRunError
from qpd.environments.policy import network_policy
from qpd.numerics.random_seeds import seed_for
from qpd.phases.first_games import play_first_games
from qpd.phases.play import Play
from qpd.phases.preparation import size_notes
from qpd.phases.recycling import recycler
from qpd.phases.runner import already_done, initial_state, run_phase, summary
from qpd.phases.student_run import StudentRun
from qpd.replay.memory import ReplayMemory
from qpd.runs.progress import Progress
from qpd.student_files.distilled import save_student
from qpd.students import Student
from qpd.training.plan import PhasePlan
from qpd.training.state import PhaseState


def distill(student: StudentRun, play: Play, progress: Progress) -> None:
    """Run phase 1; writes distilled.safetensors, with temperature and sharpness folded in."""
    distill_together([student], play, progress)


def distill_together(students: Sequence[StudentRun], play: Play, progress: Progress) -> None:
    """Run phase 1 of students that differ in size and seed, on the play and labels of one stream.

    Each run directory gets what `distill` writes there. Students that are done already are left as
    they are.
    """
    waiting = [s for s in students if not already_done(s.run, "distill", progress)]
    if not waiting:
        return
    # Before the memory is filled, which takes minutes: what cannot be made fails at once.
    networks = [_network(student) for student in waiting]
    states = [
        initial_state(network, student.recipe.distill, student.recipe.seed)
        for student, network in zip(waiting, networks, strict=True)
    ]
    pairs = list(zip(waiting, states, strict=True))
    if not play.restore("distill", pairs):
        notes = [line for s in waiting for line in size_notes(s.recipe, s.prepared)]
        for line in dict.fromkeys(notes):
            progress.note(line)
        _ = play.stream  # reserves the memory's disk space: what is full fails at once
        play_first_games(waiting[0], progress)
        first_games = waiting[0].run.phase("distill").metrics["first_games"]
        for student in waiting[1:]:  # of the same teacher
            now = student.run.phase("distill").state
            student.run.set_phase("distill", now, first_games=first_games)
        states[0].add_time("collect", play.fill(progress))  # the play is counted once
        for student in waiting:
            student.choose_temperature(play.memory)
        _tell_labels(waiting[0], play, progress)
        for (student, state), network in zip(pairs, networks, strict=True):
            _fit_ranges(network, play)
            state.head_factor = student.output_scale(play.memory)
        play.save("distill", pairs)
    plans = [
        _plan(student, network, state, play, progress)
        for (student, state), network in zip(pairs, networks, strict=True)
    ]
    run_phase(list(zip(waiting, plans, states, strict=True)), play, progress)
    _tell_sharing(waiting, play, progress)
    for (student, state), network in zip(pairs, networks, strict=True):
        _finish(student, network, state, play, len(students))


def _tell_labels(student: StudentRun, play: Play, progress: Progress) -> None:
    """Report how confident the labels are at this temperature."""
    actions = student.prepared.teacher.actions
    said = actions.describe_labels(play.memory.labels(), student.temperature)
    if said is not None:
        progress.note(said)


def _tell_sharing(students: Sequence[StudentRun], play: Play, progress: Progress) -> None:
    """Say and record what background sharing left to multiply, where draws were shared."""
    blocks = play.memory.multiplied_blocks(students[0].recipe.distill.batch_size)
    if blocks is None:
        return
    progress.note(f"background sharing: {blocks}")
    for student in students:
        student.run.set_phase("distill", "running", multiplied_blocks=blocks._asdict())


def _network(student: StudentRun) -> Student:
    """Return the untrained student."""
    seed = seed_for(student.recipe.seed, "student")
    return Student(student.prepared.architecture, seed).to(student.prepared.device)


def _fit_ranges(network: Student, play: Play) -> None:
    """Set input and value ranges to what the memory holds."""
    if network.architecture.num_features:
        network.set_input_range(*input_range(play.memory))
    network.set_value_range(*play.memory.value_moments())


def input_range(memory: ReplayMemory) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the input range of each vector feature, float32 `[features]`, by what memory holds.

    Raises EnvironmentRunError where its width is beyond float32.
    """
    low, high = memory.observation_range()
    margin = 0.05 * (high - low)  # play goes a little beyond where it went
    low, high = low - margin, high + margin
    wide = torch.nonzero(~(high - low).isfinite()).flatten().tolist()
    if wide:
        raise EnvironmentRunError(
            f"feature {wide[0]} of the observations goes from {low[wide[0]]:.3g} to "
            f"{high[wide[0]]:.3g}, wider than float32: scale it in a wrapper"
        )
    return low, high


def _plan(
    student: StudentRun, network: Student, state: PhaseState, play: Play, progress: Progress
) -> PhasePlan:
    # Eq. 1 tempers the teacher alone: what acts is the trained student with the temperature folded
    # back in.
    fold, actions = student.fold(student.temperature), student.prepared.teacher.actions
    return PhasePlan(
        name="distill",
        settings=student.recipe.distill,
        actions=actions,
        actor_weight=student.recipe.distill.actor_weight_for(student.prepared.teacher.has_critic),
        teacher_temperature=student.temperature,
        student_temperature=1.0,
        validate_every=student.recipe.evaluation.validate_every,
        acting_policy=lambda: network_policy(copy.deepcopy(network), actions, fold),
        validate=lambda: student.validation(
            network_policy(copy.deepcopy(network), actions, fold), student.temperature
        ),
        select=student.recipe.evaluation.select,
        after_early_epoch=recycler(
            student, network, student.recipe.distill.recycle_dormant, state, play, progress
        ),
    )


def _finish(
    student: StudentRun, network: Student, state: PhaseState, play: Play, sharing: int
) -> None:
    if state.best:  # empty if no epoch was trained
        network.load_state_dict(state.best)
    # Every later user of the student gets the teacher's sharpness, and Eq. 1's temperature is gone.
    network.scale_outputs(student.fold(student.temperature))
    origin = {
        "recipe": student.recipe.name,
        "env_id": student.prepared.env_id,
        "phase": "distill",
    }
    actions = student.prepared.teacher.actions
    save_student(student.run.distilled_file, network, actions, origin)
    # A shared store lasts as long as the sweep: only a run's own memory serves its later phases.
    keeps_memory = play.belongs_to_run
    student.run.set_phase(
        "distill", "done", keeps_memory=keeps_memory, students_sharing=sharing, **summary(state)
    )
