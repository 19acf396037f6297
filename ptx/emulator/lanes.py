"""The lanes (threads) that run together: their registers, their places in the grid."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

import ml_dtypes
import numpy as np

from ptx.emulator.errors import EmulatorError
from ptx.isa.dtypes import DType

if TYPE_CHECKING:
    from ptx.emulator.barriers import Barriers
    from ptx.emulator.checks import Clocks
    from ptx.emulator.copies import AsyncCopies
    from ptx.emulator.global_memory import GlobalMemory
    from ptx.emulator.grid import Geometry
    from ptx.emulator.memory import LocalMemory, SharedMemory
    from ptx.emulator.program import Program
    from ptx.emulator.report import Report
    from ptx.emulator.syntax import Instruction

__all__ = ["UNSIGNED", "WARP", "Active", "Lanes", "Step", "numpy_type"]

WARP = 32

UNSIGNED: dict[int, type] = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_FLOAT = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def numpy_type(dtype: DType) -> type:
    """The numpy scalar type of a PTX type; packed halves and tf32 are unsigned integers."""
    if dtype.kind == "signed":
        return _SIGNED[dtype.bits]
    return _FLOAT.get(dtype.name, UNSIGNED[dtype.bits])


class Lanes:
    """All lanes of some blocks of the grid.

    Each block takes a whole number of warps; the lanes that pad its last warp never run. A
    register is one array over all lanes, of unsigned integers (predicates: bool).

    Attributes:
      count: number of lanes.
      indices: 0 .. count - 1.
      thread: number of the thread in its block, by lane.
      block: number of the block within these lanes, by lane.
      warps_per_block: with the last, incomplete one.
      block_ids: number in the grid of each block.
      registers: the registers, by `Register.index`.
      defined: by index, which lanes have written a register that could be read before.
      parameters: bytes of each kernel parameter.
      addresses: the addresses of the module's variables.
      lenient: see `ptx.emulator.launch`.
      position: basic block of each lane; the number of all blocks is the end.
    """

    addresses: Mapping[str, int]
    lenient: bool
    shared: SharedMemory
    local: LocalMemory
    copies: AsyncCopies
    clocks: Clocks
    barriers: Barriers

    def __init__(
        self,
        program: Program,
        geometry: Geometry,
        block_ids: np.ndarray,
        parameters: Mapping[str, np.ndarray],
        global_memory: GlobalMemory,
        report: Report,
        generator: np.random.Generator | None,
    ):
        self.program, self.geometry, self.block_ids = program, geometry, block_ids
        self.parameters, self.global_memory, self.report = parameters, global_memory, report
        self.generator = generator
        self.warps_per_block = -(-geometry.threads // WARP)
        padded = self.warps_per_block * WARP
        self.count = padded * len(block_ids)
        self.indices = np.arange(self.count)
        self.block, self.thread = np.divmod(self.indices, padded)
        self.registers = [
            np.zeros(self.count, UNSIGNED[register.dtype.bits])
            for register in program.source.registers
        ]
        self.defined = {index: np.zeros(self.count, np.bool_) for index in program.tracked}
        self.position = np.zeros(self.count, np.int64)
        self.position[self.thread >= geometry.threads] = len(program.blocks)
        self._special: dict[str, np.ndarray] = {}

    def special(self, name: str) -> np.ndarray:
        """A special register, for example "%tid.x", over all lanes.

        Raises:
          KeyError: no such register. Source: PTX ISA, "Special Registers".
        """
        if name not in self._special:
            value = SPECIAL_REGISTERS[name](self)
            self._special[name] = np.broadcast_to(np.asarray(value).astype(np.uint32), self.count)
        return self._special[name]

    def place(self, lane: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Block and thread of a lane, each as (x, y, z)."""
        block, thread = self.block_ids[self.block[lane]], self.thread[lane]
        return _unravel(int(block), self.geometry.grid), _unravel(int(thread), self.geometry.block)


class Active:
    """The lanes that an instruction runs for.

    Attributes:
      lanes: all lanes.
      indices: the indices of the active ones, ascending.
      size: the number of active lanes.
      selection: an index of arrays over all lanes: a slice where the active ones follow each
        other, else `indices`.
      registers: the registers of all lanes.
    """

    def __init__(self, lanes: Lanes, indices: np.ndarray):
        self.lanes, self.indices, self.registers = lanes, indices, lanes.registers
        self.size = len(indices)
        self.selection: slice | np.ndarray = indices
        if self.size and indices[-1] - indices[0] + 1 == self.size:
            self.selection = slice(int(indices[0]), int(indices[-1]) + 1)

    @functools.cached_property
    def warp(self) -> np.ndarray:
        """The number of each active lane's warp among the warps of all lanes."""
        return self.indices // WARP

    def subset(self, mask: np.ndarray) -> Active:
        """The active lanes where `mask`, which has one value for each of them, is true."""
        return Active(self.lanes, self.indices[mask])

    def spread(self, value: np.ndarray) -> np.ndarray:
        """An element for each of all lanes: `value` for the active ones, zero for the others."""
        everywhere = np.zeros(self.lanes.count, value.dtype)
        everywhere[self.selection] = value
        return everywhere

    def fail(
        self,
        error: type[EmulatorError],
        instruction: Instruction,
        mask: np.ndarray | None,
        message: str,
    ) -> NoReturn:
        """Raises `error` for the first active lane where `mask` (None: everywhere) is true."""
        wrong = self.indices if mask is None else self.indices[mask]
        block, thread = self.lanes.place(int(wrong[0]))
        raise error(
            f"{message} ({len(wrong)} of {self.size} active threads)",
            kernel=self.lanes.program.source.name,
            line=instruction.line,
            text=instruction.text,
            block=block,
            thread=thread,
        )


Step = Callable[[Active], None]
"""What an instruction does to the lanes that it runs for."""


def _unravel(index: int, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = shape
    return index % x, index // x % y, index // (x * y)


def _coordinate(axis: int, of_block: bool) -> Callable[[Lanes], np.ndarray]:
    def value(lanes: Lanes) -> np.ndarray:
        shape = lanes.geometry.grid if of_block else lanes.geometry.block
        index = lanes.block_ids[lanes.block] if of_block else lanes.thread
        return index // (1, shape[0], shape[0] * shape[1])[axis] % shape[axis]

    return value


def _lane(lanes: Lanes) -> np.ndarray:
    return lanes.thread % WARP


SPECIAL_REGISTERS: dict[str, Callable[[Lanes], np.ndarray | int]] = {
    **{f"%tid.{axis}": _coordinate(i, False) for i, axis in enumerate("xyz")},
    **{f"%ctaid.{axis}": _coordinate(i, True) for i, axis in enumerate("xyz")},
    **{f"%ntid.{axis}": lambda lanes, i=i: lanes.geometry.block[i] for i, axis in enumerate("xyz")},
    **{
        f"%nctaid.{axis}": lambda lanes, i=i: lanes.geometry.grid[i] for i, axis in enumerate("xyz")
    },
    "%laneid": _lane,
    "%warpid": lambda lanes: lanes.thread // WARP,
    "%nwarpid": lambda lanes: lanes.warps_per_block,
    "%lanemask_eq": lambda lanes: 1 << _lane(lanes),
    "%lanemask_lt": lambda lanes: (1 << _lane(lanes)) - 1,
    "%lanemask_le": lambda lanes: (2 << _lane(lanes)) - 1,
    "%lanemask_gt": lambda lanes: 0xFFFFFFFF & ~((2 << _lane(lanes)) - 1),
    "%lanemask_ge": lambda lanes: 0xFFFFFFFF & ~((1 << _lane(lanes)) - 1),
    "%dynamic_smem_size": lambda lanes: lanes.shared.dynamic_size,
    "%total_smem_size": lambda lanes: lanes.shared.total_size,
}
