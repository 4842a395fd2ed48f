"""Groups of runs: what is one group, and in which settings two of them differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from qpd.analysis.returns.policy_groups import PolicyGroup, differing_keys, policy_groups
from qpd.analysis.runs.run_frame import run_frame
from qpd.analysis.runs.student_settings import phase_samples
from tests.analysis.made_up_runs import make_run

TWO = {"distilled": [1.0, 3], "qat": [5.0]}


def groups(*runs: Path) -> list[PolicyGroup]:
    return policy_groups(run_frame(list(runs)))


def only(found: list[PolicyGroup], policy: str, run: str) -> PolicyGroup:
    (group,) = [g for g in found if g.policy == policy and run in g.folders]
    return group


def test_seeds_are_one_group_and_other_settings_another(tmp_path: Path) -> None:
    found = groups(
        make_run(tmp_path / "a-seed0", TWO),
        make_run(tmp_path / "a-seed1", {"distilled": [5.0]}, seed=1),
        make_run(tmp_path / "chosen-on-more", TWO, changes=["evaluation.validation_episodes=50"]),
        make_run(tmp_path / "more-games", TWO, seed=2, changes=["evaluation.episodes=500"]),
    )
    distilled = only(found, "distilled", "a-seed0")
    assert distilled.folders == "a-seed0, a-seed1 and 1 more"
    assert (distilled.num_runs, distilled.num_episodes) == (3, 5)
    assert np.nanmean(np.asarray(distilled.scores)) == (1 + 3 + 5 + 1 + 3) / 5
    # How the best epoch was chosen makes another student; how often it was played does not.
    assert only(found, "distilled", "chosen-on-more").num_runs == 1
    # The second seed's 8-bit student was not evaluated: a group of its own, without games.
    (silent,) = [g for g in found if g.policy == "qat" and g.scores is None]
    assert silent.folders == "a-seed1" and silent.num_episodes == 0 and not silent.has_file


def test_fp32_students_differ_in_phase_1_alone(tmp_path: Path) -> None:
    changes = ["student.size=S", "quantize.weight_bits=4", "finetune.epochs=1"]
    found = groups(make_run(tmp_path / "a", TWO), make_run(tmp_path / "b", TWO, changes=changes))
    first, second = only(found, "distilled", "a"), only(found, "distilled", "b")
    assert differing_keys(first, second) == ["student.size"]
    assert differing_keys(first, only(found, "qat", "b")) == ["student.size"]
    integers = only(found, "qat", "a"), only(found, "qat", "b")
    assert differing_keys(*integers) == ["finetune.epochs", "quantize.weight_bits", "student.size"]
    assert differing_keys(*integers, ("finetune.", "student.size")) == ["quantize.weight_bits"]


def test_temperatures_and_lambdas_left_to_the_teacher_are_told(tmp_path: Path) -> None:
    found = groups(
        make_run(tmp_path / "left", TWO),
        make_run(tmp_path / "said", TWO, seed=1, changes=["distill.temperature=3"]),
        make_run(tmp_path / "dqn", TWO, algo="dqn", changes=["distill.actor_weight=null"]),
    )
    same = only(found, "distilled", "left")
    assert same.num_runs == 2 and same.settings["distill.temperature"] == 3.0
    values = only(found, "distilled", "dqn").settings
    assert (values["distill.temperature"], values["distill.actor_weight"]) == (0.01, 1.0)


def test_copies_of_a_run_have_no_more_games_than_one(tmp_path: Path) -> None:
    four = {"teacher": [1.0, 2, 3, 4], "qat": [1.0, 2, 3, 4]}
    found = groups(*(make_run(tmp_path / name, four) for name in ("a", "copy", "another")))
    for policy in ("teacher", "qat"):
        (group,) = [each for each in found if each.policy == policy]
        assert group.num_distinct_games == group.num_episodes == 4


def test_an_option_that_only_one_side_has_on_is_a_difference(tmp_path: Path) -> None:
    rewarded = "finetune.reward={rollout: 4096, passes: 2}"
    found = groups(
        make_run(tmp_path / "plain", TWO),
        make_run(tmp_path / "rewarded", TWO, changes=[rewarded, "finetune.epochs=10"]),
        make_run(tmp_path / "elsewhere", TWO, changes=["environment.kwargs={difficulty: 1}"]),
    )
    plain, more = (only(found, "qat", name) for name in ("plain", "rewarded"))
    changed = differing_keys(plain, more)
    assert {"finetune.reward", "finetune.reward.rollout", "finetune.epochs"} <= set(changed)
    assert phase_samples(more.settings, "finetune") == 10 * 4096 * 2
    # The fp32 student knows nothing of phase 3.
    assert only(found, "distilled", "plain").num_runs == 1
    elsewhere = only(found, "qat", "elsewhere")
    assert differing_keys(plain, elsewhere) == ["environment.kwargs.difficulty"]


def test_counting_gradients_makes_no_other_recipe(tmp_path: Path) -> None:
    counting = ["distill.gradient_exponents=10", "finetune.gradient_exponents=10"]
    found = groups(
        make_run(tmp_path / "a", TWO), make_run(tmp_path / "b", TWO, changes=counting, seed=1)
    )
    assert only(found, "distilled", "a").num_runs == 2


def test_a_greedy_teachers_games_are_different_once_whatever_the_seeds(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"s{seed}", {"teacher": [1.0, 2.0]}, seed=seed) for seed in (0, 1)]
    for run in runs:
        manifest = json.loads((run / "manifest.json").read_text())
        manifest["evaluations"]["teacher"] |= {"lengths": [10, 20], "distinct_games": 2}
        (run / "manifest.json").write_text(json.dumps(manifest))
    (teacher,) = [each for each in groups(*runs) if each.policy == "teacher"]
    assert (teacher.num_episodes, teacher.num_distinct_games) == (4, 2)
    # A third evaluation shares a game with the first.
    again = make_run(tmp_path / "again", {"teacher": [1.0, 7.0, 8.0]})
    manifest = json.loads((again / "manifest.json").read_text())
    manifest["evaluations"]["teacher"] |= {"lengths": [10, 70, 80], "distinct_games": 3}
    (again / "manifest.json").write_text(json.dumps(manifest))
    (teacher,) = [each for each in groups(*runs, again) if each.policy == "teacher"]
    assert (teacher.num_episodes, teacher.num_distinct_games) == (6, 4)
