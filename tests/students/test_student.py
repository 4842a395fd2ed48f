"""The fast student is an ordinary network: same outputs, same gradients, ordinary parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from qpd.students import Student, StudentArchitecture, architecture_for
from qpd.students.student import space_to_depth

torch.set_num_threads(1)

FRAMES = (4, 84, 84)


def generic_student(size: str = "M", seed: int = 0) -> Student:
    """A student whose head and biases are not small, so that every error shows in the logits."""
    student = Student(architecture_for(size, FRAMES, 4), seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if "bias" in name or "actor" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return student


def frames(batch: int = 3, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, *FRAMES), dtype=torch.uint8, generator=generator)


class PlainNetwork(nn.Module):
    """The paper's network as PyTorch's documentation would write it, on frames in [0, 1]."""

    def __init__(self, student: Student) -> None:
        super().__init__()
        (c1, c2, c3), (width,) = student.architecture.conv_channels, student.architecture.hidden
        self.layers = nn.ModuleDict(
            {
                "conv1": nn.Conv2d(4, c1, 8, 4),
                "conv2": nn.Conv2d(c1, c2, 4, 2),
                "conv3": nn.Conv2d(c2, c3, 3, 1),
                "linear1": nn.Linear(c3 * 7 * 7, width),
            }
        )
        self.actor, self.critic = nn.Linear(width, 4), nn.Linear(width, 1)
        self.load_state_dict(student.state_dict())

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        x = observations.float() / 255.0
        for name in ("conv1", "conv2", "conv3"):
            x = torch.relu(self.layers[name](x))
        x = torch.relu(self.layers["linear1"](x.flatten(1)))
        return self.actor(x), self.critic(x).squeeze(-1)


@pytest.mark.parametrize("size", ["XXS", "M"])
def test_forward_equals_the_plain_network(size: str) -> None:
    student = generic_student(size)
    with torch.no_grad():
        outputs = student(frames())
        logits, values = PlainNetwork(student)(frames())
    assert logits.std() > 0.1
    torch.testing.assert_close(outputs.actor, logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outputs.values, values, rtol=1e-5, atol=1e-5)


def test_forward_under_bfloat16_autocast() -> None:
    # bfloat16 keeps 8 bits: a relative error of 2^-9 for each of five layers' inputs, weights and
    # outputs; about 15 roundings of random sign, so 5% of the logits' spread is generous.
    student = generic_student("M")
    with torch.no_grad():
        exact = student(frames(16)).actor
        with torch.autocast("cpu", torch.bfloat16):
            rough = student(frames(16)).actor
    assert rough.dtype == torch.float32
    error = (rough - exact).abs().max() / exact.std()
    assert 0 < error < 0.05


def test_blocked_and_ordinary_frames_give_the_same() -> None:
    student, observations = generic_student("XXS"), frames()
    blocked = space_to_depth(observations)
    assert blocked.shape == (3, 4, 21, 21, 16) and blocked.dtype == torch.uint8
    # Channel 4*i + j of block (r, c) is pixel (4*r + i, 4*c + j).
    assert blocked[1, 2, 5, 7, 4 * 3 + 1] == observations[1, 2, 4 * 5 + 3, 4 * 7 + 1]
    with torch.no_grad():
        one, other = student(observations), student(blocked)
    assert torch.equal(one.actor, other.actor) and torch.equal(one.values, other.values)


@pytest.mark.parametrize("blocked", [False, True])
def test_gradients_equal_the_plain_network(blocked: bool) -> None:
    student, observations = generic_student("XXS"), frames()
    plain = PlainNetwork(student)
    inputs = space_to_depth(observations) if blocked else observations
    outputs = student(inputs)
    (outputs.actor.square().sum() + outputs.values.sum()).backward()
    logits, values = plain(observations)
    (logits.square().sum() + values.sum()).backward()
    expected = dict(plain.named_parameters())
    assert expected.keys() == dict(student.named_parameters()).keys()
    for name, parameter in student.named_parameters():
        assert parameter.grad is not None and expected[name].grad is not None
        assert parameter.grad.abs().max() > 0, name
        scale = expected[name].grad.abs().max().item()
        torch.testing.assert_close(
            parameter.grad, expected[name].grad, rtol=1e-4, atol=1e-5 * scale, msg=name
        )


def test_parameters_are_stored_in_ordinary_layout() -> None:
    student = generic_student("XXS")
    shapes = {name: tuple(t.shape) for name, t in student.state_dict().items()}
    assert shapes == {
        "layers.conv1.weight": (16, 4, 8, 8),
        "layers.conv1.bias": (16,),
        "layers.conv2.weight": (16, 16, 4, 4),
        "layers.conv2.bias": (16,),
        "layers.conv3.weight": (16, 16, 3, 3),
        "layers.conv3.bias": (16,),
        "layers.linear1.weight": (32, 784),
        "layers.linear1.bias": (32,),
        "actor.weight": (4, 32),
        "actor.bias": (4,),
        "critic.weight": (1, 32),
        "critic.bias": (1,),
    }
    assert all(tensor.is_contiguous() for tensor in student.state_dict().values())


def test_the_seed_decides_every_weight() -> None:
    architecture = architecture_for("XXS", FRAMES, 4)
    torch.manual_seed(1)
    first = Student(architecture, 7).state_dict()
    torch.manual_seed(2)  # the global generator must not matter
    again, other = Student(architecture, 7).state_dict(), Student(architecture, 8).state_dict()
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name])
        assert torch.equal(tensor, other[name]) == name.endswith("bias")


def test_weights_start_orthogonal_and_the_head_small() -> None:
    student = Student(architecture_for("XXS", FRAMES, 4), 7)
    rows = student.layer("linear1").weight.detach()
    # Orthogonal rows of norm sqrt(2), the gain of ReLU; the head a hundred times smaller.
    torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(32), rtol=0, atol=1e-4)
    actor = student.layer("actor").weight.detach()
    torch.testing.assert_close(actor @ actor.T, 1e-4 * torch.eye(4), rtol=0, atol=1e-8)


def test_another_input_range_is_the_same_function() -> None:
    student = Student(StudentArchitecture((3,), 2, (), (16,)), seed=1)
    student.scale_outputs(100.0)
    student.set_input_range(torch.tensor([-1.0, 0.0, 5.0]), torch.tensor([1.0, 2.0, 9.0]))
    # Inside both ranges, where neither clips.
    x = torch.tensor([0.0, 1.0, 7.0]) + 0.2 * torch.randn(50, 3)
    with torch.no_grad():
        before = student(x)
        student.move_input_range(torch.tensor([-8.0, -1.0, 6.0]), torch.tensor([3.0, 1.9, 30.0]))
        after = student(x)
    torch.testing.assert_close(after.actor, before.actor, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after.values, before.values, rtol=1e-4, atol=1e-4)


def test_scale_outputs_scales_the_actor_only() -> None:
    student = generic_student("XXS")
    with torch.no_grad():
        before = student(frames())
        student.scale_outputs(3.0)
        after = student(frames())
    torch.testing.assert_close(after.actor, 3.0 * before.actor, rtol=1e-5, atol=1e-5)
    assert torch.equal(after.values, before.values)


def test_vector_observations_become_levels_of_their_range() -> None:
    student = Student(architecture_for("mlp-8", (3,), 2))
    # The third feature never varies: it gets width 1, not a division by 0.
    student.set_input_range(torch.tensor([-1.0, 0.0, 5.0]), torch.tensor([1.0, 51.0, 5.0]))
    observations = torch.tensor([[-1.0, 0.0, 5.0], [0.0, 1.0, 5.5], [9.0, -9.0, 6.0]])
    # (0 - -1) / 2 * 255 = 127.5, unrounded; 1 / 51 * 255 = 5; beyond the range it is clipped.
    expected = torch.tensor([[0.0, 0.0, 0.0], [127.5, 5.0, 127.5], [255.0, 0.0, 255.0]])
    torch.testing.assert_close(student.encode(observations), expected)


def test_the_vector_forward_is_an_mlp_on_unit_inputs() -> None:
    student = Student(architecture_for("mlp-8-6", (3,), 2), 3)
    student.set_input_range(torch.tensor([-2.0, 0.0, 0.0]), torch.tensor([2.0, 1.0, 4.0]))
    observations = torch.rand((5, 3), generator=torch.Generator().manual_seed(0))
    x = (observations - torch.tensor([-2.0, 0.0, 0.0])) / torch.tensor([4.0, 1.0, 4.0])
    for name in ("linear1", "linear2"):
        x = torch.relu(student.layer(name)(x))
    outputs = student(observations)
    torch.testing.assert_close(outputs.actor, student.actor(x))
    torch.testing.assert_close(outputs.values, student.critic(x).squeeze(-1))
    assert {"input_low", "input_high"} <= student.state_dict().keys()


def test_a_feature_that_no_longer_varies_keeps_its_range() -> None:
    student = Student(StudentArchitecture((2,), 2, (), (16,)), seed=1)
    student.set_input_range(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 2.0]))
    x = torch.tensor([[-0.5, 1.0], [0.5, 1.0]])
    with torch.no_grad():
        before = student(x).actor
        student.move_input_range(torch.tensor([0.5, 0.0]), torch.tensor([0.5, 3.0]))
        after = student(x).actor
    assert student.input_low[0] == -1.0 and student.input_high.tolist() == [1.0, 3.0]
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-6)


def test_a_large_constant_has_a_width_that_float32_can_hold() -> None:
    student = Student(architecture_for("mlp-4", (3,), 2))
    low = torch.tensor([1.7e9, 0.5, -(2.0**25)])
    student.set_input_range(low, low.clone())
    width = student.input_high - student.input_low
    assert width[1] == 1.0 and (width[[0, 2]] >= 256).all()
    assert student(torch.stack([low, low + 1]))[0].isfinite().all()
