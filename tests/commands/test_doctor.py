"""`qpd doctor`, on this machine and on one where something is broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from qpd.commands.doctor import (
    Check,
    doctor,
    examine,
    extra_check,
    is_healthy,
    namesake_checks,
    requirement_check,
)


def run_doctor(extra_path: Path | None = None) -> tuple[int, dict]:
    environment = dict(os.environ)
    if extra_path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(extra_path), environment["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "qpd.cli", "doctor", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_working_installation_is_healthy() -> None:
    checks = {(one.topic, one.name): one for one in examine()}
    assert is_healthy(list(checks.values()))
    for place in (("packages", "torch"), ("working", "Breakout"), ("working", "embedded teacher")):
        assert checks[place].state == "ok", checks[place]
    assert "1,686,693 parameters" in checks["working", "embedded teacher"].detail


def test_what_is_broken_is_told_and_ends_with_code_1(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    (tmp_path / "ale_py.py").write_text("raise ImportError('libale.so: wrong architecture')\n")
    code, report = run_doctor(tmp_path)
    assert code == 1 and not report["healthy"]
    broken = [one for one in report["checks"] if one["state"] == "broken"]
    assert [one["name"] for one in broken] == ["Breakout"]
    assert "wrong architecture" in broken[0]["detail"] and "pip install" in broken[0]["remedy"]


def test_an_old_or_absent_package_is_broken_and_the_remedy_is_exact() -> None:
    old = requirement_check("packages", Requirement("numpy>=999"))
    assert old.state == "broken" and old.remedy == 'pip install "numpy>=999"'
    assert old.detail.endswith("needed >=999")
    absent = requirement_check("packages", Requirement("no-such-package-at-all"))
    assert absent.state == "broken" and absent.detail.startswith("not installed")


def test_an_extra_names_what_it_lacks() -> None:
    lacking = extra_check("onnx", [Requirement("numpy"), Requirement("no-such-package-at-all")])
    assert (lacking.state, lacking.detail) == ("missing", "without no-such-package-at-all")
    assert lacking.remedy == 'pip install "qpd-rl[onnx]"'
    elsewhere = Requirement("no-such-package-at-all; sys_platform == 'nowhere'")
    assert extra_check("x", [Requirement("numpy"), elsewhere]).state == "ok"


def test_an_extra_asks_for_versions_and_for_the_extras_of_its_packages() -> None:
    """gymnasium is here; what its extra `jax` needs is not."""
    nested = extra_check("mujoco", [Requirement("gymnasium[jax]>=1.1")])
    assert nested.state == "missing" and "jax" in nested.detail
    old = extra_check("control", [Requirement("numpy<1")])
    assert old.state == "missing" and "without numpy<1 (here: " in old.detail


def test_a_missing_extra_is_no_illness() -> None:
    assert is_healthy([Check("extras", "onnx", "missing", "")])
    assert not is_healthy([Check("packages", "numpy", "broken", "")])


def test_the_printed_remedy_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = extra_check("onnx", [Requirement("no-such-package-at-all")])
    monkeypatch.setattr("qpd.commands.doctor.examine", lambda: [lacking])
    doctor()
    assert 'pip install "qpd-rl[onnx]"' in capsys.readouterr().out  # brackets are markup to rich


def test_the_other_project_of_this_name_is_broken() -> None:
    (found,) = namesake_checks("0.4.4")
    assert (found.name, found.state) == ("qpd", "broken") and "another project" in found.detail
    assert found.remedy == "pip uninstall qpd; pip install --force-reinstall qpd-rl"
    assert not list(namesake_checks(None))
