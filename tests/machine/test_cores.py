"""Cores of this process: those it may run on, those its container pays for, those a sweep gave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qpd.machine import cores


@pytest.fixture
def sixteen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process that may run on 16 cores; returns the folder of its cgroup, which has no quota."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(cores, "_CGROUP", tmp_path)
    monkeypatch.delenv("QPD_CORES", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 16),
        ({"cpu.max": "max 100000\n"}, 16),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 16),
        ({"cpu.max": ""}, 16),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 16),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "400000\n"}, 16),
    ],
)
def test_a_containers_quota_counts(sixteen: Path, files: dict[str, str], expected: int) -> None:
    for name, text in files.items():
        (sixteen / name).parent.mkdir(exist_ok=True)
        (sixteen / name).write_text(text)
    assert cores.usable_cores() == expected


@pytest.mark.parametrize(
    ("share", "expected"), [("1", 1), ("3", 3), ("64", 16), ("0", 16), ("", 16), ("-1", 16)]
)
def test_a_sweeps_share_counts(
    sixteen: Path, monkeypatch: pytest.MonkeyPatch, share: str, expected: int
) -> None:
    monkeypatch.setenv("QPD_CORES", share)
    assert cores.usable_cores() == expected


def test_without_affinity_all_cores_count(sixteen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.usable_cores() == 1
