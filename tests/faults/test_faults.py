"""A few of each kind of fault, in real processes.

docs/faults.md counts what `python -m tests.faults` injects.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.faults.damage import DamageTally, damage_and_resume, files_of
from tests.faults.disks import fill_disk, forbid_writing, remount_read_only, small_disk
from tests.faults.experiment import Experiment, outcome, tiny
from tests.faults.kills import Tally, kill_one_run, undisturbed, wait_for
from tests.faults.processes import ForkStarter, PlainStarter, run_to_end, wait
from tests.faults.snapshots import killed_in


@pytest.fixture(scope="module")
def forked() -> Iterator[ForkStarter]:
    with ForkStarter() as starter:
        yield starter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def experiment(folder: Path, teacher_zip: Path) -> Experiment:
    return Experiment.of(folder / "tiny", tiny(teacher_zip))


@pytest.fixture(scope="module")
def seconds(experiment: Experiment, forked: ForkStarter) -> dict[str, float]:
    """The undisturbed run, and how long it was where."""
    return undisturbed(experiment, forked)


def test_kills_in_every_phase_change_nothing(
    experiment: Experiment, seconds: dict[str, float], forked: ForkStarter
) -> None:
    tally, rng = Tally(), np.random.default_rng(0)
    kill_one_run(experiment, [forked], seconds, rng, tally, kills_per_place=1)
    assert tally.findings == []
    assert tally.total >= 3 and len({place for place, _, _ in tally.kills}) >= 3


# A damage for each file of a run killed in phase 3, and what comes of it.
DAMAGED = [  # slow: a finished run, below, meets damage in less time
    ("recipe.yaml", "emptied", "same"),
    ("manifest.json", "bit flipped", "refused"),
    ("metrics.csv", "deleted", "same"),
    ("distilled.safetensors", "bit flipped", "refused"),
    ("ptq.safetensors", "deleted", "refused"),
    # Phase 3 replaces it.
    ("quantized.safetensors", "bit flipped", "same"),
    ("checkpoint/state.safetensors", "deleted", "refused"),
    ("checkpoint/replay.bin", "overwritten", "refused"),
    # The checkpoint has gone past it.
    ("checkpoint/calibrated.safetensors", "cut to half", "same"),
    (".lock", "garbage appended", "same"),
]
FILES = {file for file, _, _ in DAMAGED}


@pytest.fixture(scope="module")
def in_phase_3(
    experiment: Experiment, seconds: dict[str, float], forked: ForkStarter, folder: Path
) -> Path:
    path = killed_in(experiment, folder / "tiny" / "in-phase-3", "finetune", forked)
    assert {str(file) for file in files_of(path)} == FILES
    return path


@pytest.mark.parametrize(("file", "damage", "expected"), DAMAGED)
@pytest.mark.slow
def test_damage_is_noticed_or_without_effect(
    file: str,
    damage: str,
    expected: str,
    experiment: Experiment,
    in_phase_3: Path,
    forked: ForkStarter,
) -> None:
    tally, rng = DamageTally(), np.random.default_rng(1)
    damage_and_resume(experiment, in_phase_3, Path(file), damage, forked, rng, tally)
    assert tally.findings == []
    assert (tally.same.total(), tally.refused.total()) == ((1, 0) if expected == "same" else (0, 1))


@pytest.mark.parametrize("file", ["metrics.csv", "recipe.yaml"])
def test_a_finished_run_notices_damage_too(
    file: str, experiment: Experiment, seconds: dict[str, float], forked: ForkStarter
) -> None:
    tally, rng = DamageTally(), np.random.default_rng(2)
    damage_and_resume(experiment, experiment.whole, Path(file), "bit flipped", forked, rng, tally)
    assert tally.findings == []
    assert tally.same.total() == (file == "recipe.yaml")


@pytest.mark.slow
def test_a_full_disk_is_told_and_survived(
    experiment: Experiment, seconds: dict[str, float], forked: ForkStarter, folder: Path
) -> None:
    try:
        with small_disk(folder / "disk", "8m") as disk:
            assert fill_disk(experiment, disk, "distill", 0.02, forked) == ""
            assert remount_read_only(experiment, disk, "finetune", forked) == ""
    except PermissionError as error:
        pytest.skip(f"no mount here: {error}")


@pytest.mark.slow
@pytest.mark.skipif(
    os.getuid() == 0 and not shutil.which("setpriv"), reason="no permission stops root"
)
def test_lost_permissions_are_told_and_survived(
    experiment: Experiment, seconds: dict[str, float], folder: Path
) -> None:
    with ForkStarter(without_powers=os.getuid() == 0) as powerless:
        assert forbid_writing(experiment, folder / "mine", "finetune", 0.02, powerless) == ""


def test_a_second_process_is_refused_and_the_first_unharmed(
    experiment: Experiment, seconds: dict[str, float], forked: ForkStarter, folder: Path
) -> None:
    path = folder / "contested"
    arguments = ["run", experiment.recipe_file, "-o", path]
    first = forked.start(arguments, folder / "first.log")
    wait_for(path, first, "distill")
    first.send(signal.SIGSTOP)  # it works as long as we like
    code, errors = run_to_end(PlainStarter(), arguments, folder / "second.log")
    first.send(signal.SIGCONT)
    assert (code, errors) == (2, f"error: {path}: another process is working in it [Q203]\n")
    assert wait(first) == 0, first.errors()
    assert outcome(path) == outcome(experiment.whole)
