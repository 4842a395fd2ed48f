"""Parameters and gradients in memory that several processes have mapped."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence

import torch
from torch import Tensor, nn

_ALIGNMENT = 16  # floats: 64 bytes, a cache line


class SharedTensors:
    """All parameters of some modules once, and gradients of them for each of `num_workers`.

    The memory is that of an open file without a name, gone with the last process that has it. A
    worker gives the `descriptor` that it was handed down.
    """

    def __init__(
        self, modules: Sequence[nn.Module], num_workers: int, descriptor: int | None = None
    ) -> None:
        self._modules = modules
        shapes = [[p.shape for p in module.parameters()] for module in modules]
        size = sum(_padded(shape.numel()) for each in shapes for shape in each)
        num_bytes = max(4 * size * (1 + num_workers), 4)
        self.descriptor = _nameless_file(num_bytes) if descriptor is None else descriptor
        # Whoever has the file has it for the module's life: no view outlives the mapping.
        everything = torch.frombuffer(mmap.mmap(self.descriptor, num_bytes), dtype=torch.float32)
        blocks = everything[: size * (1 + num_workers)].view(1 + num_workers, -1)
        self._parameters = _views(blocks[0], shapes)
        self._gradients = [_views(block, shapes) for block in blocks[1:]]

    def put(self) -> None:
        """Move the modules' parameters there."""
        for module, views in zip(self._modules, self._parameters, strict=True):
            for parameter, view in zip(module.parameters(), views, strict=True):
                view.copy_(parameter.data)
        self.use()

    def use(self) -> None:
        """Make the modules' parameters those that are there."""
        for module, views in zip(self._modules, self._parameters, strict=True):
            for parameter, view in zip(module.parameters(), views, strict=True):
                parameter.data = view

    def take(self) -> None:
        """Move the modules' parameters back into ordinary memory, and close the file."""
        for module in self._modules:
            for parameter in module.parameters():
                parameter.data = parameter.data.clone()
        os.close(self.descriptor)

    def write_gradients(self, index: int, worker: int) -> None:
        """Leave module `index`'s gradients for the first process."""
        for parameter, view in zip(
            self._modules[index].parameters(), self._gradients[worker][index], strict=True
        ):
            if parameter.grad is not None:
                view.copy_(parameter.grad)

    def add_gradients(self, index: int, worker: int) -> None:
        """Add what a worker has left to module `index`'s gradients."""
        mine, theirs = [], []
        for parameter, view in zip(
            self._modules[index].parameters(), self._gradients[worker][index], strict=True
        ):
            if parameter.grad is not None:
                mine.append(parameter.grad)
                theirs.append(view)
        torch._foreach_add_(mine, theirs)


def _views(flat: Tensor, shapes: Sequence[Sequence[torch.Size]]) -> list[list[Tensor]]:
    found: list[list[Tensor]] = []
    start = 0
    for each in shapes:
        found.append([])
        for shape in each:
            found[-1].append(flat[start : start + shape.numel()].view(shape))
            start += _padded(shape.numel())
    return found


def _padded(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def _nameless_file(num_bytes: int) -> int:
    """A file in memory where the system has such (Linux), else an unlinked one on the disk."""
    try:
        descriptor = os.memfd_create("qpd")
    except (AttributeError, OSError):
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, num_bytes)
    else:
        os.truncate(descriptor, num_bytes)
    return descriptor
