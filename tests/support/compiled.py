"""Launching the kernels of cuda/*.ptx, and comparing what they give."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ptx.emulator import Buffer, launch
from support import exact
from support.elementwise import float_inputs
from support.exact import Format
from support.paths import DATA

__all__ = ["FOLDER", "Scalar", "output", "pairs", "run", "same_bits", "schedules", "signed"]

FOLDER = DATA / "cuda"

schedules = pytest.mark.parametrize("schedule", [None, 11], ids=["lockstep", "random"])


def run(
    file: str,
    kernel: str,
    arguments: Sequence[np.ndarray | Buffer | int],
    threads: int,
    schedule: int | None,
    block: int = 128,
    dynamic_shared: int = 0,
) -> None:
    """Launches a kernel of cuda/`file`.ptx over at least `threads` threads.

    Args:
      file: the fixture.
      kernel: its entry.
      arguments: arrays that are only read, `Buffer`s that are written, numbers.
      threads: how many are needed; the last block may have more.
      schedule: None for lockstep, or the seed of a random one.
      block: threads of a block.
      dynamic_shared: bytes of dynamic shared memory.
    """
    launch(
        (FOLDER / f"{file}.ptx").read_text(),
        grid=-(-threads // block),
        block=block,
        arguments=[
            Buffer(x, writable=False) if isinstance(x, np.ndarray) else x for x in arguments
        ],
        kernel=kernel,
        dynamic_shared=dynamic_shared,
        schedule=schedule,
    )


def output(*shape: int, dtype: type = np.float32) -> Buffer:
    """An array every byte of which the kernel has to write."""
    return Buffer(np.empty(shape, dtype), initialized=False)


def same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    """Equality of floats to the last bit, signs of zeros included; any NaN equals any other."""
    assert got.dtype == expected.dtype
    with np.errstate(invalid="ignore"):  # signaling NaNs of bf16
        nans = np.isnan(got) & np.isnan(expected)
    bits = f"u{got.dtype.itemsize}"
    equal = (got.view(bits) == expected.view(bits)) | nans
    assert equal.all(), (
        f"{(~equal).sum()} of {equal.size} differ, first at {np.argwhere(~equal)[0]}"
    )


def signed(bits: int, width: int) -> int:
    return bits - (1 << width) if bits >> (width - 1) else bits


class Scalar:
    """IEEE arithmetic on bit patterns of one format, by way of exact numbers."""

    def __init__(self, format: Format):
        self.format = format

    def __call__(self, compute: Callable[..., exact.Exact], *bits: int) -> int:
        return self.format.round(compute(*(self.format.decode(x) for x in bits)))

    def min(self, a: int, b: int) -> int:
        return self._pick(a, b, negative=1)

    def max_nan(self, a: int, b: int) -> int:
        nan = self.format.is_nan(a) or self.format.is_nan(b)
        return self.format.nan if nan else self._pick(a, b, negative=0)

    def _pick(self, a: int, b: int, negative: int) -> int:
        x, y = self.format.decode(a), self.format.decode(b)
        if "nan" in (x.kind, y.kind):
            return b if x.kind == "nan" else a
        if exact.equal(x, y):
            return a if x.sign == negative else b
        return a if exact.less(x, y) == bool(negative) else b

    def less(self, a: int, b: int) -> bool:
        return exact.less(self.format.decode(a), self.format.decode(b))

    def equal(self, a: int, b: int) -> bool:
        return exact.equal(self.format.decode(a), self.format.decode(b))

    def not_less(self, a: int, b: int) -> bool:
        """Greater, equal or unordered."""
        return not self.less(a, b)


def pairs(format: Format, count: int) -> list[np.ndarray]:
    """Three operands, [count, 2] bit patterns each."""
    columns = float_inputs(format, 3)
    return [np.stack([x[-count:], np.roll(x, 999)[-count:]], axis=1) for x in columns]
