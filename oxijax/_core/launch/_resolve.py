"""From a call to its launch: generates the PTX, loads it, and fills in the handler's record.

This runs once for each kind of call: each spec, each set of shapes, each device.
"""

import contextlib
import dataclasses
import itertools
import math
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from oxijax._core.arguments.precision import numpy_dtype
from oxijax._core.calls.kernel_call import KernelCall, emulated_gpu, note
from oxijax._core.calls.tuned_plans import tuned_plans
from oxijax._core.gpu import driver as _driver
from oxijax._core.launch import _emulation, _handler
from oxijax._core.launch._emulation import EmulatedArray
from oxijax._core.launch._handler import BufferType
from oxijax._core.launch._spec import VERSION, Spec, key_of, registered
from oxijax._core.process import check_emulation
from ptx import kernels as kernels  # which a program calls that another process has exported
from ptx.definition import KernelDefinition, Shapes, clear_texts
from ptx.isa.targets import TARGETS
from ptx.launch import BufferAddress, Launch

__all__ = ["clear_caches", "describe", "resolve"]

_HOST = -1  # the handler's device number for host memory


def resolve(call: _handler.CallRecord, record: _handler.LaunchRecord) -> None:
    """Checks a call, and fills in what to launch for it.

    Nothing of the call is trusted: its program may come from anyone. What it says is compared with
    the kernel's own declaration before PTX is generated.

    Raises:
      RuntimeError: a call that `oxijax._core.launch.call` does not make, or PTX that cannot be
        generated or loaded; the message says for which kernel, in which configuration, on what,
        and why.
    """
    text = call.read_spec()
    if call.version != VERSION:
        raise RuntimeError(
            f"oxijax: a program that was compiled or exported with version {call.version} of its "
            f"kernels' descriptions; this oxijax has version {VERSION}: export it again\n"
            f"  {_excerpt(text)}"
        )
    if call.key != key_of(text):
        raise RuntimeError(f"oxijax: a call whose key is not that of its spec\n  {_excerpt(text)}")
    try:
        spec, buffers = Spec.from_json(text), call.read_buffers()
    except Exception as error:
        reason = error.args[0] if isinstance(error, KeyError) else error
        raise RuntimeError(
            f"oxijax: a call that oxijax does not make: {reason}\n  {_excerpt(text)}"
        ) from error
    _handler.refuse_in_children()
    number = next(_numbers)
    resolved = _Resolved(spec, tuple(buffers), call.operand_count)
    try:
        _fill(record, resolved, call.device)
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
    resolved = _resolved.get(number)
    if resolved is None:
        reason = _emulation.describe(f"status {status}")
        return f"oxijax: a kernel failed whose call was forgotten meanwhile\n{reason}"
    if resolved.spec.emulation is not None:
        return resolved.message("failed in the emulator", _emulation.describe())
    return resolved.message("could not be launched", _driver.driver().describe(status))


def clear_caches() -> None:
    """Frees what oxijax keeps of the kernels that were launched so far.

    For a process that runs ever new layers, beside `jax.clear_caches`, which frees the programs
    that JAX has compiled and knows nothing of this. Programs that are still there go on: the next
    call of each kind takes longer, because its kernel is generated again. Calls that run meanwhile
    in other threads are not disturbed.

    It frees the PTX of the last 1,024 kernels that were generated, that which the emulator runs,
    what it has parsed of it, and what errors say of a call. What stays as long as the process: some
    2 KB for each kind of call, in a table that is read without a lock; and, on a GPU, kernels that
    are loaded, since CUDA graphs may hold them.

    Example:
      >>> jax.clear_caches()
      >>> oxijax.clear_caches()
    """
    clear_texts()
    if not _handler.is_loaded():
        return  # no kernel was launched
    # First what is known, then the table: what a call is resolved to meanwhile stays.
    numbers, handles = list(_resolved), _emulation.handles()
    _handler.forget()
    for number in numbers:
        _resolved.pop(number, None)
    _emulation.unload(handles)


tuned_plans.on_change(clear_caches)  # calls that are resolved have the plans of before


@dataclasses.dataclass(frozen=True)
class _Resolved:
    spec: Spec
    buffers: tuple[BufferType, ...]
    operand_count: int

    def message(self, what: str, reason: object) -> str:
        spec = self.spec
        where = "the GPU" if spec.emulation is None else f"an emulated {spec.emulation.target}"
        arrays = [*map(str, self.buffers)]
        operands, results = arrays[: self.operand_count], arrays[self.operand_count :]
        kind = f"{type(reason).__name__}: " if isinstance(reason, Exception) else ""
        return (
            f"oxijax: kernel {spec.kernel} {what}\n"
            f"  on {where}\n"
            f"  configuration: {spec.config}\n"
            f"  call: {', '.join(operands)} -> {', '.join(results)}\n"
            f"{kind}{reason}"
        )


def _excerpt(text: bytes) -> str:
    """The beginning of a spec, which need not be text."""
    return text[:2000].decode(errors="backslashreplace")


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


def _fill(record: _handler.LaunchRecord, resolved: _Resolved, device: int) -> None:
    spec = resolved.spec
    kernel = registered(spec.kernel)
    if (device == _HOST) != (spec.emulation is not None):
        raise ValueError("a call for the emulator runs on the CPU, any other on a GPU")
    if spec.emulation is not None:
        check_emulation(spec.emulation)
        target, gpu = TARGETS[spec.emulation.target], emulated_gpu(spec.emulation.target)
    else:
        device = _driver.driver().current_device()
        target, gpu = _driver.driver().target(device), _driver.driver().devices[device].name
    call = _checked_call(kernel, resolved)
    shapes = tuple(tuple(shape) for shape in call.shapes)
    kernel_call = KernelCall(gpu, target, kernel, spec.config, shapes)
    note(kernel_call)
    with _generating(spec, target.name):  # so that threads do not generate the same text
        plan = tuned_plans.find(kernel_call)
        launch = kernel.launch(spec.config, target, shapes, plan=plan)
    _check_launch(launch, call)

    record.grid, record.block = launch.grid, launch.block
    record.alias_count = len(call.aliases)
    for place, (operand, result) in zip(record.aliases, call.aliases.items(), strict=False):
        place.operand, place.result = operand, result
    record.argument_count = len(launch.arguments)
    for place, argument in zip(record.arguments, launch.arguments, strict=False):
        if isinstance(argument, BufferAddress):
            place.buffer = argument.buffer
        else:
            place.buffer, place.value = -1, _bits(argument)
    record.dynamic_shared = launch.dynamic_shared
    record.buffer_count = len(resolved.buffers)
    for i, (buffer, dtype) in enumerate(zip(resolved.buffers, call.dtypes, strict=True)):
        record.bytes[i] = math.prod(buffer.shape) * dtype.itemsize
    if spec.emulation is None:
        record.launch, record.in_python = _driver.driver().launch_pointer, False
        record.copy = _driver.driver().copy_pointer
        record.function = _driver.driver().load(launch, device)
    elif spec.emulation.dry_run:
        record.launch, record.in_python = _handler.address("oxijax_launch_nothing"), False
    else:
        arguments = _emulated_arguments(launch, call)
        record.launch, record.in_python = _emulation.launch_pointer(), True
        record.function = _emulation.load(launch.text, arguments, spec.emulation.schedule)


@dataclasses.dataclass(frozen=True)
class _CheckedCall:
    """A call whose buffers are those that its kernel declares.

    Attributes:
      operands: how many of the buffers are operands.
      shapes: the shapes of the buffers, as the kernel knows them.
      dtypes: the dtypes of the buffers.
      aliases: operands whose memory becomes that of a result -> the buffer of that result.
    """

    operands: int
    shapes: Shapes
    dtypes: Sequence[np.dtype]
    aliases: Mapping[int, int]


def _checked_call(kernel: KernelDefinition, resolved: _Resolved) -> _CheckedCall:
    """The call, if its buffers have the number, the types and the order that the kernel declares.

    Which sizes go together is checked by the kernel itself.

    Raises:
      TypeError: a buffer of another type, by name.
      ValueError: another number of operands or results, operands that cannot be grouped, or a
        configuration that makes no sense.
    """
    spec = resolved.spec
    kernel.validate(spec.config)
    operands, results = kernel.operands(spec.config), kernel.results(spec.config)
    count = len(resolved.buffers) - resolved.operand_count
    if (resolved.operand_count, count) != (len(operands), len(results)):
        raise ValueError(
            f"{kernel.name} has the operands {', '.join(operands)} and the results "
            f"{', '.join(results)}, and was given {resolved.operand_count} and {count}"
        )
    if spec.grouped is not None and (
        list(spec.grouped) != sorted(set(spec.grouped) & set(range(len(operands))))
    ):
        raise ValueError(f"grouped has numbers of operands in order, got {spec.grouped}")
    declared = {**operands, **results}
    for (name, array), buffer in zip(declared.items(), resolved.buffers, strict=True):
        expected = numpy_dtype(array.dtype_of(spec.config))
        # By XLA's numbers: to NumPy a dtype may equal what is none, as float64 equals None.
        if buffer.number != _handler.XLA_NUMBERS[expected]:
            raise TypeError(f"{kernel.name}: {name} must be {expected}, got {buffer}")
    return _CheckedCall(
        operands=len(operands),
        shapes=spec.shapes([buffer.shape for buffer in resolved.buffers]),
        dtypes=[numpy_dtype(array.dtype_of(spec.config)) for array in declared.values()],
        aliases={
            operand: len(operands) + result
            for operand, result in kernel.aliases(spec.config).items()
        },
    )


def _check_launch(launch: Launch, call: _CheckedCall) -> None:
    """Raises ValueError for a launch that leaves a result unwritten, or does not fit."""
    if len(launch.arguments) > _handler.MAX_ARGUMENTS:
        raise ValueError(f"at most {_handler.MAX_ARGUMENTS} arguments, got {len(launch.arguments)}")
    if len(call.shapes) > _handler.MAX_ARGUMENTS:
        raise ValueError(f"at most {_handler.MAX_ARGUMENTS} buffers, got {len(call.shapes)}")
    if len(call.aliases) > _handler.MAX_ALIASES:
        raise ValueError(f"at most {_handler.MAX_ALIASES} aliases, got {len(call.aliases)}")
    passed = {a.buffer for a in launch.arguments if isinstance(a, BufferAddress)}
    if not passed <= set(range(len(call.shapes))):
        raise ValueError(
            f"arguments {sorted(passed)} of a call that has {len(call.shapes)} buffers"
        )
    for buffer in range(call.operands, len(call.shapes)):
        result, shape = buffer - call.operands, call.shapes[buffer]
        if buffer in call.aliases.values() or 0 in shape:
            continue
        if 0 in launch.grid:
            raise ValueError(
                f"grid={launch.grid} leaves result {result} of shape {shape} unwritten"
            )
        if buffer not in passed:
            raise ValueError(f"result {result} is not an argument of the kernel")


def _emulated_arguments(launch: Launch, call: _CheckedCall) -> Sequence[EmulatedArray | np.generic]:
    def argument(value: BufferAddress | np.generic) -> EmulatedArray | np.generic:
        if not isinstance(value, BufferAddress):
            return value
        buffer = call.aliases.get(value.buffer, value.buffer)
        return EmulatedArray(
            buffer,
            tuple(call.shapes[buffer]),
            call.dtypes[buffer],
            writable=buffer >= call.operands,
            initialized=buffer < call.operands or buffer in call.aliases.values(),
        )

    return [argument(value) for value in launch.arguments]


_generation_locks: dict[tuple[Spec, str], threading.Lock] = {}


@contextlib.contextmanager
def _generating(spec: Spec, target: str) -> Iterator[None]:
    """Holds the lock of a spec and a target: no other waits for it."""
    key = spec, target
    try:
        with _generation_locks.setdefault(key, threading.Lock()):
            yield
    finally:
        _generation_locks.pop(key, None)


def _bits(value: np.generic) -> int:
    """A scalar's bytes, as the number whose lowest bytes they are."""
    if value.dtype.itemsize > 8:
        raise TypeError(f"an argument of at most 8 bytes is expected, got {value!r}")
    return int.from_bytes(value.tobytes(), "little")
