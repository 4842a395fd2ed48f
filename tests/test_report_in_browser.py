"""The page of `qpd report` in a real browser: its player shows what was filmed, and obeys."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from analysis.report.frame_codec import decode_frames
from analysis.report.html_page import render_page, report_sections
from analysis.report.inputs import read_inputs

RUN = Path(__file__).parents[1] / "runs-reference" / "quickstart"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --window-size=1280,900"
).split()

# Added to a copy of the page: uses the player as a reader would, and leaves notes in the title.
READER = """
const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const find = (name) => document.querySelector(name);
const sums = () => [...document.querySelectorAll("canvas")].map((canvas) => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return [0, 1, 2, 3].map((part) => data.filter((_, i) => i % 4 === part).reduce((a, b) => a + b));
});
const state = () => ({
  play: find(".play").textContent, seek: Number(find(".seek").value), sums: sums(),
  scores: [...document.querySelectorAll(".score")].map((score) => score.textContent),
  percents: [...document.querySelectorAll(".percent")].map((percent) => percent.textContent),
  moment: find(".moment").textContent,
});
(async () => {
  while (find(".play").disabled) await wait(20);
  const notes = { begin: state(), width: document.documentElement.scrollWidth };
  find(".on").click(); notes.on = state();
  find(".back").click(); find(".back").click(); notes.back = state();
  find(".seek").value = 0; find(".seek").dispatchEvent(new Event("input")); notes.first = state();
  find(".play").click();
  while (Number(find(".seek").value) < 5) await wait(20);
  notes.playing = state();
  find(".play").click(); const paused = state(); await wait(300);
  notes.paused = [paused.seek, state().seek, state().play];
  find(".play").click();
  while (find(".play").textContent === "Pause") await wait(20);
  notes.end = state();
  find(".play").click(); notes.again = state();
  document.title = JSON.stringify(notes);
})();
"""


def browse(path: Path, profile: Path, *flags: str) -> tuple[str, str]:
    """The page's elements after 20 seconds of its own time, and what its console said."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--virtual-time-budget=20000"]
    command += ["--enable-logging=stderr", "--dump-dom", *flags, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, "\n".join(said)


def player_data(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_the_player_in_chromium(tmp_path: Path) -> None:
    inputs = read_inputs(RUN, [], 2.0, lambda text: None)
    page = render_page(inputs, report_sections(inputs))
    original, path = tmp_path / "original.html", tmp_path / "page.html"
    original.write_text(page)
    shown, said = browse(original, tmp_path / "profile")
    assert said == "" and "1.0 / 2.0 s" in shown

    # A reader's script is foreign: the page's own policy would refuse it.
    path.write_text(page.replace("</body>", f"<script>{READER}</script></body>"))
    _, said = browse(path, tmp_path / "profile")
    assert "Content Security Policy" in said
    open_page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    path.write_text(open_page.replace("</body>", f"<script>{READER}</script></body>"))
    shown, said = browse(path, tmp_path / "profile")
    assert "Uncaught" not in said
    title = re.search(r"<title>(.*?)</title>", shown, re.DOTALL)
    assert title is not None
    notes = json.loads(html.unescape(title.group(1)))

    games = player_data(page)["games"]
    films = [decode_frames(game["film"]) for game in games]
    for state in (notes["begin"], notes["on"], notes["first"], notes["playing"], notes["end"]):
        at = state["seek"]
        wanted = [[*film[at].sum(axis=(0, 1)).tolist(), 255 * 160 * 210] for film in films]
        assert state["sums"] == wanted, at
        assert state["scores"] == [f"score {game['scores'][at]}" for game in games]
        shares = [share for game in games for share in game["own"][at] or [None] * 4]
        for share, text in zip(shares, state["percents"], strict=True):
            assert text == ("–" if share is None else f"{int(share / 10 + 0.5)}%")
    assert [notes[name]["seek"] for name in ("begin", "on", "back", "first")] == [15, 16, 14, 0]
    assert "wrapper presses FIRE" in notes["first"]["moment"]
    assert notes["playing"]["play"] == "Pause" and 5 <= notes["playing"]["seek"] < 30
    before, after, button = notes["paused"]
    assert before == after and button == "Play"
    assert (notes["end"]["seek"], notes["end"]["play"]) == (30, "Play")
    assert notes["end"]["moment"] == "end of the film"
    assert notes["again"]["play"] == "Pause" and notes["again"]["seek"] == 0
    assert notes["width"] <= 1280
