"""What every kind of action's divergence has in common, and its derivative."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qpd.actions import ActionSpace, Box, Discrete, MultiBinary, MultiDiscrete

torch.set_num_threads(1)

BOUNDS = ((-1.0, 0.0, -3.0), (1.0, 2.0, 3.0))
SPACES: list[ActionSpace] = [
    Discrete(4),
    Discrete(4, "q_values"),
    MultiDiscrete((2, 3, 1)),
    MultiBinary(3),
    Box(*BOUNDS),
    Box(*BOUNDS, "tanh"),
    Box(*BOUNDS, "clip", "deterministic"),
    Box(*BOUNDS, "tanh", "deterministic"),
]
KINDS = pytest.mark.parametrize("actions", SPACES, ids=repr)
REVERSE = pytest.mark.parametrize("reverse", [False, True])
SEEDS, TEMPERATURES = st.integers(0, 2**31), st.floats(0.1, 5.0)


def made_up(
    actions: ActionSpace, seed: int, scale: float = 2.0, batch: int = 6
) -> tuple[Tensor, Tensor]:
    """Labels and outputs, float64; some of them saturate."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, actions.num_labels)
    labels = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    if actions.num_labels > actions.num_outputs:  # deviations of 0.1 and so on
        labels[:, actions.num_outputs :] = labels[:, actions.num_outputs :].clamp(-2.5, 1.0)
    outputs = scale * torch.randn(
        (batch, actions.num_outputs), generator=generator, dtype=torch.float64
    )
    return labels, outputs


@KINDS
@REVERSE
@given(seed=SEEDS, temperature=TEMPERATURES)
def test_identical_policies_do_not_diverge(
    actions: ActionSpace, reverse: bool, seed: int, temperature: float
) -> None:
    labels, _ = made_up(actions, seed)
    same = labels[:, : actions.num_outputs].clone()
    folded = temperature if actions.is_tempered else 1.0
    found, slope = actions.divergence_gradient(labels, same, temperature, folded, reverse=reverse)
    assert found.abs().max() < 1e-12 and slope.abs().max() < 1e-12
    # At Eq. 1's optimum outputs are those labels over the temperature; folding gives them back.
    trained = same / temperature if actions.is_tempered else same
    assert actions.divergence(labels, trained, temperature, reverse=reverse).abs().max() < 1e-12
    torch.testing.assert_close(trained * actions.fold(temperature, 1.0), same)


@KINDS
@REVERSE
@given(seed=SEEDS, temperature=TEMPERATURES, student_temperature=TEMPERATURES)
def test_it_is_not_negative(
    actions: ActionSpace,
    reverse: bool,
    seed: int,
    temperature: float,
    student_temperature: float,
) -> None:
    labels, outputs = made_up(actions, seed)
    found = actions.divergence(labels, outputs, temperature, student_temperature, reverse=reverse)
    # Rounding of float64: saturated policies that are as good as identical come out at 1e-17.
    assert found.shape == (6,) and (found > -1e-14).all()


@KINDS
@REVERSE
@given(seed=SEEDS, temperature=TEMPERATURES, student_temperature=TEMPERATURES)
def test_the_derivative_is_autograds(
    actions: ActionSpace,
    reverse: bool,
    seed: int,
    temperature: float,
    student_temperature: float,
) -> None:
    labels, outputs = made_up(actions, seed)
    outputs.requires_grad_()
    both = (temperature, student_temperature)
    loss = actions.divergence(labels, outputs, *both, reverse=reverse)
    (expected,) = torch.autograd.grad(loss.sum(), outputs)
    with torch.no_grad():
        value, slope = actions.divergence_gradient(labels, outputs.detach(), *both, reverse=reverse)
    assert torch.equal(value, loss)
    torch.testing.assert_close(slope, expected, rtol=1e-7, atol=1e-9)


@KINDS
@REVERSE
def test_the_derivative_is_that_of_finite_differences(actions: ActionSpace, reverse: bool) -> None:
    labels, outputs = made_up(actions, 0, batch=40)
    _, slope = actions.divergence_gradient(labels, outputs.clone(), 2.0, 0.7, reverse=reverse)
    step = 1e-6
    for column in range(actions.num_outputs):
        nudge = torch.zeros_like(outputs)
        nudge[:, column] = step
        above, below = (
            actions.divergence(labels, outputs + sign * nudge, 2.0, 0.7, reverse=reverse)
            for sign in (1, -1)
        )
        # Central differences: an error of step^2 and of rounding over step, 1e-16 / 1e-6.
        torch.testing.assert_close(
            (above - below) / (2 * step), slope[:, column], rtol=1e-6, atol=1e-7
        )


@KINDS
@REVERSE
def test_duplicating_the_batch_changes_no_row(actions: ActionSpace, reverse: bool) -> None:
    labels, outputs = made_up(actions, 0)
    found, slope = actions.divergence_gradient(labels, outputs.clone(), 2.0, reverse=reverse)
    more, slopes = actions.divergence_gradient(
        labels.repeat(3, 1), outputs.repeat(3, 1), 2.0, reverse=reverse
    )
    torch.testing.assert_close(more, found.repeat(3))
    torch.testing.assert_close(slopes, slope.repeat(3, 1))


@KINDS
@REVERSE
def test_what_no_action_depends_on_does_not_diverge(actions: ActionSpace, reverse: bool) -> None:
    labels, outputs = made_up(actions, 0)
    centred = actions.divergence(labels, actions.centred(outputs), 2.0, reverse=reverse)
    torch.testing.assert_close(centred, actions.divergence(labels, outputs, 2.0, reverse=reverse))


@KINDS
@REVERSE
def test_far_apart_it_is_finite_in_float32(actions: ActionSpace, reverse: bool) -> None:
    labels, outputs = (part.float() for part in made_up(actions, 0, scale=1e4))
    found, slope = actions.divergence_gradient(labels, outputs, 0.01, reverse=reverse)
    assert found.isfinite().all() and slope.isfinite().all() and (found > -1e-30).all()


@KINDS
def test_other_shapes_are_refused(actions: ActionSpace) -> None:
    labels, outputs = made_up(actions, 0)
    for wrong in ((labels, outputs[:5]), (labels, outputs[:, :-1]), (labels[:, :-1], outputs)):
        for compare in (actions.divergence, actions.divergence_gradient):
            with pytest.raises(ValueError, match="are not those of"):
                compare(*wrong, 1.0)
