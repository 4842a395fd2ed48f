"""Python code that makes a student's environment, as READMEs and cards show it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qpd.environments.making import CONTROL
from qpd.environments.source import EnvironmentSource
from qpd.environments.wrappers import importable

_PLAIN_ALE = ', env_kwargs={"frameskip": 1, "repeat_action_probability": 0.0}'


def environment_code(source: EnvironmentSource) -> dict[str, str]:
    """Return the fields `environment_imports` and `make_environment`: lines of Python.

    The environment is `env` in the end: monitored, in its wrappers, its observations stacked by
    Stable-Baselines3's VecFrameStack. `atari_env` is the id as a literal, `atari_kwargs` what
    make_atari_env needs for an id of ale-py's, which would skip frames and repeat actions by
    itself.
    """
    lines = [f"env = gymnasium.make({_literal(source.env_id)}{_arguments(source.kwargs)})"]
    imports = []
    if source.env_id.startswith(CONTROL):
        imports.append("import shimmy  # registers dm_control's environments")
    if source.env_id.startswith("qpd/"):
        imports.append("import qpd.environments.making  # registers qpd's environments")
    for wrapper in source.wrappers:
        module, _, name = importable(wrapper.name).rpartition(".")
        imports.append(f"from {module} import {name}")
        lines.append(f"env = {name}(env{_arguments(wrapper.arguments)})")
    if source.frame_stack > 1:
        imports.append("from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack")
        count = source.frame_stack
        lines.append(f"env = VecFrameStack(DummyVecEnv([lambda: Monitor(env)]), {count})")
    else:
        lines[-1] = f"env = Monitor({lines[-1].removeprefix('env = ')})"
    return {
        "environment_imports": "".join(f"{line}\n" for line in dict.fromkeys(imports)),
        "make_environment": "\n".join(lines),
        "atari_env": _literal(source.env_id),
        "atari_kwargs": _PLAIN_ALE * source.env_id.startswith("ALE/"),
    }


def _arguments(kwargs: Mapping[str, Any]) -> str:
    return "".join(f", {name}={_literal(value)}" for name, value in kwargs.items())


def _literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
