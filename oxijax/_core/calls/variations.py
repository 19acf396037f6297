"""The plans that a call may have: the kernel's own choice, and its neighbours."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from oxijax._core.calls.kernel_call import KernelCall
from ptx.kernels.sampling.plan import SamplingPlan, without_tiles
from ptx.tile.direct import DirectPlan
from ptx.tile.plan import TilePlan

__all__ = ["variations"]


def variations(call: KernelCall) -> list[Any]:
    """The plan that the kernel chooses, first, and others, each of which changes one thing of it.

    They have the same operands and results, of the same shapes: the parts that a gradient to
    weights is summed in, or K of a product, are arrays' dimensions, and whatever the tiles are
    they divide them as they divide any. Not all of them can be written; see `candidates`.

    Tiles may be half or twice as large along M or N, or be shared by twice as many warps; there may
    be a stage more or less; and more or fewer blocks may be made to fit an SM, which gives a thread
    fewer or more registers. Queries of a sampling operator may have no tiles. A warp never has more
    rows than in the kernel's own choice: streamed products have registers and lanes for so many.
    What else a plan says stays: K of a tile counts rows of tables, and the operands' layout decides
    on the rest.
    """
    own, found = call.instance.plan, []
    for plan in [own, *_neighbours(own)]:
        if plan not in found and (plan is own or _makes_sense(call, own, plan)):
            found.append(plan)
    return found


def _neighbours(own: Any) -> Iterator[Any]:
    """Plans that differ from this one in one thing, what promises most first."""
    if isinstance(own, TilePlan):
        along_m, along_n = own.warps
        replace = dataclasses.replace
        if along_m > 1:
            yield replace(own, m=own.m // 2, warps=(along_m // 2, along_n))
        yield replace(own, m=own.m * 2, warps=(along_m * 2, along_n))
        yield replace(own, warps=(along_m * 2, along_n))
        if along_n > 1:
            yield replace(own, n=own.n // 2, warps=(along_m, along_n // 2))
        yield replace(own, n=own.n // 2)
        yield replace(own, n=own.n * 2)
        yield replace(own, stages=own.stages + 1)
        yield replace(own, stages=own.stages - 1)
    if isinstance(own, SamplingPlan) and own.slice:
        yield without_tiles(own)
    if isinstance(own, TilePlan | DirectPlan):
        blocks = own.min_blocks or 1
        for changed in (blocks + 1, blocks - 1, blocks * 2):
            yield dataclasses.replace(own, min_blocks=changed)


def _makes_sense(call: KernelCall, own: Any, plan: Any) -> bool:
    """Whether a kernel that is written with the plan would be right, and might be faster.

    Kernels assert most of what they take for granted. What is here are the bounds that they leave
    to the functions that choose plans.
    """
    if isinstance(plan, SamplingPlan):
        return True
    target = call.target
    if not 1 <= plan.min_blocks <= target.blocks_per_sm:
        return False
    if plan.threads > target.threads_per_block or (
        plan.min_blocks * plan.threads > target.threads_per_sm and plan.min_blocks > 1
    ):
        return False
    if not isinstance(plan, TilePlan):
        return True
    if plan.stages < 2:
        return False
    if (plan.m > own.m or plan.n > own.n) and not _has_fewer_blocks(call, plan):
        return False  # tiles that are larger than what there is
    # A lane has the columns of four fragments, where it writes them together.
    if plan.n // plan.warps[1] < min(_COLUMNS, own.n // own.warps[1]):
        return False
    return plan.m // plan.warps[0] >= _ROWS


def _has_fewer_blocks(call: KernelCall, plan: Any) -> bool:
    own = call.instance
    grid = call.kernel.grid(dataclasses.replace(own, plan=plan))
    return math.prod(grid) < math.prod(call.kernel.grid(own))


_COLUMNS = 32  # of four fragments of B
_ROWS = 16  # of a fragment of A
