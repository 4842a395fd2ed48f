"""Ctrl-C waits for imports, so that no module is left half-made."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qpd.errors.termination import Terminated
from qpd.machine.interrupts import after_imports, stop_waiting
from tests.command_line import call


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Both handlers as `qpd` sets them, and those of before."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGINT, after_imports(lambda _: KeyboardInterrupt()))
    signal.signal(signal.SIGTERM, after_imports(lambda number: Terminated(128 + number)))
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("name", "raised"), [("SIGINT", KeyboardInterrupt), ("SIGTERM", Terminated)]
)
def test_an_import_ends_before_it_is_interrupted(
    name: str, raised: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = f"slow_module_{name.lower()}"
    lines = (
        f"import signal, time\nsignal.raise_signal(signal.{name})\ntime.sleep(0.2)\nwhole = True\n"
    )
    (tmp_path / f"{module}.py").write_text(lines)
    with pytest.raises(raised):
        __import__(module)
        time.sleep(60)
    assert sys.modules.pop(module).whole


def test_nothing_is_left_to_interrupt_the_end(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "last_module.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    __import__("last_module")
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    stop_waiting()
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    del sys.modules["last_module"]


def test_a_command_leaves_no_handler_behind(capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert call(capsys, "--version")[0] == 0 and call(capsys, "shw")[0] == 2
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_elsewhere_it_interrupts_at_once() -> None:
    with pytest.raises(Terminated) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
