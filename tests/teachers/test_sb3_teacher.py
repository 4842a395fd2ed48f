"""Teachers give exactly what SB3's own policies give on the same observations."""

import io
import json
import zipfile
from pathlib import Path

import pytest
import torch
from gymnasium import spaces
from sb3_contrib import QRDQN, TRPO
from stable_baselines3 import A2C, DQN, PPO
from torch import nn

from qpd.teachers import TeacherError, load_teacher
from qpd.teachers.sources.teacher_source import find_teacher_files, pretrained_names
from tests.teachers.sb3_agents import (
    OFF_POLICY,
    SMALL,
    TinyImages,
    assert_equals_sb3,
    observations_for,
    perturbed,
    save_and_load,
)

torch.set_num_threads(1)


@pytest.mark.parametrize("algorithm", [PPO, A2C, TRPO, DQN, QRDQN])
@pytest.mark.parametrize("policy", ["MlpPolicy", "CnnPolicy"])
def test_outputs_equal_sb3(algorithm, policy, tmp_path):
    environment = "CartPole-v1" if policy == "MlpPolicy" else TinyImages()
    options = SMALL if algorithm in (PPO, A2C, TRPO) else OFF_POLICY
    options = options | ({"batch_size": 8} if algorithm in (PPO, TRPO) else {})
    model = algorithm(policy, environment, **options)
    name = algorithm.__name__.lower()
    teacher = save_and_load(model, tmp_path / f"{name}-CartPole-v1.zip")
    assert teacher.algo == name
    assert teacher.is_image == (policy == "CnnPolicy")
    assert teacher.has_critic == (algorithm in (PPO, A2C, TRPO))
    assert teacher.actions.num_outputs == (2 if policy == "MlpPolicy" else 3)
    assert_equals_sb3(teacher, model)


@pytest.mark.filterwarnings("ignore:As shared layers in the mlp_extractor are removed")
@pytest.mark.parametrize(
    "policy_kwargs",
    [
        {"activation_fn": nn.ReLU, "net_arch": {"pi": [16], "vf": []}},
        {"activation_fn": nn.ELU, "net_arch": []},
        {"net_arch": {"pi": [], "vf": [8, 8, 8]}},
        {"net_arch": [{"pi": [8], "vf": [4]}]},
    ],
)
def test_mlp_architectures_and_activations(policy_kwargs, tmp_path):
    model = A2C("MlpPolicy", "Acrobot-v1", policy_kwargs=policy_kwargs, device="cpu")
    assert_equals_sb3(save_and_load(model, tmp_path / "agent.zip"), model)


def test_separate_extractors_for_actor_and_critic(tmp_path):
    separate = {"share_features_extractor": False, "net_arch": [8]}
    model = A2C("CnnPolicy", TinyImages(), policy_kwargs=separate, device="cpu")
    teacher = save_and_load(model, tmp_path / "a2c.zip")
    assert_equals_sb3(teacher, model)
    assert teacher.num_parameters == sum(p.numel() for p in model.policy.parameters())


def test_old_shared_layers_before_the_heads(tmp_path):
    """`mlp_extractor.shared_net`, as SB3 before 1.7 saved net_arch=[16, dict(...)]."""
    from qpd.teachers.networks.actor_critic import ActorCriticNetwork

    generator = torch.Generator().manual_seed(0)
    shapes = {"mlp_extractor.shared_net.0": (16, 4), "mlp_extractor.policy_net.0": (8, 16),
              "action_net": (2, 8), "value_net": (1, 16)}  # fmt: skip
    state = {}
    for name, shape in shapes.items():
        state[f"{name}.weight"] = torch.randn(shape, generator=generator)
        state[f"{name}.bias"] = torch.randn(shape[0], generator=generator)
    logits, values = ActorCriticNetwork(state, nn.Tanh)(torch.ones(1, 4))
    shared = torch.tanh(state["mlp_extractor.shared_net.0.weight"].sum(1)
                        + state["mlp_extractor.shared_net.0.bias"])  # fmt: skip
    actor = torch.tanh(state["mlp_extractor.policy_net.0.weight"] @ shared
                       + state["mlp_extractor.policy_net.0.bias"])  # fmt: skip
    expected = state["action_net.weight"] @ actor + state["action_net.bias"]
    torch.testing.assert_close(logits[0], expected)
    torch.testing.assert_close(values[0], state["value_net.weight"] @ shared
                               + state["value_net.bias"])  # fmt: skip


def test_images_other_than_84x84_and_mlp_on_images(tmp_path):
    model = PPO("CnnPolicy", TinyImages(64), batch_size=8, **SMALL)
    teacher = save_and_load(model, tmp_path / "ppo.zip")
    assert teacher.observation_shape == (4, 64, 64)
    assert_equals_sb3(teacher, model)
    model = A2C("MlpPolicy", TinyImages(10), device="cpu")
    teacher = save_and_load(model, tmp_path / "a2c.zip")
    assert teacher.is_image
    assert_equals_sb3(teacher, model)
    model = A2C("MlpPolicy", TinyImages(10, high=9), device="cpu")  # SB3 does not divide these
    teacher = save_and_load(model, tmp_path / "a2c9.zip")
    assert not teacher.is_image
    assert_equals_sb3(teacher, model)


def test_images_that_are_not_divided(tmp_path):
    kwargs = {"normalize_images": False, "features_extractor_kwargs": {"normalized_image": True}}
    model = PPO("CnnPolicy", TinyImages(), batch_size=8, policy_kwargs=kwargs, **SMALL)
    assert_equals_sb3(save_and_load(model, tmp_path / "ppo.zip"), model)


def test_embedded_teacher_equals_sb3():
    teacher = load_teacher("embedded")
    model = PPO.load(find_teacher_files("embedded").archive, device="cpu")
    assert_equals_sb3(teacher, model)
    assert (teacher.algo, teacher.env_id, teacher.actions.num_outputs) == (
        "ppo",
        "BreakoutNoFrameskip-v4",
        4,
    )
    assert teacher.num_parameters == 1_686_693
    assert teacher.observation_shape == (4, 84, 84) and teacher.is_image
    same = load_teacher("pretrained/ppo-BreakoutNoFrameskip-v4")
    assert same.sha256 == teacher.sha256 and same.source == teacher.source
    with pytest.raises(TeacherError, match="did you mean pretrained/ppo-BreakoutNoFrameskip-v4"):
        load_teacher("pretrained/ppo-BreakoutNoFrameskip")


@pytest.mark.parametrize("name", pretrained_names())
def test_agents_that_come_with_qpd_are_what_their_cards_say(name):
    """Each plays Breakout, equals SB3's own reading of it, and has a card with its return."""
    classes = {"ppo": PPO, "a2c": A2C, "dqn": DQN}
    archive = find_teacher_files(f"pretrained/{name}").archive
    teacher = load_teacher(f"pretrained/{name}")
    memory = {"buffer_size": 1, "replay_buffer_class": None} if teacher.algo == "dqn" else {}
    assert_equals_sb3(teacher, classes[teacher.algo].load(archive, device="cpu", **memory))
    assert f"{teacher.algo}-{teacher.env_id}" == name
    card = (archive.parent / "README.md").read_text(encoding="utf-8")
    games = archive.parent / "evaluation.json"
    if games.is_file():
        result = json.loads(games.read_text(encoding="utf-8"))
        low, high = result["interval"]
        assert result["episodes"] >= 200 and low > 100
        assert f"{result['mean']:.1f} [{low:.1f}, {high:.1f}]" in card


def test_dqn_counts_its_online_network_only(tmp_path):
    class FourActions(TinyImages):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Discrete(4)

    teacher = save_and_load(DQN("CnnPolicy", FourActions(), **OFF_POLICY), tmp_path / "dqn.zip")
    assert teacher.num_parameters == 1_686_180


def test_teacher_is_frozen():
    teacher = load_teacher("embedded")
    teacher.train()
    assert not any(module.training for module in teacher.modules())
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    outputs = teacher(torch.zeros(1, 4, 84, 84, dtype=torch.uint8))
    assert not outputs.labels.requires_grad


def test_bfloat16_teacher_says_nearly_the_same():
    teacher = load_teacher("embedded")
    observations = torch.from_numpy(observations_for(teacher))
    fast_teacher = teacher.in_precision(torch.bfloat16)
    exact, fast = teacher(observations), fast_teacher(observations)
    assert fast.labels.dtype == fast.values.dtype == torch.float32
    assert not torch.equal(fast.labels, exact.labels)
    torch.testing.assert_close(fast.labels, exact.labels, rtol=0.05, atol=0.1)
    assert torch.equal(teacher(observations).labels, exact.labels)  # the teacher itself is intact
    assert fast_teacher.in_precision(torch.bfloat16) is fast_teacher


def test_vectors_stay_in_float32(tmp_path):
    A2C("MlpPolicy", "CartPole-v1", device="cpu").save(tmp_path / "agent.zip")
    teacher = load_teacher(tmp_path / "agent.zip", env_id="CartPole-v1")
    assert teacher.in_precision(torch.bfloat16) is teacher


def test_wrong_observations_are_refused():
    teacher = load_teacher("embedded")
    with pytest.raises(ValueError, match="sees \\[batch, 4, 84, 84\\]"):
        teacher(torch.zeros(1, 84, 84, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match="sees uint8"):
        teacher(torch.zeros(1, 4, 84, 84))


def test_arguments_that_contradict_the_archive():
    for options, expected in (
        ({"algo": "dqn"}, "this is an agent of ppo, not of dqn"),
        ({"algo": "zork"}, "'zork' is unknown"),
        ({"num_actions": 6}, "network has 4 actions, num_actions says 6"),
    ):
        with pytest.raises(TeacherError, match=expected):
            load_teacher("embedded", **options)


def test_unsupported_agents(tmp_path):
    softmax = {"activation_fn": nn.PReLU}
    A2C("MlpPolicy", "CartPole-v1", policy_kwargs=softmax, device="cpu").save(tmp_path / "p.zip")
    with pytest.raises(TeacherError, match="'PReLU' is not supported"):
        load_teacher(tmp_path / "p.zip")


def test_tensors_as_pytorch_wrote_them_before_version_1_6(tmp_path):
    model = perturbed(PPO("MlpPolicy", "CartPole-v1", batch_size=8, **SMALL))
    model.save(tmp_path / "new.zip")
    buffer = io.BytesIO()
    torch.save(model.policy.state_dict(), buffer, _use_new_zipfile_serialization=False)

    def saved(content: bytes) -> Path:
        path = tmp_path / "old.zip"
        with zipfile.ZipFile(tmp_path / "new.zip") as new, zipfile.ZipFile(path, "w") as old:
            old.writestr("data", new.read("data"))
            old.writestr("policy.pth", content)
        return path

    assert_equals_sb3(load_teacher(saved(buffer.getvalue())), model)
    for length in (14, 200, 5000, len(buffer.getvalue()) - 1):
        with pytest.raises(TeacherError, match=r"old\.zip: member 'policy\.pth' is damaged"):
            load_teacher(saved(buffer.getvalue()[:length]))


def test_quantile_network_needs_a_number_of_actions(tmp_path):
    """Take from the environment or the caller what the archive does not tell."""
    model = perturbed(QRDQN("MlpPolicy", "CartPole-v1", **OFF_POLICY))
    model.save(tmp_path / "full.zip")
    with (
        zipfile.ZipFile(tmp_path / "full.zip") as old,
        zipfile.ZipFile(tmp_path / "agent.zip", "w") as new,
    ):
        data = json.loads(old.read("data"))
        del data["action_space"], data["n_quantiles"]
        new.writestr("data", json.dumps(data))
        new.writestr("policy.pth", old.read("policy.pth"))
    with pytest.raises(TeacherError, match="give --env, or num_actions in Python"):
        load_teacher(tmp_path / "agent.zip")
    assert_equals_sb3(load_teacher(tmp_path / "agent.zip", num_actions=2), model)
    assert_equals_sb3(load_teacher(tmp_path / "agent.zip", env_id="CartPole-v1"), model)
    with pytest.raises(TeacherError, match="cannot be made"):
        load_teacher(tmp_path / "agent.zip", env_id="Nowhere-v0")
