"""Report section: the student's game beside the teacher's, with what both would do."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpd.analysis.figure_style import COLOURS
from qpd.analysis.report import blocks
from qpd.analysis.report.blocks import Section, Text
from qpd.analysis.report.frame_codec import encode_frames
from qpd.analysis.report.inputs import ReportInputs
from qpd.analysis.runs.run_table import LABELS
from qpd.environments.registry import EnvironmentConfigError, action_names, environment_spec
from qpd.evaluation.filmed_game import FilmedGame, Player, film_game
from qpd.runs.target import Target, TargetError, load_target
from qpd.student_files.distilled import StudentFileError
from qpd.teachers import TeacherError

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
        targets = [load_target(str(inputs.path), inputs.student, None, "cpu")]
    except (EnvironmentConfigError, StudentFileError) as error:
        return Section(KEY, TITLE, left_out=f"Nothing was filmed: {error}.")
    about: list[blocks.Block] = []
    try:
        targets.append(load_target(str(inputs.path), "teacher", None, "cpu"))
    except (EnvironmentConfigError, TargetError, TeacherError) as error:
        about.append(Text(f"The teacher's game is missing, as it cannot be loaded: {error}."))
    players = [_player(inputs, target) for target in targets]
    try:
        data = _player_data(inputs, targets[0], players)
    except EnvironmentConfigError as error:
        why = f"Nothing was filmed: {error}; --no-video tries nothing."
        return Section(KEY, TITLE, left_out=why)
    return Section(
        KEY, TITLE, [Text(_caption(targets[0].label, players)), blocks.Player(data), *about]
    )


def _player(inputs: ReportInputs, target: Target) -> Player:
    """Make a player; the teacher samples at the student's sharpness, as the student learns it."""
    sharpness = inputs.run.recipe.student.sharpness if target.label == "teacher" else 1.0
    rule = target.policy.actions.rule(
        target.acting,
        on_atari=environment_spec(target.environment).is_atari,
        epsilon=target.epsilon,
        sharpness=sharpness,
    )
    label = "Teacher" if target.label == "teacher" else "Student"
    return Player(label, target.policy, rule)


def _player_data(inputs: ReportInputs, target: Target, players: list[Player]) -> dict[str, Any]:
    assert inputs.video_seconds is not None
    games = []
    for place, player in enumerate(players):
        inputs.note(f"filming the {'student' if place == 0 else 'teacher'}")
        # `film_game` lets the first play; the page wants each one's own game.
        order = [player, *(other for other in players if other is not player)]
        game = film_game(
            order, target.environment, target.seed, inputs.video_seconds, target.max_frames
        )
        games.append(_game_data(game, order, place))
    actions = action_names(target.env_id) or [
        f"action {i}" for i in range(target.policy.actions.num_outputs)
    ]
    # One clock drives both games, so the rate belongs to the player and not to a game.
    rate = games[0].pop("rate")
    for game_data in games[1:]:
        game_data.pop("rate")
    return {"actions": actions, "rate": rate, "games": games}


def _game_data(game: FilmedGame, players: list[Player], place: int) -> dict[str, Any]:
    """Return plain data; probabilities in thousandths, null where nobody was asked."""
    # Whole thousandths keep the JSON short.
    asked = [
        [None if np.isnan(row).any() else (1000 * row).round().astype(int).tolist() for row in rows]
        for rows in game.probabilities
    ]
    scores = [
        int(score) if score == int(score) else round(score, 1) for score in game.scores.tolist()
    ]
    return {
        "label": players[0].label,
        "other": players[1].label if len(players) > 1 else None,
        "colour": COLOURS[place],
        "otherColour": COLOURS[1 - place],
        "own": asked[0],
        "others": asked[1] if len(players) > 1 else None,
        "taken": game.buttons.tolist(),
        "scores": scores,
        "ended": game.ended,
        "rate": game.frames_per_second,
        "film": encode_frames(game.frames),
    }


def _caption(student: str, players: list[Player]) -> str:
    text = f"Bars: the probability of each action (student: {LABELS[student]}, {players[0].rule}"
    if len(players) > 1:
        text += (
            f"; teacher: {players[1].rule}). The mark on a bar is what the other agent would do on "
            "the same observation. Both games have the same seed"
        )
    else:
        text += ")"
    return text + ". Played for this page; the returns below are those of the evaluation."
