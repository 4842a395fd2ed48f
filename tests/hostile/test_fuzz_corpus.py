"""Every parser over the inputs that fuzzing kept: read, or refused by its own error, in time."""

from __future__ import annotations

import functools
import io
import random
import zipfile
from pathlib import Path

import pytest
import safetensors.torch

from fuzz.corpus import ARCHIVE, read_corpus, write_corpus
from fuzz.corpus import main as corpus_main
from fuzz.measured import bounded_work
from fuzz.mutators import MUTATORS, mutate_safetensors, mutate_zip
from fuzz.seeds import seeds
from fuzz.targets import TARGETS, Target

SEEDS = seeds()
KEPT = read_corpus()


@functools.cache
def accepted(target: str, name: str) -> bool:
    """Tell if a kept input is accepted; refused or not, it is read within `fuzz.measured`."""
    return TARGETS[target].check(KEPT[target][name])


def test_every_target_has_a_corpus_of_modest_size() -> None:
    assert set(TARGETS) == set(SEEDS) == set(KEPT)
    assert all(len(inputs) > 5 for inputs in KEPT.values())
    assert ARCHIVE.stat().st_size < 1 << 20


@pytest.mark.parametrize(
    ("target", "name"),
    [
        pytest.param(target, name, id=f"{target}-{name}")
        for target, inputs in KEPT.items()
        for name in inputs
    ],
)
def test_kept_input(target: str, name: str) -> None:
    assert accepted(target, name) in (False, True)


@pytest.mark.parametrize("target", TARGETS)
def test_both_sides_of_a_parser_are_reached(target: str) -> None:
    outcomes = {TARGETS[target].check(content) for content in SEEDS[target].values()}
    assert outcomes | {accepted(target, name) for name in KEPT[target]} == {False, True}


def test_the_archive_is_the_same_bytes_whoever_writes_it(tmp_path: Path) -> None:
    """In whatever order the inputs come, and however often."""
    archive = tmp_path / "corpus.zip"
    backwards = {target: [*KEPT[target].values()][::-1] * 2 for target in reversed(KEPT)}
    write_corpus(backwards, archive)
    assert archive.read_bytes() == ARCHIVE.read_bytes()


def test_inputs_are_extracted_added_and_replaced(tmp_path: Path) -> None:
    archive, folder, new = tmp_path / "corpus.zip", tmp_path / "kept", tmp_path / "new"
    write_corpus({"grid": [b"one"], "device": [b"two"]}, archive)
    corpus_main(["extract", str(folder)], archive)
    (name,) = [path.name for path in (folder / "grid").iterdir()]
    assert name == "fe05bcdcdc4928012781a5f1a2a77cbb5398e106"  # printf one | sha1sum
    assert (folder / "grid" / name).read_bytes() == b"one"
    new.write_bytes(b"three")
    corpus_main(["add", "grid", str(new), str(folder / "grid" / name)], archive)
    assert sorted(read_corpus(archive)["grid"].values()) == [b"one", b"three"]
    corpus_main(["replace", "grid", str(new)], archive)
    kept = {target: list(inputs.values()) for target, inputs in read_corpus(archive).items()}
    assert kept == {"device": [b"two"], "grid": [b"three"]}


@pytest.mark.parametrize("name", TARGETS)
def test_seeds(name: str) -> None:
    assert any([TARGETS[name].check(content) for content in SEEDS[name].values()])


def test_another_error_is_a_finding() -> None:
    def broken(path: Path) -> None:
        raise KeyError(path.name)

    assert Target("manifest.json", broken, KeyError).check(b"{}") is False
    with pytest.raises(KeyError):
        Target("manifest.json", broken, ValueError).check(b"{}")


def test_time_and_memory_are_findings() -> None:
    """Also where the input is refused in the end."""
    with bounded_work():
        sum(range(100))
    with pytest.raises(AssertionError, match=r"s; at most 0 s"), bounded_work(max_cpu_seconds=0):
        sum(range(100_000))
    with (
        pytest.raises(AssertionError, match=r"\d{2} MiB; at most 16 MiB"),
        bounded_work(max_added_bytes=16 << 20),
    ):
        _ = bytearray(b"x") * (64 << 20)
        raise ValueError("refused")


def test_mutations_reach_what_lies_inside_a_container() -> None:
    rng = random.Random(0)
    agent = SEEDS["sb3_zip"]["new"]
    changed = {mutate_zip(agent, rng) for _ in range(50)}
    policies = set()
    for content in changed:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            assert archive.testzip() is None
            policies.add(archive.read("policy.pth"))
    assert len(changed) > 40 and len(policies) > 10
    student = SEEDS["student"]["tiny"]
    for _ in range(50):
        content = mutate_safetensors(student, rng)
        length = int.from_bytes(content[:8], "little")
        assert length <= len(content) - 8
    assert safetensors.torch.load(student).keys()
    assert MUTATORS.keys() <= TARGETS.keys()
