"""Run directories: atomic, locked, strict about what they find."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

from qpd.files import atomic as atomic_files
from qpd.recipe.loading import load_recipe
from qpd.recipe.schema import Recipe
from qpd.runs.manifest import PHASES, TeacherRecord
from qpd.runs.run_directory import LOCK_NAME, RunDirectory, RunDirectoryError
from tests.command_line import call

ROOT = Path(__file__).resolve().parents[2]
TEACHER = TeacherRecord(
    source="embedded", sha256="0" * 64, algo="ppo", env_id="X-v0", num_parameters=7
)


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe("ci")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "mine"


def refusal(path: Path, recipe: Recipe | None = None) -> list[str]:
    with pytest.raises(RunDirectoryError) as caught:
        (RunDirectory.open(path) if recipe is None else RunDirectory.create(path, recipe)).close()
    assert all(str(path) in line and "\n" not in line for line in caught.value.lines)
    return caught.value.lines


def test_fresh_directory(path: Path, recipe: Recipe) -> None:
    with RunDirectory.create(path, recipe) as run:
        manifest = json.loads(run.manifest_file.read_text())
        assert manifest["format_version"] == 1
        assert manifest["seed"] == recipe.seed
        assert set(manifest["versions"]) == {
            "python", "torch", "numpy", "gymnasium", "ale-py", "qpd",
        }  # fmt: skip
        assert manifest["versions"]["torch"] == torch.__version__
        assert manifest["platform"]
        assert manifest["phases"] == {name: {"state": "pending"} for name in PHASES}
        assert manifest["evaluations"] == {}
        assert load_recipe(run.recipe_file) == recipe
        assert run.checkpoint_folder.is_dir()


def test_records_survive_reopening(path: Path, recipe: Recipe) -> None:
    with RunDirectory.create(path, recipe) as run:
        run.record_teacher(TEACHER)
        run.set_phase("distill", "running", epoch=1, loss=0.5)
        run.set_phase("distill", "done", epoch=np.int64(2), best=Path("a"), bad=float("nan"))
        returns = {"mean": np.float32(1.5), "returns": np.array([1, 2]), "interval": (1.0, 2.0)}
        run.record_evaluation("qat", {**returns, "episodes": 2})
    with RunDirectory.open(path, read_only=True) as run:
        assert run.recipe == recipe
        assert run.manifest.teacher == TEACHER
        assert run.phase("distill").state == "done"
        expected = {"epoch": 2, "loss": 0.5, "best": "a", "bad": None}
        assert run.phase("distill").metrics == expected
        assert run.phase("finetune").state == "pending"
        assert run.manifest.evaluations == {
            "qat": {"mean": 1.5, "returns": [1, 2], "interval": [1.0, 2.0], "episodes": 2}
        }
        assert "distill=done" in repr(run)


def test_same_recipe_goes_on_and_another_is_refused(path: Path, recipe: Recipe) -> None:
    with RunDirectory.create(path, recipe) as run:
        run.set_phase("distill", "done")
    with RunDirectory.create(path, load_recipe("ci")) as run:
        assert run.phase("distill").state == "done"
    before = sorted((item.name, item.stat().st_mtime_ns) for item in path.iterdir())
    other = load_recipe("ci", ["distill.lr=0.5", "student.hidden=[9]"])
    lines = refusal(path, other)
    assert "another recipe" in lines[0]
    assert f"{path}: distill.lr: was 0.004, now 0.5" in lines
    assert f"{path}: student.hidden: was null, now [9]" in lines
    assert f'{path}: student.size: was "XXS", now null' in lines
    assert len(lines) == 4
    assert before == sorted((item.name, item.stat().st_mtime_ns) for item in path.iterdir())


def test_recipe_can_be_replaced_on_purpose(path: Path, recipe: Recipe) -> None:
    other = load_recipe("ci", ["quantize.weight_bits=4"])
    with RunDirectory.create(path, recipe) as run:
        run.replace_recipe(other)
        assert run.recipe == other
    with RunDirectory.open(path) as run:
        assert run.recipe == other


def test_games_of_another_evaluation_are_forgotten(path: Path, recipe: Recipe) -> None:
    played = {"mean": 1.0, "interval": [0.0, 2.0], "episodes": 2, "returns": [0.0, 2.0]}
    with RunDirectory.create(path, recipe) as run:
        run.record_evaluation("teacher", played)
        run.replace_recipe(load_recipe("ci", ["quantize.weight_bits=4"]))
        assert "teacher" in run.manifest.evaluations
        run.replace_recipe(load_recipe("ci", ["evaluation.acting=sample"]))
        assert run.manifest.evaluations == {}


def test_games_of_a_run_that_another_process_holds_are_not_lost(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "runs-reference" / "classic-ppo-cartpole", path)
    with RunDirectory.open(path) as run:
        changed = run.recipe.evaluation.model_copy(update={"episodes": 2})
        run.replace_recipe(run.recipe.model_copy(update={"evaluation": changed}))
    with FileLock(path / LOCK_NAME):
        code, out, err = call(capsys, "evaluate", path)
    assert code == 0 and "qat" in out.lower()
    assert "not recorded" in err and "another process is working in it" in err
    with RunDirectory.open(path) as run:
        assert run.manifest.evaluations == {}


def test_a_phase_that_a_manifest_leaves_out_is_pending(path: Path, recipe: Recipe) -> None:
    RunDirectory.create(path, recipe).close()
    content = json.loads((path / "manifest.json").read_text())
    del content["phases"]["quantize"], content["crc32"]
    (path / "manifest.json").write_text(json.dumps(content))
    with RunDirectory.open(path) as run:
        assert run.phase("quantize").state == "pending"
        assert list(run.manifest.phases) == list(PHASES)


def test_another_teacher_is_refused(path: Path, recipe: Recipe) -> None:
    with RunDirectory.create(path, recipe) as run:
        run.record_teacher(TEACHER)
        run.record_teacher(TEACHER)
        with pytest.raises(RunDirectoryError, match="began with the teacher embedded"):
            run.record_teacher(TEACHER.model_copy(update={"sha256": "1" * 64}))


def test_foreign_folders_are_refused_and_untouched(path: Path, recipe: Recipe) -> None:
    path.mkdir(parents=True)
    (path / "recipe.yaml").write_text("mine")
    (path / ".notes.1-00000000.tmp").write_text("mine too")
    assert "holds other files" in refusal(path, recipe)[0]
    assert "has no manifest.json" in refusal(path)[0]
    assert len(list(path.iterdir())) == 2
    assert "is a file" in refusal(path / "recipe.yaml", recipe)[0]
    assert "is no folder" in refusal(path / "nowhere")[0]
    assert "cannot be made" in refusal(path / "recipe.yaml" / "below", recipe)[0]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[1]", "no format_version"),
        ('{"a": 1}', "no format_version"),
        ('{"format_version": 99}', "format_version 99; this QPD reads 1"),
        ('{"format_version": 1}', "seed: Field required"),
    ],
)
def test_corrupt_manifest(path: Path, recipe: Recipe, content: str, expected: str) -> None:
    RunDirectory.create(path, recipe).close()
    (path / "manifest.json").write_text(content)
    assert any(expected in line for line in refusal(path))
    assert any(expected in line for line in refusal(path, recipe))


def test_missing_or_broken_recipe(path: Path, recipe: Recipe) -> None:
    with RunDirectory.create(path, recipe) as run:
        recipe_file = run.recipe_file
        recipe_file.unlink()
    assert "recipe.yaml is missing" in refusal(path)[0]
    RunDirectory.create(path, recipe).close()  # killed before it was written: finished now
    assert load_recipe(recipe_file) == recipe
    with RunDirectory.open(path) as run:
        run.set_phase("distill", "running")
    for break_it in (recipe_file.unlink, lambda: recipe_file.write_text("seed: x\n")):
        break_it()
        assert "`qpd run` with the recipe that the run began with" in refusal(path)[0]
        other = recipe.model_copy(update={"seed": 5})
        assert "recipe.yaml" in refusal(path, other)[0]
        RunDirectory.create(path, recipe).close()  # as the message says
        assert load_recipe(recipe_file) == recipe


HOLD = """
import sys
sys.path.insert(0, sys.argv[2])
from qpd.recipe.loading import load_recipe
from qpd.runs.run_directory import RunDirectory
run = RunDirectory.create(sys.argv[1], load_recipe("ci"))
print("held", flush=True)
sys.stdin.read()
"""


def test_second_process_is_refused_until_the_first_is_gone(path: Path, recipe: Recipe) -> None:
    command = [sys.executable, "-c", HOLD, str(path), str(ROOT)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert refusal(path) == [f"{path}: another process is working in it"]
        assert refusal(path, recipe) == [f"{path}: another process is working in it"]
        RunDirectory.open(path, read_only=True).close()
        holder.send_signal(signal.SIGKILL)
    RunDirectory.open(path).close()


def test_refusal_frees_the_lock(path: Path, recipe: Recipe) -> None:
    RunDirectory.create(path, recipe).close()
    refusal(path, load_recipe("ci", ["seed=5"]))
    with RunDirectory.open(path) as run:
        assert run.recipe == recipe


def test_nothing_is_written_after_close_or_when_reading(path: Path, recipe: Recipe) -> None:
    run = RunDirectory.create(path, recipe)
    run.close()
    with pytest.raises(RunDirectoryError, match="closed or open for reading only"):
        run.set_phase("distill", "done")
    with RunDirectory.open(path, read_only=True) as reader:
        with pytest.raises(RunDirectoryError, match="closed or open for reading only"):
            reader.replace_recipe(recipe)
    with RunDirectory.open(path) as run:
        assert run.phase("distill").state == "pending"


def test_replace_file_keeps_the_old_content_on_failure(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    atomic_files.write_json(file, {"a": 1})
    with pytest.raises(RuntimeError, match="stop"), atomic_files.replace_file(file) as out:
        out.write(b"half")
        raise RuntimeError("stop")
    assert json.loads(file.read_text()) == {"a": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["x.json"]


def test_order_is_write_sync_rename_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    sync, rename = os.fsync, os.replace
    file = tmp_path / "x"

    def traced_sync(descriptor: int) -> None:
        names = [item.name for item in tmp_path.iterdir()]
        size = os.fstat(descriptor).st_size
        calls.append(f"sync {'new' if 'x' in names else f'old {size}'}")
        sync(descriptor)

    def traced_rename(source: Path, target: Path) -> None:
        calls.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", traced_sync)
    monkeypatch.setattr(os, "replace", traced_rename)
    atomic_files.write_bytes(file, b"12345")
    assert calls == ["sync old 5", "rename", "sync new"]
    assert file.read_bytes() == b"12345"


def test_file_mode_follows_the_umask(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    atomic_files.write_text(tmp_path / "x", "")
    assert (tmp_path / "x").stat().st_mode == plain.stat().st_mode


def test_leftovers_of_a_killed_writer_are_removed(path: Path, recipe: Recipe) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[2])\n"
        "from qpd.files.atomic import replace_file\n"
        "with replace_file(Path(sys.argv[1])) as file:\n"
        "    file.write(b'half')\n    file.flush()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with RunDirectory.create(path, recipe) as run:
        target = run.checkpoint_folder / "state.bin"
    mine = path / ".mine.tmp"
    mine.write_text("")
    done = subprocess.run([sys.executable, "-c", code, str(target), str(ROOT)])
    assert done.returncode == -signal.SIGKILL
    assert len(list(target.parent.iterdir())) == 1
    RunDirectory.open(path).close()
    assert list(target.parent.iterdir()) == []
    assert mine.exists()


def test_safetensors(tmp_path: Path) -> None:
    transposed = torch.arange(6.0).reshape(2, 3).T
    file = tmp_path / "x.safetensors"
    atomic_files.write_safetensors(file, {"w": transposed.requires_grad_()}, {"bits": "8"})
    assert torch.equal(load_file(file)["w"], transposed)


def test_to_plain_refuses_what_json_cannot_hold() -> None:
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        atomic_files.to_plain({"a": [object()]})
    assert atomic_files.to_plain(torch.tensor([1.0, float("inf")])) == [1.0, None]


def test_runs_from_before_the_choice_chose_their_epoch_by_the_return() -> None:
    reference = Path(__file__).parents[2] / "runs-reference" / "quickstart"
    assert RunDirectory.open(reference, read_only=True).recipe.evaluation.select == "return"


def test_games_that_would_not_be_read_again_are_not_recorded(path: Path, recipe: Recipe) -> None:
    played = {"mean": 3.0, "interval": [2.0, 4.0], "episodes": 2, "returns": [2.0, 4.0]}
    with RunDirectory.create(path, recipe) as run:
        run.record_evaluation("teacher", played)
        with pytest.raises(RunDirectoryError, match=r"games of qat cannot be recorded: .*1000000"):
            run.record_evaluation("qat", played | {"mean": 3e16})
    assert list(RunDirectory.open(path, read_only=True).manifest.evaluations) == ["teacher"]


def test_a_hundred_thousand_games_of_each_policy_are_read_again(path: Path, recipe: Recipe) -> None:
    returns = [1000.0 + index / 7 for index in range(100_000)]
    played = {"mean": 3.0, "interval": [2.0, 4.0], "episodes": 100_000, "returns": returns}
    with RunDirectory.create(path, recipe) as run:
        for policy in ("teacher", "teacher_sharpened", "distilled", "ptq", "qat"):
            run.record_evaluation(policy, played)  # type: ignore[arg-type]
    assert path.joinpath("manifest.json").stat().st_size > 8 << 20
    found = RunDirectory.open(path, read_only=True).manifest.evaluations["qat"]
    assert found["returns"] == returns
