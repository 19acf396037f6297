"""How long a launch should take: bounds from what it executes and moves, on a known GPU.

A model, not a measurement. docs/performance.md explains it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ptx.builder import Atom
from ptx.isa.sass import Loop, Sass, disassemble
from ptx.isa.targets import Target
from ptx.kernel import KernelDefinition
from ptx.launch import Launch
from ptx.tile.plan import ProductConfig, atom_of

__all__ = [
    "DEVICES",
    "EFFICIENCY",
    "LAUNCH_US",
    "BlockWork",
    "Device",
    "Image",
    "Modelled",
    "Work",
    "floor",
    "launch_work",
    "modelled",
    "tensor_core_atom",
]

Image = tuple[int, int, int]  # how many, height, width

EFFICIENCY = 0.75  # of the tightest bound of an SM, that warps waiting for memory leave
LAUNCH_US = 6.0  # of a kernel: start, first loads and the last block's end
ISSUE_SLOTS = 4  # warp instructions that an SM starts in a cycle
L1_BYTES = 128  # that an SM loads or stores in a cycle, in L1 and shared memory together


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
      name: as sold.
      target: the name of its target.
      sms: how many.
      clock: cycles a second under load.
      memory: bytes a second that a copy reaches.
      tensor_flops: operations of one SM in a cycle, on halves.
      tensor_share: of them that `mma.sync` reaches.
      additions: atomic additions a second, by as many threads: the lowest and the highest guess.
        Each counts once, whether it adds 4 or 16 bytes, because each of ours has an L2 sector of
        its own.
    """

    name: str
    target: str
    sms: int
    clock: float
    memory: float
    tensor_flops: int
    tensor_share: float
    additions: tuple[float, float]


_ADDITIONS = (1.7e12 / 16, 3.0e12 / 16)  # of an H200, 16 bytes each: nobody has measured it here

DEVICES = {
    device.target: device
    for device in (
        # Half of an A100's bus and none of a Hopper's instructions: its tensor cores are made for
        # mma.sync. Its atomic units are taken to do as much in a cycle.
        Device(
            "A100", "sm_80", 108, 1.41e9, 1.555e12, 2048, 0.9,
            (_ADDITIONS[0] * 1.41 / 1.755, _ADDITIONS[1] * 1.41 / 1.755),
        ),
        Device("H200", "sm_90", 132, 1.755e9, 4.3e12, 4096, 0.63, _ADDITIONS),
    )
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Work:
    """What one launch does.

    Attributes:
      blocks: of the grid.
      instructions: that the warps of a block issue.
      l1_bytes: that a block loads and stores, in L1 and shared memory.
      flops: of a block on tensor cores.
      tensor_rate: of that type, as a share of that of halves.
      memory_bytes: that the launch reads and writes, each once.
      additions: atomic ones of the launch.
      later_bytes: read and written by a second pass over the results; 0 for none.
    """

    blocks: int
    instructions: float
    l1_bytes: float
    flops: float
    tensor_rate: float
    memory_bytes: float
    additions: float = 0.0
    later_bytes: float = 0.0


@dataclasses.dataclass(frozen=True)
class BlockWork:
    """What a block does, as its plan says; in the mean, where blocks differ.

    Attributes:
      nest: passes of each loop around the products, the outermost first.
      products: multiplications on tensor cores.
      l1_bytes: see `Work`.
      fills: passes of a warp through a loop without products.
      rare_share: how often a warp executes what is behind a vote.
    """

    nest: Sequence[float]
    products: float
    l1_bytes: float
    fills: float = 0.0
    rare_share: float = 1.0


def launch_work(
    kernel: KernelDefinition[Any],
    config: ProductConfig,
    target: Target,
    launch: Launch,
    block: BlockWork,
    *,
    memory_bytes: float,
    additions: float = 0.0,
    later_bytes: float = 0.0,
) -> Work:
    """What a launch does: the work of its blocks, with instructions counted in the machine code.

    Args:
      kernel: one whose products run on tensor cores.
      config: of the kernel.
      target: the GPU.
      launch: how many blocks and threads there are.
      block: what each does.
      memory_bytes: see `Work`.
      additions: see `Work`.
      later_bytes: see `Work`.

    Raises:
      ValueError: no tensor cores, or SASS that does not multiply as often as the block is said to:
        then the model no longer describes the kernel.
    """
    atom = tensor_core_atom(kernel, config, target)
    sass = disassemble(launch.text, target)
    warps = math.prod(launch.block) // 32
    trips = _trips(sass, block)
    multiplied = sum(n * loop.count("HMMA", "DMMA") for loop, n in trips) * warps
    expected = block.products / (atom.m * atom.n * atom.k)
    if not math.isclose(multiplied, expected, rel_tol=1e-6):
        raise ValueError(
            f"{kernel.name} multiplies {multiplied:g} fragments a block in its SASS and "
            f"{expected:g} in its plan: the model of its plan is out of date"
        )
    issued = float(len(sass.straight))
    for loop, times in trips:
        issued += times * (len(loop.own) - len(loop.rare) * (1 - block.rare_share))
    return Work(
        blocks=math.prod(launch.grid),
        instructions=issued * warps,
        l1_bytes=block.l1_bytes,
        flops=2.0 * block.products,
        tensor_rate=2 / config.float_type.bytes,
        memory_bytes=memory_bytes,
        additions=additions,
        later_bytes=later_bytes,
    )


def tensor_core_atom(kernel: KernelDefinition[Any], config: ProductConfig, target: Target) -> Atom:
    """The instruction that multiplies; ValueError where it is none of tensor cores."""
    atom = atom_of(config, target)
    if atom is None:
        raise ValueError(f"{kernel.name} on {target} without tensor cores is not modelled")
    return atom


@dataclasses.dataclass(frozen=True)
class Modelled:
    """Times in microseconds.

    Attributes:
      low, high: of the whole; they differ where the rate of atomic additions decides.
      bounds: what each resource alone would take: "issue", "L1", "tensor", "memory", "atomics"
        (at the lower rate); not what is lost to efficiency, launch and the last blocks.
      limit: the one that decides.
      tail: how much longer an SM with the most blocks takes than the mean.
    """

    low: float
    high: float
    bounds: dict[str, float]
    limit: str
    tail: float


def modelled(work: Work, device: Device) -> Modelled:
    """The time of a launch.

    Every SM does its blocks' work at the rate of the resource that they need longest, times
    `EFFICIENCY`; memory and atomic additions are shared by all SMs. The longest of these, and the
    launch, is the time.
    """
    cycles = {
        "issue": work.instructions / ISSUE_SLOTS,
        "L1": work.l1_bytes / L1_BYTES,
        "tensor": work.flops / (device.tensor_flops * device.tensor_share * work.tensor_rate),
    }
    blocks = work.blocks / device.sms  # of one SM in the mean
    tail = math.ceil(blocks) / blocks if blocks else 1.0
    bounds = {name: 1e6 * blocks * value / device.clock for name, value in cycles.items()}
    reached = {name: bound * tail / EFFICIENCY for name, bound in bounds.items()}
    slow, fast = (1e6 * work.additions / rate for rate in device.additions)
    bounds["memory"] = reached["memory"] = 1e6 * work.memory_bytes / device.memory
    later = LAUNCH_US + 1e6 * work.later_bytes / device.memory if work.later_bytes else 0.0
    low = max(*reached.values(), fast) + LAUNCH_US + later
    bounds["atomics"] = reached["atomics"] = slow
    high = max(reached.values()) + LAUNCH_US + later
    return Modelled(low, high, bounds, max(reached, key=lambda name: reached[name]), tail)


def floor(products: float, memory_bytes: float, tensor_rate: float, device: Device) -> float:
    """Microseconds that no kernel can beat: tensor cores at their peak, or memory.

    Args:
      products: multiplications that the result is made of.
      memory_bytes: of operands and results, each once.
      tensor_rate: see `Work`.
      device: the GPU.
    """
    peak = device.sms * device.clock * device.tensor_flops * tensor_rate
    return 1e6 * max(2 * products / peak, memory_bytes / device.memory)


def _trips(sass: Sass, block: BlockWork) -> list[tuple[Loop, float]]:
    """How often a warp goes round each loop."""
    depths = sum(loop.has_tensor for loop in sass.loops)
    if depths > len(block.nest):
        raise ValueError(f"{depths} loops around the products, expected are {len(block.nest)}")
    # ptxas may drop a loop of one pass, and unroll the innermost one.
    extents, passes = list(block.nest), 1.0
    while len(extents) > depths and 1 in extents:
        extents.remove(1)
    totals = []
    for extent in extents:
        passes *= extent
        totals.append(passes)
    return [(loop, totals[loop.depth] if loop.has_tensor else block.fills) for loop in sass.loops]
