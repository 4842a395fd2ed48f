"""Phase 3 of Algorithm 1: training through the quantizers (straight-through estimator)."""

from __future__ import annotations

import copy

import torch

from qpd.environments.policy import network_policy
from qpd.integer.integer_student import IntegerEngine
from qpd.numerics.precision import compute_precision
from qpd.phases.play import Play
from qpd.phases.quantize import exact_student, load_calibrated, quantization_config, save_quantized
from qpd.phases.recycling import recycler
from qpd.phases.runner import already_done, initial_state, run_phase, summary
from qpd.phases.student_run import StudentRun
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.runs.progress import Progress
from qpd.runs.results import distilled_student
from qpd.training.plan import PhasePlan
from qpd.training.selection import Validated


def finetune(student: StudentRun, play: Play, progress: Progress) -> None:
    """Run phase 3: train through the quantizers; writes quantized.safetensors."""
    if already_done(student.run, "finetune", progress):
        return
    if student.run.phase("evaluate").state == "done":  # of what phase 2 made
        student.run.set_phase("evaluate", "pending")
    recipe, device, teacher = student.recipe, student.prepared.device, student.prepared.teacher
    simulation = QuantizedStudent(distilled_student(student.run), quantization_config(recipe))
    simulation = simulation.to(device)
    state = initial_state(simulation, recipe.finetune, recipe.seed)
    # With rewards the student is to leave its teacher behind.
    select = recipe.evaluation.select if recipe.finetune.reward is None else "return"

    def validate() -> Validated:
        engine = IntegerEngine(exact_student(student, simulation))
        return student.validation(engine, student.temperature)

    if not play.restore("finetune", [(student, state)]):
        simulation.load_state_dict(load_calibrated(student.run, play))
        state.add_time("collect", play.fill(progress))
        if student.run.manifest.is_agent:  # which had no phase 1 to choose it
            student.choose_temperature(play.memory)
        # The head's logits are those of the acting policy, larger than phase 1's by this factor.
        # PPO's steps must stay small in terms of that policy: there the head learns as the rest.
        fold = student.fold(student.temperature)
        if recipe.finetune.reward is None:
            state.head_factor = student.output_scale(play.memory) * fold
        ptq = validate()
        progress.note(
            f"before phase 3: validation return {ptq.games.mean:.1f},"
            f" divergence {ptq.divergence:.4f}"
        )
        state.keep_if_best(ptq, select, validate)  # finetuning must beat what it starts from
        play.save("finetune", [(student, state)])
    # With rewards the acting policy must use training's arithmetic: else the probability ratios of
    # PPO are wrong.
    dtype = torch.float32
    if recipe.finetune.reward is not None:
        dtype = compute_precision(recipe.finetune.precision, device)
    temperature = student.finetune_temperature
    plan = PhasePlan(
        name="finetune",
        settings=recipe.finetune,
        actions=teacher.actions,
        actor_weight=recipe.finetune.actor_weight_for(teacher.has_critic),
        teacher_temperature=temperature,
        student_temperature=student.fold(temperature),
        validate_every=recipe.evaluation.validate_every,
        acting_policy=lambda: network_policy(
            copy.deepcopy(simulation), teacher.actions, dtype=dtype
        ),
        validate=validate,
        select=select,
        reward=recipe.finetune.reward,
        after_update=simulation.keep_ranges_positive,
        after_early_epoch=recycler(
            student, simulation, recipe.finetune.recycle_dormant, state, play, progress
        ),
    )
    run_phase([(student, plan, state)], play, progress)
    if state.best:
        simulation.load_state_dict(state.best)
    save_quantized(student, simulation, "qat")
    student.run.set_phase("finetune", "done", **summary(state))
