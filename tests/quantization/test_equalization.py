import pytest
import torch

from qpd.quantization.equalization import balance, equalize
from qpd.students import Student, StudentArchitecture, architecture_for


def make_student(size: str, shape: tuple[int, ...]) -> Student:
    student = Student(architecture_for(size, shape, 4), seed=1)
    student.scale_outputs(100.0)
    with torch.no_grad():  # channels of very different reach, and a dead one
        for name in student.layers:
            layer = student.layer(name)
            spread = torch.logspace(-1, 1, len(layer.weight))
            layer.weight.mul_(spread.view(-1, *(1,) * (layer.weight.dim() - 1)))
        student.bias("linear1")[0] = -1e6
    return student


def hidden_peaks(student: Student, observations: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return student.features(observations).amax(0)


@pytest.mark.parametrize(("size", "shape"), [("XXS", (4, 84, 84)), ("mlp-16-16", (6,))])
@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_the_function_stays_and_the_ranges_even_out(
    size: str, shape: tuple[int, ...], strength: float
) -> None:
    student = make_student(size, shape)
    torch.manual_seed(0)
    if student.architecture.is_image:
        observations = torch.randint(0, 256, (16, *shape), dtype=torch.uint8)
    else:
        observations = torch.rand(64, *shape)
    before, peaks = student(observations), hidden_peaks(student, observations)
    equalize(student, observations, strength)
    after, evened = student(observations), hidden_peaks(student, observations)
    # float32 rounding of rescaled sums; logits are of size 1 to 100
    torch.testing.assert_close(after.actor, before.actor, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(after.values, before.values, rtol=1e-3, atol=1e-3)
    alive = peaks > 0
    spread = peaks[alive].max() / peaks[alive].min()
    expected = torch.maximum(spread ** (1.0 - strength), spread / 64)  # factors stop at 64
    assert evened[alive].max() / evened[alive].min() < 1.1 * expected
    assert bool((evened[~alive] == 0).all())


def test_strength_zero_changes_nothing() -> None:
    student = make_student("mlp-16", (6,))
    before = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    equalize(student, torch.rand(32, 6), 0.0)
    for name, tensor in student.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize(("size", "shape"), [("XXS", (4, 84, 84)), ("mlp-16-16", (6,))])
def test_balance_keeps_the_function_and_meets_in_the_middle(
    size: str, shape: tuple[int, ...]
) -> None:
    """After it, a channel's largest activation and the weight that it meets agree but for a factor.

    That factor is the layer's: of the last hidden layer all live channels have the same.
    """
    student = make_student(size, shape)
    torch.manual_seed(0)
    if student.architecture.is_image:
        observations = torch.randint(0, 256, (16, *shape), dtype=torch.uint8)
    else:
        observations = torch.rand(64, *shape)
    before = student(observations)
    balance(student, observations)
    after, peaks = student(observations), hidden_peaks(student, observations)
    # float32 rounding of rescaled sums; logits are of size 1 to 100
    torch.testing.assert_close(after.actor, before.actor, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(after.values, before.values, rtol=1e-3, atol=1e-3)
    ratio = (student.actor.weight.abs().amax(0) / peaks)[peaks > 0]
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-3, atol=0)


def test_biases_are_equalized_with_their_channels() -> None:
    """At x = 1 the units are 1.5 and 5: the first is multiplied by 10 / 3, its bias as well."""
    student = Student(StudentArchitecture((1,), 1, (), (2,)), seed=0).requires_grad_(False)
    student.layer("linear1").weight.copy_(torch.tensor([[1.0], [4.0]]))
    student.bias("linear1").copy_(torch.tensor([0.5, 1.0]))
    seen = torch.tensor([[0.0], [0.5], [1.0]])
    before = student(seen)
    equalize(student, seen, 1.0)
    assert student.bias("linear1").tolist() == pytest.approx([0.5 / 0.3, 1.0])
    after = student(seen)
    torch.testing.assert_close(after.actor, before.actor)
    torch.testing.assert_close(after.values, before.values)
