"""The taps that read a row, or column, of the images, by its index modulo the stride."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ptx.builder import Kernel, Val
from ptx.isa.dtypes import u32

__all__ = ["StrideClass", "chosen", "stride_classes"]


@dataclasses.dataclass(frozen=True)
class StrideClass:
    """The rows, or columns, `u * stride + first` for all u, which the same taps read.

    Attributes:
      first: the index of the first row.
      tap: the first tap that reads these rows.
      taps: the number of taps that do.
      step: taps from one of them to the next.
      start, output_step: output `u + start - t * output_step` reads row u of the class by the t-th
        of these taps.
    """

    first: int
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
        first = (remainder - pad) % stride
        fitting = [i for i in range(kernel) if (i * dilation - remainder) % stride == 0]
        tap = fitting[0] if fitting else 0
        start = (first + pad - tap * dilation) // stride
        classes.append(
            StrideClass(first, tap, len(fitting), stride // common, start, dilation // common)
        )
    return classes


def chosen(k: Kernel, index: Val, values: Sequence[int]) -> Val:
    """The value at an index that is known when the kernel runs."""
    value = k.var(u32, values[0])
    for i, other in enumerate(values[1:], 1):
        value.set(k.select(index.eq(i), other, value))
    return value
