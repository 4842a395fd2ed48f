"""A student in words, for the README, the headers and the library of the C export."""

from __future__ import annotations

from qpd.actions import Discrete
from qpd.environments.feature_names import feature_names, part_names
from qpd.environments.registry import action_names
from qpd.errors.terminal_text import printable
from qpd.export.bundle import ExportSource
from qpd.export.c.geometry import is_own_image
from qpd.student_files.origin import imitates_policy, teacher_algo


def agent(source: ExportSource) -> str:
    """Return what was imitated, on one line: `PPO on CartPole-v1`, or `a policy` if unknown."""
    algo = teacher_algo(source.about)
    label = {None: "a policy", "qrdqn": "QR-DQN"}.get(algo, str(algo).upper())
    env_id = source.about.get("env_id")
    return _line(f"{label} on {env_id}" if env_id else label)


def inputs(source: ExportSource) -> str:
    """Return `4 frames of 84x84`, `an image of 3x64x64 and 5 features`, or either of these."""
    architecture = source.student.architecture
    number = architecture.num_features
    named = f"{number} feature{'s' * (number > 1)}"
    if is_own_image(source.student):
        image = f"an image of {'x'.join(map(str, architecture.image_shape or ()))}"
        return f"{image} and {named}" if architecture.joins_features else image
    if architecture.is_image:
        return "{} frames of {}x{}".format(*architecture.observation_shape)
    return named


def actions(source: ExportSource) -> str:
    """Return `4 actions (0 NOOP, 1 FIRE, ...)`, or `2 actions (0 to 1)` if they have no names.

    Of other kinds it is what the space says, such as `6 continuous actions (-1 to 1)`.
    """
    if not isinstance(source.student.actions, Discrete):
        return str(source.student.actions)
    number = source.student.architecture.num_outputs
    names = action_names(str(source.about.get("env_id", "")))
    if names is not None and len(names) == number:
        which = ", ".join(f"{i} {name}" for i, name in enumerate(names))
    else:
        which = f"0 to {number - 1}" if number > 1 else "0"
    return f"{number} action{'s' * (number > 1)} ({which})"


def features(source: ExportSource) -> tuple[str, ...] | None:
    """Return what each feature is; None for frames, and for environments that are not known."""
    names = part_names(source.about.get("features"))
    names = names or feature_names(str(source.about.get("env_id", "")))
    is_all = names is not None and source.student.architecture.num_features == len(names)
    return names if is_all else None


def program_sources(source: ExportSource) -> list[str]:
    """Return the C files that a program with this student compiles.

    The last makes observations, which own images are already.
    """
    names = ["qpd_network.c"]
    names += ["qpd_sample.c"] * can_sample(source)
    names += ["qpd_actions.c"] * (not isinstance(source.student.actions, Discrete))
    architecture = source.student.architecture
    names += ["qpd_preprocess.c"] * bool(architecture.stacks_frames)
    return names + ["qpd_encode.c"] * (not architecture.is_image)


def can_sample(source: ExportSource) -> bool:
    """Return whether actions can be drawn from the softmax: one choice, and a policy's logits.

    Q-learners act by the argmax.
    """
    actions = source.student.actions
    is_choice = isinstance(actions, Discrete) and not actions.has_values
    return is_choice and imitates_policy(source.about)


def _line(text: str) -> str:
    return printable(" ".join(text.split()))
