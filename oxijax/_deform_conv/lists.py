"""Lists of the samples in each cell, from which the deterministic backward to input gathers.

They are made by a stable sort and by searches, whose results XLA does not leave to chance, and hold
nothing for each channel: an index and four weights a sample, and two positions a pixel and tap.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from oxijax._core.convolution import ConvParams
from oxijax._core.sizes import is_known
from oxijax._deform_conv.reference import pixels_of
from oxijax._deform_conv.samples import BORDER
from ptx.kernels.deform_conv.backward_input_gather import CELL_BORDER

__all__ = ["SampleLists", "sample_lists"]

assert BORDER == CELL_BORDER  # a cell is a row of the reference's padded images


class SampleLists(NamedTuple):
    """The samples of each offset group and tap, by the cell that they lie in.

    Cells are squares of four pixels, in images with a border of two; samples are counted as the
    output pixels. What lies far outside, or nowhere, is in cells that have no pixel.
    """

    starts: jax.Array  # int32 [OG, T, N*(H+4)*(W+4) + 1]
    order: jax.Array  # int32 [OG, T, N*Ho*Wo]
    corner_weights: jax.Array  # [T, N*Ho*Wo, OG, 4], with the mask


def sample_lists(config: ConvParams, offset: jax.Array, mask: jax.Array | None, dtype):
    """The lists of a convolution.

    Args:
      config: the convolution.
      offset: [N, Ho, Wo, OG*T*2].
      mask: [N, Ho, Wo, OG*T], or None.
      dtype: of the weights: float32 or float64.

    Returns:
      The `SampleLists`.

    Raises:
      ValueError: XLA cannot index so many cells; the message says what to do.
    """
    n, offset_groups = offset.shape[0], offset.shape[3] // (2 * config.taps)
    corners = pixels_of(config, offset, mask).corners(config)
    # [P, OG*T] -> [OG, T, P], and [T, P, OG] for weights.
    cells = (
        (corners.row // offset_groups).reshape(-1, offset_groups, config.taps).transpose(1, 2, 0)
    )
    samples = lax.broadcasted_iota(jnp.int32, cells.shape, 2)
    cells, order = lax.sort((cells, samples), dimension=2, is_stable=True, num_keys=1)

    height, width = config.image_size
    boundaries = jnp.arange(n * (height + 2 * BORDER) * (width + 2 * BORDER) + 1, dtype=jnp.int32)
    search = _search if is_known(*cells.shape) else _search_by_sorting
    weights = jnp.stack(corners.weights(), axis=-1).astype(dtype)
    weights = weights.reshape(-1, offset_groups, config.taps, 4).transpose(2, 0, 1, 3)
    return SampleLists(search(cells, boundaries), order, weights)


def _search(cells: jax.Array, boundaries: jax.Array) -> jax.Array:
    """For each boundary the first of the sorted cells [OG, T, S] that is not below it: int32."""
    search = jax.vmap(jax.vmap(lambda row: jnp.searchsorted(row, boundaries)))
    return search(cells).astype(jnp.int32)


def _search_by_sorting(cells: jax.Array, boundaries: jax.Array) -> jax.Array:
    """`_search` where sizes are symbolic: a search has to know in how many steps it ends."""
    rows = jnp.broadcast_to(boundaries, (*cells.shape[:2], *boundaries.shape))
    merged = jnp.concatenate([rows, cells], axis=2)
    places = lax.broadcasted_iota(jnp.int32, merged.shape, 2)
    # Where each of them is after a stable sort, in which a boundary comes before its equals.
    _, order = lax.sort((merged, places), dimension=2, is_stable=True, num_keys=1)
    _, found = lax.sort((order, places), dimension=2, is_stable=True, num_keys=1)
    count = boundaries.shape[0]
    return found[:, :, :count] - lax.broadcasted_iota(jnp.int32, rows.shape, 2)
