"""Microbenchmarks that others have measured, on the simulated SM."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from ptx import emulator
from ptx.emulator import Buffer
from ptx.emulator.trace import Trace
from ptx.replay.code import compile_code
from ptx.replay.machine import MACHINES, Machine
from ptx.replay.memory import Memory
from ptx.replay.sm import Replayed, replay

__all__ = ["PUBLISHED", "Published"]


@dataclasses.dataclass(frozen=True)
class Published:
    """A published measurement.

    Attributes:
      name: the name of what was measured.
      gpu: the GPU's name in `MACHINES`.
      unit: the unit of both figures.
      measured: the published figure.
      source: the publication.
      simulate: a function from a GPU to the simulator's figure.
    """

    name: str
    gpu: str
    unit: str
    measured: float
    source: str
    simulate: Callable[[Machine], float]

    @property
    def simulated(self) -> float:
        return self.simulate(MACHINES[self.gpu])


def _replayed(
    machine: Machine,
    body: str,
    threads: int,
    *,
    blocks: int = 1,
    resident: int = 1,
    active_sms: int = 1,
    cold: float = 0.0,
) -> Replayed:
    """Runs a kernel, whose parameter is the address of 4 MiB of zeros, on one SM.

    Args:
      machine: the GPU.
      body: the kernel's instructions. %thread is the thread, %cta the block, %memory the parameter;
        %value0 to %value63 are words, %float0 to %float63 and %double0 to %double7 numbers,
        %address0 to %address7 addresses, and `shared` is a variable.
      threads: the threads of a block.
      blocks: how many there are.
      resident: blocks that are on the SM at a time.
      active_sms: SMs that share L2 and memory.
      cold: the share of the sectors that are not in L2.
    """
    text = (
        f".version {8.6 if machine.target.sm >= 100 else 7.8}\n"
        f".target {machine.target.name}\n.address_size 64\n"
        f".visible .entry published(.param .u64 memory)\n.reqntid {threads}\n{{\n"
        ".reg .b32 %thread, %cta, %value<64>;\n.reg .f32 %float<64>;\n.reg .f64 %double<8>;\n"
        ".reg .u64 %memory, %address<8>;\n.shared .align 128 .b8 shared[16384];\n"
        "mov.u32 %thread, %tid.x;\nmov.u32 %cta, %ctaid.x;\nld.param.u64 %memory, [memory];\n"
        f"{body}\nret;\n}}\n"
    )
    memory = Buffer(np.zeros(1 << 20, np.uint32))
    trace = emulator.launch(text, blocks, threads, [memory], report=Trace, check_races=False)
    assert isinstance(trace, Trace)
    traces = [[trace.warps[b, warp] for warp in range(threads // 32)] for b in range(blocks)]
    sm_memory = Memory(machine, active_sms, l1_bytes=128 << 10, cold={0: cold})
    return replay(compile_code(text, machine.target), sm_memory, traces, resident=resident)


def _cycles_each(
    body: Callable[[int], str], threads: int = 32, *, count: int = 1
) -> Callable[[Machine], float]:
    """Cycles of one of `count` instructions in a repetition; `body` makes so many repetitions."""

    def simulate(machine: Machine) -> float:
        few, many = (_replayed(machine, body(n), threads).cycles for n in (16, 48))
        return (many - few) / 32 / count

    return simulate


def _products(sums: int) -> Callable[[int], str]:
    """Repetitions of a matrix product for each of some sums, which are independent."""

    def body(repetitions: int) -> str:
        lines = [f"cvt.rn.f32.u32 %float{i}, %thread;" for i in range(4 * sums)]
        lines += [f"add.f32 %float{i}, %float{i}, 0f3{i:07X};" for i in range(4 * sums)]
        lines += [f"mov.u32 %value{i}, %thread;" for i in range(6)]
        for _ in range(repetitions):
            for number in range(sums):
                registers = ", ".join(f"%float{4 * number + i}" for i in range(4))
                lines.append(
                    f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{registers}}}, "
                    "{%value0, %value1, %value2, %value3}, {%value4, %value5}, "
                    f"{{{registers}}};"
                )
        lines += [f"st.global.f32 [%memory+{4 * i}], %float{i};" for i in range(4 * sums)]
        return "\n".join(lines)

    return body


def _repeated(instruction: str, before: str = "", after: str = "") -> Callable[[int], str]:
    """A kernel that repeats an instruction, between others."""
    return lambda repetitions: "\n".join([before, *[instruction] * repetitions, after])


_CHAIN_IN_SHARED_MEMORY = _repeated(
    "ld.shared.u32 %value0, [%value0];",
    "mov.u32 %value0, shared;\nst.shared.u32 [%value0], %value0;",
    "st.global.u32 [%memory], %value0;",
)
_CHAIN_IN_L1 = _repeated(
    "ld.global.ca.u64 %address0, [%address0];",
    "st.global.u64 [%memory], %memory;\nmov.u64 %address0, %memory;",
    "st.global.u64 [%memory], %address0;",
)


def _strided_loads(stride: int, width: int) -> Callable[[int], str]:
    """Loads of 32 warps, whose lanes lie some elements apart, and which L1 has."""

    def body(repetitions: int) -> str:
        kind, name = ("f32", "float") if width == 4 else ("f64", "double")
        lines = [
            f"and.b32 %value0, %thread, 63;\nmul.lo.u32 %value0, %value0, {stride * width};",
            "cvt.u64.u32 %address0, %value0;\nadd.u64 %address0, %memory, %address0;",
        ]
        lines += [f"cvt.rn.{kind}.u32 %{name}{4 + n}, %thread;" for n in range(4)]
        for n in range(repetitions):
            lines += [
                f"ld.volatile.global.{kind} %{name}{n % 4}, [%address0+{4 * width * (n % 8)}];",
                f"add.{kind} %{name}{4 + n % 4}, %{name}{4 + n % 4}, %{name}{n % 4};",
            ]
        lines += [f"st.global.{kind} [%memory], %{name}{4 + n};" for n in range(4)]
        return "\n".join(lines)

    return body


def _bandwidth(
    body: str, moved: int, *, blocks_of_sm: int, threads: int, cold: float = 1.0
) -> Callable[[Machine], float]:
    """GB/s of a kernel whose threads each move some bytes, with some blocks on each SM."""

    def simulate(machine: Machine) -> float:
        counts = {"blocks": 4 * blocks_of_sm, "resident": blocks_of_sm, "active_sms": machine.sms}
        ends = _replayed(machine, body, threads, **counts, cold=cold).ends
        cycles = ends[-1] - ends[blocks_of_sm - 1]
        blocks = len(ends) - blocks_of_sm
        return blocks * threads * moved * machine.sms * machine.clock / cycles / 1e9

    return simulate


_ADDRESS = (
    "mad.lo.u32 %value0, %cta, {threads}, %thread;\nmul.wide.u32 %address0, %value0, {apart};\n"
    "add.u64 %address0, %memory, %address0;\n"
)
_READ = "ld.global.f64 %double0, [%address0];\nst.shared.f64 [shared], %double0;"
_TRIAD = (
    "ld.global.f64 %double0, [%address0+1048576];\nld.global.f64 %double1, [%address0+2097152];\n"
    "fma.rn.f64 %double0, %double0, 0d3FF3333333333333, %double1;\n"
    "st.global.f64 [%address0], %double0;"
)
_ADD = "red.global.add.u32 [%address0], %thread;\n"


def _stream(body: str, moved: int, threads_of_sm: int, threads: int) -> Callable[[Machine], float]:
    address = _ADDRESS.format(threads=threads, apart=8)
    return _bandwidth(address + body, moved, blocks_of_sm=threads_of_sm // threads, threads=threads)


def _additions(apart: int) -> Callable[[Machine], float]:
    body = _ADDRESS.format(threads=256, apart=apart) + 64 * _ADD
    return _bandwidth(body, 64, blocks_of_sm=1, threads=256, cold=0.0)


_RRZE = "RRZE, gpu-benches, 2024: "
_VLA = "flash-vla, hardware-unit-test/sm90, 2026: "

PUBLISHED = (
    Published(
        "mma.sync m16n8k16, each waits for the one before", "H100 SXM", "cycles", 25.14,
        _VLA + "unit-mma.md", _cycles_each(_products(1)),
    ),
    Published(
        "mma.sync m16n8k16, one of 8 sums", "H100 SXM", "cycles", 6.29, _VLA + "unit-mma.md",
        _cycles_each(_products(8), count=8),
    ),
    Published(
        "mma.sync m16n8k16, one of 8 sums", "A100 40GB", "cycles", 8.0,
        "NVIDIA A100 Tensor Core GPU Architecture: 1,024 multiplications of an SM in a cycle",
        _cycles_each(_products(8), count=8),
    ),
    Published(
        "chain of ld.shared", "A100 40GB", "cycles", 23.0,
        "Abdelkhalik et al., 2022, table 4, as others quote it",
        _cycles_each(_CHAIN_IN_SHARED_MEMORY),
    ),
    Published(
        "chain of ld.global in L1", "A100 80GB", "cycles", 36.2, _RRZE + "gpu-latency",
        _cycles_each(_CHAIN_IN_L1),
    ),
    Published(
        "chain of ld.global in L1", "H100 SXM", "cycles", 34.5,
        _RRZE + "gpu-latency (of an H100 PCIe)", _cycles_each(_CHAIN_IN_L1),
    ),
    Published(
        "bar.sync of 8 warps", "B200", "cycles", 38.0,
        "QuickRunCUDA, 2025: B300_PIPE_CATALOG.md (of a B300)",
        _cycles_each(_repeated("bar.sync 0;"), 256),
    ),
    *(
        Published(
            f"warp's load of {8 * width} bits from L1, {stride} elements apart", "A100 40GB",
            "cycles", cycles, _RRZE + "gpu-strides",
            _cycles_each(_strided_loads(stride, width), 1024, count=32),
        )
        for width, stride, cycles in (
            (4, 1, 1.02), (4, 8, 8.0), (4, 17, 5.1), (4, 33, 8.8), (8, 1, 2.01), (8, 9, 5.1),
        )
    ),
    Published(
        "a[i] = b[i] * s + c[i], f64", "A100 40GB", "GB/s", 1360, _RRZE + "gpu-stream",
        _stream(_TRIAD, 24, 2048, 1024),
    ),
    Published(
        "a[i] = b[i] * s + c[i], f64", "H200", "GB/s", 3534, _RRZE + "gpu-stream",
        _stream(_TRIAD, 24, 2048, 1024),
    ),
    Published(
        "read f64, two blocks of 96 threads on an SM", "A100 80GB", "GB/s", 244,
        _RRZE + "gpu-stream", _stream(_READ, 8, 192, 96),
    ),
    Published(
        "read f64, two blocks of 480 threads on an SM", "A100 80GB", "GB/s", 1039,
        _RRZE + "gpu-stream", _stream(_READ, 8, 960, 480),
    ),
    Published(
        "read f64, two blocks of 96 threads on an SM", "H200", "GB/s", 361,
        _RRZE + "gpu-stream", _stream(_READ, 8, 192, 96),
    ),
    Published(
        "red.u32, 128 bytes apart", "H100 SXM", "10^9/s", 85.1, _VLA + "unit-atomic.md",
        _additions(128),
    ),
    Published(
        "red.u32, 4 bytes apart", "H100 SXM", "10^9/s", 525.6, _VLA + "unit-atomic.md",
        _additions(4),
    ),
)  # fmt: skip
