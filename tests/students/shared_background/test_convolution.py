"""What observations share is multiplied once: the same function, the same gradients.

At the end: ReLU by the bits is ReLU.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from qpd.quantization.calibration import calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, StudentArchitecture
from qpd.students.shared_background import SharedFrames
from qpd.students.shared_background.background import MIN_BATCH, most_frequent
from qpd.students.shared_background.convolution import (
    first_convolution,
    rectified_gradient,
    rectify,
    second_convolution,
)
from qpd.students.shared_background.plan import BackgroundPlan
from qpd.students.student import apply_layer, space_to_depth

torch.set_num_threads(1)

VOTERS = 27  # of the observations, for the background of these tests
FLOATS = [torch.bfloat16, torch.float32]


def play(batch: int, share: float, seed: int, corner: bool = False) -> Tensor:
    """Frames of one background, uint8 `[batch, 4, 84, 84]`; `share` of 4x4 blocks are anything."""
    generator = torch.Generator().manual_seed(seed)
    scene = torch.randint(0, 256, (84, 84), dtype=torch.uint8, generator=generator)
    frames = scene.expand(batch, 4, 84, 84).clone()
    differs = torch.rand(batch, 4, 21, 21, generator=generator) < share
    differs = differs.repeat_interleave(4, -1).repeat_interleave(4, -2)
    noise = torch.randint(0, 256, frames.shape, dtype=torch.uint8, generator=generator)
    frames = torch.where(differs, noise, frames)
    if corner:  # blocks that are part of one result only
        frames[::2, :, :4, :4] = noise[::2, :, :4, :4]
        frames[1::2, :, 80:, 80:] = noise[1::2, :, 80:, 80:]
    return frames


def sharing(blocked: Tensor) -> SharedFrames:
    """The observations, uint8 `[batch, 4, 21, 21, 16]`, as a draw that knows what they share."""
    return SharedFrames.of(blocked, most_frequent(blocked[:VOTERS, -1]))


def made_plan(frames: Tensor) -> BackgroundPlan:
    plan = sharing(space_to_depth(frames)).plan
    assert plan is not None
    return plan


def generic_student(architecture: StudentArchitecture) -> Student:
    """A student all of whose layers matter to every output."""
    student = Student(architecture, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return student


def gradients(module: torch.nn.Module, observations: Tensor | SharedFrames) -> dict[str, Tensor]:
    """Gradients of a loss on both heads."""
    module.zero_grad()
    outputs = module(observations)
    (outputs.actor.square().sum() + outputs.values.sum()).backward()
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def check(frames: Tensor, seed: int, rectified: bool) -> BackgroundPlan:
    """That the function and its gradients are those of two ordinary convolutions."""
    generator = torch.Generator().manual_seed(seed)
    parameters = [
        (scale * torch.randn(shape, generator=generator)).requires_grad_()
        for shape, scale in [((3, 4, 8, 8), 0.001), ((3,), 0.5), ((5, 3, 4, 4), 0.1), ((5,), 0.5)]
    ]
    weight1, bias1, weight2, bias2 = parameters
    plan = made_plan(frames)
    if rectified:
        rows = first_convolution(plan, weight1, bias1, torch.float32, rectified=True)
        shared = second_convolution(plan, rows, weight2, bias2, rectified=True)
    else:
        rows = F.relu(first_convolution(plan, weight1, bias1, torch.float32))
        shared = F.relu(second_convolution(plan, rows, weight2, bias2))
    sums1 = F.conv2d(frames.float(), weight1, bias1, 4)
    sums2 = F.conv2d(F.relu(sums1), weight2, bias2, 2)
    plain = F.relu(sums2)
    assert plain.std() > 0.05
    torch.testing.assert_close(shared, plain, rtol=1e-4, atol=1e-5)
    # Where a sum is 0 but for rounding, ReLU goes either way, and a gradient is there or not: none
    # is asked of conv 2 there, and none at all where conv 1 has such a sum (one case in 18).
    if sums1.abs().min() < 1e-5:
        return plan
    towards = torch.randn(plain.shape, generator=generator) * (sums2.abs() > 1e-4)
    for ours, theirs in zip(
        torch.autograd.grad(shared, parameters, towards),
        torch.autograd.grad(plain, parameters, towards),
        strict=True,
    ):
        # Of 29,000 terms, which may cancel: one case in 60 was above 1e-5, before this and since.
        assert (ours - theirs).norm() < 1e-4 * theirs.norm()
    return plan


@settings(max_examples=12, deadline=None)
@example(batch=66, share=0.02, seed=85, corner=False, rectified=False)  # one sum is 2e-7
@given(
    batch=st.integers(MIN_BATCH, MIN_BATCH + 9),
    share=st.sampled_from([0.0, 0.001, 0.02]),
    seed=st.integers(0, 99),
    corner=st.booleans(),
    rectified=st.booleans(),
)
def test_it_is_two_ordinary_convolutions(
    batch: int, share: float, seed: int, corner: bool, rectified: bool
) -> None:
    check(play(batch, share, seed, corner), seed, rectified)


def test_there_is_a_filler_where_the_rows_are_full_without() -> None:
    """156 own blocks of conv 2 and the background's 100 are 256; corners at edges are in none."""
    frames = play(MIN_BATCH, 0.0, 5)
    for number in range(156):
        sample, place = number % MIN_BATCH, number * 7 % 100
        row, column = (2 * (place // 10) or -1) + 1, (2 * (place % 10) or -1) + 1
        frames[sample, 1, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 90
    plan = check(frames, 5, rectified=True)
    assert plan.num_own2 == 156 and plan.num_blocks2 == 512


def test_only_what_differs_is_multiplied() -> None:
    frames = play(MIN_BATCH, 0.0, 3)
    frames[17, 2, 40:44, 8:12] += 1  # block (10, 2) of one observation, in an older frame
    frames[20, 3, 0, 83] += 1  # block (0, 20): part of one result of conv 1 alone
    plan, blocked = made_plan(frames), space_to_depth(frames)
    assert plan.place1.tolist() == [10 * 21 + 2, 20]
    assert torch.equal(
        plan.pixels[:2, 32:48], torch.stack([blocked[17, 2, 10, 2], blocked[20, 2, 0, 20]])
    )
    # Block (i, j) of conv 2 reads blocks 2i..2i+2, 2j..2j+2 of conv 1: row 10 is in i = 4 and 5,
    # column 2 in j = 0 and 1; row 0 and column 20 in i = 0, j = 9.
    assert plan.num_own2 == 5
    starts = plan.starts2.tolist()
    places = [place for place in range(100) if [*starts, 5][place] < [*starts, 5][place + 1]]
    assert places == [9, 40, 41, 50, 51]
    assert plan.num_blocks2 == 256  # 5 and the background's 100, filled up


def calibrated(config: QuantizationConfig, frames: Tensor) -> QuantizedStudent:
    architecture = StudentArchitecture((4, 84, 84), 4, (16, 16, 16), (32,))
    quantized = QuantizedStudent(generic_student(architecture), config)
    calibrate(quantized, frames)
    return quantized


@pytest.mark.parametrize("channels", [(16, 16, 16), (8, 24, 16, 8)])
def test_a_student_learns_the_same_with_a_plan(channels: tuple[int, ...]) -> None:
    student = generic_student(StudentArchitecture((4, 84, 84), 4, channels, (32,)))
    frames = space_to_depth(play(MIN_BATCH, 0.01, 4))
    draw = sharing(frames)
    assert draw.plan is not None
    torch.testing.assert_close(student(draw).actor, student(frames).actor, rtol=1e-4, atol=1e-5)
    shared, ordinary = gradients(student, draw), gradients(student, frames)
    assert shared.keys() == dict(student.named_parameters()).keys()
    for name, gradient in ordinary.items():
        assert (shared[name] - gradient).norm() < 1e-4 * gradient.norm(), name


@pytest.mark.parametrize(
    "config",
    [
        QuantizationConfig(scheme="dorefa"),
        QuantizationConfig(scheme="dorefa_scaled"),
        QuantizationConfig(scheme="dorefa_scaled", learned_ranges=False),
    ],
)
def test_a_quantized_student_computes_the_same_integers(config: QuantizationConfig) -> None:
    frames = space_to_depth(play(MIN_BATCH, 0.01, 5))
    quantized = calibrated(config, frames)
    draw = sharing(frames)
    assert draw.plan is not None
    with torch.no_grad():
        plain = quantized(frames)
    assert plain.actor.std(0).min() > 0
    torch.testing.assert_close(quantized(draw).actor, plain.actor, rtol=0, atol=0)
    shared, ordinary = gradients(quantized, draw), gradients(quantized, frames)
    assert shared.keys() == ordinary.keys()
    for name, gradient in ordinary.items():
        assert (shared[name] - gradient).norm() < 1e-3 * gradient.norm(), name


@pytest.mark.parametrize("quantized", [False, True])
def test_bfloat16_is_about_as_exact_as_with_ordinary_convolutions(quantized: bool) -> None:
    names = ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"]
    names = [("student." if quantized else "") + "layers." + name for name in names]
    ratios = []
    for seed in range(5):
        frames = space_to_depth(play(MIN_BATCH, 0.02, seed))
        student = generic_student(StudentArchitecture((4, 84, 84), 4, (16, 16, 16), (32,)))
        module = calibrated(QuantizationConfig(), frames) if quantized else student
        draw, exact = sharing(frames), gradients(module, frames)
        assert draw.plan is not None
        with torch.no_grad():
            exact_logits = module(frames).actor
        with torch.autocast("cpu", torch.bfloat16):
            logits = module(draw).actor.detach()
            shared, ordinary = gradients(module, draw), gradients(module, frames)
            with torch.no_grad():
                plain = module(frames).actor
        assert logits.dtype == torch.float32
        assert (logits - exact_logits).norm() < 1.5 * (plain - exact_logits).norm()
        ours = torch.stack([(shared[name] - exact[name]).norm() for name in names])
        theirs = torch.stack([(ordinary[name] - exact[name]).norm() for name in names])
        ratios.append(ours / theirs)
    assert torch.stack(ratios).median(0).values.max() < 2  # rounding's luck differs by batch
    assert torch.stack(ratios).max() < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_no_two_observations_share_adds_nothing_to_the_background(
    dtype: torch.dtype,
) -> None:
    """A part of the screen that is different everywhere: there the total is all the blocks' own."""
    screens = play(MIN_BATCH, 0.01, 11)
    screens[..., 20:50, 20:50] = play(MIN_BATCH, 1.0, 12)[..., 20:50, 20:50]
    frames = space_to_depth(screens)
    student = generic_student(StudentArchitecture((4, 84, 84), 4, (16, 16, 16), (32,)))
    draw, exact = sharing(frames), gradients(student, frames)
    assert draw.plan is not None
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        shared, ordinary = gradients(student, draw), gradients(student, frames)
    for name, gradient in exact.items():
        rounding = (ordinary[name] - gradient).norm()
        assert (shared[name] - gradient).norm() < 2 * rounding + 1e-4 * gradient.norm(), name


def test_where_sharing_does_not_pay_the_convolutions_are_ordinary() -> None:
    frames = space_to_depth(play(MIN_BATCH, 0.01, 7))
    assert sharing(frames).plan is not None
    for observations in (frames[1:], space_to_depth(play(MIN_BATCH, 0.9, 8))):
        draw = sharing(observations)
        assert draw.plan is None
        inputs, apply = draw.layers(apply_layer, torch.float32)
        assert torch.equal(inputs, observations) and apply is apply_layer


def test_whole_observations_take_the_ordinary_convolutions() -> None:
    frames = space_to_depth(play(MIN_BATCH, 0.01, 7))
    student = generic_student(StudentArchitecture((4, 84, 84), 4, (16, 16, 16), (32,)))
    inputs, apply = student.inputs_and_layers(frames)
    assert inputs is frames and apply is apply_layer
    inputs, apply = student.inputs_and_layers(sharing(frames))
    assert inputs.shape[1:] == (64,) and apply is not apply_layer


def test_the_shares_are_of_what_is_multiplied() -> None:
    frames = play(MIN_BATCH, 0.0, 3)
    frames[17, 2, 40:44, 8:12] += 1  # 1 block of conv 1's, in 4 of conv 2's
    blocks = made_plan(frames).multiplied
    # 1 + 441 of the background, and 4 + 100, filled up to multiples of 256.
    assert blocks == (512 / (441 * MIN_BATCH), 256 / (100 * MIN_BATCH))
    assert str(blocks) == "2% of conv 1's blocks and 4% of conv 2's are multiplied"


@pytest.mark.parametrize("dtype", FLOATS)
@settings(deadline=None)
@given(numbers=st.lists(st.floats(width=32, allow_nan=False), min_size=1))
def test_rectifying_is_relu(dtype: torch.dtype, numbers: list[float]) -> None:
    values = torch.tensor([*numbers, -0.0, float("inf"), -float("inf")]).to(dtype).requires_grad_()
    expected = torch.relu(values)
    gradient = torch.linspace(-3, 3, len(values)).to(dtype)
    (expected_gradient,) = torch.autograd.grad(expected, values, gradient)
    rectified = rectify(values.detach().clone())
    assert torch.equal(rectified, expected)
    assert torch.equal(rectified_gradient(gradient, rectified), expected_gradient)


def test_only_a_nan_of_positive_sign_passes() -> None:
    bits = torch.tensor([0x7FC0, 0xFFC0 - 0x10000], dtype=torch.int16)
    rectified = rectify(bits.view(torch.bfloat16))
    assert rectified.isnan().tolist() == [True, False] and rectified[1] == 0


def test_a_gradient_can_be_written_into_a_part_of_another() -> None:
    activations = torch.tensor([[0.0, 2.0], [1.0, 0.0]], dtype=torch.bfloat16)
    whole = torch.full((2, 3), 9.0, dtype=torch.bfloat16)
    gradient = torch.tensor(-5.0, dtype=torch.bfloat16).expand(2, 2)  # what sum() hands back
    rectified_gradient(gradient, activations, out=whole[:, :2])
    assert whole.tolist() == [[0.0, -5.0, 9.0], [-5.0, 0.0, 9.0]]
