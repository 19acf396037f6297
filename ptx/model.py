"""The time of a launch on a known GPU, by a replay of its machine code on a simulated SM.

A model, not a measurement. docs/performance.md says what it is made of, and how wrong it may be.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ptx import emulator
from ptx.definition import KernelDefinition, PlanLike
from ptx.emulator import Buffer, Report
from ptx.emulator.trace import Trace, WarpTrace
from ptx.isa.assembler import assemble
from ptx.launch import BufferAddress
from ptx.replay import Machine, Memory, Replayed, compile_code, replay
from ptx.testing.call import launch, numpy_dtype

__all__ = ["Image", "Modelled", "floor_us", "model", "model_text", "second_pass_us"]

Image = tuple[int, int, int]  # number of images, height, width


@dataclasses.dataclass(frozen=True)
class Modelled:
    """A modelled launch.

    Attributes:
      us: microseconds, with those of a second pass over the results if there is one.
      registers: registers of a thread.
      shared_bytes: shared memory of a block.
      blocks_per_sm: blocks that are on an SM at a time.
      busy: the share of the time that each resource of an SM was: see `ptx.replay.Replayed`.
    """

    us: float
    registers: int
    shared_bytes: int
    blocks_per_sm: int
    busy: Mapping[str, float]

    @property
    def limit(self) -> str:
        """The resource that is busy longest; "latency" where none is for 60 % of the time."""
        name = max(self.busy, key=lambda resource: self.busy[resource])
        return name if self.busy[name] >= _MOSTLY else "latency"


def model(
    kernel: KernelDefinition[Any],
    config: Any,
    operands: dict[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    machine: Machine,
    *,
    plan: PlanLike | None = None,
    later_bytes: float = 0.0,
) -> Modelled:
    """Models one launch of a kernel.

    Some of the blocks that one SM gets run in the emulator, with the real grid and operands; what
    their warps did is replayed. The blocks that are left take as long as those after the first
    that were on the SM together.

    Args:
      kernel: the kernel.
      config: the kernel's configuration.
      operands: the operands as they lie in memory, by name; initial values of results among them.
        They are taken out of the dictionary as they are copied.
      shapes: the shapes of all arrays in memory, by name.
      machine: the GPU.
      plan: a plan instead of the one that the kernel would choose.
      later_bytes: bytes that a second pass over the results reads and writes; 0 for none.

    Raises:
      ToolNotFoundError: there is no ptxas here, or no nvdisasm.
      TraceError: the machine code goes another way than the PTX text.
    """
    target = machine.target
    planned = kernel.launch(config, target, list(shapes.values()), plan=plan)
    buffers = _buffers(kernel, config, operands, shapes)
    passed = [
        list(buffers.values())[a.buffer] for a in planned.arguments if isinstance(a, BufferAddress)
    ]
    of_grid = planned.text, planned.grid, planned.block, planned.dynamic_shared
    options = {"report": Trace, "check_races": False}
    modelled = _modelled(
        *of_grid, passed, machine,
        lambda blocks: launch(kernel, config, target, buffers, plan=plan, blocks=blocks, **options),
    )  # fmt: skip
    return dataclasses.replace(modelled, us=modelled.us + second_pass_us(later_bytes, machine))


def model_text(
    text: str,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    arguments: Sequence[Buffer | int | float],
    machine: Machine,
    *,
    dynamic_shared: int = 0,
) -> Modelled:
    """Models one launch of a kernel by its PTX text, as `model` does.

    Args:
      text: a module with one kernel.
      grid: the number of blocks in x, y and z.
      block: the number of threads of a block, likewise.
      arguments: a buffer or number for each parameter.
      machine: the GPU.
      dynamic_shared: bytes of dynamic shared memory.

    Raises:
      ToolNotFoundError: there is no ptxas here, or no nvdisasm.
      TraceError: the machine code goes another way than the PTX text.
    """
    buffers = [argument for argument in arguments if isinstance(argument, Buffer)]
    return _modelled(
        *(text, grid, block, dynamic_shared, buffers, machine),
        lambda blocks: emulator.launch(
            *(text, grid, block, arguments),
            dynamic_shared=dynamic_shared, blocks=blocks, report=Trace, check_races=False,
            lenient=True,
        ),
    )  # fmt: skip


def second_pass_us(moved_bytes: float, machine: Machine) -> float:
    """Microseconds of a pass that only moves bytes; 0 for none."""
    return machine.launch_us + 1e6 * moved_bytes / machine.memory if moved_bytes else 0.0


def floor_us(products: float, memory_bytes: float, tflops: float, machine: Machine) -> float:
    """Microseconds that no kernel can beat: tensor cores at their peak, or memory.

    Args:
      products: multiplications that the result is made of.
      memory_bytes: bytes of operands and results, each once.
      tflops: 10**12 operations a second of the tensor cores, by the data sheet.
      machine: the GPU.
    """
    return 1e6 * max(2 * products / (1e12 * tflops), memory_bytes / machine.memory)


_MOSTLY = 0.6


def _modelled(
    text: str,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    dynamic_shared: int,
    buffers: Sequence[Buffer],
    machine: Machine,
    traced: Callable[[list[int]], Report | None],
) -> Modelled:
    """Models a launch.

    Args:
      text: a module with one kernel.
      grid: the number of blocks in x, y and z.
      block: the number of threads of a block, likewise.
      dynamic_shared: bytes of dynamic shared memory.
      buffers: those that are passed, in the order of the parameters.
      machine: the GPU.
      traced: makes the trace of the blocks of some numbers.
    """
    blocks, threads = math.prod(grid), math.prod(block)
    (assembled,) = assemble(text, machine.target).values()
    resident = assembled.blocks_per_sm(threads, dynamic_shared)
    if not blocks:
        return Modelled(0.0, assembled.registers, assembled.shared_bytes, resident, {})
    of_sm = -(-blocks // machine.sms)  # of the SM with the most
    chosen = _chosen(blocks, machine.sms, min(of_sm, 2 * resident))
    trace = traced(chosen)
    assert isinstance(trace, Trace)
    warps = -(-threads // 32)
    traces = [[trace.warps[block, warp] for warp in range(warps)] for block in chosen]
    shared = assembled.shared_bytes + dynamic_shared
    carved = resident * (shared + machine.reserved_shared if shared else 0)
    cold = _cold(traces, _sizes(buffers), blocks)
    memory = Memory(machine, min(blocks, machine.sms), machine.l1_and_shared - carved, cold)
    replayed = replay(compile_code(text, machine.target), memory, traces, resident=resident)
    cycles = _extrapolated(replayed, of_sm)
    return Modelled(
        us=machine.launch_us + 1e6 * cycles / machine.clock,
        registers=assembled.registers,
        shared_bytes=shared,
        blocks_per_sm=resident,
        busy=replayed.busy,
    )


def _chosen(blocks: int, sms: int, count: int) -> list[int]:
    """Numbers of blocks that one SM gets, which is not the first: that has borders."""
    first = sms // 2 if blocks > sms else blocks // 2
    return [(first + index * sms) % blocks for index in range(count)]


def _buffers(
    kernel: KernelDefinition[Any],
    config: Any,
    operands: dict[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, Buffer]:
    """A buffer for each array, that of an initial value and its result being one."""
    results = kernel.results(config)
    initial = {r.initial: name for name, r in results.items() if r.has_initial(config)}
    buffers = {
        name: Buffer(operands.pop(name), writable=name in initial)
        for name in kernel.operands(config)
    }
    for name, result in results.items():
        if result.initial is not None and result.has_initial(config):
            buffers[name] = buffers[result.initial]
        else:
            dtype = numpy_dtype(result.dtype_of(config))
            buffers[name] = Buffer(np.zeros(shapes[name], dtype))
    return buffers


def _sizes(passed: Sequence[Buffer]) -> list[int]:
    """Bytes of each allocation, in the order in which the emulator numbers them."""
    distinct = {id(buffer): buffer.array.nbytes for buffer in passed}
    return [size for size in distinct.values() if size]


def _cold(
    traces: Sequence[Sequence[WarpTrace]], sizes: Sequence[int], blocks: int
) -> dict[int, float]:
    """The share of a block's sectors of each buffer that no other block has touched before it.

    All blocks together touch each sector of an array for the first time once, at most.
    """
    touched: collections.Counter[int] = collections.Counter()
    for block in traces:
        sectors: dict[int, set[int]] = {}
        for warp in block:
            for accesses in warp.accesses.values():
                for _, accessed in accesses:
                    if accessed.sectors:
                        sectors.setdefault(accessed.buffer, set()).update(accessed.sectors)
        touched.update({buffer: len(found) for buffer, found in sectors.items()})
    return {
        buffer: min(1.0, sizes[buffer] / 32 / blocks * len(traces) / count)
        for buffer, count in touched.items()
    }


def _extrapolated(replayed: Replayed, blocks: int) -> float:
    """Cycles of an SM that has so many blocks, of which some were replayed."""
    return replayed.ends[-1] * max(1.0, blocks / len(replayed.ends))
