"""Describe an agent's observations: vectors and images, and where a Dict's parts lie in them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from qpd.errors.codes import ErrorCode
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.archive.plain_data import DictPart, ObservationSpace
from qpd.teachers.archive.sb3_archive import Sb3Archive
from qpd.teachers.networks.build import Network, num_inputs
from qpd.teachers.networks.features import CombinedFeatures, NatureCnn
from qpd.teachers.networks.layers import linear_layers

_ATARI_SIZE = 84


def choose_observations(
    archive: Sb3Archive, network: Network, scale: float
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the shape of one observation, and of the uint8 image that it is or begins with.

    Extractors of a Dict with images are told where its parts lie, and that `scale` divides pixels.
    Raises TeacherError for observations that are not supported, or do not fit the network.
    """
    space = archive.observation_space
    extractors = [m for m in network.modules() if isinstance(m, NatureCnn)]
    if any(isinstance(m, CombinedFeatures) for m in network.modules()):
        return _place_parts(space, network, scale)
    if space.space not in (None, "Box"):
        # One-hot numbers, bits, and a Dict's parts one after the other: plain inputs of the MLP.
        if space.space not in ("Discrete", "MultiDiscrete", "MultiBinary", "Dict") or extractors:
            raise TeacherError(
                f"observations of type {space.space} are not supported; expected a Box"
            )
        return (num_inputs(network),), None
    if extractors:
        if space.dtype not in (None, "uint8"):
            raise TeacherError(
                f"images of type {space.dtype} are not supported; expected uint8: let the "
                "environment show whole numbers from 0 to 255, and train with normalize_images, "
                "SB3's default, which divides them by 255"
            )
        # Some archives do not tell their observation space in plain text; the linear layer's size
        # confirms 84x84 just below.
        shape = space.shape or (extractors[0].in_channels, _ATARI_SIZE, _ATARI_SIZE)
        _check_images(extractors[0], shape)
        return shape, shape
    inputs = num_inputs(network)
    shape = space.shape or (inputs,)
    if torch.Size(shape).numel() != inputs:
        line = f"observations of shape {shape} do not fit {inputs} inputs"
        raise TeacherError(line, ErrorCode.TEACHER_DAMAGED)
    # SB3 flattens small images for MlpPolicy, but still divides them by 255. Other numbers of
    # several axes are vectors, as environments show them.
    return (shape, shape) if space.is_uint8_image else ((inputs,), None)


def shown_parts(parts: Sequence[DictPart]) -> list[DictPart]:
    """Return a Dict's parts in the order in which QPD's environments show them: images first."""
    return sorted(parts, key=lambda part: not part.is_uint8_image)


def _place_parts(
    space: ObservationSpace, network: Network, scale: float
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tell extractors where a Dict's parts lie; return the shapes of observations and of images.

    The images' channels follow each other.
    """
    if space.space != "Dict" or not space.parts:
        raise TeacherError(
            "observations are a Dict with an image, but its archive does not say in plain text "
            "which parts it has: load it with Stable-Baselines3, and save it again"
        )
    shown = shown_parts(space.parts)
    images = [part for part in shown if part.is_uint8_image]
    sides = {part.shape[1:] for part in images}
    if len(sides) > 1:
        sizes = ", ".join(f"{part.key} {'x'.join(map(str, part.shape[1:]))}" for part in images)
        raise TeacherError(
            f"observations are a Dict with images of unlike sizes ({sizes}): not supported; train "
            "the agent on images of one size (gymnasium.wrappers.TransformObservation)"
        )
    ends = accumulate(part.size for part in shown)
    firsts = {part.key: end - part.size for part, end in zip(shown, ends, strict=True)}
    places = [(part.key, firsts[part.key], part.shape) for part in space.parts]
    combined = [m for m in network.modules() if isinstance(m, CombinedFeatures)]
    for extractor in combined:
        if set(extractor.images) != {part.key for part in images}:
            raise TeacherError(
                f"images {', '.join(extractor.images)}, but its Dict has as images of uint8 from 0 "
                f"to 255 {', '.join(part.key for part in images) or 'none'}: train the agent on "
                "such images, with normalize_images, SB3's default"
            )
        for part in images:
            _check_images(extractor.images[part.key], part.shape)
    _check_features(space.parts, network, combined)
    for extractor in combined:
        # Of images alone, `Teacher.preprocess` divides.
        extractor.place(places, 1.0 if len(images) == len(shown) else scale)
    image_shape = (sum(part.shape[0] for part in images), *images[0].shape[1:])
    if len(images) == len(shown):
        return image_shape, image_shape
    return (sum(part.size for part in shown),), image_shape


def _check_features(
    parts: Sequence[DictPart], network: Network, combined: Sequence[CombinedFeatures]
) -> None:
    """Raise TeacherError unless the features of all parts are what the first layer behind reads.

    Nothing is allocated before: the text of a stranger's archive may claim any size.
    """
    inside = {module for extractor in combined for module in extractor.modules()}
    behind = next(layer for layer in linear_layers(network) if layer not in inside)
    count = sum(
        combined[0].images[part.key].linear.out_features if part.is_uint8_image else part.size
        for part in parts
    )
    if count != behind.in_features:
        raise TeacherError(
            f"a Dict of {count} features, and {behind.in_features} inputs behind them",
            ErrorCode.TEACHER_DAMAGED,
        )


def _check_images(extractor: NatureCnn, shape: tuple[int, ...]) -> None:
    fits = len(shape) == 3 and shape[0] == extractor.in_channels
    if not fits or extractor.flat_size(*shape[1:]) != extractor.linear.in_features:
        raise TeacherError(
            f"images of shape {shape} do not fit this NatureCNN: {extractor.in_channels} channels,"
            f" {extractor.linear.in_features} inputs of its linear layer",
            ErrorCode.TEACHER_DAMAGED,
        )
