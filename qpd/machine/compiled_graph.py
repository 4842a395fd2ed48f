"""A function of tensors made a few kernels by PyTorch's compiler, on a CPU.

Small networks' operations take longer to call than to compute. The function is traced as it runs,
through autograd too; tensors that it finds, such as parameters, are read anew at every call. Sums
in another order change the last bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.machine.description import cxx_compiler


class CompileError(UserError, RuntimeError):
    """A function cannot be compiled: there is no C++ compiler, or it fails."""

    code = ErrorCode.PACKAGE_MISSING


def compiled_graph(
    function: Callable[..., list[Tensor]], arguments: Sequence[Tensor]
) -> Callable[..., list[Tensor]]:
    """Compile `function` for arguments of these shapes; it returns a list of tensors.

    It takes 5 to 20 seconds. What it does besides, such as setting attributes, is not in the
    result. Raises CompileError.
    """
    traced = make_fx(lambda *given: function(*given))(*arguments)
    # fullgraph: a graph that breaks would be slow without a word. What guards would check, shapes
    # and what the function finds, does not change; checking takes 0.1 ms a call.
    options: dict[str, Any] = {"guard_filter_fn": lambda guards: [False] * len(guards)}
    compiled: Callable[..., list[Tensor]] = torch.compile(
        traced, fullgraph=True, dynamic=False, options=options
    )
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, of itself
            compiled(*arguments)
    except Exception as error:  # the compiler's own, of many kinds
        lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
        raise CompileError(f"torch.compile failed: {' '.join(lines[:2])}") from error
    return compiled


def pays(wanted: str, updates: int, least: int) -> bool:
    """Tell whether to compile what is called `updates` times; `wanted` is auto, on or off.

    auto: if there is a C++ compiler, from `least` calls on. Raises CompileError for on without one.
    """
    if wanted == "off" or (wanted == "auto" and updates < least):
        return False
    if cxx_compiler() is not None:
        return True
    if wanted == "on":
        raise CompileError("compile: on needs a C++ compiler: g++, clang++ or c++")
    return False


class CompiledFunction:
    """A function of tensors, compiled at its first call; as it is where that fails."""

    def __init__(self, function: Callable[..., list[Tensor]]) -> None:
        self._plain = function
        self._compiled: Callable[..., list[Tensor]] | None = None
        self._shapes: list[torch.Size] | None = None

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        """Call it; for arguments of other shapes than the first ones it is not compiled."""
        shapes = [each.shape for each in arguments]
        if self._shapes is None:
            self._shapes = shapes
            try:
                self._compiled = compiled_graph(self._plain, arguments)
            except CompileError as error:
                warnings.warn(f"{error}; training goes on without it", stacklevel=1)
        if self._compiled is None or shapes != self._shapes:
            return self._plain(*arguments)
        return self._compiled(*arguments)
