"""Set the number of PyTorch's threads for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let PyTorch compute with `count` threads inside, and with as many as before afterwards.

    Networks that see one observation at a time want one: more gain little on idle cores, and on
    busy ones every layer waits until the last thread gets a core.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
