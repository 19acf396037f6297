"""A module as a driver has it: kernels launched with raw parameters, on memory with addresses."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence

import numpy as np

from ptx.emulator.errors import UnwrittenError
from ptx.emulator.global_memory import Allocation, own_address
from ptx.emulator.grid import Geometry, Options, check_launch, run_grid, triple
from ptx.emulator.parse import parse
from ptx.emulator.program import Program
from ptx.emulator.report import Report
from ptx.emulator.variables import Variables

__all__ = ["KernelFacts", "LoadedModule"]

_ALIGNMENT = 256  # an own address keeps what the address was beyond a multiple of this


@dataclasses.dataclass(frozen=True)
class KernelFacts:
    """What a driver knows of a kernel.

    Attributes:
      parameter_sizes: bytes of each parameter, in order.
      static_shared: bytes of shared memory that it has without the dynamic one.
      max_threads: threads of a block that it allows; 1024 where it says nothing.
    """

    parameter_sizes: tuple[int, ...]
    static_shared: int
    max_threads: int


class LoadedModule:
    """A PTX module with its variables in memory.

    Several threads may launch its kernels at once.

    Attributes:
      kernels: names of its kernels, in the order of the text.
      variables: names of its `.global` and `.const` variables, likewise.
    """

    def __init__(self, text: str):
        """Reads the module and gives its variables their initial values.

        Raises:
          ParseError: the text is not PTX, or holds what the emulator does not have.
        """
        self._module = parse(text)
        self._variables = Variables(self._module.variables)
        self._programs: dict[str, Program] = {}
        self._lock = threading.Lock()
        self.kernels = tuple(kernel.name for kernel in self._module.kernels)
        self.variables = tuple(variable.name for variable in self._module.variables)

    def variable(self, name: str) -> Allocation:
        """The address and the bytes of a `.global` or `.const` variable.

        Whoever writes the bytes writes the variable, constants too.

        Raises:
          KeyError: the module has no such variable.
        """
        if name not in self.variables:
            raise KeyError(name)
        return self._variables.allocations[self.variables.index(name)]

    def facts(self, kernel: str) -> KernelFacts:
        """What a driver knows of a kernel.

        Raises:
          KeyError: the module has no such kernel.
          EmulatorError: the kernel holds what the emulator does not have.
        """
        program = self._program(kernel)
        limits = program.source.limits
        threads = limits.get("reqntid") or limits.get("maxntid") or (1024,)
        return KernelFacts(
            tuple(parameter.size for parameter in program.source.parameters),
            program.layout.static_size,
            int(np.prod(threads)),
        )

    def launch(
        self,
        kernel: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        parameters: Sequence[bytes],
        allocations: Sequence[Allocation],
        *,
        dynamic_shared: int = 0,
        schedule: int | None = None,
        check_races: bool = True,
        lenient: bool = False,
        step_limit: int = 1_000_000,
        stop: Callable[[], bool] | None = None,
    ) -> Report:
        """Runs a kernel over the whole grid, on memory that is used where it lies.

        A 64-bit parameter whose value is an address in one of the allocations is a pointer to it,
        and reaches this allocation alone, however far an index strays: the kernel gets another
        address in its place. A lenient launch leaves parameters as they are, so that a kernel may
        follow pointers that it finds in memory, and reach every allocation.

        Args:
          kernel: its name.
          grid: number of blocks, as one number or up to three (x, y, z).
          block: number of threads of each block, likewise.
          parameters: the bytes of each parameter.
          allocations: all that is alive. They may not overlap. Their data are read and written in
            place, so they must stay where they are. Barred ones make better errors.
          dynamic_shared: bytes of dynamic shared memory.
          schedule: see `ptx.emulator.launch`, as for all that follows.
          check_races: whether to look for races.
          lenient: for kernels of a compiler that relies on what GPUs do.
          step_limit: the number of basic blocks that counts as an endless loop.
          stop: whether to give up.

        Returns:
          What the launch did; bank conflicts and sectors are not counted.

        Raises:
          EmulatorError: one of its subclasses, for each kind of fault; an access that is in no
            allocation names the address and the nearest one.
          ValueError, TypeError: a launch that the driver would refuse, or wrong arguments.
          KeyError: the module has no such kernel.
        """
        program = self._program(kernel)
        geometry = Geometry(triple(grid, "grid"), triple(block, "block"))
        check_launch(program, geometry, dynamic_shared)
        values = [bytes(value) for value in parameters]
        sizes = [parameter.size for parameter in program.source.parameters]
        if [len(value) for value in values] != sizes:
            raise TypeError(
                f"{kernel} has parameters of {sizes} bytes, and gets "
                f"{[len(value) for value in values]}"
            )
        reachable = list(allocations)
        if not lenient:
            values, reachable = _apart(program, values, allocations)
        named = {
            parameter.name: np.frombuffer(value, np.uint8)
            for parameter, value in zip(program.source.parameters, values, strict=True)
        }
        report = Report(program, statistics=False)
        options = Options(dynamic_shared, schedule, check_races, step_limit, stop, lenient)
        ids = np.arange(geometry.blocks)
        for allocation, missing in run_grid(
            program, geometry, named, reachable, self._variables, report, options, ids
        ):
            message = (
                f"{len(missing)} of {allocation.data.nbytes} bytes of {allocation} are never "
                f"written, the first of them byte {int(missing[0])}"
            )
            raise UnwrittenError(message, kernel=kernel)
        return report

    def _program(self, name: str) -> Program:
        with self._lock:
            if name not in self._programs:
                kernels = {kernel.name: kernel for kernel in self._module.kernels}
                self._programs[name] = Program(self._module, kernels[name])
            return self._programs[name]


def _apart(
    program: Program, values: Sequence[bytes], allocations: Sequence[Allocation]
) -> tuple[list[bytes], list[Allocation]]:
    """Moves the allocations that parameters point to far from each other.

    Returns:
      The parameters with the new addresses; these allocations at their new addresses, and the
      barred ones where they were.
    """
    moved: dict[int, Allocation] = {}
    replaced = []
    for parameter, value in zip(program.source.parameters, values, strict=True):
        may_point = parameter.size == 8 and not parameter.dtype.is_float
        address = int.from_bytes(value, "little") if may_point else -1
        for number, allocation in enumerate(allocations):
            if allocation.address <= address < allocation.end and not allocation.barred:
                start = own_address(number) + allocation.address % _ALIGNMENT
                moved[number] = dataclasses.replace(allocation, address=start, name=str(allocation))
                value = (start + address - allocation.address).to_bytes(8, "little")
                break
        replaced.append(value)
    return replaced, [*moved.values(), *(a for a in allocations if a.barred)]
