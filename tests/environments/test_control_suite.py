"""Environments of dm_control, which Shimmy registers."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from qpd.environments.errors import EnvironmentConfigError
from qpd.environments.making import make_one
from qpd.environments.source import EnvironmentSource
from qpd.errors.codes import ErrorCode

SOURCE = EnvironmentSource("dm_control/cartpole-swingup-v0")


@pytest.mark.skipif(find_spec("dm_control") is not None, reason="dm_control is installed")
def test_the_extra_is_named_where_it_is_missing() -> None:
    with pytest.raises(EnvironmentConfigError, match=r"needs dm_control: .*control") as caught:
        make_one(SOURCE)
    assert caught.value.code == ErrorCode.PACKAGE_MISSING


@pytest.mark.slow  # dm_control needs MuJoCo 3, the development tools bring 4
@pytest.mark.skipif(find_spec("dm_control") is None, reason="dm_control is not installed")
def test_a_game_ends_after_a_thousand_steps() -> None:
    env = make_one(SOURCE)
    first, _ = env.reset(seed=0)
    again, _ = make_one(SOURCE).reset(seed=0)
    assert all(np.array_equal(first[key], again[key]) for key in first)
    steps, truncated = 0, False
    while not truncated:
        _, reward, terminated, truncated, _ = env.step(np.zeros(1, np.float32))
        steps += 1
        assert 0.0 <= float(reward) <= 1.0 and not terminated
    assert steps == 1000
