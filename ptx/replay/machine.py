"""Figures of simulated GPUs: of their SMs, L2 and memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ptx.devices import DATA_SHEETS, DataSheet
from ptx.isa.targets import TARGETS, Target
from ptx.replay.code import Pipe, Step

__all__ = ["MACHINES", "ByWidth", "Machine"]


@dataclasses.dataclass(frozen=True)
class ByWidth:
    """A figure of accesses, by how many bytes of a lane they have.

    Attributes:
      words: up to 4 bytes.
      pairs: 8 bytes.
      quads: 16 bytes.
    """

    words: float
    pairs: float
    quads: float

    def of(self, width: int) -> float:
        """The figure of an access of so many bytes a lane."""
        return self.words if width <= 4 else self.pairs if width == 8 else self.quads


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """Figures of a GPU. Cycles are of the SM's clock, and an SM has four parts.

    Attributes:
      sheet: its data sheet.
      sms: the number of SMs.
      clock: cycles a second under load.
      intervals: cycles between two instructions of 32 lanes, of each pipe of a part.
      shares: a pipe that takes some of the cycles of another, and how much of its own.
      tensor_cycles: cycles of 1,024 multiplications of halves on the tensor cores of a part.
      shared_latency: cycles from the start of a load from shared memory to its result, by bytes of
        a lane.
      l1_latency: the same of a load from global memory that L1 has.
      load_read, store_read: cycles from the start to when the operands are read, likewise.
      l2_latency: cycles from asking L2 to the result.
      memory_latency: cycles from asking the GPU's memory to the result.
      pipe_latency: cycles from a pipe to the result, of instructions whose time varies.
      read_cycles: cycles until an instruction whose time varies has read its operands.
      pass_cycles: that L1 or shared memory take to read or write 128 bytes.
      branch_cycles: cycles that a warp waits after a branch that it takes.
      barrier_cycles: the same after the last warp has come to a barrier.
      arrival_cycles: between two warps that come to a barrier.
      block_cycles: between the end of a block and the start of the one in its place.
      queue: instructions that a part keeps for the unit of the SM's memory.
      l2_port: bytes that an SM gets from L2 in a cycle.
      l2: bytes a second that all SMs get from L2.
      memory: bytes a second that all SMs get from memory.
      additions: sectors a second that all SMs can add to, atomically, by bytes of a lane.
      l1_and_shared: bytes of an SM's L1 and shared memory together.
      reserved_shared: bytes of shared memory that a block takes for the system.
      launch_us: microseconds of a launch, its start and its end.
    """

    sheet: DataSheet
    sms: int
    clock: float
    intervals: Mapping[Pipe, float]
    shares: Mapping[Pipe, tuple[Pipe, float]]
    tensor_cycles: float
    shared_latency: ByWidth = ByWidth(22, 22, 24)
    l1_latency: ByWidth = ByWidth(30, 32, 36)
    load_read: ByWidth = ByWidth(9, 9, 9)
    store_read: ByWidth = ByWidth(11, 13, 17)
    l2_latency: float
    memory_latency: float
    pipe_latency: float = 18
    read_cycles: float = 9
    pass_cycles: float = 1
    branch_cycles: float = 8
    barrier_cycles: float = 15
    arrival_cycles: float = 2
    block_cycles: float = 270
    queue: int = 5
    l2_port: float = 64
    l2: float
    memory: float
    additions: ByWidth
    l1_and_shared: int
    reserved_shared: int = 1024
    launch_us: float = 3.0

    @property
    def target(self) -> Target:
        return TARGETS[self.sheet.target]

    def cycles(self, step: Step) -> float:
        """How long an instruction keeps its pipe."""
        if step.pipe is Pipe.TENSOR:
            return self.tensor_cycles * step.products / 1024
        return self.intervals.get(step.pipe, 0.0)


# Cycles between two instructions, of A100 and of those that have twice its units for f32. Sources:
# CUDA C++ Programming Guide, "Arithmetic Instructions", 128, 64, 32 or 16 results of an SM in a
# cycle; the same was measured on a B300 by QuickRunCUDA (Ademeure), B300_PIPE_CATALOG.md, 2025.
_AMPERE = {
    Pipe.FMA: 2, Pipe.IMAD: 2, Pipe.ALU: 2, Pipe.HALF: 1, Pipe.UNIFORM: 2, Pipe.SPECIAL: 8,
    Pipe.DOUBLE: 4,
}  # fmt: skip
_TWICE = {**_AMPERE, Pipe.FMA: 1, Pipe.HALF: 2, Pipe.DOUBLE: 2}
_GEFORCE = {**_TWICE, Pipe.DOUBLE: 64}
# Integers are multiplied by FMA's units: by all of them on an A100, by half of them on others.
_ALL = {Pipe.FMA: (Pipe.IMAD, 1.0), Pipe.IMAD: (Pipe.FMA, 1.0)}
_HALF = {Pipe.FMA: (Pipe.IMAD, 1.0), Pipe.IMAD: (Pipe.FMA, 0.5)}

# Latencies of L1 and shared memory are those of an RTX A6000 (Huerta et al., "Dissecting and
# Modeling the Architecture of Modern GPU Cores", MICRO 2025, table 2). L2 and memory: the mean of
# near and far L2, and memory, of gpu-benches (RRZE, 2024), gpu-latency; bandwidths of its
# gpu-l2-cache and gpu-stream. Tensor cores: `mma.sync` reaches the data sheet's rate on an A100 and
# 65 % of it on a Hopper (Luo et al., "Dissecting the NVIDIA Hopper Architecture through
# Microbenchmarking and Multiple Level Analysis", 2025); every 6.26 cycles one of 2,048 products
# (flash-vla, unit-mma.md, 2026). Atomic additions: 65.6e9 to 85e9 sectors a second on an H100
# (flash-vla, unit-atomic.md, 2026) and 125e9 on a B300 (QuickRunCUDA, 07_atomics.md, 2025); on
# others as many in a cycle of an SM as on an H100, which nobody has measured. Those of 16 bytes:
# of whole lines, in sampling_backward_value, where kernels that add to one or two sectors of a line
# have 49e9 to 79e9 (benchmarks/results/runs/2026-11-28-h100-counters.json). A launch is an
# assumption: a kernel that does nothing takes 1.2 to 1.5 microseconds.


def _any_width(figure: float) -> ByWidth:
    return ByWidth(figure, figure, figure)


_HOPPER = Machine(
    sheet=DATA_SHEETS["H100 SXM"], sms=132, clock=1.755e9, intervals=_TWICE, shares=_HALF,
    tensor_cycles=3.13, l2_latency=380, memory_latency=655, l2=8.6e12, memory=3.0e12,
    additions=ByWidth(75e9, 75e9, 95e9), l1_and_shared=256 << 10,
)  # fmt: skip
_A100 = Machine(
    sheet=DATA_SHEETS["A100 40GB"], sms=108, clock=1.41e9, intervals=_AMPERE, shares=_ALL,
    tensor_cycles=4.1, l2_latency=310, memory_latency=570, l2=5.4e12, memory=1.4e12,
    additions=_any_width(75e9 * (108 * 1.41) / (132 * 1.755)), l1_and_shared=192 << 10,
)  # fmt: skip

MACHINES = {
    machine.sheet.name: machine
    for machine in (
        _A100,
        dataclasses.replace(_A100, sheet=DATA_SHEETS["A100 80GB"], memory=1.76e12),
        _HOPPER,
        dataclasses.replace(_HOPPER, sheet=DATA_SHEETS["H200"], l2=9.0e12, memory=3.7e12),
        # L1 has half the width, L2 and memory the latency and rate of an L40 (gpu-benches); tensor
        # cores add in f32 at half their rate (data sheet).
        Machine(
            sheet=DATA_SHEETS["RTX 4090"], sms=128, clock=2.52e9, intervals=_GEFORCE, shares=_HALF,
            tensor_cycles=16.4, pass_cycles=2, l2_latency=277, memory_latency=630, l2=5.0e12,
            memory=0.92e12, additions=_any_width(75e9 * (128 * 2.52) / (132 * 1.755)),
            l1_and_shared=128 << 10,
        ),
        # Latencies and rates of a B300 (QuickRunCUDA), where `mma.sync` is slower than on a Hopper;
        # the clock is an assumption.
        Machine(
            sheet=DATA_SHEETS["B200"], sms=148, clock=1.85e9, intervals=_TWICE, shares=_HALF,
            tensor_cycles=4.25, l2_latency=420, memory_latency=850, l2=16e12, memory=7.2e12,
            additions=_any_width(125e9), l1_and_shared=256 << 10,
        ),
    )
}  # fmt: skip
