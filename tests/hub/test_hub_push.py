"""`qpd push`: refusals in one line, and an upload through the hub's own client to a loopback."""

from __future__ import annotations

import base64
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from qpd.export.bundle import ExportError
from qpd.runs.run_directory import RunDirectory
from qpd.runs.run_folder import unsealed
from tests.command_line import call

ROOT = Path(__file__).parents[2]
RUN = ROOT / "runs-reference" / "classic-ppo-cartpole"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(http.server.ThreadingHTTPServer):
    """Takes repositories and commits; `status` (path's end -> status) makes it refuse."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeHubHandler)
        self.files: dict[str, bytes] = {}
        self.created: list[dict[str, object]] = []
        self.status: dict[str, int] = {}
        self.requests: list[str] = []
        self.is_private = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class FakeHubHandler(http.server.BaseHTTPRequestHandler):
    server: FakeHub

    def do_GET(self) -> None:  # noqa: N802 (http.server's name)
        self.handle_any(b"")

    def do_POST(self) -> None:  # noqa: N802 (http.server's name)
        self.handle_any(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def handle_any(self, body: bytes) -> None:
        path = self.path.split("?")[0]
        self.server.requests.append(f"{self.command} {path}")
        for end, status in self.server.status.items():
            if path.endswith(end):
                return self.answer({"error": "the hub says no"}, status)
        if path == "/api/whoami-v2":
            known = self.headers.get("Authorization") == "Bearer hf_good"
            return self.answer({"name": "me", "type": "user"}, 200 if known else 401)
        if path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            return self.answer({"url": f"{self.server.address}/me/cartpole", "id": "1"})
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if path.endswith("/preupload/main"):
            files = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for f in json.loads(body)["files"]]  # fmt: skip
            return self.answer({"files": files, "commitOid": COMMIT})
        if path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.files[line["value"]["path"]] = content
            url = f"{self.server.address}/me/cartpole/commit/{COMMIT}"
            return self.answer({"commitUrl": url, "commitOid": COMMIT, "success": True})
        if path.startswith("/api/models/me/cartpole"):
            info = {"id": "me/cartpole", "sha": COMMIT, "private": self.server.is_private}
            return self.answer(info | {"siblings": [], "tags": []})
        return self.answer({"error": f"unexpected {path}"}, 404)

    def answer(self, content: dict[str, object], status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
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


def push(
    home: Path, *arguments: str | Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`qpd push` with a home without tokens; HF_ENDPOINT is read when the client is imported."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.lower().endswith("_proxy") and not key.startswith("HF_")
    }
    variables = {"HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
    variables |= {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": "http://127.0.0.1:9"}
    return subprocess.run(
        [sys.executable, "-m", "qpd.cli", "push", *map(str, arguments)],
        env=kept | variables | environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def push_here(
    tmp_path: Path,
    in_an_empty_folder: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """The same in this process; `endpoint` and `token` are what HF_ENDPOINT and HF_TOKEN would."""
    for key in list(os.environ):
        if key.lower().endswith("_proxy") or key.startswith("HF_"):
            monkeypatch.delenv(key)
    for name in ("HF_TOKEN_PATH", "HF_STORED_TOKENS_PATH"):
        monkeypatch.setattr(constants, name, str(tmp_path / "no-tokens"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)

    def push_to(
        endpoint: str, token: str | None, *arguments: str | Path
    ) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        if token is not None:
            monkeypatch.setenv("HF_TOKEN", token)
        huggingface_hub.close_session()  # it knows the proxies that there were
        command = ["push", *map(str, arguments)]
        return subprocess.CompletedProcess(command, *call(capsys, *command))

    yield push_to
    huggingface_hub.close_session()


Push = Callable[..., subprocess.CompletedProcess[str]]


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refusal, without its code."""
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    text, bracket, _ = line.rpartition(" [Q4")
    assert bracket, line
    return text


@pytest.mark.slow
def test_an_upload_arrives_whole(hub: FakeHub, tmp_path: Path, push_here: Push) -> None:
    folder = tmp_path / "kept"
    arguments = (RUN, "me/cartpole", "--formats", "c", "--private", "--json", "-o", folder)
    done = push_here(hub.address, "hf_good", *arguments)
    assert refused(done).endswith("exists and is public; make it private on the hub, or leave "
                                  "--private")  # fmt: skip
    assert hub.files == {}
    shutil.rmtree(folder)
    hub.is_private = True
    done = push(tmp_path, *arguments, HF_ENDPOINT=hub.address, HF_TOKEN="hf_good")
    assert done.returncode == 0, done.stderr
    assert hub.created[-1]["name"] == "cartpole"
    asked = hub.created[-1]
    assert asked.get("private") is True or asked.get("visibility") == "private"
    written = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert hub.files == written and "c/qpd_network.c" in written
    report = json.loads(done.stdout)
    assert report["files"] == {name: len(content) for name, content in sorted(written.items())}
    assert report["url"].endswith("/me/cartpole")


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (None, "no token of the Hugging Face hub: `hf auth login`"),
        ("hf_good", "the hub cannot be reached (ConnectError); --dry-run -o DIR"),
    ],
)
def test_without_token_or_hub(
    tmp_path: Path, push_here: Push, token: str | None, said: str
) -> None:
    done = push_here("http://127.0.0.1:9", token, RUN, "me/cartpole", "-o", tmp_path / "out")
    assert said in refused(done)
    assert not (tmp_path / "out").exists()


def test_offline(tmp_path: Path, push_here: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    done = push_here("http://127.0.0.1:9", "hf_good", RUN, "me/cartpole", "-o", tmp_path / "out")
    assert "HF_HUB_OFFLINE is set; --dry-run" in refused(done)
    assert not (tmp_path / "out").exists()


def test_what_the_hub_refuses(hub: FakeHub, push_here: Push) -> None:
    arguments = (RUN, "me/cartpole", "--formats", "c")
    line = refused(push_here(hub.address, "hf_bad", *arguments))
    assert "the hub does not know this token" in line
    hub.status = {"/preupload/main": 403}
    line = refused(push_here(hub.address, "hf_good", *arguments))
    assert "this token may not write there: it needs write access to me" in line
    assert hub.files == {}


def test_what_is_pushed_is_a_run_and_names_no_folder_of_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    with RunDirectory.open(tmp_path / "run") as run:
        places = {
            "source": "/home/somebody/ppo-CartPole-v1",
            "vecnormalize": "/home/somebody/v.pkl",
        }
        teacher = run.recipe.teacher.model_copy(update=places)
        run.replace_recipe(run.recipe.model_copy(update={"teacher": teacher}))
    options = ("--dry-run", "--no-video", "--formats", "c", "-o", tmp_path / "hub")
    code, _, err = call(capsys, "push", tmp_path / "run", "me/x", *options)
    assert code == 0, err
    texts = [file.read_bytes() for file in (tmp_path / "hub").rglob("*") if file.is_file()]
    assert not any(b"somebody" in text for text in texts)
    assert unsealed(json.loads((tmp_path / "hub" / "manifest.json").read_text()))
    code, out, err = call(capsys, "show", tmp_path / "hub")
    assert code == 0 and "return" in out, err


def test_formats_that_cannot_be_made_are_left_out_unless_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(source: object, golden: object) -> dict[str, bytes]:
        raise ExportError("the C export has no room")

    monkeypatch.setattr("qpd.export.c.code.export_c", refuse)
    folder = tmp_path / "hub"
    options = ("--dry-run", "--no-video", "-o", folder)
    code, _, err = call(capsys, "push", RUN, "me/x", *options)
    assert code == 0 and err.splitlines()[-1] == "c: left out: the C export has no room"
    card = (folder / "README.md").read_text()
    assert not (folder / "c").exists() and "| `c/` |" not in card and "### C\n" not in card
    assert (folder / "bin" / "student.bin").is_file() and "| `bin/` |" in card
    shutil.rmtree(folder)
    code, _, err = call(capsys, "push", RUN, "me/x", *options, "--formats", "c,bin")
    assert code == 2 and "the C export has no room" in err and not folder.exists()


def test_refusals_name_what_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from qpd.cli import main

    def line(*arguments: str | Path) -> str:
        with pytest.raises(SystemExit) as stop:
            main(["push", *map(str, arguments), "--dry-run"])
        assert stop.value.code == 2
        (only,) = capsys.readouterr().err.strip().splitlines()
        return only

    for bad in ("breakout", "a/b/c", "me/..x", "me/a b", "me/" + "x" * 97, "me/-x", "me/x.git"):
        assert f"{bad!r}: is not a repository name: it must be org/name" in line(RUN, bad)
    assert "is not a run directory" in line(tmp_path / "nothing", "me/x")
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("kept")
    assert f"{out}: holds files already" in line(run, "me/x", "-o", out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    assert "pt: one of c, onnx, litert, sb3, bin" in line(run, "me/x", "--formats", "c,pt")
    assert "systemverilog: one of c" in line(run, "me/x", "--formats", "c,systemverilog")
    assert "--formats ,: : one of c" in line(run, "me/x", "--formats", ",")
    manifest = json.loads((run / "manifest.json").read_text())
    broken = json.loads(json.dumps(manifest))
    broken["evaluations"]["qat"]["interval"] = "?"
    (run / "manifest.json").write_text(json.dumps(broken))
    assert "evaluations.qat: not as `qpd evaluate` writes it" in line(run, "me/x")
    del manifest["evaluations"]["qat"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    never = line(run, "me/x")
    assert never.endswith(f"was never evaluated: `qpd evaluate {run} --policy qat` [Q209]")
    (run / "quantized.safetensors").write_bytes(b"nothing")
    manifest["evaluations"]["qat"] = manifest["evaluations"]["ptq"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert "quantized.safetensors: is damaged" in line(run, "me/x")
    (run / "quantized.safetensors").unlink()
    assert f"there is no quantized student yet; `qpd quantize {run}`" in line(run, "me/x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
    assert not (run / "hub").exists()
