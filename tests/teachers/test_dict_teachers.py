"""Agents of SB3's MultiInputPolicy: images among vectors, VecNormalize of some keys or all."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from qpd.environments.observation import ShownObservations
from qpd.teachers import Teacher, TeacherError, load_teacher
from qpd.teachers.networks.features import CombinedFeatures, extractor
from qpd.teachers.sb3_policy import build_sb3_policy, sb3_logits, sb3_observations
from tests.teachers.agents_of_any_space import Anything, perturbed

SEEN = spaces.Dict(
    {
        "arm": spaces.Box(-3.0, 3.0, (2, 2), np.float32),
        "cam": spaces.Box(0, 255, (40, 44, 3), np.uint8),
        "gear": spaces.Discrete(3),
        "horn": spaces.MultiBinary(2),
    }
)
CAMERAS = spaces.Dict({"a": SEEN["cam"], "z": spaces.Box(0, 255, (40, 44, 2), np.uint8)})
STEREO = spaces.Dict({"arm": SEEN["arm"], "horn": SEEN["horn"], **CAMERAS.spaces})
VECTORS = spaces.Dict({"arm": SEEN["arm"], "wind": spaces.Box(-9.0, 9.0, (3,), np.float32)})
# No image for SB3, which wants 0 to 255: it flattens the board where it stands.
BOARD = spaces.Dict({"arm": SEEN["arm"], "board": spaces.Box(0, 1, (8, 8, 2), np.uint8)})
UNSORTED = spaces.Dict([("z", SEEN["cam"]), ("horn", SEEN["horn"]), ("arm", SEEN["arm"])])
CHOICE, TORQUE = spaces.Discrete(4), spaces.Box(-2.0, 2.0, (2,), np.float32)


def made(space: spaces.Dict, actions: Any) -> gymnasium.Env[Any, Any]:
    env = Anything(actions)
    env.observation_space = space
    return env


def saved_agent(kind: Any, space: spaces.Dict, folder: Path) -> tuple[Any, Teacher]:
    """Return an agent that never learned, and what its zip is read as."""
    env = made(space, TORQUE if kind is SAC else CHOICE)
    memory = {} if kind is PPO else {"buffer_size": 1}
    agent = perturbed(kind("MultiInputPolicy", env, device="cpu", seed=0, **memory))
    agent.save(folder / "agent.zip")
    return agent, load_teacher(folder / "agent.zip")


def differences(teacher: Teacher, agent: Any, statistics: VecNormalize | None = None) -> float:
    """Return the greatest difference of outputs, and of an actor-critic's values."""
    space, greatest = agent.env.envs[0].observation_space, 0.0
    shown = ShownObservations(space, "Test")
    row = np.zeros((1, *shown.shape), shown.dtype)
    space.seed(5)
    for _ in range(50):
        found = space.sample()
        shown.push(found, row[0])
        seen: Any = {key: np.asarray(value)[None] for key, value in found.items()}
        seen = statistics.normalize_obs(seen) if statistics is not None else seen
        with torch.no_grad():
            said = teacher(torch.from_numpy(row))
            if isinstance(agent, PPO):
                inputs = agent.policy.obs_to_tensor(seen)[0]
                theirs = agent.policy.get_distribution(inputs).distribution.logits
                own = said.labels.log_softmax(1)
                values = agent.policy.predict_values(inputs).squeeze(-1)
                greatest = max(greatest, float((values - said.values).abs().max()))
            elif isinstance(agent, DQN):
                theirs, own = agent.q_net(agent.policy.obs_to_tensor(seen)[0]), said.labels
            else:
                theirs = torch.from_numpy(agent.predict(seen, deterministic=True)[0])
                own = torch.from_numpy(2 * np.tanh(said.labels[:, :2].numpy()))
        greatest = max(greatest, float((theirs - own).abs().max()))
    return greatest


@pytest.mark.parametrize("kind", [PPO, SAC])
def test_several_images_and_vectors(kind: Any, tmp_path: Path) -> None:
    agent, teacher = saved_agent(kind, STEREO, tmp_path)
    assert teacher.image_shape == (5, 40, 44)
    assert teacher.observation_shape == (5 * 40 * 44 + 4 + 2,)
    assert differences(teacher, agent) < 1e-5


@pytest.mark.parametrize("space", [BOARD, UNSORTED])
def test_parts_stand_where_sb3_has_them(space: spaces.Dict, tmp_path: Path) -> None:
    agent, teacher = saved_agent(PPO, space, tmp_path)
    assert (teacher.image_shape is None) == (space is BOARD)
    assert differences(teacher, agent) < 1e-5


@pytest.mark.parametrize("key", ["type", "keys", "forward", "training", ""])
def test_a_strangers_key_may_be_any_word(key: str) -> None:
    tensors = NatureCNN(spaces.Box(0, 255, (3, 40, 44), np.uint8)).state_dict()
    named = {f"extractors.{key}.{name}": tensor for name, tensor in tensors.items()}
    found = extractor(named)
    assert isinstance(found, CombinedFeatures) and list(found.images) == [key]


def with_text(file: Path, text: str) -> Path:
    """Rewrite what a zip says of its Dict, as a stranger might."""
    changed = file.with_name("changed.zip")
    with zipfile.ZipFile(file) as read, zipfile.ZipFile(changed, "w") as written:
        for name in read.namelist():
            content = read.read(name)
            if name == "data":
                data = json.loads(content)
                data["observation_space"]["spaces"] = text
                content = json.dumps(data).encode()
            written.writestr(name, content)
    return changed


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("agents") / "agent.zip"
    PPO("MultiInputPolicy", made(SEEN, CHOICE), device="cpu", seed=0).save(file)
    return file


@pytest.mark.parametrize("form", ["OrderedDict([{}])", "OrderedDict({{{}}})", "Dict({})"])
def test_other_texts_of_the_same_dict_are_read(form: str, seeing: Path) -> None:
    pairs = [(key, str(part)) for key, part in SEEN.items()]
    said = ", ".join(f"('{k}', {v})" if "[" in form else f"'{k}': {v}" for k, v in pairs)
    said = said.replace("(40, 44, 3)", "(3, 40, 44)")  # as SB3 transposes it
    teacher = load_teacher(with_text(seeing, form.format(said)))
    assert teacher.observation_shape == (3 * 40 * 44 + 4 + 3 + 2,)


@pytest.mark.parametrize(
    "arm",
    ["Box(-3.0, 3.0, (30000000,), float32)", "Box(-3.0, 3.0, (99999, 99999), float32)",
     "Box(0, 1, (999999999, 999999999, 999999999), float32)", f"MultiDiscrete([{'9 ' * 900}])",
     f"MultiBinary(({'999999999, ' * 3000}))", "Discrete(5)"],
)  # fmt: skip
def test_a_text_that_claims_other_sizes_allocates_nothing(arm: str, seeing: Path) -> None:
    text = f"{{'arm': {arm}, 'cam': Box(0, 255, (3, 40, 44), uint8), 'gear': Discrete(3), "
    with pytest.raises(TeacherError, match="a Dict of|does not say in plain text"):
        load_teacher(with_text(seeing, text + "'horn': MultiBinary(2)}"))


def test_images_alone(tmp_path: Path) -> None:
    agent, teacher = saved_agent(PPO, CAMERAS, tmp_path)
    assert teacher.is_image and teacher.observation_shape == (5, 40, 44)
    assert differences(teacher, agent) < 1e-5
    fast, images = teacher.in_precision(torch.bfloat16), torch.randint(0, 256, (8, 5, 40, 44))
    labels = teacher(images.byte()).labels
    assert (fast(images.byte()).labels - labels).abs().max() < 0.05 * labels.abs().max()


@pytest.mark.parametrize("kind", [PPO, DQN, SAC])
def test_an_image_between_vectors(kind: Any, tmp_path: Path) -> None:
    agent, teacher = saved_agent(kind, SEEN, tmp_path)
    assert teacher.image_shape == (3, 40, 44) and not teacher.is_image
    assert teacher.observation_shape == (3 * 40 * 44 + 4 + 3 + 2,)
    assert differences(teacher, agent) < 1e-5


def test_an_image_that_is_not_divided(tmp_path: Path) -> None:
    kwargs = {"normalize_images": False}
    agent = PPO("MultiInputPolicy", made(SEEN, CHOICE), policy_kwargs=kwargs, device="cpu", seed=0)
    agent.save(tmp_path / "agent.zip")
    assert differences(load_teacher(tmp_path / "agent.zip"), agent) < 1e-4


@pytest.mark.parametrize(("space", "keys"), [(VECTORS, None), (VECTORS, ["wind"]), (SEEN, ["arm"])])
def test_vec_normalize_of_some_keys_or_all(
    space: spaces.Dict, keys: list[str] | None, tmp_path: Path
) -> None:
    env = DummyVecEnv([lambda: made(space, CHOICE)])
    statistics = VecNormalize(env, norm_obs_keys=keys, clip_obs=1.5)
    agent = perturbed(PPO("MultiInputPolicy", env, device="cpu", seed=0))
    statistics.reset()
    for _ in range(20):
        statistics.step(np.array([0]))
    statistics.training = False
    agent.save(tmp_path / "agent.zip")
    statistics.save(str(tmp_path / "vecnormalize.pkl"))
    files = {"vec_normalize": tmp_path / "vecnormalize.pkl"}
    teacher = load_teacher(tmp_path / "agent.zip", **files)
    assert differences(teacher, agent, statistics) < 1e-5
    assert differences(teacher, agent) > 1e-2  # they do matter


def test_statistics_of_another_dict_are_refused(tmp_path: Path) -> None:
    other = VecNormalize(DummyVecEnv([lambda: made(VECTORS, CHOICE)]))
    other.save(str(tmp_path / "vecnormalize.pkl"))
    agent = PPO("MultiInputPolicy", made(SEEN, CHOICE), device="cpu", seed=0)
    agent.save(tmp_path / "agent.zip")
    with pytest.raises(TeacherError, match=r"statistics of 'wind'; the agent's archive names cam"):
        load_teacher(tmp_path / "agent.zip", vec_normalize=tmp_path / "vecnormalize.pkl")


@pytest.mark.parametrize("kind", [PPO, DQN, SAC])
@pytest.mark.parametrize("space", [STEREO, CAMERAS, UNSORTED])
def test_sb3s_own_policy_is_rebuilt_for_the_bench(
    kind: Any, space: spaces.Dict, tmp_path: Path
) -> None:
    agent, teacher = saved_agent(kind, space, tmp_path)
    shown = ShownObservations(space, "Test")
    rows = np.zeros((20, *shown.shape), shown.dtype)
    for row in rows:
        shown.push(space.sample(), row)
    policy, seen = build_sb3_policy(teacher), sb3_observations(teacher, rows)
    assert isinstance(seen, dict) and list(seen) == list(space.spaces)
    with torch.inference_mode():
        found = sb3_logits(policy)({key: torch.from_numpy(part) for key, part in seen.items()})
        wanted = teacher.network(teacher.preprocess(torch.from_numpy(rows)))[0]
    torch.testing.assert_close(found, wanted[:, : found.shape[1]], rtol=0, atol=1e-5)
    actions, _ = policy.predict(seen, deterministic=True)
    assert actions.shape == (20, *agent.action_space.shape)


def test_the_rebuilt_policy_sees_normalized_parts(tmp_path: Path) -> None:
    env = DummyVecEnv([lambda: made(SEEN, CHOICE)])
    statistics = VecNormalize(env, norm_obs_keys=["arm"])
    PPO("MultiInputPolicy", env, device="cpu", seed=0).save(tmp_path / "agent.zip")
    statistics.obs_rms["arm"].mean[...] = 2.0
    statistics.save(str(tmp_path / "vecnormalize.pkl"))
    teacher = load_teacher(tmp_path / "agent.zip", vec_normalize=tmp_path / "vecnormalize.pkl")
    shown, row = ShownObservations(SEEN, "Test"), np.zeros((1, *teacher.observation_shape))
    found = SEEN.sample()
    shown.push(found, row[0])
    seen = sb3_observations(teacher, row.astype(np.float32))
    assert isinstance(seen, dict) and seen["cam"].dtype == np.uint8
    np.testing.assert_array_equal(seen["cam"][0], found["cam"].transpose(2, 0, 1))
    np.testing.assert_allclose(seen["arm"][0], found["arm"].ravel() - 2.0, atol=1e-5)
