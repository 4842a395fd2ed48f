"""Archives are read as data: damaged and hostile files give one line, and run nothing."""

import base64
import io
import json
import math
import os
import pickle
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO

from qpd.teachers import TeacherError, load_teacher
from qpd.teachers.archive.algorithm import actor_critic_label
from qpd.teachers.archive.plain_data import (
    class_name,
    read_observation_space,
    read_policy_option,
)
from qpd.teachers.archive.sb3_archive import MAX_MEMBER_BYTES, read_sb3_archive
from qpd.teachers.archive.stored_actions import StoredActions, read_stored_actions
from qpd.teachers.sources.teacher_source import find_teacher_files

torch.set_num_threads(1)
EMBEDDED = find_teacher_files("embedded").archive


class RunsOnUnpickling:
    """Pickles to a call that creates the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture(scope="module")
def cartpole_zip(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("agents") / "ppo-CartPole-v1.zip"
    PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, device="cpu").save(path)
    return path


def rewrite(source: Path, target: Path, **changes: bytes | None) -> Path:
    """Copies a zip; `policy_pth=b"..."` replaces the member policy.pth, None removes it."""
    changes = {name.replace("_pth", ".pth"): value for name, value in changes.items()}
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = changes.get(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
    return target


def state_dict_of(path: Path) -> dict[str, torch.Tensor]:
    with zipfile.ZipFile(path) as archive:
        return torch.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def message_of(path: Path | str, **options) -> str:
    with pytest.raises(TeacherError) as caught:
        load_teacher(path, **options)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 600
    return text


def test_reads_plain_data_of_a_new_archive(cartpole_zip):
    archive = read_sb3_archive(cartpole_zip)
    assert archive.algo == "ppo"
    assert archive.actions == StoredActions("discrete", (2,))
    assert archive.observation_space.shape == (4,)
    assert archive.observation_space.dtype == "float32"
    assert archive.gamma == 0.99 and archive.num_timesteps == 0
    assert archive.sb3_version and archive.sb3_version.startswith("2.")


def test_unpacked_folder_equals_its_zip(cartpole_zip, tmp_path):
    folder = tmp_path / "ppo-CartPole-v1"
    with zipfile.ZipFile(cartpole_zip) as archive:
        archive.extractall(folder)
    observations = torch.randn(5, 4)
    from_folder, from_zip = load_teacher(folder), load_teacher(cartpole_zip)
    assert torch.equal(from_folder(observations).labels, from_zip(observations).labels)
    assert from_folder.env_id == from_zip.env_id == "CartPole-v1"
    assert len(from_folder.sha256) == 64 and from_folder.sha256 != from_zip.sha256
    (folder / "data").unlink()
    assert "has no member data" in message_of(folder)


def test_old_spellings_of_spaces():
    old_box = {":type:": "<class 'gym.spaces.box.Box'>", "dtype": "float32", "shape": "[6]"}
    old_discrete = {":type:": "<class 'gym.spaces.discrete.Discrete'>", "n": 3, "shape": []}
    assert stored(old_discrete) == StoredActions("discrete", (3,))
    assert read_observation_space({"observation_space": old_box}).shape == (6,)
    assert stored(old_box) == StoredActions("box", shape=(6,))
    assert stored("Discrete(4)") == StoredActions("discrete", (4,))
    assert stored({":serialized:": "gASV"}).kind == "unknown"
    assert read_stored_actions({}).kind == "unknown"
    assert stored({":type:": "<class 'gym.spaces.dict.Dict'>"}).kind == "other"


def stored(space: object) -> StoredActions:
    return read_stored_actions({"action_space": space})


def test_sizes_and_bounds_from_numpys_text():
    """NumPy breaks lines, and prints float32 with as many digits as tell it from its neighbours."""
    prefix = "<class 'gymnasium.spaces."
    multi = {":type:": f"{prefix}multi_discrete.MultiDiscrete'>", "nvec": "[3 2\n 11]"}
    assert stored(multi) == StoredActions("multi_discrete", (3, 2, 11))
    assert stored(multi | {"start": "[0 0 0]"}).kind == "multi_discrete"
    assert stored(multi | {"start": "[0 1 0]"}).kind == "other"  # counted from 1
    assert stored(multi | {"nvec": "[[3 2]]"}).sizes == ()
    binary = {":type:": f"{prefix}multi_binary.MultiBinary'>", "n": "5"}
    assert stored(binary) == StoredActions("multi_binary", (5,))
    assert stored(binary | {"n": "[2 3]"}).kind == "other"
    box = {":type:": f"{prefix}box.Box'>", "dtype": "float32", "_shape": [2, 2]}
    box |= {"low": "[[-0.4  -1. ]\n [-1e-05 -inf]]", "high": "[[0.4 1.]\n [3.1415927 2.]]"}
    found = stored(box)
    assert found.shape == (2, 2)
    assert found.low == (float(np.float32(-0.4)), -1.0, float(np.float32(-1e-05)), -math.inf)
    assert found.high == (float(np.float32(0.4)), 1.0, float(np.float32(np.pi)), 2.0)
    for text in ("[-1. ... -1.]", "[-1. __import__('os')]", "[]", "1" * 100_000, "-", None):
        assert stored(box | {"low": text}).low == ()


@pytest.mark.parametrize(
    "options",
    [
        {"activation_fn": "<class 'torch.nn.modules.activation.ReLU'>", "n": "2"},
        "{'n': 2, 'activation_fn': <class 'torch.nn.modules.activation.ReLU'>, 'x': 1}",
        "dict(net_arch=[64], activation_fn=nn.ReLU)",
    ],
)
def test_activation_from_every_spelling_of_policy_kwargs(options):
    text = read_policy_option({"policy_kwargs": options}, "activation_fn")
    assert text is not None and class_name(text) == "ReLU"


def test_actor_critic_labels():
    assert actor_critic_label({"clip_range": 0.1, "gae_lambda": 1}) == "ppo"
    assert actor_critic_label({"gae_lambda": 1.0, "vf_coef": 0.5}) == "a2c"
    assert actor_critic_label({}) is None


@pytest.mark.parametrize("content", [b"", b"hello, I am a text file", b"PK\x03\x04 truncated"])
def test_files_that_are_no_zip(tmp_path, content):
    path = tmp_path / "agent.zip"
    path.write_bytes(content)
    text = message_of(path)
    assert "not a zip file" in text and "agent.zip" in text and "'policy.pth'" in text


def test_truncated_zip_and_missing_file(cartpole_zip, tmp_path):
    path = tmp_path / "truncated.zip"
    path.write_bytes(cartpole_zip.read_bytes()[:-3000])
    assert "truncated, or not an SB3 zip" in message_of(path)  # an inner zip is found
    path.write_bytes(cartpole_zip.read_bytes()[:9000])
    assert "damaged" in message_of(path)
    assert "no such file" in message_of(tmp_path / "absent.zip")
    assert "no zip file" in message_of(tmp_path / "..")


def test_zip_of_something_else_and_missing_members(cartpole_zip, tmp_path):
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("holiday.txt", "photos")
    assert "has no member data or policy.pth" in message_of(other)
    for member in ("data", "policy_pth"):
        path = rewrite(cartpole_zip, tmp_path / f"{member}.zip", **{member: None})
        assert f"has no member {member.replace('_', '.')}" in message_of(path)


def test_data_that_is_no_json_object(cartpole_zip, tmp_path):
    for index, data in enumerate((b"\xff\xfe", b"[1]", b"{", b"[" * 200_000, b"1" * 10_000)):
        path = rewrite(cartpole_zip, tmp_path / f"{index}.zip", data=data)
        assert "'data'" in message_of(path)


def test_numbers_of_data_that_sb3_writes_and_json_lacks(cartpole_zip, tmp_path):
    """SB3 writes NaN and infinities: they count as not given. A key given twice is refused."""
    path = tmp_path / "a.zip"
    for gamma, expected in (("0.5", 0.5), ("NaN", None), ("-Infinity", None), ("1e999", None)):
        text = f'{{"n_epochs": 4, "max_grad_norm": Infinity, "gamma": {gamma}}}'
        archive = read_sb3_archive(rewrite(cartpole_zip, path, data=text.encode()))
        assert archive.gamma == expected and archive.data["max_grad_norm"] == float("inf")
    for data in (b'{"gamma": 1, "gamma": 0.5}', b'{"a": [{"n": 1, "n": 1}]}', b'{"a": "\\ud800"}'):
        text = message_of(rewrite(cartpole_zip, path, data=data))
        assert "member 'data' is not JSON" in text
        assert "is given twice" in text or "surrogate" in text


def test_outputs_that_are_not_finite(cartpole_zip, tmp_path):
    """3e38 is a float32, but the sum of two is not; 1e30 is, and its square is not."""
    for key, weight, named in (
        ("action_net.weight", 3e38, "outputs"),
        ("value_net.weight", 3e38, "values"),
        ("value_net.bias", 1e30, "values"),
    ):
        tensors = state_dict_of(cartpole_zip)
        tensors[key].fill_(weight)
        path = rewrite(cartpole_zip, tmp_path / "a.zip", policy_pth=saved(tensors))
        text = message_of(path)
        assert f"a.zip: its {named} are not finite, or beyond 1e+18" in text
    tensors["value_net.bias"].fill_(1e17)
    load_teacher(rewrite(cartpole_zip, path, policy_pth=saved(tensors)))


def test_declared_size_is_bounded(cartpole_zip, tmp_path, monkeypatch):
    monkeypatch.setitem(MAX_MEMBER_BYTES, "policy.pth", 1000)
    assert "at most 1000" in message_of(cartpole_zip)


def test_inner_zip_bomb_and_stride_zero_views(cartpole_zip, tmp_path):
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as inner, inner.open("a", "w") as member:
        for _ in range(21):
            member.write(bytes(1 << 20))
    path = rewrite(cartpole_zip, tmp_path / "bomb.zip", policy_pth=bomb.getvalue())
    assert path.stat().st_size < 1 << 20
    assert "compressed; PyTorch never does that" in message_of(path)
    huge = saved({"action_net.weight": torch.zeros(1).expand(1 << 20, 1 << 20)})
    path = rewrite(cartpole_zip, tmp_path / "huge.zip", policy_pth=huge)
    assert "declares 1.1e+12 numbers" in message_of(path)


def test_pickle_in_serialized_fields_is_never_loaded(cartpole_zip, tmp_path):
    target = tmp_path / "was_run"
    payload = base64.b64encode(pickle.dumps(RunsOnUnpickling(target))).decode()
    with zipfile.ZipFile(cartpole_zip) as archive:
        data = json.loads(archive.read("data"))
    data["policy_class"][":serialized:"] = payload
    data["observation_space"][":serialized:"] = payload
    data["innocent"] = {":type:": "x", ":serialized:": payload}
    path = rewrite(cartpole_zip, tmp_path / "agent.zip", data=json.dumps(data).encode())
    assert load_teacher(path).actions.num_outputs == 2
    assert not target.exists()
    pickle.loads(base64.b64decode(payload))  # the payload is live
    assert target.exists()


@pytest.mark.parametrize("legacy_format", [False, True])
def test_code_in_policy_pth_never_runs(cartpole_zip, tmp_path, legacy_format):
    target = tmp_path / "was_run"
    hostile = {"action_net.weight": RunsOnUnpickling(target)}
    buffer = io.BytesIO()
    torch.save(hostile, buffer, _use_new_zipfile_serialization=not legacy_format)
    path = rewrite(cartpole_zip, tmp_path / "agent.zip", policy_pth=buffer.getvalue())
    assert "more than tensors" in message_of(path)
    path = rewrite(cartpole_zip, tmp_path / "raw.zip", policy_pth=pickle.dumps(hostile))
    assert "more than tensors" in message_of(path)
    assert not target.exists()


def test_wrong_tensors(cartpole_zip, tmp_path):
    state = state_dict_of(cartpole_zip)

    def message_with(**changes) -> str:
        changed = {key.replace(".", "__"): value for key, value in state.items()} | changes
        kept = {k.replace("__", "."): v for k, v in changed.items() if v is not None}
        content = saved(kept)
        return message_of(rewrite(cartpole_zip, tmp_path / "agent.zip", policy_pth=content))

    assert "NaN" in message_with(value_net__bias=torch.tensor([float("nan")]))
    assert "infinity" in message_with(action_net__bias=torch.tensor([1.0, float("inf")]))
    assert "'action_net.bias' is missing" in message_with(action_net__bias=None)
    assert "bias (3,)" in message_with(action_net__bias=torch.zeros(3))
    assert "says 2" in message_with(action_net__weight=torch.zeros(3, 64))
    assert "unknown network part 'gru" in message_with(gru_actor__weight=torch.zeros(2, 2))
    assert "floating point" in message_with(action_net__bias=torch.zeros(2, dtype=torch.int64))
    assert "plain tensors" in message_with(action_net__bias=torch.zeros(2).to_sparse())
    assert "plain tensors" in message_with(action_net__bias="text")
    assert "more than tensors" in message_with(action_net__bias=torch.zeros(2, device="meta"))
    # layers that do not fit each other
    text = message_with(mlp_extractor__policy_net__2__weight=torch.zeros(64, 63))
    assert "layers do not fit each other" in text and "63" in text
    assert "more than 1 value" in message_with(
        value_net__weight=torch.zeros(2, 64), value_net__bias=torch.zeros(2)
    )


def test_tensors_of_no_agent(cartpole_zip, tmp_path):
    for content in (saved({"w": torch.zeros(2)}), saved({}), saved([torch.zeros(2)])):
        path = rewrite(cartpole_zip, tmp_path / "agent.zip", policy_pth=content)
        assert "agent" in message_of(path)


@pytest.mark.parametrize("is_legacy", [False, True])
def test_random_damage_gives_teacher_errors_only(cartpole_zip, tmp_path, is_legacy):
    with zipfile.ZipFile(cartpole_zip) as archive:
        pth, data = archive.read("policy.pth"), archive.read("data")
    if is_legacy:  # as PyTorch before 1.6 wrote it: pickles, then numbers
        buffer = io.BytesIO()
        torch.save(state_dict_of(cartpole_zip), buffer, _use_new_zipfile_serialization=False)
        pth = buffer.getvalue()
    generator = random.Random(0)
    num_refused = 0
    for index in range(100):
        damaged = bytearray(pth if index % 2 else data)
        for _ in range(generator.choice((1, 4, 40))):
            # Half of a file is numbers, in which any byte is as good as another.
            place = generator.randrange(len(damaged) // (1 + index % 3 * 4))
            damaged[place] = generator.randrange(256)
        member = {"policy_pth" if index % 2 else "data": bytes(damaged)}
        path = rewrite(cartpole_zip, tmp_path / "agent.zip", **member)
        try:
            load_teacher(path)
        except TeacherError as error:
            assert "\n" not in str(error)
            num_refused += 1
    assert num_refused > 15


def test_embedded_archive_is_the_documented_one():
    archive = read_sb3_archive(EMBEDDED)
    assert archive.sha256.startswith("3fcb3274")
    assert archive.observation_space.is_uint8_image


def test_a_folder_of_checkpoints_alone_names_the_latest(tmp_path):
    for steps in (3_000, 20_000, 9_000):
        (tmp_path / f"rl_model_{steps}_steps.zip").touch()
    assert f"name one, such as {tmp_path / 'rl_model_20000_steps.zip'}" in message_of(tmp_path)
