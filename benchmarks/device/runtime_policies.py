"""A student's exports as policies over batches, one function per runtime.

Every function takes the folder of a bundle and returns a policy: observations as the environment
gives them -> logits float32 `[batch, actions]`.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from qpd.export.bundle import MANIFEST

Outputs = Callable[[np.ndarray], np.ndarray]  # of observations `[batch, ...]`


def onnx_policy(folder: Path, model: str = "student_int8.onnx") -> Outputs:
    """Load a graph into ONNX Runtime, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(folder / model), options, providers=["CPUExecutionProvider"]
    )
    return lambda observations: session.run(None, {"observations": observations})[0]


def onnx_float_policy(folder: Path) -> Outputs:
    """Load the fp32 graph into ONNX Runtime."""
    return onnx_policy(folder, "student_fp32.onnx")


def litert_policy(folder: Path) -> Outputs:
    """Load the model into LiteRT, on one thread, one observation at a time."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(folder / "student.tflite"), num_threads=1)
    interpreter.allocate_tensors()
    source = interpreter.get_input_details()[0]["index"]
    target = interpreter.get_output_details()[0]["index"]

    def one(observation: np.ndarray) -> np.ndarray:
        interpreter.set_tensor(source, observation[None])
        interpreter.invoke()
        logits: np.ndarray = interpreter.get_tensor(target)[0]
        return logits

    def policy(observations: np.ndarray) -> np.ndarray:
        if observations.ndim == 4:
            last = np.ascontiguousarray(observations.transpose(0, 2, 3, 1))
            observations = (last ^ 128).view(np.int8)
        return np.array([one(observation) for observation in observations])

    return policy


def sb3_policy(folder: Path) -> Outputs:
    """Load the zip by Stable-Baselines3; its policy network's logits, not yet normalised."""
    import stable_baselines3

    # The bundle names its class nowhere but in the code that its README shows.
    algo = "PPO" if "import PPO" in (folder / "README.md").read_text() else "DQN"
    network = getattr(stable_baselines3, algo).load(folder / "student.zip", device="cpu").policy

    @torch.no_grad()
    def policy(observations: np.ndarray) -> np.ndarray:
        inputs, _ = network.obs_to_tensor(observations)
        if algo == "DQN":
            logits = network.q_net(inputs)
        else:
            # SB3's Categorical subtracts the log-sum-exp; the action head's own output still holds
            # the integers.
            features = network.extract_features(inputs, network.pi_features_extractor)
            logits = network.action_net(network.mlp_extractor.forward_actor(features))
        return np.asarray(logits.numpy(), np.float32)

    return policy


def c_policy(folder: Path) -> Outputs:
    """Compile the C export with gcc -O3 -march=native, called one observation at a time.

    Of discrete actions; vectors come as floats, which it encodes.
    """
    library = folder / "libqpd.so"
    flags = ["-std=c99", "-O3", "-march=native", "-shared", "-fPIC", "-o", library.name]
    # A shared library: starting a program for each observation would take longer than the network.
    parts = [f"qpd_{name}.c" for name in ("network", "actions", "sample", "encode")]
    sources = [name for name in parts if (folder / name).exists()]
    subprocess.run(["gcc", *flags, *sources], cwd=folder, check=True)
    # ctypes takes an int result by default, which qpd_act's is.
    functions = ctypes.CDLL(str(library))
    act = functions.qpd_act
    manifest = json.loads((folder / MANIFEST).read_text())
    num_actions = int(manifest["architecture"]["num_actions"])
    scale = np.float32(manifest["logit_scale"])

    def policy(observations: np.ndarray) -> np.ndarray:
        observations = np.ascontiguousarray(observations)
        logits = np.zeros((len(observations), num_actions), np.int32)
        if "qpd_encode.c" in sources:
            levels = np.empty(observations.shape, np.uint8)
            for values, row in zip(observations.astype(np.float32), levels, strict=True):
                functions.qpd_levels_from_floats(
                    values.ctypes.data_as(ctypes.c_void_p), row.ctypes.data_as(ctypes.c_void_p)
                )
            observations = levels
        for observation, row in zip(observations, logits, strict=True):
            act(observation.ctypes.data_as(ctypes.c_void_p), row.ctypes.data_as(ctypes.c_void_p))
        return logits.astype(np.float32) * scale

    return policy


# runtime -> format of `qpd export`, and the policy of its bundle
RUNTIMES: dict[str, tuple[str, Callable[[Path], Outputs]]] = {
    "onnx": ("onnx", onnx_policy),
    "onnx-fp32": ("onnx", onnx_float_policy),
    "litert": ("litert", litert_policy),
    "sb3": ("sb3", sb3_policy),
    "c": ("c", c_policy),
}
