"""The number of blocks that a launch needs so that no SM is idle.

Counts are those of one GPU for all: a program that is compiled for one device runs on any, and cuts
its sums into the same parts.
"""

from __future__ import annotations

__all__ = ["enough_blocks", "leaves_idle", "sum_parts"]

_SMS = 132  # of an H100 or H200


def enough_blocks(per_sm: int) -> int:
    """Blocks of which each SM of a large GPU gets `per_sm`."""
    return per_sm * _SMS


def leaves_idle(blocks: int) -> bool:
    """Whether a launch of so many blocks leaves SMs of a large GPU without one."""
    return blocks < _SMS


def sum_parts(blocks: int, most: int, *, per_sm: int) -> int:
    """Parts that a sum is cut into, at least 1; the parts are summed afterwards.

    Args:
      blocks: blocks of one part.
      most: the highest number of parts that are worth their memory.
      per_sm: blocks that each SM of a large GPU is to get.
    """
    return max(1, min(enough_blocks(per_sm) // blocks, most))
