"""Notebooks are run as tests; those that take long are slow ones."""

from __future__ import annotations

import pytest

SLOW = ("features.ipynb",)  # UMAP alone takes 15 s to compile, and has tests of its own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them."""
    for item in items:
        if item.path.name in SLOW:
            item.add_marker(pytest.mark.slow)
