"""Dtypes of the timed layers of all families, and the work of an operation."""

import dataclasses
import math

__all__ = ["DTYPES", "LAUNCH_FLOOR", "Work", "set_count"]

DTYPES = {"float16": 2, "bfloat16": 2, "float32": 4}  # bytes; float32 is multiplied as TF32
# A layer of a few pixels: what a call costs where the GPU has next to nothing to do. See `timing`.
LAUNCH_FLOOR = "launch floor"
_SETS_BYTES = 160 * 2**20  # more than any L2, three times that of an H200
_LARGE_BYTES = 2**30  # calls that move more are few: results of all of them are kept


@dataclasses.dataclass(frozen=True)
class Work:
    """The least that an operation needs.

    Attributes:
      flops: the floating-point operations of its matrix products.
      bytes: each operand read once, each result written once.
    """

    flops: int
    bytes: int


def set_count(one: Work, tiny: bool) -> int:
    """How many sets of operands calls take turns with, so that none is found in the L2.

    Args:
      one: a call.
      tiny: two sets will do.
    """
    if tiny or one.bytes > _LARGE_BYTES:
        return 2
    return max(4, min(16, math.ceil(_SETS_BYTES / one.bytes)))
