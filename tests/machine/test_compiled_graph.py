"""Functions of tensors by PyTorch's compiler: what they find is read anew at every call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qpd.machine.compiled_graph import CompiledFunction, CompileError, compiled_graph, pays


def test_what_a_function_finds_is_read_at_every_call() -> None:
    weight = torch.tensor([1.0, 2.0])
    function = compiled_graph(lambda x: [x * weight, x.sum()], [torch.ones(2)])
    weight.copy_(torch.tensor([3.0, 4.0]))
    product, total = function(torch.tensor([10.0, 1.0]))
    assert product.tolist() == [30.0, 4.0] and float(total) == 11.0


def test_other_shapes_are_computed_too() -> None:
    called: list[int] = []

    def plain(x: torch.Tensor) -> list[torch.Tensor]:
        called.append(len(x))
        return [x + x.mean()]

    function = CompiledFunction(plain)
    for count, times in ((3, 1), (3, 0), (5, 1), (3, 0)):
        called.clear()
        (found,) = function(torch.arange(float(count)))
        assert found.tolist() == [each + (count - 1) / 2 for each in range(count)]
        assert called == [count] * times  # tracing calls it once


@pytest.mark.parametrize(
    ("wanted", "updates", "expected"),
    [("auto", 100, True), ("auto", 99, False), ("on", 1, True), ("off", 100, False)],
)
def test_when_it_pays(wanted: str, updates: int, expected: bool) -> None:
    assert pays(wanted, updates, 100) is expected


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert not pays("auto", 100, 100)
    with pytest.raises(CompileError, match=r"^compile: on needs a C\+\+ compiler"):
        pays("on", 1, 100)


BROKEN = """
import torch
from qpd.machine.compiled_graph import CompiledFunction
function = CompiledFunction(lambda x: [x * 2])
print([function(torch.ones(2))[0].tolist() for _ in range(2)])
"""


def test_a_compiler_that_fails_is_told_once(tmp_path: Path) -> None:
    env = os.environ | {"CXX": "false", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", BROKEN], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[[2.0, 2.0], [2.0, 2.0]]\n"
    assert done.stderr.count("UserWarning: torch.compile failed") == 1
