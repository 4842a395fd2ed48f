"""Runtimes that run in Python: a model's file as a function of one observation.

Each loader returns two functions: one from observations `[n, ...]` to inputs in the runtime's form
and layout, one from a single input to logits `[1, actions]` in NumPy, or of SB3's `predict` to the
action, `[1]`. The first is not timed, as an agent can keep its frames in any layout. Imports stay
inside the loaders, so that a worker's memory is its own runtime's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Forward = Callable[[Any], np.ndarray]
Loaded = tuple[Callable[[np.ndarray], list[Any]], Forward]


def load_forward(spec: dict[str, Any]) -> Loaded:
    """Load what `spec` describes (`kind`, `file`, `threads` and more).

    Raises ImportError if the runtime's package is not installed; TeacherError for a teacher that
    cannot be loaded, or not as an SB3 policy.
    """
    loaders = {
        "torch": _torch,
        "sb3": _sb3,
        "sb3-predict": _sb3_predict,
        "onnx": _onnx,
        "litert": _litert,
    }
    return loaders[spec["kind"]](spec)


def _singles(observations: np.ndarray) -> list[Any]:
    """Return each observation as a batch of one."""
    return [observation[None] for observation in observations]


def _torch(spec: dict[str, Any]) -> Loaded:
    import torch

    torch.set_num_threads(spec["threads"])
    network: Any
    if spec["file"] is None:
        # No file: QPD's own module of the teacher.
        network = _teacher(spec)
    else:
        from pathlib import Path

        from qpd.bench.plain_network import PlainNetwork
        from qpd.student_files.distilled import load_student

        network = PlainNetwork(load_student(Path(spec["file"]))).requires_grad_(False)
    if spec["compiled"]:
        # fullgraph fails on anything that would fall back to eager, instead of timing a mixture.
        network = torch.compile(network, fullgraph=True, dynamic=False)

    @torch.inference_mode()
    def forward(observation: np.ndarray) -> np.ndarray:
        logits: np.ndarray = network(torch.from_numpy(observation))[0].numpy()
        return logits

    return _singles, forward


def _teacher(spec: dict[str, Any]) -> Any:
    from qpd.recipe.schema import TeacherSettings
    from qpd.teachers import load_recipe_teacher

    return load_recipe_teacher(TeacherSettings.model_validate(spec["teacher"]))


def _sb3_policy(
    spec: dict[str, Any],
) -> tuple[Any, Callable[[np.ndarray], list[Any]], Callable[[Any], Any]]:
    """Return SB3's policy, what makes its inputs untimed, and what is timed before it.

    VecNormalize is timed: an agent does it at every step. Parting an observation by keys is not.
    """
    import torch

    from qpd.teachers.sb3_policy import build_sb3_policy, sb3_observations

    torch.set_num_threads(spec["threads"])
    teacher = _teacher(spec)
    policy, shown = build_sb3_policy(teacher), partial(sb3_observations, teacher)
    if teacher.normalization is not None:
        return policy, _singles, shown
    return policy, lambda found: [shown(single) for single in _singles(found)], lambda seen: seen


def _sb3(spec: dict[str, Any]) -> Loaded:
    import torch

    from qpd.teachers.sb3_policy import sb3_logits

    policy, prepare, shown = _sb3_policy(spec)
    compute = sb3_logits(policy)

    @torch.inference_mode()
    def forward(observation: Any) -> np.ndarray:
        seen = shown(observation)
        if isinstance(seen, dict):
            inputs: Any = {key: torch.from_numpy(part) for key, part in seen.items()}
        else:
            inputs = torch.from_numpy(seen)
        logits: np.ndarray = compute(inputs).numpy()
        return logits

    return prepare, forward


def _sb3_predict(spec: dict[str, Any]) -> Loaded:
    policy, prepare, shown = _sb3_policy(spec)

    def forward(observation: Any) -> np.ndarray:
        actions: np.ndarray = policy.predict(shown(observation), deterministic=True)[0]
        return actions

    return prepare, forward


def _onnx(spec: dict[str, Any]) -> Loaded:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = spec["threads"]
    session = onnxruntime.InferenceSession(
        spec["file"], options, providers=["CPUExecutionProvider"]
    )
    # Names are looked up outside `forward`, which is timed.
    source = session.get_inputs()[0].name

    def forward(observation: np.ndarray) -> np.ndarray:
        logits: np.ndarray = session.run(None, {source: observation})[0]
        return logits

    return _singles, forward


def _litert(spec: dict[str, Any]) -> Loaded:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(spec["file"], num_threads=spec["threads"])
    interpreter.allocate_tensors()
    source = interpreter.get_input_details()[0]["index"]
    target = interpreter.get_output_details()[0]["index"]

    def prepare(observations: np.ndarray) -> list[Any]:
        if observations.ndim == 4:  # frames go in as int8 x - 128, channels last
            last = np.ascontiguousarray(observations.transpose(0, 2, 3, 1))
            observations = (last ^ 128).view(np.int8)
        return _singles(observations)

    def forward(observation: np.ndarray) -> np.ndarray:
        interpreter.set_tensor(source, observation)
        interpreter.invoke()
        logits: np.ndarray = interpreter.get_tensor(target)
        return logits

    return prepare, forward
