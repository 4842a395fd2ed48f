"""`qpd report`: one page, complete, that loads nothing and believes nothing a run says."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import command_line
from tests.analysis.report.decoded_film import decode_frames

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

torch.set_num_threads(1)
RUNS = Path(__file__).parents[3] / "runs-reference"
DEVICE = RUNS / "devices" / "epyc-zen4-2-cores.json"
PENDING = {name: {"state": "pending"} for name in ("distill", "quantize", "finetune", "evaluate")}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}$a_b$"


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `qpd report arguments`, without the map unless asked for."""
    return command_line.call(
        capsys, "report", *arguments, *([] if "--umap" in arguments else ["--no-umap"])
    )


class Page(HTMLParser):
    """Tags with their attributes, and the texts between them (scripts and styles apart)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.raw: list[tuple[str, str]] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside in ("script", "style"):
            self.raw.append((self.inside, data))
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def attributes(self, *names: str) -> list[str]:
        return [a[name] or "" for _, a in self.tags for name in names if name in a]

    def player_data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            next(d for t, d in self.raw if d.startswith('{"actions"'))
        )
        return found


def changed_copy(source: Path, target: Path, manifest: dict[str, Any], teacher: str = "") -> Path:
    """A copy of a reference run with other entries in its manifest, and another teacher."""
    shutil.copytree(source, target)
    file = target / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | manifest))
    if teacher:
        recipe = target / "recipe.yaml"
        text = re.sub(
            r"(?m)^  source: .*$", lambda _: "  source: " + json.dumps(teacher), recipe.read_text()
        )
        recipe.write_text(text)
    return target


def assert_loads_nothing(page: Page) -> None:
    """Whatever the browser would fetch is in the page itself."""
    for value in page.attributes("src", "srcset", "data", "poster", "action", "background"):
        assert value.startswith("data:"), value
    for value in page.attributes("href"):
        assert value.startswith(("#", "data:")), value
    assert "script" not in [t for t, a in page.tags if t == "script" and "src" in a]
    for kind, content in page.raw:
        assert "@import" not in content and "url(" not in content, kind
        assert not re.search(r"https?://|fetch\(|XMLHttpRequest|WebSocket", content), kind
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv"))
    assert policy is not None and "default-src 'none'; img-src data:" in policy


def test_one_complete_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUNS / "quickstart", run)
    arguments = (run, "--devices", DEVICE, "--video-seconds", 2, "--json")
    code, out, _ = call(capsys, *arguments)
    listing = json.loads(out)
    file = run / "report" / "index.html"
    content = file.read_bytes()
    assert code == 0 and listing["file"] == str(file) and listing["bytes"] == len(content)
    assert len(content) < 1_000_000 and listing["left_out"] == {}
    page = Page(content.decode())
    assert_loads_nothing(page)
    sections = [a["id"] for tag, a in page.tags if tag == "section"]
    assert listing["sections"] == sections
    wanted = ["summary", "video", "returns", "training", "sizes", "latency", "recipe"]
    assert set(wanted) <= set(sections)
    for text in ("370.7 [349.0, 388.1]", "47.1x", "179x", "134,030", "quickstart", "lr: 0.004"):
        assert text in page.text, text
    assert dict(page.tags[0][1]) == {"lang": "en"} or ("html", {"lang": "en"}) in page.tags
    pictures = [a for tag, a in page.tags if tag == "img"]
    assert len(pictures) == 6 and all(len(a["alt"] or "") > 20 for a in pictures)
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    games = page.player_data()["games"]
    assert [game["label"] for game in games] == ["Student", "Teacher"]
    for game in games:
        assert decode_frames(game["film"]).shape == (31, 210, 160, 3)
        assert len(game["own"]) == len(game["others"]) == 31 and len(game["taken"]) == 30
        told = np.array([row for row in game["own"] if row is not None])
        assert np.allclose(told.sum(axis=1), 1000, atol=2)
    assert games[0]["own"] != games[0]["others"]
    call(capsys, *arguments)
    assert file.read_bytes() == content  # the same run is the same page


def test_hostile_names_stay_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    teacher = json.loads((RUNS / "quickstart/manifest.json").read_text())["teacher"]
    changes = {"platform": HOSTILE, "teacher": teacher | {"source": HOSTILE}}
    run = changed_copy(RUNS / "quickstart", tmp_path / "a'<b>$x_1$", changes, teacher=HOSTILE)
    device = json.loads(DEVICE.read_text())
    device["device"] = device["rows"][0]["kernels"] = HOSTILE
    (tmp_path / "d.json").write_text(json.dumps(device))
    code, _, err = call(capsys, run, "--devices", "d.json", "--video-seconds", 1, "-o", "x.html")
    assert code == 0, err
    text = Path("x.html").read_text()
    page = Page(text)
    assert_loads_nothing(page)
    assert "<script>alert" not in text and "<img src=x" not in text
    assert [tag for tag, _ in page.tags].count("script") == 2  # the games' data, and the player
    assert page.text.count(HOSTILE) >= 4  # teacher, platform, device, recipe
    assert "The teacher's game is missing" in page.text
    assert [game["label"] for game in page.player_data()["games"]] == ["Student"]


def test_a_game_outside_atari_without_its_teacher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pygame")
    run = changed_copy(RUNS / "classic-ppo-cartpole", tmp_path / "run", {}, teacher="gone.zip")
    code, out, err = call(capsys, run, "--video-seconds", 1, "-o", "x.html")
    assert code == 0, err
    page = Page(Path("x.html").read_text())
    assert "no longer found at gone.zip" in page.text
    data = page.player_data()
    assert data["actions"] == ["action 0", "action 1"]
    assert len(data["games"][0]["taken"]) == 50  # CartPole shows 50 pictures a second


def test_no_video(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, RUNS / "breakout-ppo-xxs", "--no-video", "-o", "x.html")
    assert code == 0, err
    assert "Latency: No device was measured" in out
    text = Path("x.html").read_text()
    assert "<canvas" not in text and "Games side by side" not in text


def test_a_run_without_a_student(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = changed_copy(
        RUNS / "quickstart", tmp_path / "run", {"phases": PENDING, "evaluations": {}}
    )
    for file in [*run.glob("*.safetensors"), run / "metrics.csv"]:
        file.unlink()
    code, out, err = call(capsys, run, "-o", "x.html", "--json")
    assert code == 0, err
    assert set(json.loads(out)["left_out"]) == {"video", "returns", "training", "sizes", "latency"}
    assert "there is no student yet" in Page(Path("x.html").read_text()).text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent"], "absent: is not a run directory"),
        ([RUNS / "quickstart", "-o", "x.txt"], "-o x.txt: a report is an .html file"),
        ([RUNS / "quickstart", "-o", "no/x.html"], "-o no/x.html: there is no folder no"),
        ([RUNS / "quickstart", "--devices", "no.json", "-o", "x.html"], "no.json: No such file"),
        ([RUNS / "quickstart", "--video-seconds", "0", "-o", "x.html"], "--video-seconds"),
        (["begun", "-o", "x.html"], "begun: this run has not begun"),
        (["damaged", "-o", "x.html"], "damaged/quantized.safetensors: "),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str | Path], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed_copy(RUNS / "quickstart", tmp_path / "begun", {"teacher": None})
    damaged = changed_copy(RUNS / "breakout-ppo-xxs", tmp_path / "damaged", {})
    (damaged / "quantized.safetensors").write_bytes(b"\xff" * 100)
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, ""), err
    lines = err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and said in lines[0]
    assert not list(tmp_path.rglob("*.html"))


def test_the_map_shows_the_states_by_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qpd.commands.report.MAP_STATES", 500)
    run = RUNS / "classic-ppo-lunarlander"
    code, out, _ = call(capsys, run, "-o", "lander.html", "--no-video", "--umap", "--json")
    assert code == 0 and "features" in json.loads(out)["left_out"]  # its teacher is not shipped
    code, out, _ = call(capsys, RUNS / "quickstart", "-o", "page.html", "--no-video", "--umap")
    assert code == 0
    page = Page(Path("page.html").read_text(encoding="utf-8"))
    assert "What the student tells apart" in page.text
    share = re.search(r"(\d+)% of a state's nearest neighbours", page.text)
    assert share is not None and int(share.group(1)) > 45  # it was trained on these values
