"""One SM, which runs blocks: instruction by instruction, on the cycle at which each is issued."""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Mapping, Sequence

from ptx.emulator.trace import WarpTrace
from ptx.replay.code import ACCESSES, Code, Kind, Pipe
from ptx.replay.memory import Memory
from ptx.replay.warps import Block, Warp

__all__ = ["Replayed", "replay"]

_PARTS = 4  # of an SM, each with a scheduler


@dataclasses.dataclass(frozen=True)
class Replayed:
    """The replay of some blocks on one SM.

    Attributes:
      ends: the cycle at which each block ended, in their order of ending.
      issued: the number of instructions of all warps.
      busy: the share of the time that each resource was: "issue", those of `Memory`, and the
        pipes.
    """

    ends: tuple[float, ...]
    issued: int
    busy: Mapping[str, float]

    @property
    def cycles(self) -> float:
        """Until the last block had ended."""
        return self.ends[-1]


def replay(
    code: Code, memory: Memory, blocks: Sequence[Sequence[WarpTrace]], *, resident: int
) -> Replayed:
    """Runs blocks on one SM.

    Args:
      code: the kernel.
      memory: the SM's memory, in which nothing is yet.
      blocks: the trace of each warp of each block in the emulator.
      resident: blocks that are on the SM at a time; each that ends makes room for the next.

    Raises:
      TraceError: the machine code goes another way than the trace.
    """
    return _Sm(code, memory, blocks).run(resident)


class _Sm:
    def __init__(self, code: Code, memory: Memory, blocks: Sequence[Sequence[WarpTrace]]):
        self.code, self.machine, self.memory = code, memory.machine, memory
        self.waiting = collections.deque(blocks)
        self.ready: list[tuple[float, int, int, Warp]] = []  # a heap, by cycle
        self.ends: list[float] = []
        self.orders = 0
        self.gate = 0.0  # when the last warp came to a barrier

    def run(self, resident: int) -> Replayed:
        """Issues what is ready first, until all blocks have ended."""
        for _ in range(resident):
            self.start(0.0)
        machine, memory, ready = self.machine, self.memory, self.ready
        steps = self.code.steps
        cycles_of = [machine.cycles(step) for step in steps]
        issue = [0.0] * _PARTS  # when the next instruction can be issued
        pipes = [[0.0] * len(Pipe) for _ in range(_PARTS)]  # when each is free
        queues = [collections.deque([0.0] * machine.queue) for _ in range(_PARTS)]
        busy: dict[str, float] = collections.defaultdict(float)
        issued = 0
        while ready:
            time, rank, order, warp = heapq.heappop(ready)
            pc, part, counters = warp.pc, warp.part, warp.counters
            step = steps[pc]
            kind, pipe, queue = step.kind, step.pipe, queues[part]
            at = max(time, issue[part])
            for counter in step.wait:
                at = max(at, counters[counter])
            if pipe is Pipe.MEMORY:
                at = max(at, queue[0])
            elif pipe is not Pipe.NONE:
                at = max(at, pipes[part][pipe])
            elif kind is Kind.WAIT and len(warp.commits) > step.pending:
                at = max(at, warp.commits[-1 - step.pending])
            if at > time and ready and ready[0][0] < at:
                heapq.heappush(ready, (at, rank, order, warp))  # others come first
                continue
            issue[part] = at + 1
            issued += 1
            next_pc, again = pc + 1, at + step.stall
            read = done = at
            if pipe is Pipe.MEMORY:
                accessed = warp.access(step) if kind in ACCESSES else None
                if accessed is None:
                    start, read, done = memory.other(at)
                elif kind is Kind.SHARED:
                    start, read, done = memory.shared(
                        at, accessed, storing=step.opcode.startswith("ST")
                    )
                elif kind is Kind.STORE:
                    start, read, done = memory.store(at, warp.block, accessed)
                elif kind is Kind.ADD:
                    start, read, done = memory.add(at, warp.block, accessed)
                else:
                    start, read, done = memory.load(
                        at, warp.block, accessed, through_l1=kind is Kind.LOAD
                    )
                    if kind is Kind.COPY:
                        warp.copied = max(warp.copied, done)
                queue.popleft()
                queue.append(start)
            elif pipe is not Pipe.NONE:
                cycles = cycles_of[pc]
                free = pipes[part]
                free[pipe] = at + cycles
                busy[pipe.name] += cycles
                if shared := machine.shares.get(pipe):
                    other, share = shared
                    free[other] = max(free[other], at) + cycles * share
                read, done = at + machine.read_cycles, at + cycles + machine.pipe_latency
            elif kind is Kind.BRANCH:
                if warp.branches(step):
                    next_pc, again = step.target, at + max(step.stall, machine.branch_cycles)
            elif kind is Kind.EXIT:
                if warp.branches(step):
                    self.end(warp, at)
                    continue
            elif kind is Kind.COMMIT:
                warp.commits.append(warp.copied)
            elif kind is Kind.BARRIER:
                self.gate = max(self.gate, at) + machine.arrival_cycles
                warp.arrived = max(again, self.gate)
                warp.go(next_pc)
                self.release(warp.block)
                continue
            if step.write_barrier >= 0:
                counters[step.write_barrier] = max(counters[step.write_barrier], done)
            if step.read_barrier >= 0:
                counters[step.read_barrier] = max(counters[step.read_barrier], read)
            warp.go(next_pc)
            # A scheduler goes on with a warp as long as it can, else with the youngest.
            heapq.heappush(ready, (again, 0 if step.stall == 1 else 1, order, warp))
        parts = {name.lower(): cycles / _PARTS for name, cycles in busy.items()}
        used = {"issue": issued / _PARTS, **memory.busy, **parts}
        share = {name: cycles / self.ends[-1] for name, cycles in used.items()}
        return Replayed(tuple(self.ends), issued, share)

    def start(self, time: float) -> None:
        """The next block comes to the SM."""
        if not self.waiting:
            return
        block = Block(self.waiting.popleft(), self.orders)
        self.orders += len(block.warps)
        for warp in block.warps.values():
            heapq.heappush(self.ready, (time, 1, -warp.order, warp))

    def end(self, warp: Warp, time: float) -> None:
        """A warp ends; the last of a block makes room for the next block."""
        warp.check_end(self.code)
        block = warp.block
        del block.warps[warp.order]
        if block.warps:
            self.release(block)
        else:
            self.ends.append(time)
            self.start(time + self.machine.block_cycles)

    def release(self, block: Block) -> None:
        """Lets the warps of a block go on if all are at the barrier."""
        waiting = block.released()
        if waiting:
            time = max(warp.arrived or 0.0 for warp in waiting) + self.machine.barrier_cycles
            for warp in waiting:
                warp.arrived = None
                heapq.heappush(self.ready, (time, 1, -warp.order, warp))
