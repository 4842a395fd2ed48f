"""Hub ids through huggingface_hub's own client, against a small server on loopback."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from stable_baselines3 import A2C

from qpd.teachers.sources.hub import is_hub_id

REPOSITORY = Path(__file__).parents[3]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = """
import json, sys, torch
torch.set_num_threads(1)
from qpd.teachers import TeacherError, load_teacher
try:
    t = load_teacher(sys.argv[1])
    v = t(torch.ones(1, *t.observation_shape)).values.item()
    num_actions, is_normalized = t.actions.num_outputs, t.normalization is not None
    print(json.dumps([t.algo, t.env_id, num_actions, t.source, is_normalized, v]))
except TeacherError as error:
    print(json.dumps({"error": str(error)}))
"""


class FakeHub(http.server.ThreadingHTTPServer):
    """Serves `files` ("org/name/file" -> bytes) the way the hub's resolve addresses do."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeHubHandler)
        self.files: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}  # what it says of a file's size, where that is a lie
        self.requests: list[str] = []


class FakeHubHandler(http.server.BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self) -> None:  # noqa: N802 (http.server's name)
        self.answer(with_body=False)

    def do_GET(self) -> None:  # noqa: N802 (http.server's name)
        self.answer(with_body=True)

    def answer(self, with_body: bool) -> None:
        path = self.path.lstrip("/").split("?")[0]
        self.server.requests.append(f"{self.command} {path}")
        repo, _, filename = path.partition("/resolve/main/")
        repo, _, filename = (repo, _, filename) if _ else path.partition(f"/resolve/{COMMIT}/")
        content = self.server.files.get(f"{repo}/{filename}")
        known = any(name.startswith(f"{repo}/") for name in self.server.files)
        self.send_response(200 if content is not None else 404)
        if known:
            self.send_header("X-Repo-Commit", COMMIT)
        if content is None:
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
            self.send_header("X-Error-Message", "not found")
        body = content or b""
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("Content-Length", str(self.server.sizes.get(filename, len(body))))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the test's output clean."""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def agent_zip(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "a2c-CartPole-v1.zip"
    A2C("MlpPolicy", "CartPole-v1", device="cpu", seed=0).save(path)
    return path


def load_in_new_process(source: str, home: Path, endpoint: str, **environment: str):
    """HF_ENDPOINT is read when huggingface_hub is imported: hence a process of its own."""
    variables = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    variables |= {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "PYTHONPATH": str(REPOSITORY)}
    variables |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, source],
        env=variables, cwd=home, capture_output=True, text=True, timeout=40,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "cannot ask the hub" not in done.stderr  # the cache knows which files do not exist
    return json.loads(done.stdout)


def endpoint_of(hub: FakeHub) -> str:
    return f"http://127.0.0.1:{hub.server_address[1]}"


def unpacked(agent_zip: Path, prefix: str) -> dict[str, bytes]:
    with zipfile.ZipFile(agent_zip) as archive:
        return {f"{prefix}/{name}": archive.read(name) for name in archive.namelist()}


@pytest.mark.slow
def test_unpacked_tensors_are_fetched_alone_and_cached(hub, agent_zip, tmp_path):
    hub.files = unpacked(agent_zip, "sb3/a2c-CartPole-v1/a2c-CartPole-v1")
    hub.files["sb3/a2c-CartPole-v1/a2c-CartPole-v1.zip"] = agent_zip.read_bytes()
    hub.files["sb3/a2c-CartPole-v1/args.yml"] = b"algo: a2c\nenv: CartPole-v1\n"
    online = load_in_new_process("sb3/a2c-CartPole-v1", tmp_path, endpoint_of(hub))
    assert online[:5] == ["a2c", "CartPole-v1", 2, "sb3/a2c-CartPole-v1", False]
    fetched = [request for request in hub.requests if request.startswith("GET")]
    assert sorted(request.split("/main/")[-1].split(f"/{COMMIT}/")[-1] for request in fetched) == [
        "a2c-CartPole-v1/data", "a2c-CartPole-v1/policy.pth", "args.yml"]  # fmt: skip
    # a second time without any hub: from the cache, knowing which files do not exist
    for settings in ({"HF_HUB_OFFLINE": "1"}, {}):
        again = load_in_new_process(
            "sb3/a2c-CartPole-v1", tmp_path, "http://127.0.0.1:9", **settings
        )
        assert again == online


@pytest.mark.slow
def test_zip_alone_with_normalization(hub, agent_zip, tmp_path):
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    normalizer = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
    normalizer.reset()
    normalizer.save(str(tmp_path / "n.pkl"))
    hub.files = {
        "me/a2c-CartPole-v1/a2c-CartPole-v1.zip": agent_zip.read_bytes(),
        "me/a2c-CartPole-v1/vec_normalize.pkl": (tmp_path / "n.pkl").read_bytes(),
    }
    online = load_in_new_process("me/a2c-CartPole-v1", tmp_path, endpoint_of(hub))
    assert online[:5] == ["a2c", "CartPole-v1", 2, "me/a2c-CartPole-v1", True]
    offline = load_in_new_process("me/a2c-CartPole-v1", tmp_path, "http://127.0.0.1:9")
    assert offline == online


@pytest.mark.slow
def test_what_the_hub_does_not_have(hub, agent_zip, tmp_path):
    hub.files = {"me/a2c-CartPole-v1/README.md": b"no agent here"}
    answer = load_in_new_process("me/a2c-CartPole-v1", tmp_path, endpoint_of(hub))
    assert "neither a2c-CartPole-v1.zip nor" in answer["error"]
    answer = load_in_new_process("nobody/ppo-Nothing-v0", tmp_path, endpoint_of(hub))
    assert "no such repository on the hub" in answer["error"]
    assert "\n" not in answer["error"]


@pytest.mark.slow
def test_what_would_fill_the_disk_is_not_fetched(hub, agent_zip, tmp_path):
    name = "a2c-CartPole-v1.zip"
    hub.files, hub.sizes = {f"me/a2c-CartPole-v1/{name}": agent_zip.read_bytes()}, {name: 1 << 40}
    answer = load_in_new_process("me/a2c-CartPole-v1", tmp_path, endpoint_of(hub))
    assert answer["error"].endswith(f"{name} has {1 << 40} bytes; at most {1 << 30} are fetched")
    assert not any(request.startswith("GET") and name in request for request in hub.requests)


@pytest.mark.parametrize("settings", [{}, {"HF_HUB_OFFLINE": "1"}])
def test_offline_says_what_to_download(tmp_path, settings):
    answer = load_in_new_process(
        "sb3/dqn-BreakoutNoFrameskip-v4", tmp_path, "http://127.0.0.1:9", **settings
    )
    error = answer["error"]
    assert "the hub cannot be reached" in error and "\n" not in error
    assert (
        "https://huggingface.co/sb3/dqn-BreakoutNoFrameskip-v4/resolve/main/"
        "dqn-BreakoutNoFrameskip-v4.zip" in error
    )
    assert "--teacher dqn-BreakoutNoFrameskip-v4.zip" in error


def test_hub_ids():
    assert is_hub_id("sb3/ppo-BreakoutNoFrameskip-v4")
    for source in ("ppo", "a/b/c", "./a", "../a", "/a", "a/", "~/a", "dir/agent.zip", "a b/c"):
        assert not is_hub_id(source)
