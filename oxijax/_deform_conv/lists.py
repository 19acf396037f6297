"""Lists of the samples in each cell, from which the deterministic backward to input gathers.

They are made by one stable sort and by counting, whose results XLA does not leave to chance. They
hold nothing for each channel: an index and four weights a sample, two positions a pixel and tap.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from oxijax._convolution import ConvParams
from oxijax._core.arguments.checks import require_product
from oxijax._core.xla.runs import run_starts
from oxijax._deform_conv.reference import pixels_of
from oxijax._deform_conv.samples import BORDER
from ptx.kernels.deform_conv.backward_input_gather import CELL_BORDER

__all__ = ["SampleLists", "can_be_listed", "sample_lists", "sum_scale"]

assert BORDER == CELL_BORDER  # a cell is a row of the reference's padded images


class SampleLists(NamedTuple):
    """The samples of each offset group and tap, by the cell that they lie in.

    Cells are squares of four pixels, in images with a border of two; samples are counted as the
    output pixels. What lies far outside, or nowhere, is in cells that have no pixel.
    """

    starts: jax.Array  # int32 [OG, T, N*(H+4)*(W+4) + 1]
    order: jax.Array  # int32 [OG, T, N*Ho*Wo]
    corner_weights: jax.Array  # [OG, T, N*Ho*Wo, 4] in that order, with the mask


def can_be_listed(params: ConvParams, offset: jax.Array) -> bool:
    """Whether `sample_lists` can count the cells of these samples, whose sizes are known."""
    lists = offset.shape[3] // 2
    return math.prod(_cell_factors(params, offset)) <= _most_cells(lists)


def sample_lists(params: ConvParams, offset: jax.Array, mask: jax.Array | None, dtype):
    """The lists of a convolution.

    Args:
      params: the convolution.
      offset: [N, Ho, Wo, OG*T*2].
      mask: [N, Ho, Wo, OG*T], or None.
      dtype: the dtype of the weights: float32 or float64.

    Returns:
      The `SampleLists`.

    Raises:
      ValueError: the cells of all lists are too many to count; the message says what to do.
    """
    taps, offset_groups = params.op.taps, params.op.offset_groups
    lists, factors = offset_groups * taps, _cell_factors(params, offset)
    cells = math.prod(factors)
    require_product(
        factors,
        _most_cells(lists),
        f"the deterministic gradient to x of batch {factors[0]}, height and width "
        f"{params.size('h', 'w')}, "
        f"{offset_groups} offset groups and {taps} taps sorts samples into "
        f"{cells * lists} cells, and can count fewer than 2**32: split the batch",
    )
    corners = pixels_of(params, offset, mask).corners(params)
    rows = (corners.row // offset_groups).reshape(-1, offset_groups, taps)
    rows = rows.transpose(1, 2, 0).reshape(lists, -1)
    starts = run_starts(rows, cells)
    # All lists are sorted at once, by unsigned keys: radix sort, where XLA has one.
    number = lax.broadcasted_iota(jnp.uint32, (lists, 1), 0)
    keys = rows.astype(jnp.uint32) + number * jnp.asarray(cells, jnp.uint32)
    samples = lax.broadcasted_iota(jnp.int32, keys.shape, 1)
    _, order = lax.sort((keys.reshape(-1), samples.reshape(-1)), is_stable=True, num_keys=1)
    order = order.reshape(keys.shape)

    weights = jnp.stack(corners.weights(), axis=-1).astype(dtype)
    weights = weights.at[order, number.astype(jnp.int32)].get(mode="promise_in_bounds")
    per_list = (offset_groups, taps)
    return SampleLists(
        starts.reshape(*per_list, -1), order.reshape(*per_list, -1),
        weights.reshape(*per_list, -1, 4),
    )  # fmt: skip


def sum_scale(
    params: ConvParams, lists: SampleLists, mask: jax.Array | None, grad_y: jax.Array
) -> jax.Array:
    """The power of two, float32 [1], that brings the sums of lists near the top of float16's range.

    Sums of gradients weighted by corner weights divided by it stay below 2**15, and lose no more
    to float16's subnormal numbers than their own gradients did if no list is longer than usual.
    Elements that are not finite do not count.
    """
    height, width = params.size("h", "w")
    starts = lists.starts
    lengths = (starts[..., 1:] - starts[..., :-1]).reshape(
        *starts.shape[:2], -1, height + 2 * BORDER, width + 2 * BORDER
    )
    beside = slice(BORDER - 1, -BORDER)  # the cells that have a pixel
    longest = lengths[..., beside, beside].max(initial=1).astype(jnp.float32)
    # A pixel has the samples of four cells, with bilinear weights of 1 at most.
    bound = 4 * longest * _largest(grad_y) * (1.0 if mask is None else _largest(mask))
    _, exponent = jnp.frexp(jnp.minimum(bound, jnp.finfo(jnp.float32).max))
    return jnp.ldexp(jnp.float32(1), jnp.clip(exponent - 15, -100, 100)).reshape(1)


def _largest(x: jax.Array) -> jax.Array:
    """The largest magnitude of the elements that are finite, in float32; 0 if none is."""
    magnitudes = jnp.abs(x.astype(jnp.float32))
    return jnp.where(jnp.isfinite(magnitudes), magnitudes, 0).max(initial=0)


def _cell_factors(params: ConvParams, offset: jax.Array) -> tuple[int, int, int]:
    """Images, and rows and columns of the cells of one: their product are the cells of a list."""
    height, width = params.size("h", "w")
    return offset.shape[0], height + 2 * BORDER, width + 2 * BORDER


def _most_cells(lists: int) -> int:
    """The most cells of a list, of so many: keys have 32 bits, and indices 31."""
    return min(2**31, 2**32 // lists) - 1
