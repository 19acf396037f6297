"""Control flow: basic blocks, their successors, and the registers that are surely written."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence, Set

__all__ = ["BasicBlock", "basic_blocks", "definitions"]


@dataclasses.dataclass(frozen=True)
class BasicBlock:
    """Instructions without a branch in between, and where they lead.

    Attributes:
      start: index of its first instruction.
      stop: index of the instruction after its last one.
      following: the block after it.
      target: the block that its last instruction, a branch, leads to; None without a branch.
      conditional: whether the branch is for some lanes only; the others go on to `following`.
    """

    start: int
    stop: int
    following: int
    target: int | None
    conditional: bool

    @property
    def successors(self) -> list[int]:
        ends = [] if self.target is None else [self.target]
        return ends if ends and not self.conditional else [*ends, self.following]


def basic_blocks(
    count: int, targets: Mapping[int, int], conditional: Set[int], ends: Set[int]
) -> list[BasicBlock]:
    """Divides instructions into basic blocks, in the order in which lanes are to run them.

    Args:
      count: number of instructions.
      targets: index of each branch -> index of the instruction that it leads to; `count` is the
        end of the kernel.
      conditional: branches that only some lanes take.
      ends: other instructions that end a block.

    Returns:
      The blocks; the end of the kernel is the number of blocks.
    """
    starts = sorted({0, count, *targets.values(), *(index + 1 for index in (*targets, *ends))})
    number = {start: i for i, start in enumerate(starts)}
    blocks = []
    for start, stop in itertools.pairwise(starts):
        target = number[targets[stop - 1]] if stop - 1 in targets else None
        blocks.append(BasicBlock(start, stop, number[stop], target, stop - 1 in conditional))
    return _join_loops(blocks)


def _join_loops(blocks: list[BasicBlock]) -> list[BasicBlock]:
    """Gives each loop one place that its lanes pass before they start the next round.

    The lanes at the lowest block run first, so lanes on different ways meet where the ways
    meet. With several jumps back to one place, though, the lanes of one jump would start the
    next round before the others have finished theirs. So an empty block, which jumps back for
    all of them, comes after the last of these jumps.
    """
    latch_after: dict[int, int] = {}  # header -> last block that jumps back to it
    for header in range(len(blocks)):
        back = [i for i, block in enumerate(blocks) if block.target == header <= i]
        if len(back) > 1:
            latch_after[header] = back[-1]
    order = sorted(
        [(i, -1) for i in range(len(blocks))] + [(i, h) for h, i in latch_after.items()],
        key=lambda entry: (entry[0], -entry[1] if entry[1] >= 0 else -len(blocks)),
    )
    place = {entry: i for i, entry in enumerate(order)}
    end = len(order)

    def moved(block: int) -> int:
        return place.get((block, -1), end)

    joined = []
    for i, header in order:
        block = blocks[i]
        if header >= 0:
            joined.append(BasicBlock(block.stop, block.stop, end, moved(header), False))
            continue
        target = block.target
        if target in latch_after and target <= i:
            target = place[latch_after[target], target]
        elif target is not None:
            target = moved(target)
        joined.append(dataclasses.replace(block, following=moved(block.following), target=target))
    return joined


def definitions(blocks: Sequence[BasicBlock], writes: Sequence[int]) -> list[int]:
    """Registers that are written on every way to the start of each block.

    Args:
      blocks: the basic blocks.
      writes: the registers that each instruction surely writes, as the bits of an integer.

    Returns:
      One such integer for each block; for a block that nothing leads to, all bits.
    """
    entry = [-1] * max(1, len(blocks))
    entry[0] = 0
    work = list(range(len(blocks)))
    while work:
        number = work.pop(0)
        block, defined = blocks[number], entry[number]
        for index in range(block.start, block.stop):
            defined |= writes[index]
        for successor in block.successors:
            if successor < len(blocks) and entry[successor] & ~defined:
                entry[successor] &= defined
                work.append(successor)
    return entry[: len(blocks)]
