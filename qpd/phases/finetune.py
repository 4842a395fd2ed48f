"""Phase 3 of Algorithm 1: training through the quantizers (straight-through estimator)."""

from __future__ import annotations

import copy

import torch

from qpd.environments.policy import network_policy
from qpd.integer.integer_student import IntegerEngine, integer_student
from qpd.numerics.precision import compute_precision
from qpd.phases.quantize import load_calibrated, quantization_config, save_quantized
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
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.runs.results import distilled_student
from qpd.training.plan import PhasePlan


def finetune(session: Session) -> None:
    """Phase 3: training through the quantizers; writes quantized.safetensors."""
    if already_done(session, "finetune"):
        return
    recipe = session.recipe
    student = distilled_student(session.run)
    simulation = QuantizedStudent(student, quantization_config(recipe)).to(session.device)
    fold = session.temperature * recipe.student.sharpness
    state = phase_state(simulation, recipe.finetune, recipe.seed)
    if not restore("finetune", [(session, state)]):
        simulation.load_state_dict(load_calibrated(session))
        state.spend("collect", fill(session))
        state.head_factor = asked_size(session.stream().memory, session.temperature) * fold
        ptq = session.validate(IntegerEngine(integer_student(simulation)))
        session.progress.note(f"before phase 3: validation return {ptq.mean:.1f}")
        state.keep_if_best(ptq.mean)  # finetuning must beat what it starts from
        save("finetune", [(session, state)])
    # With rewards, who plays must be who trains, in its very arithmetic.
    dtype = torch.float32
    if recipe.finetune.reward is not None:
        dtype = compute_precision(recipe.finetune.precision, session.device)
    temperature = recipe.finetune.temperature_for(session.teacher.has_actor_critic)
    plan = PhasePlan(
        "finetune",
        recipe.finetune,
        temperature,
        temperature * recipe.student.sharpness,
        recipe.evaluation.validate_every,
        lambda: network_policy(copy.deepcopy(simulation), dtype=dtype),
        lambda: session.validate(IntegerEngine(integer_student(simulation))),
        recipe.finetune.reward,
        simulation.keep_ranges_positive,
    )
    run_phase([(session, plan, state)])
    if state.best:
        simulation.load_state_dict(state.best)
    save_quantized(session, simulation, "qat")
    session.run.set_phase("finetune", "done", **summary(state))
