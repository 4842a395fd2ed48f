"""The files that the rows of test_bad_input.py name, all in one folder: good ones, then spoilt."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import A2C, PPO

from qpd.files.atomic import write_safetensors
from qpd.files.tensors import read_tensors
from qpd.phases.distill import distill
from qpd.phases.evaluate import evaluate_run
from qpd.phases.preparation import prepare
from qpd.phases.quantize import quantize
from qpd.phases.student_run import open_student
from qpd.runs.run_directory import RunDirectory, sealed
from tests.hostile.hostile_files import sharing_key, with_data_pkl
from tests.tiny_run import Follower, recipe_of, work

SEAL = "crc32"  # what a manifest keeps its own checksum under
Tensors = dict[str, torch.Tensor]


def make_files(folder: Path, agent: Path) -> None:
    """Fill the empty `folder`, the current one; `agent` is a PPO agent for CartPole."""
    shutil.copyfile(agent, folder / "agent.zip")
    make_agents(folder)
    make_zoo_folders(folder)
    make_runs(folder)
    make_spoilt_runs(folder)
    (folder / "note.txt").write_text("a note\n")
    (folder / "foreign").mkdir()
    (folder / "foreign" / "note.txt").write_text("a note\n")
    (folder / "bare").mkdir()
    make_device_records(folder)
    (folder / "films").mkdir()


def make_agents(folder: Path) -> None:
    """Agents that no student can have, and files that are no agents."""
    good = (folder / "agent.zip").read_bytes()
    (folder / "empty.zip").write_bytes(b"")
    (folder / "text.zip").write_text("not a zip\n")
    (folder / "cut.zip").write_bytes(good[: len(good) // 2])
    for name, member in (("nodata.zip", "data"), ("nopolicy.zip", "policy.pth")):
        rezip(folder, name, **{member: None})
    rezip(folder, "notjson.zip", data=b"{")
    rezip(folder, "listdata.zip", data=b"[]")
    rezip(folder, "twice.zip", data=b'{"n_epochs": 4, "n_epochs": 5}')
    rezip(folder, "sharing.zip", **{"policy.pth": with_data_pkl(sharing_key())})
    rezip(folder, "cutpolicy.zip", **{"policy.pth": tensors_of(folder)[1][:2000]})
    rezip(folder, "pickle.zip", **{"policy.pth": pickle.dumps({"a": print})})
    rezip(folder, "textpolicy.zip", **{"policy.pth": b"weights"})
    retensor(folder, "nan.zip", lambda t: t["action_net.weight"].fill_(float("nan")))
    retensor(folder, "inf.zip", lambda t: t["value_net.bias"].fill_(float("inf")))
    retensor(folder, "vast.zip", lambda t: t["action_net.weight"].fill_(3e38))
    retensor(folder, "nohead.zip", lambda t: [t.pop("action_net.weight"), t.pop("value_net.bias")])
    retensor(folder, "nobias.zip", lambda t: t.pop("value_net.bias"))
    retensor(folder, "sac.zip", lambda t: [t.clear(), t.update({"net.weight": torch.ones(2)})])
    retensor(folder, "whole.zip", lambda t: t.update(
        {"value_net.bias": t["value_net.bias"].long()}))  # fmt: skip
    torch.save({"state_dict": {}}, folder / "tensors.pth")
    retensor(folder, "misfit.zip", lambda t: t.update(
        {"mlp_extractor.policy_net.2.weight": torch.ones(64, 32)}))  # fmt: skip
    PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8, device="cpu").save("continuous.zip")
    A2C("MlpPolicy", "Acrobot-v1", device="cpu").save("acrobot.zip")
    (folder / "zipfolder.zip").mkdir()


def tensors_of(folder: Path) -> tuple[Tensors, bytes]:
    """The tensors of the good agent, and the member that holds them."""
    with zipfile.ZipFile(folder / "agent.zip") as archive:
        raw = archive.read("policy.pth")
    return torch.load(io.BytesIO(raw), weights_only=True), raw


def rezip(folder: Path, name: str, **changed: bytes | None) -> None:
    """The good agent with other members; None leaves one out."""
    with zipfile.ZipFile(folder / "agent.zip") as good, zipfile.ZipFile(folder / name, "w") as new:
        for member in good.namelist():
            content = changed.get(member, good.read(member))
            if content is not None:
                new.writestr(member, content)


def retensor(folder: Path, name: str, change: Callable[[Tensors], Any]) -> None:
    """The good agent with other tensors."""
    tensors, stream = tensors_of(folder)[0], io.BytesIO()
    change(tensors)
    torch.save(tensors, stream)
    rezip(folder, name, **{"policy.pth": stream.getvalue()})


def make_zoo_folders(folder: Path) -> None:
    """RL Zoo folders with something missing."""

    def zoo(name: str, *zips: str, **files: bytes) -> None:
        (folder / name).mkdir()
        for one in zips:
            shutil.copyfile(folder / "agent.zip", folder / name / one)
        for file, content in files.items():
            (folder / name / file.replace("_yml", ".yml").replace("_pkl", ".pkl")).write_bytes(
                content
            )

    zoo("twoagents", "one.zip", "two.zip")
    zoo("badargs", "CartPole-v1.zip", args_yml=b"a: [\n")
    zoo("textargs", "CartPole-v1.zip", args_yml=b"hello\n")
    zoo("normalized", "CartPole-v1.zip", config_yml=b"normalize: true\n")
    zoo("sharingstatistics", "CartPole-v1.zip", vecnormalize_pkl=sharing_key())
    zoo("badstatistics", "CartPole-v1.zip", vecnormalize_pkl=b"statistics")


def make_runs(folder: Path) -> None:
    """`run` has three phases behind it, `half` one, `fresh` none; `played` was evaluated too."""
    recipe = recipe_of(
        Path("agent.zip"),
        distill={"epochs": 1},
        finetune={"epochs": 1},
        environment={"max_frames": 20},
        evaluation={"episodes": 1, "validation_episodes": 1},
    )
    work(folder / "run", recipe, Follower())
    with RunDirectory.create(folder / "half", recipe) as half:
        with open_student(half, prepare(recipe, "cpu"), Follower()) as (student, play):
            distill(student, play, Follower())
    shutil.copytree(folder / "half", folder / "nocalibrated")
    with RunDirectory.open(folder / "nocalibrated") as quantized:
        with open_student(quantized, prepare(recipe, "cpu"), Follower()) as (student, play):
            quantize(student, play, Follower())
    (folder / "nocalibrated" / "checkpoint" / "calibrated.safetensors").unlink()
    RunDirectory.create(folder / "fresh", recipe).close()
    shutil.copytree(folder / "run", folder / "played")
    with RunDirectory.open(folder / "played") as played:
        with open_student(played, prepare(recipe, "cpu"), Follower()) as (student, _):
            evaluate_run(student, Follower())


def make_spoilt_runs(folder: Path) -> None:
    """Copies of `run` and `half`, each with one thing wrong."""

    def copy(name: str, source: str = "run") -> Path:
        return Path(shutil.copytree(folder / source, folder / name))

    def manifest(name: str, change: Callable[[Any], Any]) -> None:
        file = copy(name) / "manifest.json"
        content = json.loads(file.read_text())
        change(content)
        del content[SEAL]
        file.write_text(json.dumps(sealed(content)))

    manifest("oldrun", lambda m: m.update(format_version=0))
    manifest("newrun", lambda m: m.update(format_version=99))
    manifest("noversion", lambda m: m.pop("format_version"))
    manifest("wrongphase", lambda m: m["phases"]["distill"].update(state="ready"))
    manifest("otherteacher", lambda m: m["teacher"].update(sha256="0" * 64))
    (copy("cutmanifest") / "manifest.json").write_text('{"format_version": 1,')
    (copy("listmanifest") / "manifest.json").write_text("[]")
    (copy("emptymanifest") / "manifest.json").write_text("")
    (copy("norecipe") / "recipe.yaml").unlink()
    (copy("badrecipe") / "recipe.yaml").write_text("name: x\nstudent: {size: S}\nbits: 3\n")
    (copy("cutstudent") / "quantized.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{")
    (copy("emptystudent") / "quantized.safetensors").write_bytes(b"")
    (copy("nostudent") / "quantized.safetensors").unlink()
    (copy("nodistilled", "half") / "distilled.safetensors").unlink()
    (copy("cutdistilled", "half") / "distilled.safetensors").write_bytes(b"{")
    (copy("badmetrics") / "metrics.csv").write_text("epoch,oss\n1,2\n")
    respoil(copy("oldstudent") / "quantized.safetensors", format_version="0")
    respoil(copy("otherfile") / "quantized.safetensors", format="a model")
    respoil(copy("badbits") / "quantized.safetensors", weight_bits="[9,9]")
    respoil(copy("badshape") / "quantized.safetensors", architecture="{}")
    respoil(copy("olddistilled", "half") / "distilled.safetensors", format_version="0")
    file = copy("nanstudent", "half") / "distilled.safetensors"
    respoil(file, lambda t: next(iter(t.values())).fill_(float("nan")))
    checkpoint = copy("badcheckpoint", "half") / "checkpoint" / "state.safetensors"
    checkpoint.write_bytes(b"junk")
    copy("busy", "half")


def respoil(file: Path, change: Callable[[Tensors], Any] | None = None, **metadata: str) -> None:
    """Write a student's file anew with other tensors or metadata."""
    known, tensors = read_tensors(file)
    if change is not None:
        change(tensors)
    write_safetensors(file, tensors, known | metadata)


def make_device_records(folder: Path) -> None:
    """List files that `qpd analyze fps` should refuse."""
    (folder / "empty.json").write_text("")
    (folder / "junk.json").write_text("{")
    (folder / "list.json").write_text("[1]")
    (folder / "other.json").write_text('{"a": 1}')
    (folder / "oldschema.json").write_text('{"format": "qpd-device", "schema_version": 0}')
    (folder / "norows.json").write_text('{"format": "qpd-device", "schema_version": 1}')
    (folder / "latin.json").write_bytes(b"\xff\xfe\xe9")
