"""Ctrl-C waits for imports, so that no module is left half-made; but not for ever."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qpd.errors.termination import Terminated
from qpd.machine import interrupts
from qpd.machine.interrupts import Interrupts
from tests.command_line import call

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
ERRORS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: lambda: Terminated(143)}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every test gives back the handlers, and leaves no timer."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that can be imported once its code is written."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "some_module.py"
    sys.modules.pop("some_module", None)


@pytest.mark.parametrize(
    ("name", "raised"), [("SIGINT", KeyboardInterrupt), ("SIGTERM", Terminated)]
)
def test_an_import_ends_before_it_is_interrupted(
    name: str, raised: type[BaseException], module: Path
) -> None:
    lines = f"signal.raise_signal(signal.{name})\ntime.sleep(0.2)\nwhole = True\n"
    module.write_text(f"import signal, time\n{lines}")
    with Interrupts(ERRORS), pytest.raises(raised):
        __import__("some_module")
        time.sleep(60)
    assert sys.modules["some_module"].whole


def test_of_several_signals_the_first_counts(module: Path) -> None:
    both = "signal.raise_signal(signal.SIGTERM)\nsignal.raise_signal(signal.SIGINT)\n"
    module.write_text(f"import signal\n{both}")
    with Interrupts(ERRORS), pytest.raises(Terminated):
        __import__("some_module")
        time.sleep(60)


def test_an_import_that_does_not_end_is_interrupted(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE", 0.2)
    module.write_text("import signal, time\nsignal.raise_signal(signal.SIGINT)\ntime.sleep(60)\n")
    with Interrupts(ERRORS), pytest.raises(KeyboardInterrupt):
        __import__("some_module")


def test_an_import_that_the_command_runs_in_is_not_waited_for(module: Path) -> None:
    module.write_text(
        "import signal\nfrom qpd.machine.interrupts import Interrupts\n"
        "def work():\n    with Interrupts({signal.SIGINT: KeyboardInterrupt}):\n"
        "        signal.raise_signal(signal.SIGINT)\n        raise AssertionError\n"
        "try:\n    work()\nexcept KeyboardInterrupt:\n    seen = True\n"
    )
    __import__("some_module")
    assert sys.modules["some_module"].seen


def test_when_the_work_is_over_a_signal_only_ends_the_process(module: Path) -> None:
    module.write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    with Interrupts(ERRORS) as running:
        __import__("some_module")
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        running.over()
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0  # what waited is forgotten
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(signal.SIGINT)
        assert caught.value.code == 130


def test_a_callers_timer_goes_on(module: Path) -> None:
    module.write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 600)
    try:
        with Interrupts(ERRORS):
            __import__("some_module")
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 500
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_elsewhere_it_interrupts_at_once() -> None:
    with Interrupts(ERRORS):
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_command_leaves_no_handler_behind(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version")[0] == 0 and call(capsys, "shw")[0] == 2


def test_a_command_whose_module_interrupts_it_and_fails_says_one_thing(tmp_path: Path) -> None:
    """The signal waits for the import, whose error comes first."""
    for delay in (0.0, 0.045, 0.05, 0.055):
        (tmp_path / "failing.py").write_text(
            "import signal, time\nsignal.raise_signal(signal.SIGINT)\n"
            f"time.sleep({delay})\nraise RuntimeError('broken')\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "qpd.cli", "evaluate", "embedded", "--env", "failing:X-v0"],
            cwd=tmp_path,
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode in (2, 130), done.stderr
        assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1
