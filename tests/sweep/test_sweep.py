"""Sweeps for real: lost workers, interruptions, failing cells, one play for several students."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from rich.console import Console
from stable_baselines3 import DDPG, PPO

from qpd import cli
from qpd.phases.whole_run import run_all_phases
from qpd.runs.progress import TerminalProgress
from qpd.runs.run_directory import RunDirectory
from qpd.sweep.cells import Cell, make_cells
from qpd.sweep.display import SweepDisplay
from qpd.sweep.grid import load_grid
from qpd.sweep.ray_pool import Pool, SweepError, open_pool
from qpd.sweep.run import Sweep
from qpd.sweep.sharing import drop_memories, plan_batches
from qpd.version import pip_install
from tests.analysis.made_up_runs import make_run

# Not importorskip: what listens where is settled when Ray is imported, which open_pool does.
pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason=f"needs Ray: {pip_install('sweep')}"
)

torch.set_num_threads(1)

ROOT = Path(__file__).parents[2]
BASE = """
teacher: {{source: {teacher}, algo: ppo, env: CartPole-v1}}
student: {{size: mlp-8}}
environment: {{num_envs: 4, max_frames: 60}}
collection: {{student_fraction: 0.0}}
replay: {{capacity: 512, refresh_fraction: 0.25}}
distill: {{epochs: 2, batch_size: 16, lr: 0.003, precision: fp32}}
finetune: {{epochs: 1, batch_size: 16, precision: fp32}}
quantize: {{calibration_samples: 128}}
evaluation: {{episodes: 4, validation_episodes: 3, acting: sample}}
save: {{tensorboard: false}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny recipe, base.yaml, and its untrained teacher."""
    path = tmp_path_factory.mktemp("grids")
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, seed=0, device="cpu")
    with torch.no_grad():
        model.policy.action_net.weight.mul_(400)  # so that it has opinions
    model.save(path / "ppo-CartPole-v1.zip")
    (path / "base.yaml").write_text(BASE.format(teacher=path / "ppo-CartPole-v1.zip"))
    return path


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """One local Ray for all tests; its workers' processes find QPD where these tests do."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)
    with open_pool("local", tmp_path_factory.mktemp("pool"), 1, 0) as opened:
        yield opened
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


def make_sweep(folder: Path, text: str, output: Path) -> tuple[Sweep, list[Cell]]:
    path = folder / f"{output.name}.yaml"
    path.write_text(f"base: base.yaml\n{text}")
    grid = load_grid(str(path))
    cells = make_cells(grid)
    output.mkdir(exist_ok=True)
    batches = plan_batches(cells, output, grid.file.share_stream)
    return Sweep(cells, batches, output, grid.file.resources), cells


def outcome(run: Path, name: str = "quantized.safetensors") -> tuple[list[dict[str, str]], bytes]:
    """Metrics but for the speed, and a student's tensors."""
    with (run / "metrics.csv").open() as file:
        rows = [{**row, "samples_per_second": ""} for row in csv.DictReader(file)]
    data = (run / name).read_bytes()
    return rows, data[8 + int.from_bytes(data[:8], "little") :]


def alone(cell: Cell, path: Path) -> tuple[list[dict[str, str]], bytes]:
    """Return what the cell's recipe gives without a sweep."""
    run_all_phases(cell.recipe, path, TerminalProgress(Console(stderr=True)))
    return outcome(path)


def processes(log: Path) -> list[tuple[int, int]]:
    """Process and worker of each start."""
    found = re.findall(r"^sweep: started .* process (\d+), worker (\d+)$", log.read_text(), re.M)
    return [(int(process), int(worker)) for process, worker in found]


def is_alive(process: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "never happened"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_lost_worker_and_a_failing_cell(folder: Path, tmp_path: Path, pool: Pool) -> None:
    sweep, cells = make_sweep(
        folder,
        "axes: {teacher.source: [absent.zip]}\nset: {distill.epochs: 40}\n"
        f"include: [{{teacher.source: {folder / 'ppo-CartPole-v1.zip'}}}]",
        tmp_path / "lost",
    )
    bad, good = sweep.cells.values()
    killed: list[tuple[int, int]] = []

    def kill_the_worker(_: Sweep) -> None:
        if good.progress.epoch >= 2 and not killed:
            killed.extend(processes(good.log))
            os.kill(killed[0][1], signal.SIGKILL)

    sweep.run(pool, kill_the_worker)
    assert (good.state, good.starts) == ("done", 2)
    assert not is_alive(killed[0][0])
    assert "distill: resumed after epoch" in good.log.read_text()
    assert outcome(good.folder) == alone(cells[1], tmp_path / "alone")
    assert bad.state == "failed" and "absent.zip" in bad.error and "\n" not in bad.error
    assert not (bad.folder / "manifest.json").exists()


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on(
    folder: Path, tmp_path: Path, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "axes: {seed: [0]}\nset: {distill.epochs: 40}"
    sweep, cells = make_sweep(folder, text, tmp_path / "broken")
    (cell,) = sweep.cells.values()

    def interrupt(_: Sweep) -> None:
        if cell.progress.epoch >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.run(pool, interrupt)
    ((process, _),) = processes(cell.log)
    assert not is_alive(process)
    assert "interrupted: rerun the same command; it goes on" in cell.log.read_text()
    again, _ = make_sweep(folder, text, tmp_path / "broken")
    (status,) = again.cells.values()
    assert status.state == "interrupted" and status.progress.phase == "distill"
    again.run(pool, SweepDisplay(Console(stderr=True)))
    assert outcome(status.folder) == alone(cells[0], tmp_path / "alone")
    lines = capsys.readouterr().err.splitlines()
    assert "seed=0: running, distill" in lines and "seed=0: done" in lines
    # Done cells are known as such: nothing is left to do.
    third, _ = make_sweep(folder, text, tmp_path / "broken")
    third.run(pool, SweepDisplay(Console(stderr=True)))
    assert len(processes(status.log)) == 2 and capsys.readouterr().err == ""
    # A cell that comes later evaluates only what is new.
    text = "axes: {seed: [0], distill.lr: [0.001]}\nset: {distill.epochs: 2}"
    grown, _ = make_sweep(folder, text, tmp_path / "broken")
    grown.run(pool, lambda _: None)
    (status,) = grown.cells.values()
    late = RunDirectory.open(status.folder, read_only=True).manifest
    played = {name: found["seconds"] > 0 for name, found in late.evaluations.items()}
    assert (played["teacher"], played["distilled"]) == (False, True)


def test_students_of_one_teacher_learn_from_one_play(
    folder: Path, tmp_path: Path, pool: Pool
) -> None:
    sweep, cells = make_sweep(
        folder,
        "share_stream: true\naxes: {student.size: [mlp-8, mlp-4], quantize.weight_bits: [4, 8]}\n"
        "exclude: [{student.size: mlp-4, quantize.weight_bits: 8}]\n"
        "include: [{student.size: mlp-8, quantize.weight_bits: 8, distill.actor_weight: 1}]",
        tmp_path / "shared",
    )
    # As another grid's batch that was interrupted in phase 1: its checkpoint is not this grid's.
    others = tmp_path / "shared" / ".shared" / "0123456789abcdef-0"
    for name in ("stream", "recipes"):
        (others / name).mkdir(parents=True)
    (others / "recipes" / "mlp-8.yaml").write_text(cells[0].recipe.to_yaml())
    sweep.run(pool, lambda _: None)
    assert {status.state for status in sweep.statuses} == {"done"}
    first, second, third, fourth = (status.folder for status in sweep.cells.values())
    name = "distilled.safetensors"
    assert outcome(first, name)[1] == outcome(second, name)[1] != outcome(third, name)[1]
    # The play goes on from where it was: the first cell is what its recipe gives alone. (Members
    # are in alphabetical order, so the first one, whose randomness shuffles, is mlp-4.)
    assert outcome(third) == alone(cells[2], tmp_path / "alone")
    assert outcome(first)[1] != outcome(second)[1]
    assert outcome(first, name)[1] != outcome(fourth, name)[1]  # another lambda, the same play
    assert list((tmp_path / "shared" / ".shared").glob("*/stream")) == [others / "stream"]
    assert RunDirectory.open(second, read_only=True).recipe == cells[1].recipe


def test_too_large_a_cell_is_refused(pool: Pool) -> None:
    import ray

    from qpd.sweep.ray_pool import _check_room

    with pytest.raises(SweepError, match="a cell wants 4096 cores and 0 GPUs, this machine has"):
        _check_room(ray, "local", 4096, 0)


def test_a_local_pool_has_the_cores_that_it_may_use(folder: Path, tmp_path: Path) -> None:
    grid = folder / "wide.yaml"
    grid.write_text("base: base.yaml\naxes: {seed: [0]}\nresources: {cpus: 2}")
    command = [sys.executable, "-m", "qpd.cli", "sweep", str(grid), "-o", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "QPD_CORES": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 2
    assert "a cell wants 2 cores and 0 GPUs, this machine has 1 cores" in done.stderr


def test_a_local_pool_listens_on_loopback_only(pool: Pool) -> None:
    import ray

    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["sweep", *arguments])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_the_command_line_without_a_pool(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid, output = folder / "listed.yaml", tmp_path / "out"
    grid.write_text("base: base.yaml\naxes: {seed: [0, 1]}")
    code, out, err = call(capsys, str(grid), "-o", str(output), "--list", "--json")
    assert (code, err) == (0, "") and not output.exists()
    assert json.loads(out)["cells"] == [
        {"cell": "seed=0", "state": "waiting"},
        {"cell": "seed=1", "state": "waiting"},
    ]
    cells = make_cells(load_grid(str(grid)))
    alone(cells[0], output / "seed=0")
    code, out, err = call(capsys, str(grid), "-o", str(output), "--list")
    assert code == 0 and re.search(r"seed=0 .+ done +\d", out) and "seed=1" in out
    grid.write_text("base: base.yaml\nset: {distill.lr: 0.1}\naxes: {seed: [0, 1]}")
    code, out, err = call(capsys, str(grid), "-o", str(output))
    assert code == 2 and out == ""
    assert "seed=0: was made with another recipe: distill.lr: was 0.003, now 0.1" in err
    monkeypatch.setitem(sys.modules, "ray", None)
    code, out, err = call(capsys, str(grid), "-o", str(tmp_path / "new"))
    assert (code, err) == (2, 'error: qpd sweep needs Ray: pip install "qpd-rl[sweep]" [Q602]\n')
    code, _, err = call(capsys, str(grid), "-o", str(output / "seed=0"))
    assert code == 2 and "is a run directory; a sweep needs a folder of its own" in err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_driver_leaves_nobody_behind(
    folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    grid, output = folder / "driver.yaml", tmp_path / "out"
    grid.write_text("base: base.yaml\naxes: {seed: [0]}\nset: {distill.epochs: 60}")
    command = [sys.executable, "-m", "qpd.cli", "sweep", str(grid), "-o", str(output), "--json"]

    def start() -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)

    metrics = output / "seed=0" / "metrics.csv"
    with start() as driver:
        wait_until(lambda: metrics.exists() and "\ndistill,2," in metrics.read_text())
        driver.send_signal(number)
        _, errors = driver.communicate(timeout=120)
    expected = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    assert driver.returncode == expected, errors
    assert "Traceback" not in errors
    ((process, worker),) = processes(output / "seed=0" / "sweep.log")
    wait_until(lambda: not is_alive(process) and not is_alive(worker), 30)
    with start() as driver:
        out, errors = driver.communicate(timeout=300)
    assert driver.returncode == 0, errors
    (cell,) = json.loads(out)["cells"]
    assert cell["state"] == "done" and set(cell["run"]["phases"].values()) == {"done"}
    assert "resumed after epoch" in (output / "seed=0" / "sweep.log").read_text()
    assert all(line.startswith("seed=0: ") for line in errors.splitlines()), errors


def test_a_cell_that_cannot_end_is_refused_before_phase_1_is_shared(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid, output = folder / "misfit.yaml", tmp_path / "out"
    text = "share_stream: true\nbase: base.yaml\naxes: {student.sharpness: [1, 2], seed: [0, 1]}"
    grid.write_text(f"{text}\nset: {{evaluation.acting: greedy, finetune.loss: reverse_kl, "
                    "collection.student_fraction: 0.001}")  # fmt: skip
    code, _, err = call(capsys, str(grid), "-o", str(output))
    assert code == 2 and "collection.student_fraction" in err and not output.exists()


def test_any_cell_may_be_the_one_that_does_not_fit(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DDPG("MlpPolicy", "Pendulum-v1", device="cpu").save(tmp_path / "ddpg-Pendulum-v1.zip")
    agent = tmp_path / "ddpg-Pendulum-v1.zip"
    grid, output = tmp_path / "grid.yaml", tmp_path / "out"
    grid.write_text(
        f"base: agent/continuous\nset: {{teacher.source: {agent}}}\n"
        "axes: {distill.temperature: [null, 2.0]}"
    )
    code, _, err = call(capsys, str(grid), "-o", str(output))
    assert code == 2 and "distill.temperature: " in err and not output.exists()


def test_a_memory_stays_while_another_grids_cell_has_to_take_its_student(
    folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "edited"
    _, cells = make_sweep(folder, "share_stream: true\naxes: {seed: [0, 1]}", output)
    grid = load_grid(str(folder / f"{output.name}.yaml"))
    (batch,) = plan_batches(cells, output, share=True)
    batch.write_recipes()
    batch.stream.mkdir()
    recipes = output / ".recipes"
    recipes.mkdir()
    for cell in cells:  # as a grid that was interrupted before they were copied left them
        (recipes / f"{cell.name}.yaml").write_text(cell.recipe.to_yaml())
    done = make_run(tmp_path / "done")
    for label in batch.members:
        shutil.copytree(done, batch.folder / label)
    shutil.copytree(done, output / cells[0].name)
    mine = replace(batch, cells={cells[0].name: batch.cells[cells[0].name]})
    sweep = Sweep(cells[:1], [mine], output, grid.file.resources)
    sweep.cells[cells[0].name].state = "done"
    sweep._drop_memory_if_last(cells[0].name)
    drop_memories(output, recipes)
    assert batch.stream.is_dir()
    (recipes / "damaged.yaml").write_text("distill: {processes: 3}")
    shutil.copytree(done, output / cells[1].name)
    drop_memories(output, recipes)
    assert not batch.stream.exists()
