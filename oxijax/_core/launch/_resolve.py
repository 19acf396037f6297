"""From a call to its launch: generates the PTX, loads it, and fills in the handler's record.

This runs once for each kind of call: each spec, each set of shapes, each device.
"""

import dataclasses
import itertools
import sys
import threading
from collections.abc import Sequence

import numpy as np

from oxijax._core import driver as _driver
from oxijax._core.launch import _emulation, _handler
from oxijax._core.launch._emulation import EmulatedArray
from oxijax._core.launch._spec import VERSION, Spec, registered
from ptx.isa.targets import TARGETS
from ptx.kernel import Shapes
from ptx.launch import BufferAddress, Launch

__all__ = ["describe", "resolve"]

_HOST = -1  # the handler's device number for host memory


def resolve(call: _handler.CallRecord, record: _handler.LaunchRecord) -> None:
    """Fills in what to launch for a call.

    Raises:
      RuntimeError: the PTX cannot be generated or loaded; the message says for which kernel, in
        which configuration, on what, and why.
    """
    text = call.read_spec()
    if call.version != VERSION:
        raise RuntimeError(
            f"oxijax: a program that was compiled or exported with version {call.version} of its "
            f"kernels' descriptions; this oxijax has version {VERSION}: export it again\n  {text}"
        )
    _handler.refuse_in_children()
    spec, shapes = Spec.from_json(text), call.read_shapes()
    number = next(_numbers)
    resolved = _Resolved(spec, shapes)
    try:
        _fill(record, spec, shapes, call.device)
    except Exception as error:
        message = resolved.message("cannot be loaded", error)
        if call.device != _HOST:
            _report_on_several_gpus(message)
        raise RuntimeError(message) from error
    record.id = number
    _resolved[number] = resolved


def describe(number: int, status: int) -> str:
    """Why a launch has failed.

    Args:
      number: the id of its record.
      status: what it returned.
    """
    resolved = _resolved[number]
    if resolved.spec.emulation is not None:
        return resolved.message("failed in the emulator", _emulation.describe())
    return resolved.message("could not be launched", _driver.driver().describe(status))


@dataclasses.dataclass(frozen=True)
class _Resolved:
    spec: Spec
    shapes: Shapes

    def message(self, what: str, reason: object) -> str:
        spec = self.spec
        where = "the GPU" if spec.emulation is None else f"an emulated {spec.emulation.target}"
        arrays = [
            f"{dtype.name}{list(shape)}"
            for dtype, shape in zip(spec.operands + spec.results, self.shapes, strict=True)
        ]
        operands, results = arrays[: len(spec.operands)], arrays[len(spec.operands) :]
        kind = f"{type(reason).__name__}: " if isinstance(reason, Exception) else ""
        return (
            f"oxijax: kernel {spec.kernel} {what}\n"
            f"  on {where}\n"
            f"  configuration: {spec.config}\n"
            f"  call: {', '.join(operands)} -> {', '.join(results)}\n"
            f"{kind}{reason}"
        )


def _report_on_several_gpus(message: str) -> None:
    """Prints an error of one of several GPUs, which XLA may never raise.

    The GPUs that run a program wait for each other before it starts. Where one has failed the
    others wait in vain, until XLA ends the process, without this error.
    """
    try:
        several = len(_driver.driver().devices) > 1
    except _driver.DriverError:
        return  # so it is on all of them
    if several:
        print(message, file=sys.stderr)


_numbers = itertools.count(1)
_resolved: dict[int, _Resolved] = {}
_generating = threading.Lock()


def _fill(record: _handler.LaunchRecord, spec: Spec, shapes: Shapes, device: int) -> None:
    kernel = registered(spec.kernel)
    if (device == _HOST) != (spec.emulation is not None):
        raise ValueError("a call for the emulator runs on the CPU, any other on a GPU")
    if spec.emulation is not None:
        target = TARGETS[spec.emulation.target]
    else:
        device = _driver.driver().current_device()
        target = _driver.driver().target(device)
    shapes = spec.shapes(shapes)
    with _generating:  # so that several threads do not generate the same text
        launch = kernel.launch(spec.config, target, shapes)
    _check(launch, spec, shapes)

    record.grid, record.block = launch.grid, launch.block
    record.alias_count = len(spec.aliases)
    for place, (operand, result) in zip(record.aliases, spec.aliases, strict=False):
        place.operand, place.result = operand, len(spec.operands) + result
    record.argument_count = len(launch.arguments)
    for place, argument in zip(record.arguments, launch.arguments, strict=False):
        if isinstance(argument, BufferAddress):
            place.buffer = argument.buffer
        else:
            place.buffer, place.value = -1, _bits(argument)
    record.dynamic_shared = launch.dynamic_shared
    if spec.emulation is None:
        record.launch, record.in_python = _driver.driver().launch_pointer, False
        record.copy = _driver.driver().copy_pointer
        record.function = _driver.driver().load(launch.text, launch.dynamic_shared, device)
    elif spec.emulation.dry_run:
        record.launch, record.in_python = _handler.address("oxijax_launch_nothing"), False
    else:
        arguments = _emulated_arguments(launch, spec, shapes)
        record.launch, record.in_python = _emulation.launch_pointer(), True
        record.function = _emulation.load(launch.text, arguments, spec.emulation.schedule)


def _check(launch: Launch, spec: Spec, shapes: Shapes) -> None:
    """Raises ValueError for a launch that leaves a result unwritten, or does not fit."""
    if len(launch.arguments) > _handler.MAX_ARGUMENTS:
        raise ValueError(f"at most {_handler.MAX_ARGUMENTS} arguments, got {len(launch.arguments)}")
    if len(spec.aliases) > _handler.MAX_ALIASES:
        raise ValueError(f"at most {_handler.MAX_ALIASES} aliases, got {len(spec.aliases)}")
    passed = {a.buffer for a in launch.arguments if isinstance(a, BufferAddress)}
    if not passed <= set(range(len(shapes))):
        raise ValueError(f"arguments {sorted(passed)} of a call that has {len(shapes)} buffers")
    aliased = {result for _, result in spec.aliases}
    for result, shape in enumerate(shapes[len(spec.operands) :]):
        if result in aliased or 0 in shape:
            continue
        if 0 in launch.grid:
            raise ValueError(
                f"grid={launch.grid} leaves result {result} of shape {shape} unwritten"
            )
        if len(spec.operands) + result not in passed:
            raise ValueError(f"result {result} is no argument of the kernel")


def _emulated_arguments(
    launch: Launch, spec: Spec, shapes: Shapes
) -> Sequence[EmulatedArray | np.generic]:
    operands = len(spec.operands)
    dtypes = spec.operands + spec.results
    shared = {operand: operands + result for operand, result in spec.aliases}

    def argument(value: BufferAddress | np.generic) -> EmulatedArray | np.generic:
        if not isinstance(value, BufferAddress):
            return value
        buffer = shared.get(value.buffer, value.buffer)
        return EmulatedArray(
            buffer,
            shapes[buffer],
            dtypes[buffer],
            writable=buffer >= operands,
            initialized=buffer < operands or buffer in shared.values(),
        )

    return [argument(value) for value in launch.arguments]


def _bits(value: np.generic) -> int:
    """A scalar's bytes, as the number whose lowest bytes they are."""
    if value.dtype.itemsize > 8:
        raise TypeError(f"an argument of at most 8 bytes is expected, got {value!r}")
    return int.from_bytes(value.tobytes(), "little")
