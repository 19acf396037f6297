"""The handler library: found, checked, bound to Python and registered with JAX."""

import atexit
import ctypes
import functools
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from oxijax._core import install
from oxijax._core.launch import _seal
from oxijax._core.process import forked

__all__ = [
    "LAUNCH_FUNCTION",
    "MAX_ARGUMENTS",
    "TARGET_NAME",
    "XLA_NUMBERS",
    "BufferType",
    "CallRecord",
    "HandlerMissingError",
    "LaunchRecord",
    "address",
    "connect",
    "find_handler",
    "forget",
    "is_loaded",
    "library",
    "note_interrupt",
    "refuse",
    "refuse_in_children",
    "register",
]

TARGET_NAME = "oxijax_launch"  # of the custom call
MAX_ARGUMENTS = 96  # of a kernel, and buffers of a call
MAX_ALIASES = 8


class HandlerMissingError(RuntimeError):
    """oxijax has no handler, or none that works; the message says why, and what to install."""


def find_handler() -> pathlib.Path:
    """The path of the handler library, which is loaded.

    In a checkout in which none was built it is that of an installed oxijax, if there is one whose
    seal says that it was compiled from the checkout's source.

    Raises:
      HandlerMissingError: as `library` does.
    """
    library()
    return _path()


@functools.cache
def library() -> ctypes.CDLL:
    """The handler library.

    Raises:
      HandlerMissingError: it was not built; it is damaged, or was compiled from other source than
        this; it cannot be loaded, or registered with JAX.
    """
    for error in _refused:
        if isinstance(error, HandlerMissingError):
            raise HandlerMissingError(*error.args) from error
        raise _unusable(f"it cannot be registered with JAX: {error!r}") from error
    path = _path()
    if not path.is_file():
        raise HandlerMissingError(_why_missing())
    # First, because to load a file that was cut short ends the process.
    fault = _seal.fault(path, _OWN.with_name("handler.c"))
    if fault is None:
        try:
            return _load(path)
        except (OSError, AttributeError) as error:
            fault = f"it cannot be loaded: {error}"
    raise _unusable(fault)


def refuse(error: Exception) -> None:
    """From now on the handler is not used, because of what went wrong when it was registered."""
    _refused.append(error)
    library.cache_clear()


_refused: list[Exception] = []


_OWN = pathlib.Path(__file__).with_name("libhandler.so")


def _path() -> pathlib.Path:
    """The library beside this file, or an equivalent one: see `find_handler`."""
    if _OWN.is_file():
        return _OWN
    source = _OWN.with_name("handler.c")
    return next((path for path in _installed() if _seal.fault(path, source) is None), _OWN)


def _installed() -> Iterator[pathlib.Path]:
    """The libraries of installed distributions, other than the one beside this file."""
    place = pathlib.Path("oxijax", "_core", "launch", _OWN.name)
    for distribution in install.distributions():
        path = pathlib.Path(str(distribution.locate_file(place)))
        if path.is_file() and path != _OWN:
            yield path


def _why_missing() -> str:
    checkout = install.checkout()
    if checkout is None:
        return (
            f"oxijax was installed without its launch handler, {_PURPOSE}: there was no C compiler "
            'that builds it. Install one (for example with "apt install gcc libc6-dev" or "conda '
            'install gcc"), then install oxijax again, without what pip has cached of it: '
            f"{install.reinstall_command()}. After pip cache remove oxijax no other environment is "
            "given that again"
        )
    said = (
        f"oxijax is imported from its checkout {checkout}, where its launch handler, {_PURPOSE}, "
        f"was not built. With a C compiler this builds it: {install.reinstall_command()}"
    )
    other = next(_installed(), None)
    if other is None:
        return said
    return (
        f"{said}\nThe handler of the installed oxijax is not used for the checkout, because "
        f"{_seal.fault(other, _OWN.with_name('handler.c'))}\n{other}\nTo import the installed "
        "oxijax instead, start Python in another folder than the checkout, or as python -P"
    )


_PURPOSE = "which runs kernels on a GPU and in the emulator"


def _unusable(reason: object) -> HandlerMissingError:
    return HandlerMissingError(
        f"oxijax's launch handler, {_PURPOSE}, cannot be used: {reason}\n{_path()}\n"
        f"Install oxijax again: {install.reinstall_command()}"
    )


def _load(path: pathlib.Path) -> ctypes.CDLL:
    found = ctypes.CDLL(str(path))
    found.oxijax_layout.restype = ctypes.c_uint64
    expected = ctypes.sizeof(LaunchRecord) << 32 | ctypes.sizeof(CallRecord)
    if found.oxijax_layout() != expected:
        raise _unusable("it was built from another version of oxijax than this one")
    found.oxijax_shut_down.restype = ctypes.c_long
    found.oxijax_set_callbacks.argtypes = [_RESOLVE, _DESCRIBE]
    found.oxijax_set_callbacks.restype = None
    found.oxijax_after_fork.restype = None
    found.oxijax_forget.restype = None
    found.oxijax_set_interrupt.argtypes = [ctypes.c_void_p]
    found.oxijax_set_interrupt.restype = None
    found.oxijax_interrupt.restype = None
    return found


def address(function: str) -> int:
    """The address of one of the library's functions."""
    found = ctypes.cast(getattr(library(), function), ctypes.c_void_p).value
    assert found is not None
    return found


class ArgumentRecord(ctypes.Structure):
    """`Argument` in handler.c."""

    _fields_ = (("buffer", ctypes.c_int64), ("value", ctypes.c_uint64))


class AliasRecord(ctypes.Structure):
    """`Alias` in handler.c."""

    _fields_ = (("operand", ctypes.c_int64), ("result", ctypes.c_int64))


class LaunchRecord(ctypes.Structure):
    """`Launch` in handler.c."""

    _fields_ = (
        ("launch", ctypes.c_void_p),
        ("copy", ctypes.c_void_p),
        ("function", ctypes.c_void_p),
        ("id", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared", ctypes.c_uint32),
        ("in_python", ctypes.c_uint32),
        ("argument_count", ctypes.c_uint64),
        ("alias_count", ctypes.c_uint64),
        ("buffer_count", ctypes.c_uint64),
        ("arguments", ArgumentRecord * MAX_ARGUMENTS),
        ("bytes", ctypes.c_uint64 * MAX_ARGUMENTS),
        ("aliases", AliasRecord * MAX_ALIASES),
    )


# The types that a kernel's buffers may have, and XLA's numbers of them, as in xla_data.proto.
XLA_NUMBERS = {
    jnp.dtype(dtype): number
    for dtype, number in (
        (jnp.int32, 4),
        (jnp.float16, 10),
        (jnp.float32, 11),
        (jnp.float64, 12),
        (jnp.bfloat16, 16),
    )
}
_DTYPES = {number: dtype for dtype, number in XLA_NUMBERS.items()}


class BufferType(NamedTuple):
    """The type and the shape of a buffer, as XLA knows it.

    Attributes:
      number: XLA's number of the type: one of `XLA_NUMBERS`.
      shape: its dimensions.
    """

    number: int
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{_DTYPES[self.number]}{list(self.shape)}"


class CallRecord(ctypes.Structure):
    """`Call` in handler.c."""

    _fields_ = (
        ("spec", ctypes.c_void_p),
        ("spec_size", ctypes.c_uint64),
        ("key", ctypes.c_int64),
        ("version", ctypes.c_int64),
        ("device", ctypes.c_int64),
        ("operand_count", ctypes.c_uint64),
        ("buffer_count", ctypes.c_uint64),
        ("buffers", ctypes.POINTER(ctypes.c_int64)),
    )

    def read_spec(self) -> bytes:
        return ctypes.string_at(self.spec, self.spec_size)

    def read_buffers(self) -> list[BufferType]:
        """The call's operands, then its results.

        Raises:
          TypeError: a buffer has a type that no kernel has.
        """
        found, at = [], 0
        for index in range(self.buffer_count):
            number, rank = self.buffers[at : at + 2]
            if number not in _DTYPES:
                names = ", ".join(dtype.name for dtype in XLA_NUMBERS)
                raise TypeError(
                    f"buffer {index} must have one of the types {names}, got XLA's type {number}"
                )
            at += 2 + rank
            found.append(BufferType(number, tuple(self.buffers[at - rank : at])))
        return found


# cuLaunchKernel's signature.
LAUNCH_FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
_RESOLVE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(CallRecord),
    ctypes.POINTER(LaunchRecord),
    ctypes.c_void_p,
    ctypes.c_uint64,
)
_DESCRIBE = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)


def connect(
    resolve: Callable[[CallRecord, LaunchRecord], None],
    describe: Callable[[int, int], str],
    stop: Callable[[], None],
) -> None:
    """Makes two Python functions the handler's resolver and describer.

    At exit no call enters Python any more, and those that are there are waited for: a thread that
    needs the interpreter after its end would hang or crash.

    Args:
      resolve: fills in what to launch for a call. Its exception becomes the call's error.
      describe: (id of a launch, status that it returned) -> the call's error message.
      stop: tells launches that are in Python to give up; called at exit.
    """

    @_RESOLVE
    def resolve_callback(call, launch, message, capacity):
        try:
            resolve(call.contents, launch.contents)
        except BaseException as error:  # nothing may pass through C
            note_interrupt(error)
            _write(message, capacity, str(error) or type(error).__name__)
            return 1
        return 0

    @_DESCRIBE
    def describe_callback(number, status, message, capacity):
        try:
            text = describe(number, status)
        except BaseException as error:  # nothing may pass through C
            note_interrupt(error)
            text = f"oxijax: a launch failed with status {status}, and describing it: {error!r}"
        _write(message, capacity, text)

    handler = library()
    handler.oxijax_set_callbacks(resolve_callback, describe_callback)
    interrupt = ctypes.cast(ctypes.pythonapi.PyErr_SetInterrupt, ctypes.c_void_p)
    handler.oxijax_set_interrupt(interrupt)
    _kept_alive.extend([resolve_callback, describe_callback])

    @atexit.register
    def shut_down():
        handler.oxijax_shut_down()
        stop()
        while handler.oxijax_shut_down():
            time.sleep(0.001)


def note_interrupt(error: BaseException) -> None:
    """Has a KeyboardInterrupt raised again, once the call in which it came is over.

    To be called where Python was entered from C, before that returns with a failure.
    """
    if isinstance(error, KeyboardInterrupt):
        library().oxijax_interrupt()


def is_loaded() -> bool:
    """Whether there is a handler that works."""
    try:
        library()
    except HandlerMissingError:
        return False
    return True


def forget() -> None:
    """Has the resolver asked for every call anew, once."""
    library().oxijax_forget()


def register(target_name: str) -> None:
    """Registers the handler with JAX, for CUDA and, emulated, for the CPU."""
    handler = library()
    capsule = jax.ffi.pycapsule
    stages = {
        "CUDA": {
            "initialize": capsule(handler.oxijax_cuda_initialize),
            "execute": capsule(handler.oxijax_cuda_execute),
        },
        "cpu": {"execute": capsule(handler.oxijax_host_execute)},
    }
    for platform, functions in stages.items():
        jax.ffi.register_ffi_target(target_name, functions, platform=platform)
    jax.ffi.register_ffi_target_as_batch_partitionable(target_name)


@functools.cache
def refuse_in_children() -> None:
    """From now on a forked child is told that it cannot launch; it would hang or crash."""
    handler = library()

    def after_fork():
        handler.oxijax_after_fork()
        forked.set_global(True)

    os.register_at_fork(after_in_child=after_fork)


_kept_alive: list = []


def _write(message: int, capacity: int, text: str) -> None:
    """Writes a C string; of a text that is too long the middle is left out."""
    # Half a surrogate pair is no UTF-8: names of files may have one, and so may their errors.
    data = text.replace("\0", "").encode(errors="backslashreplace")
    if len(data) >= capacity:
        mark = f"\n[... {len(data) - capacity} bytes and more left out ...]\n".encode()
        half = (capacity - 1 - len(mark)) // 2
        head, tail = data[:half].decode(errors="ignore"), data[-half:].decode(errors="ignore")
        data = head.encode() + mark + tail.encode()
    ctypes.memmove(message, data + b"\0", len(data) + 1)
