"""What the families of convolution share: a geometry, arguments, and fields of kernels."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from oxijax._core import arguments as arguments
from oxijax._core.fold import Fold, Shapes
from oxijax._core.implementation import Implementation, read_implementation
from oxijax._core.precision import is_exact, ptx_dtype

__all__ = [
    "ConvParams",
    "dimension_sizes",
    "from_nhwc",
    "more_channels",
    "more_groups",
    "parallel_dimensions",
    "read_arguments",
    "to_nhwc",
]


@dataclasses.dataclass(frozen=True)
class ConvParams:
    """What is static in a convolution; pairs are (height, width)."""

    image_size: tuple[int, int]
    kernel_size: tuple[int, int]
    strides: tuple[int, int]
    padding: arguments.Pads
    dilation: tuple[int, int]
    groups: int
    precision: lax.Precision
    implementation: Implementation = None

    @property
    def taps(self) -> int:
        """The number of taps of the kernel."""
        return self.kernel_size[0] * self.kernel_size[1]

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        return arguments.unchecked_output_size(
            self.image_size, self.kernel_size, self.strides, self.padding, self.dilation
        )

    def products(self, images: Any, channels: int, out_channels: int) -> Any:
        """Multiplications of a convolution, and of each of its gradients, for so many images."""
        pixels = images * self.out_size[0] * self.out_size[1]
        return pixels * self.taps * (channels // self.groups) * out_channels

    def kernel_fields(self, in_channels: int, out_channels: int, dtype: Any) -> dict[str, Any]:
        """The fields that the configurations of all families' kernels have.

        Args:
          in_channels: channels of an image.
          out_channels: channels of an output.
          dtype: of the images.
        """
        (pad_h, _), (pad_w, _) = self.padding
        return {
            "in_channels": in_channels,
            "out_channels": out_channels,
            "kernel_h": self.kernel_size[0],
            "kernel_w": self.kernel_size[1],
            "stride_h": self.strides[0],
            "stride_w": self.strides[1],
            "pad_h": pad_h,
            "pad_w": pad_w,
            "dilation_h": self.dilation[0],
            "dilation_w": self.dilation[1],
            "groups": self.groups,
            "float_type": ptx_dtype(dtype),
            "exact": is_exact(self.precision, dtype),
        }


def read_arguments(
    x, weight, bias, strides, padding, dilation, data_format, precision, implementation,
    *, data_formats,
) -> tuple[ConvParams, jax.Array, jax.Array, jax.Array | None]:  # fmt: skip
    """Checks the arguments that all convolutions have: `data_format` is one of `data_formats`.

    Returns:
      The configuration, then x and weight in NHWC, with a height of 1 for one dimension, and bias.

    Raises:
      ValueError: a shape or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.
    """
    arguments.check_choice("data_format", data_format, data_formats)
    ndim, rank = len(data_format), len(data_format) - 2
    why = f" with data_format {data_format!r}"
    x = arguments.as_array("x", x, ndim, why)
    weight = arguments.as_array("weight", weight, ndim, why)
    bias = None if bias is None else arguments.as_array("bias", bias, 1)
    arguments.check_same_dtype("weight", weight, "x", x)
    if bias is not None:
        arguments.check_same_dtype("bias", bias, "x", x)

    # Shapes are checked in the user's layout, so that errors speak of it.
    if data_format[1] == "C":
        channels, *size = x.shape[1:]
        out_channels, in_group, *kernel = weight.shape
    else:
        *size, channels = x.shape[1:]
        *kernel, in_group, out_channels = weight.shape
    if any(extent < 1 for extent in (channels, *size)):
        extents = "channels, height and width" if rank == 2 else "channels and width"
        raise ValueError(f"x must have {extents}, got shape {x.shape}")
    if min(weight.shape) < 1:
        raise ValueError(f"weight must have no dimension of size 0, got shape {weight.shape}")
    groups = arguments.read_groups(channels, in_group, out_channels, weight.shape, why)
    if bias is not None:
        arguments.check_shape("bias", bias, ("Co",), (out_channels,))

    height, width = [1, *size][-2:]
    kernel_height, kernel_width = [1, *kernel][-2:]
    image_size, kernel_size = (height, width), (kernel_height, kernel_width)
    strides = arguments.read_pair("strides", strides, rank)
    dilation = arguments.read_pair("dilation", dilation, rank)
    pads = arguments.read_padding(padding, image_size, kernel_size, strides, dilation, rank)
    arguments.output_size(image_size, kernel_size, strides, pads, dilation, rank)
    config = ConvParams(
        image_size=image_size,
        kernel_size=kernel_size,
        strides=strides,
        padding=pads,
        dilation=dilation,
        groups=groups,
        precision=arguments.read_precision(precision),
        implementation=read_implementation(implementation),
    )
    if data_format[1] == "C":
        weight = weight.transpose(*range(2, ndim), 1, 0)
    if rank == 1:
        weight = jnp.expand_dims(weight, 0)
    return config, to_nhwc(x, data_format), weight, bias


def to_nhwc(images: jax.Array, data_format: str) -> jax.Array:
    """Images of any `data_format` as [N, H, W, C], with a height of 1 for one dimension."""
    if data_format[1] == "C":
        images = jnp.moveaxis(images, 1, -1)
    return jnp.expand_dims(images, 1) if len(data_format) == 3 else images


def from_nhwc(y: jax.Array, data_format: str) -> jax.Array:
    """[N, H, W, C] as images of `data_format`."""
    if len(data_format) == 3:
        y = y.squeeze(1)
    return jnp.moveaxis(y, -1, 1) if data_format[1] == "C" else y


def dimension_sizes(config: ConvParams, sizes: dict[str, int]) -> dict[str, int]:
    """Completes the sizes of a primitive's dimensions.

    They are called: images n of size h, w with c channels; output pixels p, q; taps i, j; input
    channels a group e; output channels o.
    """
    (h, w), (p, q), (i, j) = config.image_size, config.out_size, config.kernel_size
    c = sizes["c"] if "c" in sizes else config.groups * sizes["e"]
    e = c // config.groups
    return {**sizes, "h": h, "w": w, "p": p, "q": q, "i": i, "j": j, "c": c, "e": e}


def parallel_dimensions(config: ConvParams, operands: Sequence[str]) -> str:
    """Along which dimensions a primitive's call may be split: images, and output channels."""
    return "n o" if config.groups == 1 else "n"  # groups have channels of their own


def more_groups(dims: str) -> Fold:
    """The fold that makes more groups, each with its own weights: a part of it has some of them.

    Args:
      dims: the names of all dimensions that groups divide.
    """

    def part(config: ConvParams, shapes: Shapes, parts: int) -> tuple[str, ConvParams] | None:
        together = _with_offset_groups("c o", config, shapes, parts)
        if config.groups % parts or together is None:
            return None
        return together, dataclasses.replace(config, groups=config.groups // parts)

    return Fold(
        dims,
        update=lambda config, size: dataclasses.replace(config, groups=config.groups * size),
        part=part,
    )


def more_channels(dims: str, *, vmapped: bool) -> Fold:
    """The fold that makes more input channels of one group: results are sums over its parts.

    Args:
      dims: the names of all dimensions that input channels, or offset groups, divide.
      vmapped: whether it absorbs a vmapped axis.
    """

    def part(config: ConvParams, shapes: Shapes, parts: int) -> tuple[str, ConvParams] | None:
        together = _with_offset_groups("c e", config, shapes, parts)
        if config.groups > 1 or "bias" in shapes or together is None:
            return None  # a bias would be added by each part
        return together, config

    return Fold(dims, fits=lambda config: vmapped and config.groups == 1, part=part)


def _with_offset_groups(dims: str, config: ConvParams, shapes: Shapes, parts: int) -> str | None:
    """The dimensions that are split together, or None where parts would share an offset group."""
    offset_groups = shapes["offset"][-1] // (2 * config.taps) if "offset" in shapes else 1
    if offset_groups == 1:  # all parts have it
        return dims
    return None if offset_groups % parts else f"{dims} d m"
