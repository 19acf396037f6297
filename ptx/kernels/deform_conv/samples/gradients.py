"""The gradients of a tap to its offset and mask, from four dots."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ptx.builder import Kernel, Pointer, Val
from ptx.kernels.deform_conv.config import DeformConvConfig

__all__ = ["OffsetGradients"]


@dataclasses.dataclass(frozen=True, eq=False)
class OffsetGradients:
    """The gradients to offset and mask in global memory, each written once.

    Attributes:
      k: the kernel.
      config: the convolution.
      offset: [pixels, offset channels].
      mask: [pixels, mask channels], or None.
    """

    k: Kernel
    config: DeformConvConfig
    offset: Pointer
    mask: Pointer | None

    def store(
        self,
        index: Val,
        dots: Sequence[Val],
        ly: Val,
        lx: Val,
        mask: Val | None,
        where: Val,
    ) -> None:
        """Writes the gradients of one tap.

        Args:
          index: of the tap; see `Offsets.index`.
          dots: of the gradient of the sampled values with the corners (y, x), (y, x+1), (y+1, x)
            and (y+1, x+1), without the mask.
          ly: vertical fraction of the position.
          lx: horizontal fraction of the position.
          mask: its value; None without modulation.
          where: predicate of the stores.
        """
        k, dtype = self.k, dots[0].dtype
        ly, lx = k.convert(ly, dtype, "rn"), k.convert(lx, dtype, "rn")
        d1, d2, d3, d4 = dots
        hy, hx = 1.0 - ly, 1.0 - lx
        grad_y = k.fma(hx, d3 - d1, lx * (d4 - d2))
        grad_x = k.fma(hy, d2 - d1, ly * (d4 - d3))
        if mask is not None and self.mask is not None:
            mask = k.convert(mask, dtype, "rn")
            grad_y, grad_x = grad_y * mask, grad_x * mask
            upper, lower = k.fma(hx, d1, lx * d2), k.fma(hx, d3, lx * d4)
            grad_mask = k.fma(hy, upper, ly * lower)
            self.mask.store(index, k.convert(grad_mask, self.mask.dtype, "rn"), where=where)
        pair = [k.convert(value, self.offset.dtype, "rn") for value in (grad_y, grad_x)]
        ((self.offset + index) + index).store(0, pair, where=where)
