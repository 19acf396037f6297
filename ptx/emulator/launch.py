"""Runs a kernel on numpy arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ptx.emulator.barriers import Barriers
from ptx.emulator.checks import Clocks
from ptx.emulator.copies import AsyncCopies
from ptx.emulator.errors import UnwrittenError
from ptx.emulator.lanes import UNSIGNED, WARP, Lanes, numpy_type
from ptx.emulator.memory import Allocation, GlobalMemory, SharedMemory
from ptx.emulator.program import Program, load
from ptx.emulator.report import Report
from ptx.emulator.scheduler import run
from ptx.isa.dtypes import DType
from ptx.isa.targets import TARGETS

__all__ = ["Buffer", "Geometry", "launch"]

_MAX_ORIGIN = 1 << 40  # bytes: what global memory has between two buffers
_LANES = 8192  # lanes that run together: many for numpy's sake, few for the caches'


class Buffer:
    """An array in the GPU's memory.

    Attributes:
      array: a copy of what it was made from; `launch` replaces it by what the kernel left.
      writable: whether the kernel may write it.
      initialized: whether it holds values before the first launch; if not, the kernel has to
        write every byte, and may read only what it has written.
      origin: elements that lie before the array: it is a window on a larger one, of which the
        kernel gets the address, and must touch nothing else.
    """

    def __init__(
        self,
        array: np.ndarray,
        writable: bool = True,
        initialized: bool = True,
        *,
        origin: int = 0,
    ):
        if not writable and not initialized:
            raise ValueError("a buffer that is neither writable nor initialized is of no use")
        self.array = np.array(array, order="C")
        before = origin * self.array.itemsize
        if not 0 <= before < _MAX_ORIGIN or before % 256:
            raise ValueError(
                f"{origin=} of {self.array.dtype} is {before} bytes: a multiple "
                f"of 256 below {_MAX_ORIGIN} is expected"
            )
        self.writable, self.initialized, self.origin = writable, initialized, origin


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Blocks of the grid and threads of a block, each as (x, y, z)."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


def launch(
    text: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: Sequence[Buffer | int | float | np.generic],
    kernel: str | None = None,
    dynamic_shared: int = 0,
    schedule: int | None = None,
    *,
    blocks: Sequence[int] | None = None,
    check_races: bool = True,
    statistics: bool = True,
    step_limit: int = 1_000_000,
    stop: Callable[[], bool] | None = None,
) -> Report:
    """Runs a kernel over the whole grid and puts the results into the buffers.

    Args:
      text: a PTX module.
      grid: number of blocks, as one number or up to three (x, y, z).
      block: number of threads of each block, likewise.
      arguments: one for each kernel parameter: a `Buffer` for a pointer, else a number, which
        is converted to the parameter's type.
      kernel: name of the kernel; None for the only one of the module.
      dynamic_shared: bytes of dynamic shared memory.
      schedule: None runs all warps in step; an integer is the seed of a random order, in which
        warps run far ahead of each other between barriers, blocks come in any order, and so do
        the atomic operations of one instruction.
      blocks: numbers of the blocks to run, x counted first; None for all. The kernel sees the whole
        grid, which may be a large one.
      check_races: whether to look for races.
      statistics: whether to count bank conflicts and sectors.
      step_limit: basic blocks that the blocks that run together may take before it counts as an
        endless loop.
      stop: asked between basic blocks, possibly in the middle of a long launch: whether to give
        up, with a StoppedError.

    Returns:
      What the launch did.

    Raises:
      EmulatorError: one of its subclasses, for each kind of fault; see `ptx.emulator.errors`.
      ValueError, TypeError: a launch that the driver would refuse, or wrong arguments.
    """
    program = load(text, kernel)
    geometry = Geometry(_triple(grid, "grid"), _triple(block, "block"))
    _check_launch(program, geometry, dynamic_shared)
    buffers = list({id(a): a for a in arguments if isinstance(a, Buffer)}.values())
    memory = GlobalMemory(
        [Allocation(b.array, b.writable, b.initialized) for b in buffers],
        program.granule["global"],
        check_races,
    )
    pointers = {
        id(b): memory.pointer(number) - b.origin * b.array.itemsize
        for number, b in enumerate(buffers, 1)
    }
    parameters = _parameters(program, arguments, pointers)
    report = Report(program, statistics)
    generator = None if schedule is None else np.random.default_rng(schedule)
    ids = np.arange(geometry.blocks) if blocks is None else _chosen(blocks, geometry)
    if generator is not None:
        generator.shuffle(ids)
    together = max(1, _LANES // (-(-geometry.threads // WARP) * WARP))
    with np.errstate(all="ignore"):
        for start in range(0, len(ids), together):
            chunk = ids[start : start + together]
            lanes = Lanes(program, geometry, chunk, parameters, memory, report, generator)
            lanes.clocks = Clocks(lanes)
            lanes.barriers = Barriers(lanes)
            lanes.copies = AsyncCopies(lanes)
            granule = program.granule["shared"]
            lanes.shared = SharedMemory(lanes, dynamic_shared, granule, check_races)
            run(lanes, step_limit, stop)
    for number, buffer in enumerate(buffers, 1):
        if len(missing := memory.unwritten(number)):
            position = next(i for i, a in enumerate(arguments) if a is buffer)
            raise _unwritten(program, position, buffer, missing)
    for number, buffer in enumerate(buffers, 1):
        data = memory.data(number).view(buffer.array.dtype)
        buffer.array = data.reshape(buffer.array.shape).copy()
    return report


def _unwritten(
    program: Program, position: int, buffer: Buffer, missing: np.ndarray
) -> UnwrittenError:
    first = int(missing[0]) // buffer.array.itemsize
    index = tuple(int(i) for i in np.unravel_index(first, buffer.array.shape))
    name = program.source.parameters[position].name
    return UnwrittenError(
        f"argument {position} ({name}): {len(missing)} of {buffer.array.nbytes} bytes are never "
        f"written, the first of them in element {index}",
        kernel=program.source.name,
    )


def _chosen(blocks: Sequence[int], geometry: Geometry) -> np.ndarray:
    """The numbers of some blocks, in order."""
    ids = np.unique(np.array(blocks, np.int64))
    if not len(ids) or ids[0] < 0 or ids[-1] >= geometry.blocks:
        raise ValueError(f"{blocks=}: numbers from 0 to {geometry.blocks - 1} are expected")
    return ids


def _triple(value: int | Sequence[int], name: str) -> tuple[int, int, int]:
    values = [value] if isinstance(value, int | np.integer) else list(value)
    if not 1 <= len(values) <= 3 or any(int(v) < 1 for v in values):
        raise ValueError(f"{name}={value!r}: one to three positive numbers are expected")
    x, y, z = [int(v) for v in values] + [1] * (3 - len(values))
    return x, y, z


def _check_launch(program: Program, geometry: Geometry, dynamic_shared: int) -> None:
    """Raises ValueError for what the driver would refuse."""
    name, limits = program.source.name, program.source.limits
    if geometry.threads > 1024 or geometry.block[2] > 64:
        raise ValueError(f"block={geometry.block}: at most 1024 threads, and 64 in z")
    if max(geometry.grid[1:]) > 65535 or geometry.grid[0] > 2**31 - 1:
        raise ValueError(f"grid={geometry.grid}: at most 2147483647 x 65535 x 65535 blocks")
    if "maxntid" in limits and geometry.threads > np.prod(limits["maxntid"]):
        raise ValueError(f"block={geometry.block}: {name} has .maxntid {limits['maxntid']}")
    if "reqntid" in limits:
        required = (*limits["reqntid"], 1, 1)[:3]
        if geometry.block != required:
            raise ValueError(f"block={geometry.block}: {name} has .reqntid {required}")
    if dynamic_shared < 0:
        raise ValueError(f"{dynamic_shared=} is negative")
    total, target = program.layout.static_size + dynamic_shared, TARGETS.get(program.target)
    if target is not None and total > target.shared_per_block:
        raise ValueError(
            f"{name} takes {total} bytes of shared memory, and a block of {target} has "
            f"{target.shared_per_block}"
        )


def _parameters(
    program: Program, arguments: Sequence[object], pointers: dict[int, int]
) -> dict[str, np.ndarray]:
    declared = program.source.parameters
    if len(arguments) != len(declared):
        raise TypeError(
            f"{program.source.name} has {len(declared)} parameters, and {len(arguments)} "
            "arguments are given"
        )
    values = {}
    for parameter, argument in zip(declared, arguments, strict=True):
        pointer = pointers.get(id(argument)) if isinstance(argument, Buffer) else None
        what = f"{program.source.name}: parameter {parameter.name} (.{parameter.dtype})"
        values[parameter.name] = _convert(argument, pointer, parameter.dtype, what)
    return values


def _convert(argument: object, pointer: int | None, dtype: DType, what: str) -> np.ndarray:
    kind = numpy_type(dtype)
    if pointer is not None:
        if dtype.bits != 64 or dtype.is_float:
            raise TypeError(f"{what}: a Buffer needs a 64-bit integer parameter")
        return np.array([pointer], np.uint64).view(kind)
    if isinstance(argument, np.generic) and argument.dtype.kind in "fV" and dtype.kind == "bits":
        if argument.dtype.itemsize != dtype.bytes:
            raise TypeError(f"{what}: {argument.dtype} has another width")
        return np.array([argument]).view(UNSIGNED[dtype.bits])
    if dtype.is_float and isinstance(argument, int | float | np.integer | np.floating | np.generic):
        return np.array([float(argument)]).astype(kind)
    if not dtype.is_float and isinstance(argument, int | np.integer):
        value = int(argument)
        if not -(1 << (dtype.bits - 1)) <= value < 1 << dtype.bits:
            raise ValueError(f"{what}: {value} does not fit")
        return np.array([value & ((1 << dtype.bits) - 1)], UNSIGNED[dtype.bits]).view(kind)
    raise TypeError(f"{what}: {type(argument).__name__} {argument!r}")
