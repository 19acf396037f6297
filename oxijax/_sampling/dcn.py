"""Deformable convolution v3 and v4: windows whose samples are weighed, without a convolution."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from oxijax._convolution import PaddingLike, output_size, parse_padding, parse_pair
from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike, parse_implementation
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.twin import reference_twin
from oxijax._core.primitive.explicit import reshape
from oxijax._sampling import SampleInputs, sample, sample_inputs, sample_reference
from oxijax._sampling.packed import packed_width
from oxijax._sampling.points import check_image
from ptx.kernels.sampling.geometry import Window

__all__ = ["dcnv3", "dcnv3_reference", "dcnv4", "dcnv4_reference", "parse_dcnv3", "parse_dcnv4"]


@explain_keywords
def dcnv3(
    x: ArrayLike,
    offset: ArrayLike,
    mask: ArrayLike,
    *,
    kernel_size: int | tuple[int, int],
    strides: int | tuple[int, int] = 1,
    padding: PaddingLike = "SAME",
    dilation: int | tuple[int, int] = 1,
    groups: int,
    offset_scale: float = 1.0,
    remove_center: bool = False,
    softmax: bool = False,
    implementation: ImplementationLike = None,
) -> jax.Array:
    """Deformable convolution v3: each output is a weighted sum of samples of its group's channels.

        y[n, p, g] = sum over taps k of mask[n, p, g, k]
            * x(n, p * strides - padding + middle + offset_scale * (k * dilation - middle
                + offset[n, p, g, k]), g)

    with middle = dilation * (kernel_size - 1) // 2, by bilinear interpolation of the image with
    zeros outside. There are no weights that are shared by pixels.

    Args:
      x: images [N, H, W, C]; float16, bfloat16, float32 or float64.
      offset: [N, Ho, Wo, G*K*2], in pixels before offset_scale, any of these dtypes: for each group
        and tap the horizontal offset and then the vertical one.
      mask: [N, Ho, Wo, G*K], any of these dtypes.
      kernel_size: the size of the window; an int, or (height, width). Its K taps are counted column
        by column.
      strides: pixels from one output to the next; an int, or (vertical, horizontal).
      padding: zeros around the image: "SAME", "SAME_LOWER", "VALID", an int, or for height
        and width an int or a pair (before, after) each.
      dilation: pixels from one tap to the next; an int, or (vertical, horizontal).
      groups: G, which divides C.
      offset_scale: the scale of offsets and the window itself, about its middle.
      remove_center: leave out the tap in the middle, so that K is one less. Sides of the window
        must be odd then.
      softmax: take the softmax of mask over the taps of a pixel and group, as the paper's layer
        does; else mask has no bounds.
      implementation: "ptx" for kernels, which raises where none can run, "xla" for XLA's program,
        or a sequence of them, the preferred first. None is "ptx" on NVIDIA GPUs, else "xla".

    Returns:
      The sums [N, Ho, Wo, C] in x's dtype. They are made in float32, for float64 x in float64;
      positions are in float32, for float64 offsets in float64. NaN and infinite offsets do what
      they do in `oxijax.deform_conv`.

    Differentiable in forward and reverse mode, any number of times.

    Raises:
      ValueError: a shape, a padding or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Wang et al., "InternImage: Exploring Large-Scale Vision Foundation Models with
    Deformable Convolutions", 2023.
    """
    return sample(
        parse_dcnv3(
            *(x, offset, mask, kernel_size, strides, padding, dilation),
            *(groups, offset_scale, remove_center, softmax, implementation),
        )
    )


dcnv3_reference = reference_twin(dcnv3, lambda *values: sample_reference(parse_dcnv3(*values)))


@explain_keywords
def dcnv4(
    x: ArrayLike,
    offset_mask: ArrayLike,
    *,
    kernel_size: int | tuple[int, int],
    strides: int | tuple[int, int] = 1,
    padding: PaddingLike = "SAME",
    dilation: int | tuple[int, int] = 1,
    groups: int,
    offset_scale: float = 1.0,
    remove_center: bool = False,
    softmax: bool = False,
    implementation: ImplementationLike = None,
) -> jax.Array:
    """Deformable convolution v4: `oxijax.dcnv3` with offsets and masks in one array.

    Args:
      x: images [N, H, W, C]; float16, bfloat16, float32 or float64.
      offset_mask: [N, Ho, Wo, ceil(3*G*K / 8) * 8], any of these dtypes: for each group the K*2
        offsets of `oxijax.dcnv3` and then its K masks; what is left at the end is not used.
      kernel_size: the size of the window; this one and the following are those of `oxijax.dcnv3`.
      strides: pixels from one output to the next.
      padding: zeros around the image.
      dilation: pixels from one tap to the next.
      groups: G, which divides C.
      offset_scale: the scale of offsets and the window itself, about its middle.
      remove_center: leave out the tap in the middle.
      softmax: take the softmax of the masks over the taps of a pixel and group.
      implementation: as in `oxijax.dcnv3`.

    Returns:
      The sums [N, Ho, Wo, C]; see `oxijax.dcnv3`.

    Differentiable in forward and reverse mode, any number of times.

    Raises:
      ValueError: a shape, a padding or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.

    Source: Xiong et al., "Efficient Deformable ConvNets: Rethinking Dynamic and Sparse Operator for
    Vision Applications", 2024.
    """
    return sample(
        parse_dcnv4(
            *(x, offset_mask, kernel_size, strides, padding, dilation),
            *(groups, offset_scale, remove_center, softmax, implementation),
        )
    )


dcnv4_reference = reference_twin(dcnv4, lambda *values: sample_reference(parse_dcnv4(*values)))


def parse_dcnv3(
    x, offset, mask, kernel_size, strides, padding, dilation,
    groups, offset_scale, remove_center, softmax, implementation,
) -> SampleInputs:  # fmt: skip
    x, window, groups = _parse_window(
        x, kernel_size, strides, padding, dilation, groups, offset_scale, remove_center
    )
    softmax = checks.parse_bool("softmax", softmax)
    taps = len(window.taps)
    offset = checks.as_array("offset", offset, 4)
    mask = checks.as_array("mask", mask, 4)
    pixels, names = (x.shape[0], *window.out_size), ("N", "Ho", "Wo")
    checks.check_shape("offset", offset, (*names, "G*K*2"), (*pixels, groups * taps * 2))
    checks.check_shape("mask", mask, (*names, "G*K"), (*pixels, groups * taps))
    queries = window.out_size[0] * window.out_size[1]
    locations = reshape(offset, (x.shape[0], queries, groups, taps, 2))
    weights = reshape(mask, (x.shape[0], queries, groups, taps))
    return _inputs(x, window, groups, softmax, implementation, locations=locations, weights=weights)


def parse_dcnv4(
    x, offset_mask, kernel_size, strides, padding, dilation,
    groups, offset_scale, remove_center, softmax, implementation,
) -> SampleInputs:  # fmt: skip
    x, window, groups = _parse_window(
        x, kernel_size, strides, padding, dilation, groups, offset_scale, remove_center
    )
    softmax = checks.parse_bool("softmax", softmax)
    packed = checks.as_array("offset_mask", offset_mask, 4)
    width = packed_width(groups, len(window.taps))
    checks.check_shape(
        "offset_mask",
        packed,
        ("N", "Ho", "Wo", "ceil(3*G*K / 8) * 8"),
        (x.shape[0], *window.out_size, width),
    )
    packed = reshape(packed, (x.shape[0], window.out_size[0] * window.out_size[1], width))
    return _inputs(x, window, groups, softmax, implementation, packed=packed)


def _parse_window(
    x, kernel_size, strides, padding, dilation, groups, offset_scale, remove_center
) -> tuple[jax.Array, Window, int]:
    x = checks.as_array("x", x, 4)
    check_image("x", x)
    groups = checks.parse_int("groups", groups)
    if x.shape[3] % groups:
        raise ValueError(f"groups must divide the channels of x, {x.shape[3]}, got {groups}")
    kernel = parse_pair("kernel_size", kernel_size)
    strides = parse_pair("strides", strides)
    dilation = parse_pair("dilation", dilation)
    remove_center = checks.parse_bool("remove_center", remove_center)
    if remove_center and (kernel[0] % 2 == 0 or kernel[1] % 2 == 0 or kernel == (1, 1)):
        raise ValueError(
            f"kernel_size must be odd and more than one tap with remove_center, got {kernel}"
        )
    scale = checks.parse_number("offset_scale", offset_scale)
    if abs(scale) > float(jnp.finfo(jnp.float32).max):
        raise ValueError(f"offset_scale must be a number that float32 has, got {scale}")
    size = x.shape[1], x.shape[2]
    pads = parse_padding(padding, size, kernel, strides, dilation)
    out_size = output_size(size, kernel, strides, pads, dilation)
    window = Window(
        out_size, kernel, strides, (pads[0][0], pads[1][0]), dilation, scale, remove_center
    )
    return x, window, groups


def _inputs(
    x: jax.Array, window: Window, groups: int, softmax: bool, implementation: Any, **points: Any
) -> SampleInputs:
    n, height, width, channels = x.shape
    return sample_inputs(
        reshape(x, (n, height * width, groups, channels // groups)),
        ((height, width),), (len(window.taps),), window, (n, *window.out_size, channels),
        normalize=softmax, implementation=parse_implementation(implementation), **points,
    )  # fmt: skip
