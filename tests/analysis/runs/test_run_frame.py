"""Run directories as a table: what is found, what each row says, which recipes are one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from qpd.analysis.runs.run_frame import COLUMNS, distinct_names, find_runs, run_frame
from qpd.recipe.loading import load_recipe
from qpd.runs.run_directory import RunDirectory, RunDirectoryError
from tests.analysis.made_up_runs import REFERENCE, make_run


def test_folders_of_runs_are_expanded_sorted_and_each_run_is_named_once(tmp_path: Path) -> None:
    b, a = make_run(tmp_path / "many" / "b"), make_run(tmp_path / "many" / "a")
    (tmp_path / "many" / "stream").mkdir()
    alone = make_run(tmp_path / "alone")
    assert find_runs([alone, tmp_path / "many"]) == [alone, a, b]
    assert find_runs([b, tmp_path / "many", b]) == [b, a]


def test_what_is_no_run_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunDirectoryError) as caught:
        find_runs([tmp_path / "empty"])
    (line,) = caught.value.lines
    assert line.startswith(f"{tmp_path / 'empty'}: is neither a run directory")
    with pytest.raises(RunDirectoryError, match="is no folder"):
        run_frame([tmp_path / "nothing"])
    run = make_run(tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    for wrong in (["many"], 7, [[1.0]], [1.0, None]):
        manifest["evaluations"]["qat"]["returns"] = wrong
        (run / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(RunDirectoryError, match=r"evaluations.qat: not as .*\(returns"):
            run_frame([run])


def test_a_reference_run() -> None:
    frame = run_frame([REFERENCE / "breakout-ppo-xxs-4bit"]).set_index("policy")
    teacher, distilled, qat = (frame.loc[name] for name in ("teacher", "distilled", "qat"))
    assert (teacher["size"], teacher["parameters"], teacher["size_bytes"]) == (
        "teacher",
        1_686_693,
        6_746_772,
    )
    file = REFERENCE / "breakout-ppo-xxs-4bit" / "quantized.safetensors"
    assert qat["size_bytes"] == file.stat().st_size
    assert (qat["size"], qat["parameters"]) == ("XXS", 35_796)
    assert (qat["weight_bits"], qat["activation_bits"], qat["scheme"]) == (4, 4, "dorefa_scaled")
    assert (qat["lambda"], qat["temperature"], qat["acting"]) == (0.5, 3.0, "sampled")
    assert len(qat["returns"]) == 200 and qat["returns"].mean() == pytest.approx(355.28)
    # Its fp32 student was left out, and not evaluated.
    assert distilled["weight_bits"] == 32 and np.isnan(distilled["size_bytes"])
    assert len(distilled["returns"]) == 0 and np.isnan(distilled["evaluation_seed"])
    mixed = run_frame([REFERENCE / "breakout-ppo-xxs-2bit"]).set_index("policy").loc["qat"]
    assert (mixed["layer_bits"], mixed["weight_bits"]) == ("8/2/2/2/8", 2)


def test_a_run_is_called_by_its_folder(tmp_path: Path) -> None:
    shutil.copytree(REFERENCE / "classic-ppo-cartpole", tmp_path / "mine,seed=3,bits=8")
    row = run_frame([tmp_path / "mine,seed=3,bits=8"]).iloc[0]
    assert (row["name"], row["experiment"]) == ("mine,seed=3,bits=8", "mine,bits=8")
    assert row["recipe"] == "classic-ppo-cartpole"


def test_a_teacher_of_q_values_has_its_own_temperature() -> None:
    frame = run_frame([REFERENCE / "classic-dqn-cartpole"]).set_index("policy")
    assert (frame.loc["qat", "lambda"], frame.loc["qat", "temperature"]) == (0.5, 0.01)
    assert frame.loc["qat", "size"] == "mlp-32"


def test_phase_3_has_the_temperature_of_phase_1_where_it_names_none(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", algo="dqn", changes=["distill.temperature=0.05"])
    settings = run_frame([run]).set_index("policy").loc["qat", "settings"]
    found = settings["distill.temperature"], settings["finetune.temperature"]
    assert found == (0.05, 0.05)


def test_a_run_that_did_nothing_yet_has_no_rows(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "new", load_recipe("ci")).close()
    frame = run_frame([tmp_path / "new"])
    assert frame.empty and tuple(frame.columns) == COLUMNS


def test_what_makes_recipes_the_same(tmp_path: Path) -> None:
    def keys(name: str, *changes: str, seed: int = 0) -> dict[str, tuple[str, str]]:
        frame = run_frame([make_run(tmp_path / name, seed=seed, changes=changes)])
        pairs = zip(frame["recipe_key"], frame["recipe_key_but_lambda"], strict=True)
        return dict(zip(frame["policy"], pairs, strict=True))

    base = keys("base")
    played_more = ["evaluation.episodes=7", "environment.num_threads=1", "device=cpu"]
    assert keys("other-name-and-seed", *played_more, seed=3) == base
    later = keys("other-phase-3", "finetune.epochs=1")
    assert {name for name in base if later[name] != base[name]} == {"qat"}
    fewer_bits = keys("4-bit", "quantize.weight_bits=4")
    assert {name for name in base if fewer_bits[name] != base[name]} == {"ptq", "qat"}
    actor_only = keys("actor", "distill.actor_weight=1", "finetune.actor_weight=1")
    for name in ("distilled", "ptq", "qat"):
        assert actor_only[name][0] != base[name][0] and actor_only[name][1] == base[name][1]
    longer = keys("longer", "distill.epochs=99")
    assert all(longer[name][1] != base[name][1] for name in ("distilled", "ptq", "qat"))


def test_the_seed_is_no_part_of_the_experiments_name(tmp_path: Path) -> None:
    names = ["grid-XXS-seed12", "plain", "a-seed3-b", "seed4"]
    frame = run_frame([make_run(tmp_path / name) for name in names])
    assert list(dict.fromkeys(frame["experiment"])) == ["grid-XXS", "plain", "a-seed3-b", "seed4"]


def test_who_shared_a_play_is_in_the_manifest_or_in_the_speeds(tmp_path: Path) -> None:
    told = make_run(tmp_path / "told", distilled={"students_sharing": 2})
    frame = run_frame([told])
    assert dict(zip(frame["policy"], frame["students_sharing"], strict=True)) == {
        "teacher": 1, "distilled": 2, "ptq": 2, "qat": 2,
    }  # fmt: skip
    # The mini grid is older than the key: three sizes of a seed had one play, the others their own.
    frame = run_frame([REFERENCE / "mini-grid"])
    students = frame[frame["policy"] == "distilled"]
    sharing = dict(zip(students["name"], students["students_sharing"], strict=True))
    for name, number in sharing.items():
        alone = "lambda" in name or "temperature" in name
        assert number == (1 if alone else 3), name


def test_the_best_validation_and_the_code(tmp_path: Path) -> None:
    frame = run_frame([REFERENCE / "quickstart"]).set_index("policy")
    assert frame["best_validation"]["distilled"] == 382.5  # metrics.csv, epoch 20
    assert np.isnan(frame["best_validation"][["teacher", "ptq"]]).all()
    assert set(frame["code"]) == {"e702abe"}
    run = make_run(tmp_path / "kept", distilled={"best_epoch": 0, "best_validation_return": 7.0})
    frame = run_frame([run]).set_index("policy")
    assert frame["best_validation"]["distilled"] == 7.0 and set(frame["code"]) == {""}


def test_runs_of_one_name_are_told_apart() -> None:
    assert list(distinct_names([Path("a/x"), Path("a/y")]).values()) == ["x", "y"]
    assert list(distinct_names([Path("a/x"), Path("b/x")]).values()) == ["a-x", "b-x"]
    assert len(set(distinct_names([Path("/a-b/c"), Path("/a/b-c")]).values())) == 2
    assert distinct_names([]) == {}
