"""Continuous actions: Gaussian teachers, deterministic ones, and students that act by means."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qpd.actions import ActingRule, Box, Discrete
from qpd.actions.gaussian import LEAST_DEVIATION, SATURATION, Squash
from qpd.environments.interface import checked_actions

ROWS = 60_000
SAMPLE, GREEDY = ActingRule("sample"), ActingRule("greedy")
CLIP = Box((-1.0,), (1.0,))
TANH = Box((-1.0,), (1.0,), "tanh")
SQUASHES = pytest.mark.parametrize("squash", ["clip", "tanh"])
STEP = 2.0 / 255.0


def one(number: float) -> torch.Tensor:
    return torch.tensor([[number]], dtype=torch.float64)


def gaussian(mean: float, deviation: float) -> torch.Tensor:
    return torch.tensor([[mean, math.log(deviation)]], dtype=torch.float64)


def found(
    actions: Box, labels: torch.Tensor, mean: float, temperature: float = 1.0
) -> tuple[float, float]:
    """The divergence and its derivative by a student's mean."""
    divergence, slope = actions.divergence_gradient(labels, one(mean), temperature)
    return divergence.item(), slope.item()


def drawn(actions: Box, mean: float, deviation: float) -> np.ndarray:
    labels = gaussian(mean, deviation).float().numpy().repeat(ROWS, axis=0)
    taken = actions.act(labels, SAMPLE, np.random.default_rng(0))
    assert taken.shape == (ROWS, 1) and taken.dtype == np.float32
    assert not actions.outside(taken).any()
    return taken[:, 0].astype(np.float64)


def assert_share(those: np.ndarray, p: float) -> None:
    """Within 4.5 standard errors: 1 in 10^5 fails by chance, and the seeds are fixed."""
    assert abs(those.mean() - p) <= 4.5 * math.sqrt(p * (1 - p) / ROWS), those.mean()


def normal_cdf(x: float) -> float:
    return 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))


@given(st.floats(-2.0, 2.0, width=32), st.sampled_from([1e4, 1e6, 1e9, 3e29]))
def test_a_mean_far_inside_wide_bounds_is_kept(mean: float, bound: float) -> None:
    actions = Box((-bound,), (bound,))
    labels = actions.labels_of(torch.tensor([[mean]], dtype=torch.float32))
    taken = actions.act(labels.numpy(), GREEDY, np.random.default_rng(0))
    assert taken.item() == pytest.approx(mean, rel=1e-6, abs=1e-7)


def test_a_bound_of_minus_zero_gives_zero_as_on_a_device() -> None:
    for low, high in ((-0.0, 1.0), (-1.0, -0.0)):
        box = Box((low,), (high,))
        found = box.scaled(np.array([[-1.0], [1.0]]))
        assert not np.signbit(found[found == 0.0]).any() and (found == 0.0).sum() == 1


def test_gaussian_actions_are_drawn_before_the_clip() -> None:
    # Mean 1/2, deviation 1, within -1 to 1 in units of the range: at the upper bound where the
    # draw exceeds 0.5 deviations, at the lower one where it falls short of -1.5.
    taken = drawn(Box((10.0,), (14.0,)), 0.5, 1.0)
    assert_share(taken == 14.0, 1 - normal_cdf(0.5))
    assert_share(taken == 10.0, normal_cdf(-1.5))
    assert_share(taken < 13.0, 0.5)  # the mean: 3/4 of the way from 10 to 14
    assert_share(taken < 12.0, normal_cdf(-0.5))


def test_gaussian_actions_are_drawn_before_the_tanh() -> None:
    taken = drawn(Box((0.0,), (2.0,), "tanh"), 0.5, 0.8)
    for x in (-0.5, 0.5, 1.0):
        assert_share(taken < 1.0 + math.tanh(x), normal_cdf((x - 0.5) / 0.8))


def test_every_action_is_drawn_for_itself() -> None:
    actions = Box((-1.0, -1.0), (1.0, 1.0))
    labels = np.tile(np.array([[0.0, 0.0, -3.0, -3.0]], np.float32), (ROWS, 1))
    taken = actions.act(labels, SAMPLE, np.random.default_rng(0))
    assert abs(np.corrcoef(taken.T)[0, 1]) < 4.5 / math.sqrt(ROWS)
    again, other = (actions.act(labels, SAMPLE, np.random.default_rng(seed)) for seed in (0, 1))
    assert (again == taken).all() and (other != taken).any()


@SQUASHES
def test_what_has_no_deviations_acts_by_its_means(squash: Squash) -> None:
    rng = np.random.default_rng(0)
    actions = Box((-2.0, 0.0), (2.0, 1.0), squash)
    means = 3 * rng.normal(size=(100, 2)).astype(np.float32)
    shares = np.tanh(means) if squash == "tanh" else np.clip(means, -1, 1)
    wanted = np.stack([2.0 * shares[:, 0], 0.5 * shares[:, 1] + 0.5], axis=1)
    students = actions.act(means, SAMPLE, rng)
    np.testing.assert_allclose(students, wanted, rtol=1e-5, atol=1e-6)
    labels = np.concatenate([means, np.ones_like(means)], axis=1)
    np.testing.assert_array_equal(actions.act(labels, GREEDY, rng), students)
    # A deviation of none at all, as a student's row among a teacher's has: the same in float64.
    labels[:, 2:] = -np.inf
    np.testing.assert_allclose(actions.act(labels, SAMPLE, rng), students, rtol=1e-5, atol=1e-6)


def test_actions_have_their_space_s_shape() -> None:
    actions = Box((0.0,) * 6, (1.0,) * 6, shape=(2, 3))
    taken = actions.act(np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6), GREEDY, None)  # type: ignore[arg-type]
    assert taken.shape == (2, 2, 3) and actions.empty(4).shape == (4, 2, 3)
    np.testing.assert_allclose(taken.ravel(), np.linspace(0, 1, 12), atol=1e-6)


BOUNDS = st.floats(-(2.0**100), 2.0**100, width=32)


@SQUASHES
@given(low=BOUNDS, high=BOUNDS, mean=BOUNDS)
def test_no_action_is_beyond_its_bounds(
    squash: Squash, low: float, high: float, mean: float
) -> None:
    if not np.float32(high) - np.float32(low) > 0:
        return
    actions = Box((low,), (high,), squash)
    for outputs in ([[mean]], [[-2.0]], [[2.0]], [[1.0]], [[mean, 2.0]]):
        taken = actions.act(np.array(outputs, np.float32), SAMPLE, np.random.default_rng(0))
        assert not actions.outside(taken).any()


def test_nan_and_actions_beyond_the_bounds_are_outside() -> None:
    actions = Box((-1.0, 0.0), (1.0, 2.0))
    taken = np.array([[1, 2], [1.001, 1], [0, -0.001], [np.nan, 1], [0, np.inf]], np.float32)
    assert actions.outside(taken).tolist() == [False, True, True, True, True]


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0.0, 0.0),
        (1.0, -1.0),
        (0.0, math.nan),
        (-math.inf, 0.0),
        (-3e38, 3e38),  # a width beyond float32, as Box(-finfo.max, finfo.max) has
        (0.0, 1e39),
        (1.0, 1.0 + 1e-12),  # one and the same as float32
    ],
)
def test_bounds_that_mean_nothing_are_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="bounds must be finite, and the lower one below"):
        Box((0.0, low), (1.0, high))


def test_a_shape_that_does_not_fit_is_refused() -> None:
    for low, high, shape in (
        ((0.0,), (1.0, 2.0), ()),
        ((), (), ()),
        ((0.0,) * 4, (1.0,) * 4, (2, 3)),
    ):
        with pytest.raises(ValueError, match="for actions of shape"):
            Box(low, high, shape=shape)


def test_labels_of_a_clipped_policy_are_in_units_of_the_range() -> None:
    # From 0 to 4, half a range is 2: mean 3 is at 1/2, a deviation of 0.2 is 0.1.
    actions = Box((0.0,), (4.0,))
    labels = actions.labels_of(torch.tensor([[3.0]]), torch.tensor([[math.log(0.2)]]))
    torch.testing.assert_close(labels, torch.tensor([[0.5, math.log(0.1)]]))
    assert actions.act(labels.numpy(), GREEDY, None).tolist() == [[3.0]]  # type: ignore[arg-type]
    # Before a tanh a policy's own units are the range's already.
    squashed = Box((0.0,), (4.0,), "tanh")
    own = squashed.labels_of(torch.tensor([[3.0]]), torch.tensor([[0.25]]))
    assert own.tolist() == [[3.0, 0.25]]
    means = Box((0.0,), (4.0,), labels="deterministic").labels_of(torch.tensor([[3.0]]))
    assert means.tolist() == [[0.5]]


# --- how far a student is from its teacher


def test_the_divergence_of_gaussians_by_hand() -> None:
    # 0.3 apart at a deviation of 0.1: 0.3^2 / (2 * 0.1^2) = 4.5 nats, with a slope of
    # -0.3 / 0.1^2 = -30. A temperature of 2 doubles the variance, and halves both.
    assert found(CLIP, gaussian(0.5, 0.1), 0.2) == pytest.approx((4.5, -30.0))
    assert found(CLIP, gaussian(0.5, 0.1), 0.2, 2.0) == pytest.approx((2.25, -15.0))
    # Two actions add up: 4.5 + 0.5 * (0.2 / 0.4)^2.
    both = Box((-1.0,) * 2, (1.0,) * 2)
    labels = torch.tensor([[0.5, 0.0, math.log(0.1), math.log(0.4)]])
    divergence = both.divergence(labels, torch.tensor([[0.2, 0.2]]), 1.0)
    torch.testing.assert_close(divergence, torch.tensor([4.625]))


@SQUASHES
@pytest.mark.parametrize("reverse", [False, True])
def test_it_is_the_kl_of_gaussians_of_one_variance(squash: Squash, reverse: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    bound = SATURATION[squash]
    means, students = bound * (2 * torch.rand((2, 50, 3), generator=generator) - 1)
    deviations = 0.05 + torch.rand((50, 3), generator=generator)
    actions = Box((0.0,) * 3, (1.0,) * 3, squash)
    labels = torch.cat([means, deviations.log()], 1)
    mine = actions.divergence(labels, students, 2.0, reverse=reverse)
    # A temperature of 2 widens the teacher's variance, hence its deviation by sqrt(2).
    teacher, student = (
        torch.distributions.Normal(mean, deviations * math.sqrt(2.0)) for mean in (means, students)
    )
    pair = (student, teacher) if reverse else (teacher, student)
    wanted = torch.distributions.kl_divergence(*pair).sum(1)
    torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)


def test_a_deviation_below_an_8_bit_step_counts_as_one() -> None:
    # An error of one step over a deviation of one step is 1/2 a nat.
    assert LEAST_DEVIATION == STEP
    assert found(CLIP, gaussian(0.0, 1e-9), STEP) == pytest.approx((0.5, 1 / STEP))


@SQUASHES
@pytest.mark.parametrize("labels", ["gaussian", "deterministic"])
def test_there_is_no_loss_where_both_saturate(squash: Squash, labels: str) -> None:
    actions = Box((-1.0,), (1.0,), squash, labels)  # type: ignore[arg-type]
    bound = SATURATION[squash]
    for sign in (-1.0, 1.0):
        teacher = sign * (bound + 3.0)
        label = gaussian(teacher, 0.5) if labels == "gaussian" else one(teacher)
        for beyond in (1.0, 40.0):
            divergence, slope = found(actions, label, sign * (bound + beyond))
            # A tanh never saturates wholly: actions within half an 8-bit step are left.
            assert 0.0 <= divergence < 5e-3 and abs(slope) < STEP
            if labels == "gaussian" or squash == "clip":
                assert divergence == slope == 0.0
        # Inside, the student is drawn towards the bound, on both sides of it alike.
        divergence, slope = found(actions, label, sign * 0.5)
        assert divergence > 0.02 and sign * slope < 0


def test_a_saturated_teacher_asks_for_the_bound_and_no_more() -> None:
    # Not for its mean of 1.7: the error of 0.8 is 0.2, and 0.2^2 / (2 * 0.1^2) = 2.
    assert found(CLIP, gaussian(1.7, 0.1), 0.8) == pytest.approx((2.0, -20.0))
    # A student at the wrong bound is no less wrong for being beyond it.
    assert found(CLIP, gaussian(1.7, 0.1), -3.0)[0] == pytest.approx(4.0**2 / 0.02)


def test_the_divergence_of_clipped_actions_by_hand() -> None:
    clip = Box((-1.0,), (1.0,), "clip", "deterministic")
    assert found(clip, one(0.5), 0.2) == pytest.approx((0.045, -0.3))  # 0.3^2 / 2
    # It has no variance for a temperature to widen.
    assert found(clip, one(0.5), 0.2, 5.0) == pytest.approx((0.045, -0.3))


def test_the_divergence_of_squashed_actions_by_hand() -> None:
    # tanh = 1/2 is 3/4 of the range, 0 is half of it: KL of (3/4, 1/4) from (1/2, 1/2) is
    # 3/4 ln(3/2) + 1/4 ln(1/2) = 0.130812, as in Eq. 1's test. Slope: 0 - 1/2.
    tanh = Box((-1.0,), (1.0,), "tanh", "deterministic")
    assert found(tanh, one(math.atanh(0.5)), 0.0) == pytest.approx((0.130812, -0.5), abs=1e-6)


def test_a_student_at_the_wrong_bound_still_learns() -> None:
    # That of the squared error, (tanh s - tanh t) (1 - tanh^2 s), would be 1e-8 there.
    tanh = Box((-1.0,), (1.0,), "tanh", "deterministic")
    _, slope = found(tanh, one(2.0), -10.0)
    assert slope == pytest.approx(-1.0 - math.tanh(2.0))


@given(st.floats(-8.0, 8.0), st.floats(-8.0, 8.0))
def test_squashed_actions_diverge_by_their_squared_error_or_more(
    teacher: float, student: float
) -> None:
    # Pinsker: 2 (p - q)^2, of shares of the range p and q, whose difference is half the tanhs'.
    tanh = Box((-1.0,), (1.0,), "tanh", "deterministic")
    apart = math.tanh(student) - math.tanh(teacher)
    divergence, _ = found(tanh, one(teacher), student)
    assert divergence >= 0.5 * apart**2 - 1e-12
    if max(abs(teacher), abs(student)) < 0.05:
        assert divergence == pytest.approx(0.5 * apart**2, rel=0.01, abs=1e-12)


# --- what else the training asks


def test_a_clipped_copy_s_outputs_come_back_before_the_tanh() -> None:
    shares = np.tanh(np.array([[-2.0, 0.0, 3.0]]))
    actions = Box((0.0,) * 3, (1.0,) * 3, "tanh")
    clipped = Box((0.0,) * 3, (1.0,) * 3, labels="deterministic")
    np.testing.assert_allclose(actions.outputs_of(clipped, shares), [[-2.0, 0.0, 3.0]])
    # At a bound: where the tanh has come within half an 8-bit step of it, and not infinity.
    ends = actions.outputs_of(clipped, np.array([[-1.0, 0.0, 1.0]]))
    np.testing.assert_allclose(ends, [[-SATURATION["tanh"], 0.0, SATURATION["tanh"]]])
    outputs = np.array([[-2.0, 0.0, 3.0]])
    np.testing.assert_allclose(clipped.outputs_of(actions, outputs), np.tanh(outputs))
    assert actions.outputs_of(actions, outputs) is outputs


def test_a_tanh_saturates_within_half_an_8_bit_step_of_the_bound() -> None:
    assert 1.0 - math.tanh(SATURATION["tanh"]) == pytest.approx(STEP / 2)


@SQUASHES
def test_random_outputs_are_uniform_actions(squash: Squash) -> None:
    rng = np.random.default_rng(0)
    actions = Box((0.0, -5.0), (1.0, 5.0), squash)
    taken = actions.act(actions.random_outputs(ROWS, rng), SAMPLE, rng)
    for quarter in (0.25, 0.5, 0.75):
        assert_share(taken[:, 0] < quarter, quarter)
        assert_share(taken[:, 1] < 10.0 * quarter - 5.0, quarter)


def test_there_are_no_probabilities_of_actions() -> None:
    labels, taken = np.zeros((3, 2), np.float32), np.zeros((3, 1), np.float32)
    log_probs = CLIP.log_probs(labels, taken, SAMPLE)
    assert log_probs.shape == (3,) and np.isnan(log_probs).all() and log_probs.dtype == np.float32


def test_actions_within_an_8_bit_step_are_the_same() -> None:
    actions = Box((0.0, -1.0), (255.0, 1.0))
    taken = np.zeros((3, 2), np.float32)
    others = np.array([[0.9, STEP * 0.9], [1.1, 0.0], [0.0, STEP * 1.1]], np.float32)
    assert actions.same(taken, others).tolist() == [True, False, False]


def test_what_outputs_mean_makes_no_other_actions() -> None:
    assert not CLIP.differs_from(Box((-1.0,), (1.0,), "tanh", "deterministic"))
    assert CLIP.differs_from(Box((-1.0,), (2.0,))) and CLIP.differs_from(Discrete(1))
    four = Box((0.0,) * 4, (1.0,) * 4)
    assert four.differs_from(Box((0.0,) * 4, (1.0,) * 4, shape=(2, 2)))


def test_labels_hold_deviations_where_the_teacher_has_them() -> None:
    assert (CLIP.num_outputs, CLIP.num_labels) == (1, 2)
    plain = Box((-1.0,), (1.0,), labels="deterministic")
    assert (plain.num_outputs, plain.num_labels) == (1, 1)
    # No temperature is folded into a mean: it widens the teacher's variance alone.
    assert CLIP.fold(3.0, 1.0) == 1.0 and CLIP.temperature == 1.0 and not CLIP.is_tempered


def test_rules_that_mean_nothing_are_refused() -> None:
    assert CLIP.rule("auto", on_atari=False, epsilon=0.1, sharpness=1.0).kind == "greedy"
    assert CLIP.rule("sample", on_atari=False, epsilon=0.1, sharpness=1.0).kind == "sample"
    with pytest.raises(ValueError, match="acting epsilon: .*; use greedy"):
        CLIP.rule("epsilon", on_atari=False, epsilon=0.1, sharpness=1.0)
    with pytest.raises(ValueError, match="sharpness 2: .*no logits to sharpen; use 1"):
        CLIP.rule("greedy", on_atari=False, epsilon=0.1, sharpness=2.0)
    with pytest.raises(ValueError, match="'best': one of auto"):
        CLIP.rule("best", on_atari=False, epsilon=0.1, sharpness=1.0)


def test_a_deterministic_teacher_has_nothing_to_draw_from() -> None:
    assert CLIP.exploring == "sample"
    assert Box((-1.0,), (1.0,), labels="deterministic").exploring == "greedy"


def test_they_are_described_in_words() -> None:
    assert str(CLIP) == "1 continuous action (-1 to 1)"
    assert (
        str(Box((0.0, 0.0, -1.0), (1.0,) * 3)) == "3 continuous actions (0 to 1, 0 to 1, -1 to 1)"
    )
    many = Box(tuple(map(float, range(5))), (9.0,) * 5)
    assert str(many) == "5 continuous actions (0 to 9, 1 to 9, 2 to 9, 3 to 9, ...)"
    labels = torch.tensor([[0.0, math.log(0.5)], [1.5, math.log(0.5)]])
    said = CLIP.describe_labels(labels, 1.0)
    assert said is not None and "deviation of 0.5 before the clip" in said
    assert "50% at a bound" in said
    assert "nearer ones" not in said
    near = torch.tensor([[-1.0], [1.0]])
    for bound, is_far in ((100.0, False), (1000.0, True)):  # steps of 0.8 and of 8
        wide = Box((-bound,), (bound,), labels="deterministic")
        said = wide.describe_labels(wide.labels_of(near), 1.0)
        assert said is not None and ("needs an environment with nearer ones" in said) == is_far


def test_means_are_clipped_before_the_tanh() -> None:
    """SAC and TQC under gSDE: tanh(2) is the most."""
    actions = Box((-1.0,), (1.0,), "tanh", mean_bound=2.0)
    found = actions.act(
        np.array([[-5.0], [0.5], [7.0]]), ActingRule("greedy"), np.random.default_rng(0)
    )
    np.testing.assert_allclose(found[:, 0], np.tanh([-2.0, 0.5, 2.0]), rtol=1e-6)
    with pytest.raises(ValueError, match="mean_bound of 0; expected a number above 0"):
        Box((-1.0,), (1.0,), "tanh", mean_bound=0.0)


def test_bounds_that_a_zip_prints_are_the_environments() -> None:
    """NumPy prints 8 decimals of pi."""
    own, printed = Box((-math.pi,), (math.pi,)), Box((-3.14159265,), (3.14159265,))
    assert not printed.differs_from(own) and not own.differs_from(printed)
    assert printed.differs_from(Box((-3.1416,), (3.1416,)))
    # Two thirds are rounded up: such an action is cut to the bound, and refused no farther out.
    third = Box((-2.0 / 3.0,), (2.0 / 3.0,))
    acting = np.ones(1, dtype=bool)
    kept = checked_actions(np.array([[0.66666667]]), acting, third)
    assert kept.tolist() == [[float(np.float32(2.0 / 3.0))]]
    with pytest.raises(ValueError, match="actions must be in"):
        checked_actions(np.array([[0.6667]]), acting, third)
