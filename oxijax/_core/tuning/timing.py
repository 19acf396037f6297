"""Timing launches on a GPU."""

import contextlib
import ctypes
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from oxijax._core.arguments.precision import numpy_dtype
from oxijax._core.calls.kernel_call import KernelCall
from oxijax._core.gpu.driver import driver
from oxijax._core.launch._handler import LAUNCH_FUNCTION
from oxijax._core.tuning.operands import random_operands
from ptx.launch import BufferAddress, Launch

__all__ = ["time_launches"]

_ROUNDS = 9
_SAMPLE_US = 300.0  # of launches between two events, which are a microsecond apart by themselves
_MOST_REPEATS = 100

_Call = Callable[..., Any]  # a function of the driver, by name


def time_launches(call: KernelCall, launches: Sequence[Launch]) -> list[float]:
    """Microseconds of each launch of a call: the median of some rounds.

    In a round all are launched, one after the other, so that a change of the GPU's clock meets all
    of them alike. They have the same operands and results, which lie in memory of their own; what a
    kernel adds to goes on growing.

    Raises:
      DriverError: there is no such GPU, its memory is full, or it does not take a kernel.
    """
    device = next(gpu.ordinal for gpu in driver().devices if gpu.name == call.gpu)
    with driver().context(device) as function, _buffers(call, function) as addresses:
        prepared = [_Prepared(launch, device, addresses) for launch in launches]
        with _events(function) as timed:
            repeats = []
            for kernel in prepared:
                kernel.launch()  # what is slow once
                us = timed(kernel, 1)
                repeats.append(max(1, min(_MOST_REPEATS, round(_SAMPLE_US / max(us, 1.0)))))
            rounds = [
                [timed(kernel, count) for kernel, count in zip(prepared, repeats, strict=True)]
                for _ in range(_ROUNDS)
            ]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


class _Prepared:
    """A launch whose kernel is loaded, and whose arguments are ready."""

    def __init__(self, launch: Launch, device: int, addresses: Sequence[int]):
        self.how, self.kernel = launch, driver().load(launch, device)
        self.values = [
            ctypes.c_uint64(addresses[argument.buffer])
            if isinstance(argument, BufferAddress)
            else (ctypes.c_uint8 * 8).from_buffer_copy(argument.tobytes().ljust(8, b"\0"))
            for argument in launch.arguments
        ]
        pointers = [ctypes.addressof(value) for value in self.values]
        self.arguments = (ctypes.c_void_p * len(pointers))(*pointers)
        self.function = LAUNCH_FUNCTION(driver().launch_pointer)

    def launch(self) -> None:
        how = self.how
        status = self.function(
            self.kernel, *how.grid, *how.block, how.dynamic_shared, None, self.arguments, None
        )
        if status:
            raise RuntimeError(f"cuLaunchKernel failed: {driver().describe(status)}")


@contextlib.contextmanager
def _buffers(call: KernelCall, function: _Call) -> Iterator[list[int]]:
    """Yields the address of each operand and result; the memory is freed at the end."""
    kernel, config = call.kernel, call.config
    operands, results = random_operands(call), kernel.results(config)
    aliases = kernel.aliases(config)
    addresses: list[int] = []
    with contextlib.ExitStack() as memory:

        def allocate(size: int) -> int:
            if not size:
                return 0
            address = function("cuMemAlloc", size)
            memory.callback(function, "cuMemFree", address)
            return int(address)

        for values in operands.values():
            contiguous = np.ascontiguousarray(values)
            addresses.append(allocate(contiguous.nbytes))
            if contiguous.nbytes:
                function("cuMemcpyHtoD", addresses[-1], contiguous.ctypes.data, contiguous.nbytes)
        shared = {result: operand for operand, result in aliases.items()}
        for index, (name, result) in enumerate(results.items()):
            if index in shared:
                addresses.append(addresses[shared[index]])
                continue
            itemsize = numpy_dtype(result.dtype_of(config)).itemsize
            addresses.append(allocate(math.prod(call.instance.shapes[name]) * itemsize))
        function("cuCtxSynchronize")
        yield addresses
        function("cuCtxSynchronize")


@contextlib.contextmanager
def _events(function: _Call) -> Iterator[Callable[[_Prepared, int], float]]:
    """Yields (launch, how often) -> microseconds of each."""
    with contextlib.ExitStack() as stack:
        start, stop = function("cuEventCreate", 0), function("cuEventCreate", 0)
        for event in (start, stop):
            stack.callback(function, "cuEventDestroy", event)

        def timed(kernel: _Prepared, count: int) -> float:
            function("cuEventRecord", start, 0)
            for _ in range(count):
                kernel.launch()
            function("cuEventRecord", stop, 0)
            function("cuEventSynchronize", stop)
            return 1e3 * function("cuEventElapsedTime", start, stop) / count

        yield timed
