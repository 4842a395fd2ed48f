"""Every parser over the inputs that fuzzing kept: read, or refused by its own error, in time."""

from __future__ import annotations

import io
import random
import time
import zipfile
from pathlib import Path

import pytest
import safetensors.torch

from fuzz.mutators import MUTATORS, mutate_safetensors, mutate_zip
from fuzz.seeds import seeds
from fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"
SEEDS = seeds()


def test_every_target_has_a_corpus_of_modest_size() -> None:
    assert set(TARGETS) == set(SEEDS) == {path.name for path in CORPUS.iterdir()}
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 1 << 20


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs(name: str) -> None:
    inputs = sorted((CORPUS / name).iterdir())
    assert len(inputs) > 5
    outcomes = {TARGETS[name].check(content) for content in SEEDS[name].values()}
    for path in inputs:
        began = time.process_time()
        outcomes.add(TARGETS[name].check(path.read_bytes()))
        assert time.process_time() - began < 5, path
    assert outcomes == {False, True}  # both sides of the parser are reached


@pytest.mark.parametrize("name", TARGETS)
def test_seeds(name: str) -> None:
    assert any([TARGETS[name].check(content) for content in SEEDS[name].values()])


def test_another_error_is_a_finding() -> None:
    def broken(path: Path) -> None:
        raise KeyError(path.name)

    assert Target("manifest.json", broken, KeyError).check(b"{}") is False
    with pytest.raises(KeyError):
        Target("manifest.json", broken, ValueError).check(b"{}")


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
