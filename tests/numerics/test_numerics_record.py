"""What a run's last bits depend on is recorded, and a change of it in mid-run is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from qpd.machine.description import cxx_compiler
from qpd.numerics.numerics_record import NumericsRecord, record_numerics
from qpd.runs.run_directory import RunDirectory
from tests.tiny_run import Follower, Interrupt, recipe_of, work, write_teacher


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_differences_are_told_in_words() -> None:
    began = NumericsRecord(device="EPYC", bfloat16=True, threads=1)
    assert began.differences(began) == ""
    now = NumericsRecord(device="Xeon", bfloat16=False, threads=4)
    assert began.differences(now) == (
        "Xeon (EPYC before), float32 (bfloat16 before), 4 threads (1 before)"
    )
    with_compiler = began.model_copy(update={"compiler": True})
    without = began.model_copy(update={"compiler": False})
    assert began.differences(with_compiler) == "", "a record of an earlier version"
    assert with_compiler.differences(without) == "no C++ compiler"
    assert without.differences(with_compiler) == "a C++ compiler (none before)"


def test_going_on_with_other_threads_is_told_and_the_beginning_is_kept(
    tmp_path: Path, threads: None
) -> None:
    write_teacher(tmp_path / "teacher.zip")
    recipe = recipe_of(tmp_path / "teacher.zip", distill={"epochs": 3})
    torch.set_num_threads(1)
    first = Follower(lambda event, name, epoch: event == "batch" and epoch == 2)
    with pytest.raises(Interrupt):
        work(tmp_path / "run", recipe, first)
    assert not any("resumes with" in note for note in first.notes)

    torch.set_num_threads(2)
    second = Follower()
    work(tmp_path / "run", recipe, second)
    assert any("resumes with 2 threads (1 before)" in note for note in second.notes)
    with RunDirectory.open(tmp_path / "run", read_only=True) as run:
        assert run.manifest.arithmetic is not None and run.manifest.arithmetic.threads == 1

    alone = Follower()
    work(tmp_path / "alone", recipe, alone)
    assert not any("resumes with" in note for note in alone.notes)
    with RunDirectory.open(tmp_path / "alone", read_only=True) as run:
        assert run.manifest.arithmetic == record_numerics(
            torch.device("cpu"), cxx_compiler() is not None
        )
