"""SB3's own policy object, built from tensors, computes what the Teacher computes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sb3_contrib import QRDQN
from stable_baselines3 import A2C, DQN, PPO
from torch import nn

from qpd.teachers import TeacherError, load_teacher
from qpd.teachers.sb3_policy import build_sb3_policy, sb3_logits
from tests.teachers.sb3_agents import (
    OFF_POLICY,
    SMALL,
    TinyImages,
    observations_for,
    perturbed,
)

torch.set_num_threads(1)


def assert_policy_is_the_teacher(agent: Any, path: Path) -> None:
    perturbed(agent).save(path)
    teacher = load_teacher(path)
    policy = build_sb3_policy(teacher)
    observations = observations_for(teacher)
    with torch.inference_mode():
        wanted = teacher(torch.from_numpy(observations)).labels
        logits = sb3_logits(policy)(torch.from_numpy(observations))
    # fp32: the same layers in the same order
    torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-6)
    assert logits.std() > 1e-3  # not trivially equal
    # The agent that saved it and the policy built from its tensors choose the same actions.
    actions, _ = policy.predict(observations, deterministic=True)
    assert (actions == agent.predict(observations, deterministic=True)[0]).all()


@pytest.mark.parametrize("algorithm", [PPO, A2C, DQN, QRDQN])
@pytest.mark.parametrize("policy", ["MlpPolicy", "CnnPolicy"])
def test_sb3s_policy_gives_the_teachers_logits(algorithm: Any, policy: str, tmp_path: Path) -> None:
    environment = "CartPole-v1" if policy == "MlpPolicy" else TinyImages()
    options = SMALL if algorithm in (PPO, A2C) else OFF_POLICY
    options = options | ({"batch_size": 8} if algorithm is PPO else {})
    name = f"{algorithm.__name__.lower()}-CartPole-v1.zip"
    assert_policy_is_the_teacher(algorithm(policy, environment, **options), tmp_path / name)


@pytest.mark.parametrize(
    "policy, policy_kwargs",
    [
        ("MlpPolicy", {"activation_fn": nn.ELU, "net_arch": {"pi": [16], "vf": []}}),
        ("MlpPolicy", {"net_arch": []}),
        ("CnnPolicy", {"share_features_extractor": False, "net_arch": [8]}),
        ("CnnPolicy", {"features_extractor_kwargs": {"features_dim": 32}}),
        ("CnnPolicy", {"normalize_images": False}),
    ],
)
def test_other_shapes_than_the_default(
    policy: str, policy_kwargs: dict[str, Any], tmp_path: Path
) -> None:
    environment = "Acrobot-v1" if policy == "MlpPolicy" else TinyImages()
    agent = A2C(policy, environment, policy_kwargs=policy_kwargs, device="cpu")
    if "normalize_images" in policy_kwargs:
        # Images up to 255 make logits of hundreds; scaled down, 1e-6 stays a meaningful bound.
        with torch.no_grad():
            agent.policy.features_extractor.cnn[0].weight.div_(255.0)
    assert_policy_is_the_teacher(agent, tmp_path / "a2c.zip")


def test_an_agent_whose_layers_sb3_no_longer_has_is_refused(
    teacher_zip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from qpd.teachers import sb3_policy

    read = sb3_policy.read_sb3_archive

    def before_1_8(path: Path) -> Any:
        """Shared layers, as SB3 saved them for net_arch=[16, dict(...)]."""
        archive = read(path)
        return replace(
            archive,
            state_dict={**archive.state_dict, "mlp_extractor.shared_net.0.weight": torch.eye(4)},
        )

    teacher = load_teacher(teacher_zip)
    monkeypatch.setattr(sb3_policy, "read_sb3_archive", before_1_8)
    with pytest.raises(TeacherError, match=r"no policy of the installed .*shared_net") as caught:
        build_sb3_policy(teacher)
    assert "\n" not in str(caught.value)


def test_without_sb3_the_extra_that_brings_it_is_named(
    teacher_zip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "stable_baselines3"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(TeacherError, match=r'is missing: pip install "qpd-rl\[train\]"'):
        build_sb3_policy(load_teacher(teacher_zip))


def test_half_precision_and_one_name_for_the_extractor(tmp_path: Path) -> None:
    """Read what `compact_agent` and SB3 before 1.7 write: no pi_ and vf_ extractor, float16."""
    import io
    import zipfile

    path, old = tmp_path / "a2c.zip", tmp_path / "old" / "a2c-CartPole-v1.zip"
    perturbed(A2C("CnnPolicy", TinyImages(), device="cpu")).save(path)
    old.parent.mkdir()
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(old, "w") as target:
        tensors = torch.load(io.BytesIO(source.read("policy.pth")), weights_only=True)
        kept = {k: v.half() for k, v in tensors.items() if k[:3] not in ("pi_", "vf_")}
        content = io.BytesIO()
        torch.save(kept, content)
        target.writestr("data", source.read("data"))
        target.writestr("policy.pth", content.getvalue())
    teacher = load_teacher(old)
    observations = torch.from_numpy(observations_for(teacher))
    with torch.inference_mode():
        logits = sb3_logits(build_sb3_policy(teacher))(observations)
        torch.testing.assert_close(logits, teacher(observations).labels, rtol=0, atol=1e-6)
    assert np.isfinite(logits.numpy()).all()
