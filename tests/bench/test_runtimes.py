"""A runtime that computes something else is told from one that rounds differently."""

from __future__ import annotations

import numpy as np
import pytest

from qpd.bench.answers import compare
from qpd.bench.contestant import WrongAnswerError
from qpd.bench.runtimes import refuse_wrong

WANTED = np.array([[0.0, 10.0], [40.0, 20.0]])


def test_the_error_is_relative_to_the_spread_of_the_logits() -> None:
    check = compare(WANTED + [[0.0, 0.0], [0.0, 4.0]], WANTED)  # spread 40
    assert (check.vectors, check.same_actions) == (2, 2)
    assert check.largest_error == pytest.approx(0.1)
    refuse_wrong(check, 0.11)
    with pytest.raises(WrongAnswerError, match=r"off by 10\.0% of their spread"):
        refuse_wrong(check, 0.09)


def test_other_actions_and_nan_are_wrong() -> None:
    assert compare(-WANTED, WANTED).same_actions == 0
    with pytest.raises(WrongAnswerError):
        refuse_wrong(compare(WANTED * np.nan, WANTED), 0.02)
