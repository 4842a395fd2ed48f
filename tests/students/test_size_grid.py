"""The seven sizes of the paper's Table 3, MLP names, and what is refused."""

from __future__ import annotations

import pytest

from qpd.students import SIZE_GRID, Student, StudentArchitecture, architecture_for

FRAMES = (4, 84, 84)

# Table 3: parameters without critic head, 4 actions. For XXS, by hand:
# conv1 8*8*4*16 + 16 = 4112 (84 -> 20), conv2 4*4*16*16 + 16 = 4112 (20 -> 9),
# conv3 3*3*16*16 + 16 = 2320 (9 -> 7), linear 7*7*16*32 + 32 = 25120, actor 32*4 + 4 = 132.
PARAMETERS = {
    "XXS": 35_796,
    "XS": 61_044,
    "S": 111_540,
    "M": 424_276,
    "L": 882_084,
    "XL": 1_686_180,
    "XXL": 3_335_364,
}


def test_the_grid_is_the_papers() -> None:
    assert list(SIZE_GRID) == list(PARAMETERS)


@pytest.mark.parametrize(("size", "expected"), PARAMETERS.items())
def test_parameter_counts(size: str, expected: int) -> None:
    architecture = architecture_for(size, FRAMES, 4)
    student = Student(architecture)
    deployed = [p for name, p in student.named_parameters() if not name.startswith("critic.")]
    counted = sum(p.numel() for p in deployed)
    assert architecture.num_parameters == counted == expected
    # The critic head, for training only: one weight per feature and a bias.
    everything = sum(p.numel() for p in student.parameters())
    assert everything == expected + architecture.hidden[-1] + 1


def test_xl_is_the_sb3_teacher_without_critic() -> None:
    # design.md: NatureCNN has 1,686,693 parameters with critic, 512 + 1 of them the critic's.
    assert architecture_for("XL", FRAMES, 4).num_parameters == 1_686_693 - 513


def test_layer_geometry_and_macs() -> None:
    shapes = {shape.name: shape for shape in architecture_for("M", FRAMES, 6).layer_shapes()}
    assert list(shapes) == ["conv1", "conv2", "conv3", "linear1", "actor"]
    assert [shape.output_shape for shape in shapes.values()] == [
        (16, 20, 20),
        (32, 9, 9),
        (32, 7, 7),
        (256,),
        (6,),
    ]
    assert shapes["linear1"].weight_shape == (256, 32 * 7 * 7)
    assert shapes["conv1"].num_macs == 8 * 8 * 4 * 16 * 20 * 20
    assert shapes["actor"].num_macs == 256 * 6


def test_a_fourth_and_fifth_convolution_shrink_the_image() -> None:
    shapes = StudentArchitecture(FRAMES, 4, (8, 16, 16, 12, 24), (10,)).layer_shapes()
    # 7x7 -> (7 - 3) // 2 + 1 = 3 -> (3 - 3) // 2 + 1 = 1
    assert [shape.output_shape for shape in shapes[2:5]] == [(16, 7, 7), (12, 3, 3), (24, 1, 1)]
    assert shapes[4].weight_shape == (24, 12, 3, 3) and shapes[5].weight_shape == (10, 24)
    for wrong in ((8, 8), (8,) * 6):
        with pytest.raises(ValueError, match="three to five convolutions"):
            StudentArchitecture(FRAMES, 4, wrong, (10,))


@pytest.mark.parametrize(
    ("name", "hidden", "parameters"),
    [
        ("mlp-16", (16,), 4 * 16 + 16 + 16 * 2 + 2),
        ("mlp-64-32", (64, 32), 4 * 64 + 64 + 64 * 32 + 32 + 32 * 2 + 2),
        ("mlp-1-2-3", (1, 2, 3), 4 + 1 + 2 + 2 + 6 + 3 + 6 + 2),
    ],
)
def test_mlp_names(name: str, hidden: tuple[int, ...], parameters: int) -> None:
    architecture = architecture_for(name, (4,), 2)
    assert (architecture.conv_channels, architecture.hidden) == ((), hidden)
    assert architecture.num_parameters == parameters


@pytest.mark.parametrize("name", ["", "xs", "XXXL", "mlp", "mlp-", "mlp-0", "mlp-8-", "mlp-8x8"])
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match="unknown student size.*XXS, XS, S, M, L, XL, XXL, mlp-64"):
        architecture_for(name, (4,), 2)


@pytest.mark.parametrize(
    ("size", "observation_shape"),
    [("S", (4,)), ("mlp-16", FRAMES), ("S", (1, 84, 30)), ("S", (4, 96, 35))],
)
def test_sizes_that_do_not_fit_the_observations(
    size: str, observation_shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="observations|too small"):
        architecture_for(size, observation_shape, 4)


@pytest.mark.parametrize("size", ["S", "mlp-16"])
def test_small_images_are_told_what_to_do(size: str) -> None:
    with pytest.raises(ValueError, match="need 36x36: show the images larger"):
        architecture_for(size, (3, 20, 24), 4)


@pytest.mark.parametrize(("num_outputs", "hidden"), [(0, (8,)), (2, ()), (2, (0,)), (2, (8, -1))])
def test_empty_layers_are_refused(num_outputs: int, hidden: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="positive widths"):
        StudentArchitecture((4,), num_outputs, (), hidden)
