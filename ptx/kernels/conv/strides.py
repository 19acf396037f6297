"""Which taps read a row, or column, of the images: that depends on its place modulo the stride."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ptx.builder import Kernel, Val
from ptx.isa.dtypes import u32

__all__ = ["StrideClass", "chosen", "stride_classes"]


@dataclasses.dataclass(frozen=True)
class StrideClass:
    """Rows, or columns, `u * stride + place` for all u, which the same taps read.

    Attributes:
      place: of the first one.
      tap: the first that reads it.
      taps: how many do.
      step: from one of them to the next.
      start: output `u + start - t * output_step` reads it by the t-th of these taps.
      output_step: see `start`.
    """

    place: int
    tap: int
    taps: int
    step: int
    start: int
    output_step: int


def stride_classes(kernel: int, stride: int, dilation: int, pad: int) -> list[StrideClass]:
    """The classes of one dimension: tap i of output p reads `p * stride - pad + i * dilation`."""
    common = math.gcd(stride, dilation)
    classes = []
    for remainder in range(stride):
        place = (remainder - pad) % stride
        fitting = [i for i in range(kernel) if (i * dilation - remainder) % stride == 0]
        tap = fitting[0] if fitting else 0
        start = (place + pad - tap * dilation) // stride
        classes.append(
            StrideClass(place, tap, len(fitting), stride // common, start, dilation // common)
        )
    return classes


def chosen(k: Kernel, number: Val, values: Sequence[int]) -> Val:
    """The value of a number."""
    value = k.var(u32, values[0])
    for i, other in enumerate(values[1:], 1):
        value.set(k.select(number.eq(i), other, value))
    return value
