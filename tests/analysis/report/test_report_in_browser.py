"""The page of `qpd report` in a real browser: its player shows what was filmed, and obeys."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qpd.analysis.report.html_page import render_page, report_sections
from qpd.analysis.report.inputs import read_inputs
from tests.analysis.report.decoded_film import decode_frames

RUN = Path(__file__).parents[3] / "runs-reference" / "quickstart"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update"
).split()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="no chromium or chromedriver"),
]

# Uses the player as a reader would; the notes it takes come back.
READER = """
const done = arguments[0];
const wait = (milliseconds) => new Promise((ready) => setTimeout(ready, milliseconds));
const find = (name) => document.querySelector(name);
const all = (name) => [...document.querySelectorAll(name)];
const sums = () => all("canvas").map((canvas) => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const sum = [0, 0, 0, 0];
  data.forEach((value, i) => { sum[i % 4] += value; });
  return sum;
});
const state = () => ({
  play: find(".play").textContent, seek: Number(find(".seek").value), sums: sums(),
  scores: all(".score").map((score) => score.textContent),
  percents: all(".percent").map((percent) => percent.textContent),
  widths: all(".bar").map((bar) => bar.style.width),
  marks: all(".mark").map((mark) => mark.hidden ? null : mark.style.left),
  moment: find(".moment").textContent,
});
(async () => {
  while (find(".play").disabled) await wait(20);
  const notes = { begin: state(), width: document.documentElement.scrollWidth };
  find(".on").click(); notes.on = state();
  find(".back").click(); find(".back").click(); notes.back = state();
  find(".seek").value = 0; find(".seek").dispatchEvent(new Event("input")); notes.first = state();
  find(".play").click(); const began = performance.now();
  while (find(".seek").value < 6) await wait(5);
  notes.seconds = (performance.now() - began) / 1000; notes.playing = state();
  find(".play").click(); const paused = find(".seek").value; await wait(300);
  notes.stays = paused === find(".seek").value && find(".play").textContent === "Play";
  find(".play").click();
  while (find(".play").textContent === "Pause") await wait(20);
  notes.end = state();
  find(".play").click(); notes.again = state();
  return notes;
})().then(done, (error) => done(String(error)));
"""


class Browser:
    """As much of the WebDriver protocol as is needed here."""

    def __init__(self, address: str, width: int, profile: Path) -> None:
        self.address = address
        options = {
            "binary": CHROMIUM,
            "args": [*FLAGS, f"--user-data-dir={profile}"],
            "mobileEmulation": {"deviceMetrics": {"width": width, "height": 844, "pixelRatio": 1}},
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self.ask("/session", {"capabilities": {"alwaysMatch": wanted}})
        self.address += f"/session/{session['sessionId']}"

    def ask(self, path: str, content: dict[str, Any], method: str = "POST") -> Any:
        data = json.dumps(content).encode()
        request = urllib.request.Request(self.address + path, data, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.ask("/se/log", {"type": "browser"})]


@contextmanager
def browser(width: int, profile: Path) -> Iterator[Browser]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(DRIVER), f"--port={port}", "--silent"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        try:
            for _ in range(200):
                try:
                    opened = Browser(f"http://127.0.0.1:{port}", width, profile)
                    break
                except urllib.error.URLError:
                    time.sleep(0.1)
            yield opened
            opened.ask("", {}, "DELETE")
        finally:
            driver.terminate()


@pytest.fixture(scope="module")
def page() -> str:
    inputs = read_inputs(RUN, [], 2.0, 0, lambda text: None)
    return render_page(inputs, report_sections(inputs))


def test_the_player(page: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page)
    with browser(1280, tmp_path / "profile") as window:
        window.ask("/url", {"url": path.as_uri()})
        notes = window.ask("/execute/async", {"script": READER, "args": []})
        assert isinstance(notes, dict), notes
        assert not [line for line in window.console() if "willReadFrequently" not in line]
    data = re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    games = json.loads(data.group(1))["games"]
    films = [decode_frames(game["film"]) for game in games]
    for state in (notes["begin"], notes["on"], notes["first"], notes["playing"], notes["end"]):
        at = state["seek"]
        wanted = [[*film[at].sum(axis=(0, 1)).tolist(), 255 * 160 * 210] for film in films]
        assert state["sums"] == wanted, at
        assert state["scores"] == [f"score {game['scores'][at]}" for game in games]
        own = [share for game in games for share in game["own"][at] or [None] * 4]
        others = [share for game in games for share in game["others"][at] or [None] * 4]
        as_text = ["–" if share is None else f"{int(share / 10 + 0.5)}%" for share in own]
        assert state["percents"] == as_text
        assert state["widths"] == ["0px" if s is None else f"{s / 10:g}%" for s in own]
        assert state["marks"] == [None if s is None else f"{s / 10:g}%" for s in others]
    assert [notes[name]["seek"] for name in ("begin", "on", "back", "first")] == [15, 16, 14, 0]
    assert "wrapper presses FIRE" in notes["first"]["moment"]
    # 15 pictures a second: the sixth comes after 0.4 seconds, later on a busy machine.
    assert notes["playing"]["play"] == "Pause" and 0.35 < notes["seconds"] < 5
    assert notes["stays"]
    assert (notes["end"]["seek"], notes["end"]["play"]) == (30, "Play")
    assert notes["end"]["moment"] == "end of the film"
    assert (notes["again"]["seek"], notes["again"]["play"]) == (0, "Pause")


def test_nothing_sticks_out_on_a_phone(page: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page)
    measure = "return [document.documentElement.scrollWidth, innerWidth]"
    with browser(390, tmp_path / "profile") as window:
        window.ask("/url", {"url": path.as_uri()})
        assert window.ask("/execute/sync", {"script": measure, "args": []}) == [390, 390]


def test_a_foreign_script_is_refused(page: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", "<script>document.title = 'foreign'</script></body>"))
    with browser(1280, tmp_path / "profile") as window:
        window.ask("/url", {"url": path.as_uri()})
        title = window.ask("/execute/sync", {"script": "return document.title", "args": []})
        assert title == "quickstart: QPD report"
        assert any("Content Security Policy" in line for line in window.console())
