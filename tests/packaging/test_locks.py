"""The locks hold what pyproject.toml asks for, in the tested versions, each file with its hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from qpd.version import DISTRIBUTION

ROOT = Path(__file__).parents[2]
PYTORCH = {"torch"}  # in a lock of its own: with CUDA and without


def pinned(path: Path) -> dict[str, Version]:
    """Versions by name, of a constraints file or a lock."""
    lines = [line.rstrip(" \\") for line in path.read_text().splitlines() if line[:1].isalnum()]
    requirements = [Requirement(line) for line in lines]
    return {
        canonicalize_name(one.name): Version(str(one.specifier).removeprefix("=="))
        for one in requirements
    }


def declared(*extras: str) -> list[Requirement]:
    """List pyproject.toml's requirements, with the extras that the named ones bring."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [Requirement(text) for text in project["dependencies"]]
    waiting = list(extras)
    while waiting:
        for text in project["optional-dependencies"][waiting.pop()]:
            requirement = Requirement(text)
            if requirement.name == DISTRIBUTION:
                waiting.extend(requirement.extras)
            else:
                found.append(requirement)
    return found


@pytest.mark.parametrize(("lock", "extras"), [("qpd.txt", ()), ("dev.txt", ("dev",))])
def test_a_lock_satisfies_what_is_declared(lock: str, extras: tuple[str, ...]) -> None:
    versions = pinned(ROOT / "locks" / lock)
    for requirement in declared(*extras):
        name = canonicalize_name(requirement.name)
        if name not in PYTORCH:
            assert requirement.specifier.contains(versions[name]), requirement


@pytest.mark.parametrize("lock", ["qpd.txt", "dev.txt", "torch.txt", "torch-cpu.txt"])
def test_a_lock_has_the_tested_versions_and_hashes_of_all(lock: str) -> None:
    path = ROOT / "locks" / lock
    tested = pinned(ROOT / "constraints.txt")
    for name, version in pinned(path).items():
        if name in tested:
            assert version.public == str(tested[name]), f"{lock}: {name}; run locks/renew.sh"
    entries = re.split(r"\n(?=[a-z0-9])", path.read_text())[1:]
    assert entries
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry.splitlines()[0]


def test_pytorch_and_cuda_are_in_their_own_locks_alone() -> None:
    both = set(pinned(ROOT / "locks" / "qpd.txt")) | set(pinned(ROOT / "locks" / "dev.txt"))
    assert not both & set(pinned(ROOT / "locks" / "torch.txt"))


def test_every_package_that_comes_along_has_its_licence_listed() -> None:
    listed = (ROOT / "docs" / "supply.md").read_text()
    rows = {
        canonicalize_name(name): Version(version).public
        for name, version in re.findall(r"^\| ([\w.-]+) +\| (\d[\w.+]*) +\| \S", listed, re.M)
    }
    for name, version in pinned(ROOT / "locks" / "qpd.txt").items():
        if name in {
            "colorama",
            "httpx2-jsfetch",
            "setuptools",
        }:  # only Windows, only browsers, torch
            continue
        assert rows.get(name) == str(version), f"{name} {version} is not in docs/supply.md"
