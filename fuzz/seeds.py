"""`python -m fuzz.seeds FOLDER`: small valid files and hand-made attacks to fuzz from.

Each is written to FOLDER/TARGET/seed-NAME. What the fuzzer found beyond them is in corpus.zip.
"""

import io
import json
import pickle
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import gymnasium
import safetensors.torch
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from qpd.actions import Discrete
from qpd.files.atomic import safetensors_bytes
from qpd.integer.integer_student import integer_student
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.runs.run_directory import sealed
from qpd.student_files.distilled import float_student_content
from qpd.student_files.quantized import pack_student
from qpd.students import Student, StudentArchitecture

ROOT = Path(__file__).resolve().parent.parent
TINY = StudentArchitecture((2,), 2, (), (3,))


def seeds() -> dict[str, dict[str, bytes]]:
    """Return the seeds of each target by name."""
    return {
        "sb3_zip": _sb3_zips(),
        "vec_normalize": _vec_normalize(),
        "zoo_yaml": _zoo_yaml(),
        "student": _safetensors(*float_student_content(Student(TINY), Discrete(2), {"seed": 0})),
        "packed_student": _packed(),
        "recipe": _recipes(),
        "grid": _grids(),
        "manifest": _manifests(),
        "device": _devices(),
    }


def _zip(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def _sb3_zips() -> dict[str, bytes]:
    shared = torch.ones(2, 3)  # one storage under two names, as SB3's shared extractors have
    tensors = {
        "mlp_extractor.policy_net.0.weight": shared,
        "mlp_extractor.policy_net.0.bias": torch.zeros(2),
        "mlp_extractor.value_net.0.weight": shared,
        "mlp_extractor.value_net.0.bias": torch.zeros(2),
        "action_net.weight": torch.ones(2, 2, dtype=torch.float64),
        "action_net.bias": torch.nn.Parameter(torch.zeros(2)),
        "value_net.weight": torch.ones(2, 1).t(),
        "value_net.bias": torch.zeros(1),
    }
    q_net = {"q_net.q_net.0.weight": torch.ones(2, 3), "q_net.q_net.0.bias": torch.zeros(2)}
    box = {":type:": "<class 'gymnasium.spaces.box.Box'>", "dtype": "float32", "_shape": [3]}
    discrete = {":type:": "<class 'gymnasium.spaces.discrete.Discrete'>", "n": "2"}
    data = {"gamma": 0.99, "n_epochs": 4, "action_space": discrete, "observation_space": box}
    # As in old zips: a space as text, and a class among the arguments.
    old = {"action_space": "Discrete(2)", "policy_kwargs": "{'activation_fn': <class 'x.ReLU'>}"}
    pth, version = _saved(OrderedDict(tensors)), b"2.7.0"
    return {
        "new": _zip({"data": json.dumps(data).encode(), "policy.pth": pth}),
        "old": _zip(
            {
                "data": json.dumps(old).encode(),
                "policy.pth": pth,
                "_stable_baselines3_version": version,
            }
        ),
        "q": _zip({"data": json.dumps(data).encode(), "policy.pth": _saved(q_net)}),
        "optimizer": _zip({"data": json.dumps(data).encode(), "policy.pth": pth, **_optimizer()}),
        # Nested deeper than Python's recursion limit.
        "deep": _zip({"data": b"[" * 3000, "policy.pth": pth}),
    }


def _optimizer() -> dict[str, bytes]:
    group = {"lr": 3e-4, "betas": (0.9, 0.999), "params": [0, 1, 2], "foreach": None}
    return {"policy.optimizer.pth": _saved({"state": {}, "param_groups": [group]})}


def _saved(tensors: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()


def _vec_normalize() -> dict[str, bytes]:
    environment = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
    found = {f"protocol-{n}": pickle.dumps(environment, n) for n in (2, 4, 5)}
    # A dictionary key of 300 nested tuples: hashing it recurses.
    nested = b"\x80\x04}(" + b")" + b"\x85" * 300 + b"K\x01u."
    # Pairs of one and the same, 60 deep: a tree of 2^60 to whoever visits it all.
    shared = b"\x80\x04})" + b"2\x86" * 60 + b"K\x01s."
    return found | {"nested-key": nested, "shared-key": shared}


def _safetensors(tensors: dict[str, torch.Tensor], about: dict[str, str]) -> dict[str, bytes]:
    """Return the file as QPD writes it, and one without the checksum that refuses most changes."""
    plain = {name: tensor.detach() for name, tensor in tensors.items()}
    return {
        "tiny": safetensors_bytes(tensors, about),
        "unsealed": safetensors.torch.save(plain, about),
    }


def _packed() -> dict[str, bytes]:
    student = QuantizedStudent(Student(TINY), QuantizationConfig())
    return _safetensors(*pack_student(integer_student(student, Discrete(2)), {"seed": 0}))


def _zoo_yaml() -> dict[str, bytes]:
    ordered = "!!python/object/apply:collections.OrderedDict\n- - - algo\n    - ppo\n"
    texts = {
        "ordered": ordered + "  - - env\n    - CartPole-v1\n",
        "plain": "algo: ppo\nenv: CartPole-v1\nnormalize: false\n",
        "merge": "a: &a {x: 1}\nb: &b {<<: [*a, *a]}\nc: {<<: [*b, *b]}\n",
        "tuple": "env_kwargs: !!python/tuple [1, 2.5, 0x1f, 1:30, 2020-01-01, !!binary aGk=]\n",
    }
    return {name: text.encode() for name, text in texts.items()}


def _recipes() -> dict[str, bytes]:
    found = {
        path.stem: path.read_bytes()
        for path in [ROOT / "recipes/quickstart.yaml", ROOT / "recipes/ci.yaml"]
    }
    overrides = b"distill.lr=1e-3\nstudent.hidden=[64, 64]\nstudent.size=null\nname='a'\nseed=x"
    return found | {"overrides": b"base: quickstart\n---overrides\n" + overrides}


def _grids() -> dict[str, bytes]:
    names = ("mini-grid", "paper-grid")
    found = {name: (ROOT / f"recipes/{name}.yaml").read_bytes() for name in names}
    more = b"exclude:\n- {seed: 0}\ninclude:\n- {seed: 9, student.size: S}\n"
    axes = b"base: quickstart\naxes: {seed: [0, 1], student.size: [XXS]}\n"
    return found | {"selection": axes + more}


def _manifests() -> dict[str, bytes]:
    content = json.loads((ROOT / "runs-reference/classic-ppo-cartpole/manifest.json").read_text())
    for evaluation in content["evaluations"].values():
        # Small seeds fuzz faster: three games tell the parser as much as fifty.
        for key in [key for key, value in evaluation.items() if isinstance(value, list)]:
            evaluation[key] = evaluation[key][:3]
        evaluation["episodes"] = len(evaluation["returns"])
    contents = {"finished": content, "sealed": sealed(content)}
    return {name: json.dumps(found).encode() for name, found in contents.items()}


def _devices() -> dict[str, bytes]:
    folder = ROOT / "runs-reference/devices"
    record = json.loads(sorted(folder.glob("*.json"))[0].read_text())
    record["rows"] = record["rows"][:2]
    line = {
        "device": "Raspberry Pi 4",
        "student": "XXS",
        "kernels": "portable",
        "threads": 1,
        "forwards": 5000,
        "median_ns": 80000,
        "p99_ns": 95000,
        "peak_rss_bytes": 1900544,
        "constant_bytes": 36448,
        "weight_bits": [8, 8],
    }
    lines = "\n".join([json.dumps(line)] * 2)
    return {"record": json.dumps(record).encode(), "c-lines": lines.encode()}


def main() -> None:
    """Write all seeds into the folder that the first argument names."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m fuzz.seeds FOLDER")
    for target, files in seeds().items():
        folder = Path(sys.argv[1]) / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / f"seed-{name}").write_bytes(content)


if __name__ == "__main__":
    main()
