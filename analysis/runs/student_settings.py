"""The settings that make a student, as one level of keys, by which two runs can be compared."""

from __future__ import annotations

from typing import Any, Literal

from qpd.actions import ActionSpace
from qpd.recipe.differences import flat_settings
from qpd.recipe.schema import Recipe

LEGACY_TEMPERATURE = 0.01  # of Q-values, where a run chose none
# These change no student, only where and how it is made and how often it plays.
_IRRELEVANT = {"name", "seed", "device", "teacher", "evaluation", "save"}
_LATER_SECTIONS: dict[str, set[str]] = {
    "distilled": {"quantize", "finetune"},
    "ptq": {"finetune"},
    "qat": set(),
}


def student_settings(
    recipe: Recipe,
    policy: str,
    actions: ActionSpace,
    *,
    has_critic: bool,
    chose_temperature: bool,
) -> dict[str, Any]:
    """Return each key that `policy` (distilled, ptq or qat) depends on, with its value.

    Temperatures and lambdas that the recipe leaves open are resolved by the student's actions, and
    by whether its teacher `has_critic`; a temperature that the run chose by the labels' entropy
    (`chose_temperature`) stays None, as it differs a little from seed to seed. How the best epoch
    was chosen (`evaluation.validation_episodes`, `.validate_every`, `.select`) is included; the
    seed and the number of reported games are not.
    """
    sections = recipe.model_dump(mode="json", exclude=_IRRELEVANT | _LATER_SECTIONS[policy])
    sections["environment"].pop("num_threads")  # only speed: games are the same for any number
    for name, settings in (("distill", recipe.distill), ("finetune", recipe.finetune)):
        if name in sections:
            phase = sections[name]
            phase.pop("gradient_exponents")  # counting changes nothing
            # As qpd.phases.student_run resolves them; phase 3's last resort is phase 1's.
            last = None if chose_temperature else LEGACY_TEMPERATURE
            if name == "finetune":
                last = recipe.distill.temperature or last
            phase["temperature"] = settings.temperature or actions.temperature or last
            phase["actor_weight"] = settings.actor_weight_for(has_critic)
    sections["evaluation"] = {
        key: getattr(recipe.evaluation, key)
        for key in ("validation_episodes", "validate_every", "select")
    }
    return flat_settings(sections)


def setting_text(value: Any) -> str:
    """Return a setting's value as recipes write it: `0.001`, `true`."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def phase_samples(settings: dict[str, Any], phase: Literal["distill", "finetune"]) -> int:
    """Return how many samples a phase sees, by `student_settings`; 0 for a phase without keys."""
    if f"{phase}.epochs" not in settings:
        return 0
    if f"{phase}.reward.rollout" in settings:
        epoch = settings[f"{phase}.reward.rollout"] * settings[f"{phase}.reward.passes"]
        return int(settings[f"{phase}.epochs"] * epoch)
    capacity = settings["replay.capacity"]
    epoch = min(settings[f"{phase}.samples_per_epoch"] or capacity, capacity)
    return int(settings[f"{phase}.epochs"] * epoch)
