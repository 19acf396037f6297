"""Shared parts of the definitions of convolutions' kernels, deformable or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptx.builder import Kernel
from ptx.definition import Instance, Sizes
from ptx.tile.direct import DirectPlan
from ptx.tile.occupancy import sum_parts

__all__ = ["body_of", "output_pixels", "part_count", "pixels_per_part", "weight_grid"]

_PART_UNIT = 64  # pixels

Body = Callable[[Kernel, Any, Any, Any], None]  # (kernel, configuration, plan, parameters)


def body_of(*, direct: Body, tiled: Body, streamed: Body | None = None) -> Body:
    """The body of a kernel whose plan decides which of these functions writes it.

    Args:
      direct: the writer for a `DirectPlan`.
      tiled: the writer for tiles.
      streamed: the writer for tiles of which one operand stays in registers; None is `tiled`.
    """

    def write(k: Kernel, config: Any, plan: Any, p: Any) -> None:
        if isinstance(plan, DirectPlan):
            direct(k, config, plan, p)
        elif plan.streamed and streamed is not None:
            streamed(k, config, plan, p)
        else:
            tiled(k, config, plan, p)

    return write


def output_pixels(sizes: Sizes) -> int:
    """The number of output pixels of all images."""
    return sizes["n"] * sizes["p"] * sizes["q"]


# ---- gradients to the weights: sums over parts of the output pixels, which are summed afterwards


def part_count(plan: Any, blocks: tuple[int, int], pixels: int, *, direct_pixels: int) -> int:
    """The number of parts with which the GPU has enough blocks.

    Each part costs memory of the weights' size, in the type of sums, so that it has many pixels.
    The count depends on no device: a program that is compiled for one runs on any.

    Args:
      plan: the plan of the kernel.
      blocks: the blocks of one part, in x and in y.
      pixels: the number of output pixels.
      direct_pixels: the least pixels of a part for a `DirectPlan`; tiles take 1,024.
    """
    least, per_sm = (direct_pixels, 8) if isinstance(plan, DirectPlan) else (1024, 4)
    return sum_parts(blocks[0] * blocks[1], -(-pixels // least), per_sm=per_sm)


def pixels_per_part(instance: Instance) -> int:
    """The number of output pixels of each of `s` parts, the last of which may have fewer."""
    unit = instance.sizes["s"] * _PART_UNIT
    return -(-output_pixels(instance.sizes) // unit) * _PART_UNIT


def weight_grid(
    blocks: Callable[[Any, Any], tuple[int, int]],
) -> Callable[[Instance], tuple[int, int, int]]:
    """The grid of a kernel whose parts are along z, or for a `DirectPlan` along x.

    Args:
      blocks: (configuration, plan) -> the blocks of one part, in x and in y.
    """

    def grid(instance: Instance) -> tuple[int, int, int]:
        (x, y), parts = blocks(instance.config, instance.plan), instance.sizes["s"]
        return (x * parts, y, 1) if isinstance(instance.plan, DirectPlan) else (x, y, parts)

    return grid
