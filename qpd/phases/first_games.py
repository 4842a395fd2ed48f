"""A few games of the teacher before anything learns from it, beside those of a random policy.

An agent whose VecNormalize file is missing, or that is played in the wrong environment, loads
without a word and plays badly.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np

from qpd.actions import ActingRule
from qpd.environments.errors import EnvironmentRunError
from qpd.environments.policy import network_policy, random_policy
from qpd.evaluation.games import EvaluationResult, bootstrap_interval, evaluate
from qpd.numerics.random_seeds import seed_for
from qpd.phases.student_run import StudentRun
from qpd.phases.validation import acting_rule, make_env
from qpd.runs.manifest import MOST_RETURN
from qpd.runs.progress import Progress
from qpd.teachers import Teacher

_MOST_GAMES = 8  # of each; enough to notice a teacher that does nothing
_FEWEST_GAMES = 5  # of fewer a random policy's interval says nothing


def play_first_games(student: StudentRun, progress: Progress) -> None:
    """Play them once in a run, record both mean returns and report them.

    Warns as `random_warning` says; the manifest keeps the warning for whoever reads the results.
    Raises EnvironmentRunError for returns that no manifest would take after the training.
    """
    run, recipe, prepared = student.run, student.recipe, student.prepared
    if "first_games" in run.phase("distill").metrics:
        return
    count = min(_MOST_GAMES, recipe.evaluation.validation_episodes)
    seed = seed_for(recipe.seed, "first_games")
    entrants = {
        "teacher": (
            network_policy(prepared.teacher, prepared.teacher.actions),
            acting_rule(recipe, prepared),
        ),
        "random policy": (random_policy(prepared.teacher.actions), ActingRule("sample")),
    }
    results: dict[str, EvaluationResult] = {}
    with closing(make_env(recipe, prepared, count)) as env:
        for name, (policy, rule) in entrants.items():

            def tell(done: int, name: str = name) -> None:
                progress.episodes(f"first games of the {name}", done, count)

            results[name] = evaluate(policy, env, count, rule, seed, tell)
            check_returns(results[name].returns, prepared.env_id)
    teacher, random = results["teacher"], results["random policy"]
    found: dict[str, float | str] = {
        "teacher": teacher.mean,
        "random": random.mean,
        "episodes": count,
    }
    warning = random_warning(prepared.teacher, teacher, random)
    found |= {"warning": warning} if warning is not None else {}
    run.set_phase("distill", run.phase("distill").state, first_games=found)
    progress.note(
        f"first games: the teacher's return is {teacher.mean:.1f}, a random policy's"
        f" {random.mean:.1f} ({count} games each)"
    )
    if warning is not None:
        progress.warning(warning)


def random_warning(
    teacher: Teacher, played: EvaluationResult, random: EvaluationResult
) -> str | None:
    """Return a warning if the teacher's mean return is not above the random policy's.

    It ends with what is usually wrong with such an agent.
    """
    if is_above_random(played.returns, random.returns):
        return None
    if len(played.returns) < _FEWEST_GAMES:
        return f"{len(played.returns)} games do not tell this teacher from random play; play more"
    return no_better_than_random(teacher)


def check_returns(returns: np.ndarray, env_id: str) -> None:
    """Raise EnvironmentRunError for a return `[games]` beyond what is recorded."""
    most = float(np.abs(returns).max())
    if not most <= MOST_RETURN:  # NaN compares false
        raise EnvironmentRunError(
            f"{env_id}: a game's return is {most:.3g}; expected at most {MOST_RETURN:.0e}: scale "
            "rewards in a wrapper"
        )


def is_above_random(returns: np.ndarray, random: np.ndarray) -> bool:
    """Tell whether a mean return is above a random policy's 95% interval, or above all its games.

    Both `[games]`. A few games have a wide interval.
    """
    return bool(returns.mean() > min(bootstrap_interval(random)[1], float(random.max())))


def no_better_than_random(teacher: Teacher) -> str:
    """Return the warning for an agent that plays no better than a random policy."""
    return f"this teacher plays no better than at random{_advice(teacher)}"


def _advice(teacher: Teacher) -> str:
    if teacher.is_image or teacher.normalization is not None:
        return "; is its environment the one it was trained in?"
    return "; if it was trained with VecNormalize, give its file: --vecnormalize FILE"
