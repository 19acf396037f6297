"""The launch of a kernel on numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ptx.emulator.errors import UnwrittenError
from ptx.emulator.global_memory import Allocation, aligned_bytes, own_address
from ptx.emulator.grid import Geometry, Options, check_launch, run_grid, triple
from ptx.emulator.lanes import UNSIGNED, numpy_type
from ptx.emulator.program import Program, load
from ptx.emulator.report import Report
from ptx.emulator.variables import Variables
from ptx.isa.dtypes import DType

__all__ = ["Buffer", "launch"]

_MAX_ORIGIN = 1 << 40  # bytes: what global memory has between two buffers


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
        self, array: np.ndarray, writable: bool = True, initialized: bool = True, *, origin: int = 0
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


def launch(
    text: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: Sequence[Buffer | int | float | np.generic | bytes],
    kernel: str | None = None,
    dynamic_shared: int = 0,
    schedule: int | None = None,
    *,
    blocks: Sequence[int] | None = None,
    check_races: bool = True,
    statistics: bool = True,
    step_limit: int = 1_000_000,
    stop: Callable[[], bool] | None = None,
    lenient: bool = False,
    report: type[Report] = Report,
) -> Report:
    """Runs a kernel over the whole grid and puts the results into the buffers.

    Args:
      text: a PTX module.
      grid: number of blocks, as one number or up to three (x, y, z).
      block: number of threads of each block, likewise.
      arguments: one for each kernel parameter: a `Buffer` for a pointer, a number, which is
        converted to the parameter's type, or the bytes of one that has several values.
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
      lenient: for a kernel of a compiler that knows what the GPU does where the PTX ISA leaves it
        open: no race counts as a fault (equal values may be written twice), shared and local
        memory and registers count as written (padding may be copied), and a membermask may name
        threads that have ended or that the block does not have.
      report: the class of the result; `Trace` also has what each warp did.

    Returns:
      What the launch did.

    Raises:
      EmulatorError: one of its subclasses, for each kind of fault; see `ptx.emulator.errors`.
      ValueError, TypeError: a launch that the driver would refuse, or wrong arguments.
    """
    program = load(text, kernel)
    geometry = Geometry(triple(grid, "grid"), triple(block, "block"))
    check_launch(program, geometry, dynamic_shared)
    declared = program.source.parameters
    if len(arguments) != len(declared):
        raise TypeError(
            f"{program.source.name} has {len(declared)} parameters, and {len(arguments)} arguments "
            "are given"
        )
    names: dict[Buffer, str] = {}  # errors name a buffer by the first parameter that points to it
    for position, argument in enumerate(arguments):
        if isinstance(argument, Buffer):
            names.setdefault(argument, f"argument {position} ({declared[position].name})")
    buffers = list(names)
    allocations = [
        Allocation(own_address(i), _copy(b.array), b.writable, b.initialized, names[b])
        for i, b in enumerate(buffers, 1)
    ]
    pointers = {
        id(b): a.address - b.origin * b.array.itemsize
        for b, a in zip(buffers, allocations, strict=True)
    }
    parameters = _parameters(program, arguments, pointers)
    told = report(program, statistics)
    ids = np.arange(geometry.blocks) if blocks is None else _chosen(blocks, geometry)
    options = Options(dynamic_shared, schedule, check_races, step_limit, stop, lenient)
    variables = Variables(program.variables)
    for allocation, missing in run_grid(
        program, geometry, parameters, allocations, variables, told, options, ids
    ):
        buffer = buffers[allocations.index(allocation)]
        raise _unwritten(program, allocation.name, buffer, missing)
    for buffer, allocation in zip(buffers, allocations, strict=True):
        data = allocation.data.view(buffer.array.dtype)
        buffer.array = data.reshape(buffer.array.shape)
    return told


def _copy(array: np.ndarray) -> np.ndarray:
    """A copy of an array's bytes, at an address that is a multiple of 256."""
    memory = aligned_bytes(array.nbytes, 256)
    memory[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memory


def _unwritten(program: Program, name: str, buffer: Buffer, missing: np.ndarray) -> UnwrittenError:
    first = int(missing[0]) // buffer.array.itemsize
    index = tuple(int(i) for i in np.unravel_index(first, buffer.array.shape))
    return UnwrittenError(
        f"{name}: {len(missing)} of {buffer.array.nbytes} bytes are never written, the first of "
        f"them in element {index}",
        kernel=program.source.name,
    )


def _chosen(blocks: Sequence[int], geometry: Geometry) -> np.ndarray:
    """The numbers of some blocks, in order."""
    ids = np.unique(np.array(blocks, np.int64))
    if not len(ids) or ids[0] < 0 or ids[-1] >= geometry.blocks:
        raise ValueError(f"{blocks=}: numbers from 0 to {geometry.blocks - 1} are expected")
    return ids


def _parameters(
    program: Program, arguments: Sequence[object], pointers: dict[int, int]
) -> dict[str, np.ndarray]:
    values = {}
    for parameter, argument in zip(program.source.parameters, arguments, strict=True):
        pointer = pointers.get(id(argument)) if isinstance(argument, Buffer) else None
        what = f"{program.source.name}: parameter {parameter.name} (.{parameter.dtype})"
        if isinstance(argument, bytes):
            if len(argument) != parameter.size:
                raise TypeError(f"{what}: {len(argument)} bytes, where it has {parameter.size}")
            values[parameter.name] = np.frombuffer(argument, np.uint8)
        elif parameter.count > 1:
            raise TypeError(f"{what} has {parameter.count} values: bytes are expected")
        else:
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
