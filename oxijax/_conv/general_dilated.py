"""`jax.lax.conv_general_dilated` by the convolution primitives, for layers that take one."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from oxijax._conv import conv_nhwc
from oxijax._convolution import conv_params, output_size, parse_padding, parse_pair
from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import ImplementationLike, parse_implementation
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.precision import parse_precisions
from ptx.kernels.conv import ConvConfig

__all__ = ["conv_general_dilated"]


@explain_keywords
def conv_general_dilated(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: tuple[str, str, str] | lax.ConvDimensionNumbers | None = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: lax.PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: NamedSharding | PartitionSpec | None = None,
    *,
    implementation: ImplementationLike = None,
) -> jax.Array:
    """`oxijax.conv` with the arguments of `jax.lax.conv_general_dilated`.

    For layers that take a convolution as an argument:

        nnx.Conv(8, 16, (3, 3), conv_general_dilated=oxijax.conv_general_dilated, rngs=rngs)
        linen.Conv(16, (3, 3), conv_general_dilated=oxijax.conv_general_dilated)

    Args:
      lhs: images, with one or two spatial dimensions; float16, bfloat16, float32 or float64.
      rhs: convolution kernel, in lhs's dtype.
      window_strides: pixels from one output to the next, one for each spatial dimension.
      padding: "SAME", "SAME_LOWER", "VALID", or a pair (before, after) for each spatial
        dimension; negative ones take pixels away.
      lhs_dilation: None or ones.
      rhs_dilation: pixels from one tap to the next, one for each spatial dimension.
      dimension_numbers: which dimension of lhs, rhs and the result is what, in any order; as
        strings, as `jax.lax.ConvDimensionNumbers`, or None for ("NCHW", "OIHW", "NCHW").
      feature_group_count: number of groups.
      batch_group_count: 1.
      precision: the precision of the products; None is JAX's `default_matmul_precision`.
      preferred_element_type: None or lhs's dtype. Sums are in float32 all the same, for float64
        in float64.
      out_sharding: None.
      implementation: as in `oxijax.conv`.

    Returns:
      What `jax.lax.conv_general_dilated` does.

    Raises:
      NotImplementedError: a value of an argument that only `jax.lax.conv_general_dilated`
        covers, by name: another `lhs_dilation`, `batch_group_count`, `preferred_element_type`
        or `out_sharding` than above, three dimensions or none, integer or complex dtypes, two
        different precisions, arrays without channels, and results without pixels.
      ValueError: an argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.
    """
    precisions = parse_precisions(precision)
    batch_groups = checks.parse_int("batch_group_count", batch_group_count)
    groups = checks.parse_int("feature_group_count", feature_group_count)
    lhs, rhs = _as_array("lhs", lhs), _as_array("rhs", rhs)
    checks.check_same_dtype("rhs", rhs, "lhs", lhs)
    rank = lhs.ndim - 2
    numbers = _parse_dimension_numbers(lhs, rhs, dimension_numbers)
    if _parse_dilation("lhs_dilation", lhs_dilation, rank) != (1, 1):
        raise _not_covered(f"{lhs_dilation=}")
    if batch_groups != 1:
        raise _not_covered(f"{batch_group_count=}")
    checks.check_out_sharding(out_sharding)
    if out_sharding is not None:
        raise _not_covered(f"{out_sharding=}")
    if preferred_element_type is not None:
        preferred = checks.parse_dtype("preferred_element_type", preferred_element_type)
        if not jnp.issubdtype(preferred, jnp.number):
            raise TypeError(
                f"preferred_element_type must be a dtype of numbers, got {preferred_element_type}"
            )
        if preferred != lhs.dtype:
            raise _not_covered(f"preferred_element_type={preferred} for lhs of dtype {lhs.dtype}")
    if precisions[0] != precisions[1]:
        raise _not_covered(f"{precision=}, different for lhs and rhs")

    x, weight = _to_nhwc(lhs, rhs, numbers)
    if 0 in x.shape[1:] or 0 in weight.shape:
        raise _not_covered(f"lhs of shape {lhs.shape} with rhs of shape {rhs.shape}")
    _check_groups(groups, x.shape[3], *weight.shape[2:])
    strides = parse_pair("window_strides", window_strides, rank)
    dilation = _parse_dilation("rhs_dilation", rhs_dilation, rank)
    image_size, kernel_size = (x.shape[1], x.shape[2]), (weight.shape[0], weight.shape[1])
    pads = parse_padding(padding, image_size, kernel_size, strides, dilation, rank, negative=True)
    try:
        size = output_size(image_size, kernel_size, strides, pads, dilation)
    except ValueError:
        raise _not_covered(
            f"lhs of shape {lhs.shape} that is smaller with padding={padding!r} than rhs of shape "
            f"{rhs.shape} with {rhs_dilation=}"
        ) from None
    if min(map(min, pads)) < 0:
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((*p, 0) for p in pads), (0, 0, 0)])
        pads = ((0, 0), (0, 0))
    params = conv_params(
        ConvConfig, x, weight, strides=strides, padding=pads, dilation=dilation, output_size=size,
        groups=groups,
        precision=precisions[0], implementation=parse_implementation(implementation),
    )  # fmt: skip
    return _from_nhwc(conv_nhwc(params, x, weight, None), numbers)


def _not_covered(what: str) -> NotImplementedError:
    return NotImplementedError(
        f"oxijax.conv_general_dilated does not cover {what}: use jax.lax.conv_general_dilated, "
        "with the same arguments"
    )


def _as_array(name: str, value: Any) -> jax.Array:
    array = checks.to_array(name, value)
    if not jnp.issubdtype(array.dtype, jnp.number):
        raise TypeError(f"{name} must have a dtype of numbers, got {array.dtype}")
    if array.ndim < 2:
        raise ValueError(f"{name} must have images and channels, got shape {array.shape}")
    if array.dtype not in checks.FLOAT_DTYPES:
        raise _not_covered(f"{name} of dtype {array.dtype}")
    if array.ndim not in (3, 4):
        raise _not_covered(f"{name} with {array.ndim - 2} spatial dimensions, shape {array.shape}")
    return array


def _parse_dilation(name: str, value: Any, rank: int) -> tuple[int, int]:
    return parse_pair(name, 1 if value is None else value, rank)


def _parse_dimension_numbers(
    lhs: jax.Array, rhs: jax.Array, value: Any
) -> lax.ConvDimensionNumbers:
    if lhs.ndim != rhs.ndim:
        raise ValueError(
            f"rhs must have as many dimensions as lhs, of shape {lhs.shape}, got shape {rhs.shape}"
        )
    order = range(lhs.ndim)
    try:
        numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, value)
        right = all(sorted(spec) == [*order] for spec in numbers)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"dimension_numbers must be three strings, a jax.lax.ConvDimensionNumbers or None, "
            f"got {checks.shown(value)}: {error}"
        ) from None
    if not right:
        raise ValueError(
            f"dimension_numbers must number {lhs.ndim} dimensions for each of lhs, rhs and the "
            f"result, got {value}"
        )
    return numbers


def _check_groups(groups: int, channels: int, in_group: int, out_channels: int) -> None:
    if groups * in_group != channels:
        raise ValueError(
            f"feature_group_count must be lhs's channels over rhs's input channels, {channels} / "
            f"{in_group}, got {groups}"
        )
    if out_channels % groups:
        raise ValueError(
            f"feature_group_count must divide rhs's output channels, {out_channels}, got {groups}"
        )


def _to_nhwc(
    lhs: jax.Array, rhs: jax.Array, numbers: lax.ConvDimensionNumbers
) -> tuple[jax.Array, jax.Array]:
    batch, channels, *spatial = numbers.lhs_spec
    x = lhs.transpose(batch, *spatial, channels)
    out_channels, in_channels, *taps = numbers.rhs_spec
    weight = rhs.transpose(*taps, in_channels, out_channels)
    if lhs.ndim == 3:
        return jnp.expand_dims(x, 1), jnp.expand_dims(weight, 0)
    return x, weight


def _from_nhwc(y: jax.Array, numbers: lax.ConvDimensionNumbers) -> jax.Array:
    batch, channels, *spatial = numbers.out_spec
    if len(spatial) == 1:
        y = y.squeeze(1)
    order = (batch, *spatial, channels)
    return y.transpose(*(order.index(axis) for axis in range(len(order))))
