"""What an exported student's observations are, in words: wrappers, stacks, and the parts of a Dict.

A program on a device has none of these: it makes what the student reads itself.
"""

from __future__ import annotations

from typing import Any

from qpd.environments.errors import EnvironmentConfigError
from qpd.environments.feature_names import part_names
from qpd.environments.source import EnvironmentSource
from qpd.errors.terminal_text import printable
from qpd.student_files.origin import student_environment


def one_observation(about: dict[str, Any]) -> str:
    """Return whose observations a student reads: the environment's id, and what it is made in."""
    source = _source(about)
    plain = EnvironmentSource(source.env_id, source.kwargs, source.wrappers)
    return printable(" ".join(str(plain).split()))


def is_plain(about: dict[str, Any]) -> bool:
    """Tell whether observations are the environment's own: no wrapper, no stack, no argument."""
    return not _source(about).additions()


def stack_words(about: dict[str, Any], what: str) -> str:
    """Return how `what` (images, vectors) are stacked; empty where each is read alone."""
    count = _source(about).frame_stack
    if count < 2:
        return ""
    return f"{count} {what} stacked, the oldest first, zeros before an episode's first"


def parts_words(about: dict[str, Any]) -> str:
    """Return the keys and sizes of a Dict's features in their order; empty for others."""
    found = about.get("features")
    if part_names(found) is None or not isinstance(found, list):
        return ""
    forms = _forms(about)
    forms = forms if len(forms) == len(found) else [""] * len(found)
    return ", ".join(
        f"{printable(key)} ({size}{', ' * bool(form)}{form})"
        for (key, size), form in zip(found, forms, strict=True)
    )


def form_words(about: dict[str, Any]) -> str:
    """Return how an observation that is no vector becomes one; empty for vectors and a Dict."""
    return (_forms(about) or [""])[0] if not about.get("features") else ""


def _forms(about: dict[str, Any]) -> list[str]:
    found = about.get("feature_forms")
    if not isinstance(found, list):
        return []
    return [printable(" ".join(str(form).split()))[:200] for form in found]


def _source(about: dict[str, Any]) -> EnvironmentSource:
    try:
        return student_environment(about)
    except EnvironmentConfigError:  # of a file from elsewhere: the student does not need it
        return EnvironmentSource(str(about.get("env_id", "unknown")))
