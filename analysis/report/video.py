"""Report section: the student's game beside the teacher's, with what both would do."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpd.actions import ActionSpace, Box, MultiBinary, MultiDiscrete
from qpd.analysis.figure_style import COLOURS
from qpd.analysis.networks.action_labels import action_labels, action_parts
from qpd.analysis.networks.run_players import RunPlayers, run_players
from qpd.analysis.report import blocks
from qpd.analysis.report.blocks import Section, Text
from qpd.analysis.report.fitted_film import fitted_film
from qpd.analysis.report.inputs import ReportInputs
from qpd.analysis.runs.run_table import LABELS
from qpd.environments.registry import EnvironmentConfigError
from qpd.evaluation.decisions import Player
from qpd.evaluation.filmed_game import FilmedGame, film_game
from qpd.runs.target import TargetError
from qpd.student_files.distilled import StudentFileError

KEY, TITLE = "video", "Games side by side"


def video_section(inputs: ReportInputs) -> Section | None:
    """Film both games for one player; if the teacher cannot be loaded, a sentence says why.

    Returns None if no film is wanted.
    """
    # Not wanted: the section is left out. Anything that fails below leaves a sentence instead.
    if inputs.video_seconds is None:
        return None
    if inputs.student is None:
        return Section(KEY, TITLE, left_out="There is no student yet, so nothing was filmed.")
    try:
        both = run_players(inputs.path, inputs.student)
    except (EnvironmentConfigError, StudentFileError, TargetError) as error:
        return Section(KEY, TITLE, left_out=f"Nothing was filmed: {error}.")
    about: list[blocks.Block] = []
    if both.missing is not None:
        about.append(
            Text(f"The teacher's game is missing, as it cannot be loaded: {both.missing}.")
        )
    try:
        data = _player_data(inputs, both)
    except EnvironmentConfigError as error:
        why = f"Nothing was filmed: {error}; --no-video tries nothing."
        return Section(KEY, TITLE, left_out=why)
    caption = _caption(both.target.label, both.players)
    return Section(KEY, TITLE, [Text(caption), blocks.Player(data), *about])


def _player_data(inputs: ReportInputs, both: RunPlayers) -> dict[str, Any]:
    assert inputs.video_seconds is not None
    target, games = both.target, []
    for place, player in enumerate(both.players):
        inputs.note(f"filming the {'student' if place == 0 else 'teacher'}")
        # `film_game` lets the first play; the page wants each one's own game.
        order = [player, *(other for other in both.players if other is not player)]
        game = film_game(
            order, target.environment, target.seed, inputs.video_seconds, target.max_frames
        )
        games.append(_game_data(game, order, place))
    # One clock drives both games, so the rate belongs to the player and not to a game.
    rate = games[0].pop("rate")
    for game_data in games[1:]:
        game_data.pop("rate")
    parts = [
        {"title": part.title, "actions": list(part.names)}
        for part in action_parts(target.policy.actions, target.env_id)
    ]
    return {
        "actions": action_labels(target.policy.actions, target.env_id),
        "parts": parts,
        "ranges": _ranges(target.policy.actions),
        "rate": rate,
        "games": games,
    }


def _ranges(actions: ActionSpace) -> list[list[float]] | None:
    """Return low and high of each continuous action; None for choices."""
    if not isinstance(actions, Box):
        return None
    return [
        [float(f"{end:.6g}") for end in ends]
        for ends in zip(actions.low, actions.high, strict=True)
    ]


def _game_data(game: FilmedGame, players: list[Player], place: int) -> dict[str, Any]:
    """Return plain data; decisions in thousandths, null where nobody was asked.

    Thousandths are of 1 for probabilities, and of the range for continuous actions.
    """
    actions = players[0].policy.actions
    shares = game.decisions
    if isinstance(actions, Box):
        low, high = np.array(actions.low), np.array(actions.high)
        shares = (shares - low) / (high - low)
    # Whole thousandths keep the JSON short.
    asked = [
        [None if np.isnan(row).any() else (1000 * row).round().astype(int).tolist() for row in rows]
        for rows in shares
    ]
    scores = [
        int(score) if score == int(score) else round(score, 1) for score in game.scores.tolist()
    ]
    film, stride = fitted_film(game)
    return {
        "label": players[0].label,
        "other": players[1].label if len(players) > 1 else None,
        "colour": COLOURS[place],
        "otherColour": COLOURS[1 - place],
        "own": asked[0],
        "others": asked[1] if len(players) > 1 else None,
        "taken": _taken_rows(actions, game.taken),
        "scores": scores,
        "ended": game.ended,
        "rate": game.steps_per_second,
        "stride": stride,
        "film": film,
    }


def _taken_rows(actions: ActionSpace, taken: np.ndarray) -> list[list[int]]:
    """Return the rows of the bars that each step's action is: none for continuous actions."""
    if isinstance(actions, Box):
        return [[] for _ in taken]
    if isinstance(actions, MultiBinary):
        return [np.flatnonzero(switches).tolist() for switches in taken]
    if isinstance(actions, MultiDiscrete):
        firsts = np.cumsum([0, *actions.nvec[:-1]])
        return [(firsts + chosen).tolist() for chosen in taken]
    return [[int(action)] for action in taken]


def _caption(student: str, players: list[Player]) -> str:
    first = players[0]
    actions = first.policy.actions
    own = f"student: {LABELS[student]}, {first.rule}"
    if len(players) > 1:
        own += f"; teacher: {players[1].rule}"
    if isinstance(actions, Box):
        text = f"Lines: each action over time, from its lower bound to its upper one ({own})"
        mark = "The dashed line is what the other agent would do on the same observations"
    else:
        of = "each switch being on" if isinstance(actions, MultiBinary) else "each action"
        text = f"Bars: the probability of {of} ({own})"
        mark = "The mark on a bar is what the other agent would do on the same observation"
    if len(players) > 1:
        text += f". {mark}. Both games have the same seed"
    return text + ". Played for this page; the returns below are those of the evaluation."
