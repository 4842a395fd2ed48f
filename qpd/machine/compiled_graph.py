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
from torch import Tensor, fx
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
    found = _found(traced)
    # Not torch.compile, which checks at every call what does not change, shapes and what the
    # function finds, nor a Python wrapper around the kernels: together 0.05 to 0.2 ms a call.
    options: dict[str, Any] = {"config_patches": {"cpp_wrapper": True}}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, of itself
            from torch._inductor import standalone_compile  # a second, and not of every release

            compiled: Callable[..., list[Tensor]] = standalone_compile(
                traced,
                [*found, *arguments],
                dynamic_shapes="from_example_inputs",
                options=options,
            )
            compiled(*found, *arguments)
    except Exception as error:  # the compiler's own, of many kinds
        lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
        raise CompileError(f"torch.compile failed: {' '.join(lines[:2])}") from error
    return lambda *given: compiled(*found, *given)


def _found(traced: fx.GraphModule) -> list[Tensor]:
    """Make the tensors that a function found the first inputs of its graph; return them.

    They would be constants otherwise, as they are now.
    """
    graph = traced.graph
    first, inputs, found = next(iter(graph.nodes)), {}, []
    for node in [each for each in graph.nodes if each.op == "get_attr"]:
        name = str(node.target)
        if name not in inputs:
            with graph.inserting_before(first):
                inputs[name] = graph.placeholder(f"found{name}")
            inputs[name].meta = node.meta
            found.append(getattr(traced, name).detach())
        node.replace_all_uses_with(inputs[name])
        graph.erase_node(node)
    traced.recompile()
    return found


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


_told: set[str] = set()  # reasons of failures, in this process


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
                if str(error) not in _told:  # once for all functions
                    _told.add(str(error))
                    warnings.warn(f"{error}; training goes on without it", stacklevel=1)
        if self._compiled is None or shapes != self._shapes:
            return self._plain(*arguments)
        return self._compiled(*arguments)


class StagedFunctions:
    """Functions compiled at their first calls, and anew where what they compute has changed."""

    def __init__(self, *functions: Callable[..., list[Tensor]]) -> None:
        self._plain, self._compiled = functions, functions
        self._stage: int | None = None

    def at(self, stage: int | None) -> tuple[Callable[..., list[Tensor]], ...]:
        """Return all of them, compiled for a stage; as they are for None."""
        if stage is None:
            return self._plain
        if stage != self._stage:
            self._stage = stage
            self._compiled = tuple(CompiledFunction(each) for each in self._plain)
        return self._compiled
