"""The gradients of a tap to its offset and mask, from four dots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptx.builder import Val
from ptx.kernels.deform_conv.samples.positions import Position
from ptx.kernels.deform_conv.samples.tables import Sample

__all__ = ["store_gradients"]


def store_gradients(
    p: Any, index: Val, dots: Sequence[Val], sample: Position | Sample, where: Val
) -> None:
    """Writes the gradients of one tap to `grad_offset` and, with modulation, `grad_mask`.

    Args:
      p: the kernel's parameters.
      index: the tap's index among all mask values; see `Offsets.index`.
      dots: the products of the gradient of the sampled values with the corners (y, x), (y, x+1),
        (y+1, x) and (y+1, x+1), without the mask.
      sample: the fractions of the position, and the mask.
      where: predicate of the stores.
    """
    k, dtype = where.kernel, dots[0].dtype
    ly, lx = k.convert(sample.ly, dtype, "rn"), k.convert(sample.lx, dtype, "rn")
    d1, d2, d3, d4 = dots
    hy, hx = 1.0 - ly, 1.0 - lx
    grad_y = k.fma(hx, d3 - d1, lx * (d4 - d2))
    grad_x = k.fma(hy, d2 - d1, ly * (d4 - d3))
    if sample.mask is not None:
        mask = k.convert(sample.mask, dtype, "rn")
        grad_y, grad_x = grad_y * mask, grad_x * mask
        upper, lower = k.fma(hx, d1, lx * d2), k.fma(hx, d3, lx * d4)
        grad_mask = k.fma(hy, upper, ly * lower)
        p.grad_mask.store(index, k.convert(grad_mask, p.grad_mask.dtype, "rn"), where=where)
    pair = [k.convert(value, p.grad_offset.dtype, "rn") for value in (grad_y, grad_x)]
    ((p.grad_offset + index) + index).store(0, pair, where=where)
