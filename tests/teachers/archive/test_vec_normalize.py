"""vecnormalize.pkl: exact statistics, and nothing in the pickle ever runs."""

import collections
import os
import pickle
import random
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from qpd.teachers import TeacherError, load_teacher
from qpd.teachers.archive.inert_pickle import load_inert
from qpd.teachers.archive.pickled_array import as_array
from qpd.teachers.archive.vec_normalize import read_vec_normalize

torch.set_num_threads(1)


class RunsOnUnpickling:
    """Pickles to a call that creates the folder `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def played_normalizer(**options) -> VecNormalize:
    environment = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Acrobot-v1")]), **options)
    environment.seed(0)
    environment.reset()
    for step in range(50):
        environment.step(np.array([step % 3]))
    return environment


@pytest.fixture(scope="module")
def normalizer() -> VecNormalize:
    return played_normalizer(clip_obs=1.5)


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_statistics_and_result_equal_sb3(normalizer, tmp_path, protocol):
    path = tmp_path / "vecnormalize.pkl"
    path.write_bytes(pickle.dumps(normalizer, protocol=protocol))
    read = read_vec_normalize(path)
    assert read is not None
    assert np.array_equal(read.mean, normalizer.obs_rms.mean) and read.mean.any()
    assert np.array_equal(read.var, normalizer.obs_rms.var)
    assert (read.epsilon, read.clip_obs) == (1e-8, 1.5)
    observations = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)
    expected = normalizer.normalize_obs(observations)
    assert np.array_equal(read.apply(observations), expected)
    assert (np.abs(expected) == 1.5).any()  # clipping took part


def test_teacher_applies_it_exactly(normalizer, tmp_path):
    folder = tmp_path / "a2c" / "Acrobot-v1_1"
    (folder / "Acrobot-v1").mkdir(parents=True)
    model = A2C("MlpPolicy", "Acrobot-v1", device="cpu", seed=0)
    model.save(folder / "Acrobot-v1.zip")
    plain = load_teacher(folder)
    assert plain.normalization is None
    normalizer.save(str(folder / "Acrobot-v1" / "vecnormalize.pkl"))
    teacher = load_teacher(folder)
    observations = np.random.default_rng(1).normal(size=(9, 6)).astype(np.float32)
    normalized = torch.from_numpy(normalizer.normalize_obs(observations))
    outputs = teacher(torch.from_numpy(observations))
    assert torch.equal(outputs.values, plain(normalized).values)
    assert torch.equal(outputs.labels, plain(normalized).labels)
    assert torch.equal(outputs.values, model.policy.predict_values(normalized).squeeze(-1))
    beside = folder / "vec_normalize.pkl"  # the hub's name, next to the zip
    (folder / "Acrobot-v1" / "vecnormalize.pkl").rename(beside)
    assert load_teacher(folder / "Acrobot-v1.zip").normalization is not None


def test_statistics_of_another_agent_are_refused(normalizer, tmp_path):
    A2C("MlpPolicy", "CartPole-v1", device="cpu").save(tmp_path / "a2c-CartPole-v1.zip")
    normalizer.save(str(tmp_path / "vecnormalize.pkl"))
    with pytest.raises(TeacherError, match=r"statistics of shape \(6,\)"):
        load_teacher(tmp_path / "a2c-CartPole-v1.zip")


def test_rewards_only_gives_none(tmp_path):
    played_normalizer(norm_obs=False).save(str(tmp_path / "vecnormalize.pkl"))
    assert read_vec_normalize(tmp_path / "vecnormalize.pkl") is None


def test_malicious_pickle_runs_nothing(tmp_path):
    target = tmp_path / "was_run"
    path = tmp_path / "vecnormalize.pkl"
    path.write_bytes(pickle.dumps(RunsOnUnpickling(target)))
    with pytest.raises(TeacherError, match=r"expected a VecNormalize, found posix\.mkdir"):
        read_vec_normalize(path)
    # hidden inside an otherwise good file, which still reads
    hostile = played_normalizer()
    hostile.extra = [RunsOnUnpickling(target), {"k": RunsOnUnpickling(target)}]
    content = pickle.dumps(hostile)
    path.write_bytes(content)
    read = read_vec_normalize(path)
    assert read is not None and np.array_equal(read.mean, hostile.obs_rms.mean)
    assert not target.exists()
    with pytest.raises(FileExistsError):  # both payloads are live
        pickle.loads(content)
    assert target.exists()


def test_opcodes_that_reach_outside_are_refused():
    import copyreg

    copyreg.add_extension("posix", "mkdir", 240)
    try:
        extension = pickle.dumps(os.mkdir, protocol=2)
    finally:
        copyreg.remove_extension("posix", "mkdir", 240)
    assert b"\x82\xf0" in extension  # EXT1
    persistent = b"Pwhatever\n."
    huge_memo = b"Nr\xff\xff\xff\x7f."  # LONG_BINPUT with a 2 GiB index
    for content in (extension, persistent, huge_memo):
        with pytest.raises(ValueError, match="refused|out of range"):
            load_inert(content)


def test_arrays_of_every_form():
    for protocol in (3, 4, 5):
        for array in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)),
                      np.arange(3, dtype=">f8"), np.float32([1.5]), np.array(2.5)):  # fmt: skip
            rebuilt = as_array(load_inert(pickle.dumps(array, protocol=protocol)))
            assert np.array_equal(rebuilt, array) and rebuilt.dtype == array.dtype
        assert (
            float(as_array(load_inert(pickle.dumps(np.float64(0.25), protocol=protocol)))) == 0.25
        )
    assert float(as_array(1e-8)) == 1e-8
    hostile = [np.array([object()]), np.array(["a"]), np.zeros(1, "c16"), "x", None]
    for value in (*hostile, collections.OrderedDict(a=1)):
        with pytest.raises(ValueError):
            as_array(load_inert(pickle.dumps(value)))


def test_damaged_or_large_files(normalizer, tmp_path, monkeypatch):
    path = tmp_path / "vecnormalize.pkl"
    content = pickle.dumps(normalizer)
    for damaged in (b"", b"text", content[:-100], pickle.dumps({"obs_rms": 1})):
        path.write_bytes(damaged)
        with pytest.raises(TeacherError, match=r"vecnormalize\.pkl"):
            read_vec_normalize(path)
    generator = random.Random(0)
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(generator.choice((1, 3, 10))):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        path.write_bytes(bytes(damaged))
        try:
            read_vec_normalize(path)
        except TeacherError as error:
            assert "\n" not in str(error)
    path.write_bytes(content)
    monkeypatch.setattr("qpd.teachers.archive.vec_normalize.MAX_PICKLE_BYTES", 100)
    with pytest.raises(TeacherError, match="at most 100 are read"):
        read_vec_normalize(path)


def test_statistics_that_make_no_sense(tmp_path):
    path = tmp_path / "vecnormalize.pkl"
    for change, expected in (
        (lambda n: n.obs_rms.mean.fill(np.nan), "not finite"),
        (lambda n: n.obs_rms.var.fill(-1.0), "negative"),
        (lambda n: setattr(n, "clip_obs", 0.0), "clip_obs is 0"),
        (lambda n: setattr(n, "obs_rms", {"a": n.obs_rms}), "names no parts of a Dict"),
        (lambda n: setattr(n.obs_rms, "var", np.ones(2)), r"var \(2,\)"),
    ):
        broken = played_normalizer()
        change(broken)
        path.write_bytes(pickle.dumps(broken))
        with pytest.raises(TeacherError, match=expected):
            read_vec_normalize(path)
