"""Where the C runtime finds the patches of a layer in its input."""

from __future__ import annotations

from qpd.integer.integer_student import IntegerLayer, IntegerStudent


def positions(layer: IntegerLayer) -> tuple[int, int]:
    """Return the rows and columns of a layer's output: 1 and 1 for a linear layer."""
    if layer.shape.kind == "linear":
        return 1, 1
    _, rows, columns = layer.shape.output_shape
    return rows, columns


def is_whole(student: IntegerStudent, layer: IntegerLayer) -> bool:
    """Return whether the layer has a single patch, which is its input from end to end."""
    if layer.shape.kind == "linear":
        return True
    return tuple(layer.weight.shape[2:]) == input_shape(student, layer)[1:]


def input_shape(student: IntegerStudent, layer: IntegerLayer) -> tuple[int, ...]:
    """Return a convolution's input, `(channels, height, width)`."""
    shapes = student.architecture.layer_shapes()
    number = [shape.name for shape in shapes].index(layer.shape.name)
    if number:
        return shapes[number - 1].output_shape
    architecture = student.architecture
    return architecture.image_shape or architecture.observation_shape


def geometry(student: IntegerStudent, layer: IntegerLayer) -> dict[str, int]:
    """Return where the layer's patches lie in its input, in bytes; see qpd_layer.h."""
    own_images = is_own_image(student)
    if layer.shape.kind == "linear" or (own_images and is_whole(student, layer)):
        width = layer.weight[0].size
        found = dict(
            planes=1, rows=1, row_bytes=width, plane_stride=0, row_stride=0, step_x=0, step_y=0
        )
    else:
        found = _patches(student, layer)
    rows, columns = positions(layer)
    return found | {"side": columns} | ({"down": rows} if own_images else {})


def _patches(student: IntegerStudent, layer: IntegerLayer) -> dict[str, int]:
    channels, height, width = input_shape(student, layer)
    kernel, stride = layer.weight.shape[2], layer.shape.stride
    planes, pixel, plane_stride = 1, channels, 0
    if layer.shape.name == "conv1":  # channels, one after the other
        planes, pixel, plane_stride = channels, 1, height * width
    row = width * pixel
    return dict(
        planes=planes,
        rows=kernel,
        row_bytes=kernel * pixel,
        plane_stride=plane_stride,
        row_stride=row,
        step_x=stride * pixel,
        step_y=stride * row,
    )


def is_own_image(student: IntegerStudent) -> bool:
    """Return whether there is an image, but not Atari's stack of four frames."""
    architecture = student.architecture
    return architecture.image_shape is not None and not architecture.stacks_frames
