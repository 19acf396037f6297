"""The CUDA driver: which GPUs there are, and kernels loaded into them from PTX.

The only file that imports `cuda`, and it does so when the driver is first asked for.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ptx.isa.targets import TARGETS, Target, UnsupportedError, target_for
from ptx.launch import entry_name

__all__ = ["Device", "Driver", "DriverError", "driver", "install_command"]


class DriverError(RuntimeError):
    """The CUDA driver is missing or refuses a call; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU that this process sees.

    Attributes:
      ordinal: its number among the visible GPUs, as the driver counts them.
      name: as the driver calls it.
      sm: the SM version, for example 90 for compute capability 9.0.
      memory: bytes of global memory.
      shared_per_block: bytes of shared memory that one block can have (dynamic, opted in).
      sms: how many SMs it has.
      clock_khz: of the SMs at most, in kHz.
      memory_clock_khz: in kHz; 0 where the driver does not know it.
      bus_width: of the memory, in bits.
    """

    ordinal: int
    name: str
    sm: int
    memory: int
    shared_per_block: int
    sms: int
    clock_khz: int
    memory_clock_khz: int
    bus_width: int

    def __str__(self) -> str:
        return f"GPU {self.ordinal}, {self.name} of sm_{self.sm}"


def driver() -> "Driver":
    """The CUDA driver, opened at the first call; after a failure the next call tries again.

    Raises:
      DriverError: cuda-python, the driver or a GPU is missing, or the driver is too old.
    """
    global _opened
    if _opened is None:
        with _opening:
            if _opened is None:
                _opened = Driver()
    return _opened


_opened: "Driver | None" = None
_opening = threading.Lock()


class Driver:
    """The CUDA driver, through `cuda.bindings.driver`.

    Attributes:
      version: the newest CUDA version that it supports, as (major, minor).
      launch_pointer: address of cuLaunchKernel.
      copy_pointer: address of cuMemcpyDtoDAsync.
      devices: the GPUs, by ordinal.

    Source: CUDA driver API, "Initialization", "Device Management", "Library Management".
    """

    version: tuple[int, int]
    launch_pointer: int
    copy_pointer: int
    devices: tuple[Device, ...]

    def __init__(self) -> None:
        self._api = api = _import_bindings()
        self._lock = threading.Lock()
        self._slots: dict[tuple[bytes, int], _Slot] = {}

        try:
            status, *_ = api.cuInit(0)
        except RuntimeError as error:
            raise _cannot_open(error) from error
        self._check("cuInit", status)
        (version,) = self._call("cuDriverGetVersion")
        self.version = version // 1000, version % 1000 // 10
        if self.version < _LOWEST:
            raise _too_old("{}.{}".format(*self.version))
        self.launch_pointer = self._address(b"cuLaunchKernel")
        self.copy_pointer = self._address(b"cuMemcpyDtoDAsync")

        (count,) = self._call("cuDeviceGetCount")
        if count == 0:
            raise DriverError(f"the driver shows no GPU: {_ADVICE['CUDA_ERROR_NO_DEVICE']}")
        self._handles = [self._call("cuDeviceGet", ordinal)[0] for ordinal in range(count)]
        self.devices = tuple(self._describe_device(ordinal) for ordinal in range(count))

    def current_device(self) -> int:
        """The ordinal of the GPU whose context is current in this thread.

        XLA makes it so where it calls a handler. XLA's own number of the device is another where
        it divides a GPU into several logical devices.

        Raises:
          DriverError: no context is current.
        """
        (handle,) = self._call("cuCtxGetDevice")
        return [int(known) for known in self._handles].index(int(handle))

    def target(self, device: int) -> Target:
        """The target that PTX for a GPU is written for.

        Raises:
          DriverError: there is no such GPU, or it is older than the lowest target.
        """
        gpu = self._device(device)
        try:
            return target_for(gpu.sm)
        except UnsupportedError as error:
            raise DriverError(f"{gpu} is too old: oxijax needs {min(TARGETS.values())}") from error

    def load(self, text: str, dynamic_shared: int, device: int) -> int:
        """Loads a kernel into a GPU, so that a launch has nothing left to load.

        A text is loaded once for each GPU: other threads that ask for it meanwhile wait for it,
        and those that ask for another text do not.

        Args:
          text: PTX with one kernel.
          dynamic_shared: bytes of dynamic shared memory that a block of it is launched with.
          device: ordinal of the GPU.

        Returns:
          The CUkernel.

        Raises:
          DriverError: the driver refuses; the message has the log of its compiler.
          ValueError: the text has no kernel, or several.
        """
        name, gpu = entry_name(text), self._device(device)
        _check_shared(gpu, name, 0, dynamic_shared)
        key = hashlib.sha256(text.encode()).digest(), device
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
        with slot.lock:
            if slot.kernel is None:
                slot.kernel = self._load(text, name, dynamic_shared, gpu)
            else:
                self._allow_shared(slot.kernel, dynamic_shared, gpu)
            return int(slot.kernel.handle)

    def describe(self, status: int) -> str:
        """What a CUresult means: its name, number and the driver's words for it."""
        try:
            result = self._api.CUresult(status)
        except ValueError:
            return f"CUresult {status}, which this version of cuda-python does not know"
        failed, words = self._api.cuGetErrorString(result)
        said = "" if failed or words is None else f": {words.decode()}"
        return f"{result.name} ({status}){said}"

    def _device(self, ordinal: int) -> Device:
        if not 0 <= ordinal < len(self.devices):
            shown = "; ".join(map(str, self.devices))
            raise DriverError(f"there is no GPU {ordinal}; the driver shows {shown}")
        return self.devices[ordinal]

    def _describe_device(self, ordinal: int) -> Device:
        handle, attribute = self._handles[ordinal], self._api.CUdevice_attribute
        (name,) = self._call("cuDeviceGetName", _NAME_SIZE, handle)
        (memory,) = self._call("cuDeviceTotalMem", handle)
        major, minor, *others = (
            self._call("cuDeviceGetAttribute", wanted, handle)[0]
            for wanted in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                attribute.CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
                attribute.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
                attribute.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH,
            )
        )
        # The bytes after the first zero are padding.
        return Device(ordinal, _string(name), 10 * major + minor, memory, *others)

    def _load(self, text: str, name: str, dynamic_shared: int, gpu: Device) -> "_Kernel":
        logs, handle = _Logs(), self._handles[gpu.ordinal]
        advice = _load_advice(text, gpu, self.version)

        def call(function: str, *args: Any) -> Any:
            (result,) = self._call(function, *args, advice=advice, log=logs.shown)
            return result

        with contextlib.ExitStack() as undo:
            with self._primary_context(handle):
                options = logs.options(self._api.CUjit_option)
                library = call(
                    "cuLibraryLoadData",
                    text.encode() + b"\0",
                    *(list(options), list(options.values()), len(options)),
                    *([], [], 0),
                )
                undo.callback(self._unload, library)
                kernel = _Kernel(call("cuLibraryGetKernel", library, name.encode()), name, logs)
                # Where modules load lazily, this compiles: a launch may come inside the capture
                # of a CUDA graph, where that can fail.
                call("cuKernelGetFunction", kernel.handle)
                kernel.static_shared = call(
                    "cuKernelGetAttribute",
                    self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                    *(kernel.handle, handle),
                )
                self._allow_shared(kernel, dynamic_shared, gpu)
            undo.pop_all()  # all went well: the library stays
        return kernel

    def _unload(self, library: Any) -> None:
        with contextlib.suppress(DriverError):  # what went wrong before is what counts
            self._call("cuLibraryUnload", library)

    def _allow_shared(self, kernel: "_Kernel", dynamic_shared: int, gpu: Device) -> None:
        """Raises the kernel's limit of dynamic shared memory, where it is lower than that."""
        if kernel.static_shared + dynamic_shared <= Target.static_shared_per_block:
            return
        if dynamic_shared <= kernel.allowed_shared:
            return
        _check_shared(gpu, kernel.name, kernel.static_shared, dynamic_shared)
        attribute = self._api.CUfunction_attribute
        self._call(
            "cuKernelSetAttribute",
            attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            *(dynamic_shared, kernel.handle, self._handles[gpu.ordinal]),
        )
        kernel.allowed_shared = dynamic_shared

    def _address(self, symbol: bytes) -> int:
        """The address of a function of the driver, in the version that CUDA 12 has."""
        flags = self._api.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_DEFAULT
        address, found = self._call("cuGetProcAddress", symbol, 12000, flags)
        if not address:
            raise DriverError(f"cuGetProcAddress finds no {symbol.decode()}: {found.name}")
        return address

    @contextlib.contextmanager
    def _primary_context(self, device: Any) -> Iterator[None]:
        """Makes the context current that XLA uses too; at the end all is as it was."""
        (context,) = self._call("cuDevicePrimaryCtxRetain", device)
        with _at_end(lambda: self._call("cuDevicePrimaryCtxRelease", device)):
            self._call("cuCtxPushCurrent", context)
            with _at_end(lambda: self._call("cuCtxPopCurrent")):
                yield

    def _call(
        self,
        function: str,
        *args: Any,
        advice: Mapping[str, str] | None = None,
        log: Callable[[], str] = lambda: "",
    ) -> list[Any]:
        """Calls a function of the driver; what it returns but for the CUresult."""
        try:
            status, *results = getattr(self._api, function)(*args)
        except (RuntimeError, ValueError) as error:
            # RuntimeError: the driver lacks the function. ValueError: it returns a CUresult that
            # is newer than the bindings.
            raise DriverError(f"{function} failed: {error}") from error
        self._check(function, status, advice, log)
        return results

    def _check(
        self,
        function: str,
        status: Any,
        advice: Mapping[str, str] | None = None,
        log: Callable[[], str] = lambda: "",
    ) -> None:
        if status == self._api.CUresult.CUDA_SUCCESS:
            return
        do = (advice or _ADVICE).get(status.name)
        message = f"{function} failed: {self.describe(int(status))}" + (f". {do}" if do else "")
        raise DriverError(message + log())


@dataclasses.dataclass
class _Kernel:
    """A loaded kernel.

    Attributes:
      logs: where its compiler writes. A library that is loaded lazily may be compiled later than
        it is loaded, so the buffers live as long as the library.
      static_shared: bytes of static shared memory of a block.
      allowed_shared: bytes of dynamic shared memory up to which its limit has been raised.
    """

    handle: Any
    name: str
    logs: "_Logs"
    static_shared: int = 0
    allowed_shared: int = 0


class _Slot:
    """Where a kernel is kept once it is loaded, and the lock of those who wait for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kernel: _Kernel | None = None


class _Logs:
    """The buffers that the driver's compiler writes its logs into."""

    def __init__(self) -> None:
        self._error, self._info = bytearray(_LOG_SIZE), bytearray(_LOG_SIZE)

    def options(self, option: Any) -> dict[Any, Any]:
        """The CUjit_options that hand the buffers over, with their values."""
        return {
            option.CU_JIT_ERROR_LOG_BUFFER: self._error,
            option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: _LOG_SIZE,
            option.CU_JIT_INFO_LOG_BUFFER: self._info,
            option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: _LOG_SIZE,
        }

    def shown(self) -> str:
        """The logs as lines of a message; empty where the compiler said nothing."""
        shown = ""
        for kind, buffer in (("error", self._error), ("info", self._info)):
            lines = _string(buffer).strip().splitlines()
            if lines:
                shown += "\n  ".join([f"\n{kind} log of the driver's compiler:", *lines])
        return shown


def install_command() -> str:
    """What installs cuda-python, for the CUDA version that the installed JAX is made for."""
    cuda12 = importlib.util.find_spec("jax_cuda12_plugin") is not None
    return f'pip install "oxijax[cuda{12 if cuda12 else 13}]"'


def _import_bindings() -> Any:
    try:
        from cuda.bindings import (
            driver,  # pyright: ignore[reportAttributeAccessIssue, reportMissingImports]
        )
    except ModuleNotFoundError as error:
        raise DriverError(
            "the module cuda.bindings.driver is missing, which cuda-python brings from version "
            f"12.6.1 on: {install_command()}"
        ) from error
    except ImportError as error:
        raise DriverError(
            f"cuda.bindings.driver cannot be imported ({error}): install cuda-python again, "
            f"{install_command()}"
        ) from error
    return driver


def _cannot_open(error: RuntimeError) -> DriverError:
    """What it means that `cuda.bindings` raises at its first call, which opens libcuda."""
    # The bindings find all functions through this one, which came with CUDA 12.0.
    if "cuGetProcAddress_v2" in str(error):
        return _too_old("11")
    return DriverError(
        f"there is no NVIDIA driver: libcuda cannot be opened ({error}). Install the driver, with "
        "which nvidia-smi lists the GPUs; a container has to be started with access to them, for "
        "example docker run --gpus all"
    )


def _too_old(version: str) -> DriverError:
    return DriverError(
        f"the NVIDIA driver supports CUDA up to {version}, and oxijax needs cuLibraryLoadData, "
        "which came with CUDA 12.0: update the driver"
    )


def _check_shared(gpu: Device, name: str, static: int, dynamic: int) -> None:
    if static + dynamic > gpu.shared_per_block:
        raise DriverError(
            f"kernel {name} needs {static + dynamic} bytes of shared memory a block, and {gpu} has "
            f"{gpu.shared_per_block}: choose a configuration with smaller tiles"
        )


@contextlib.contextmanager
def _at_end(clean_up: Callable[[], object]) -> Iterator[None]:
    """Cleans up after the block; an error in that never hides one of the block."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(DriverError):
            clean_up()
        raise
    clean_up()


def _string(buffer: bytes | bytearray) -> str:
    """The text of a C string in a buffer."""
    return bytes(buffer).partition(b"\0")[0].decode(errors="replace")


def _load_advice(text: str, gpu: Device, cuda: tuple[int, int]) -> dict[str, str]:
    """What to do about a CUresult of loading a text."""
    version = re.search(r"^\s*\.version\s+([\d.]+)", text, re.M)
    target = re.search(r"^\s*\.target\s+(\w+)", text, re.M)
    gib = gpu.memory / 2**30
    return {
        **_ADVICE,
        "CUDA_ERROR_INVALID_PTX": "The compiler of the driver rejects the PTX",
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": (
            f"The PTX is of version {version[1] if version else '?'}, which the driver, of CUDA "
            f"{cuda[0]}.{cuda[1]}, does not know: update the driver"
        ),
        "CUDA_ERROR_NO_BINARY_FOR_GPU": (
            f"PTX for {target[1] if target else '?'} does not run on {gpu}: write it for this GPU"
        ),
        "CUDA_ERROR_OUT_OF_MEMORY": (
            f"The {gib:.0f} GiB of {gpu} have no room for the kernel: leave some to it by a lower "
            "XLA_PYTHON_CLIENT_MEM_FRACTION, and see in nvidia-smi who else uses the GPU"
        ),
    }


_LOWEST = (12, 0)  # CUDA version that brought cuLibraryLoadData
_NAME_SIZE = 128
_LOG_SIZE = 8192

_ADVICE = {
    "CUDA_ERROR_NO_DEVICE": (
        "See whether nvidia-smi lists a GPU, and that CUDA_VISIBLE_DEVICES is unset or names one"
    ),
    "CUDA_ERROR_STUB_LIBRARY": (
        "The libcuda.so.1 that was found is the CUDA toolkit's stub: take the folder stubs off "
        "LD_LIBRARY_PATH"
    ),
    "CUDA_ERROR_DEVICE_UNAVAILABLE": (
        "See in nvidia-smi whether another process has the GPU for itself"
    ),
    "CUDA_ERROR_NOT_INITIALIZED": (
        "In a process that was forked from one that used CUDA: start it by spawn instead of fork"
    ),
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": (
        "libcuda and the kernel module are of different versions: reboot"
    ),
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": (
        "This GPU takes no forward compatibility: take cuda-compat off LD_LIBRARY_PATH, or update "
        "the driver"
    ),
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND": (
        "The driver lacks its PTX compiler, libnvidia-ptxjitcompiler: install the whole driver; a "
        "container needs compute among NVIDIA_DRIVER_CAPABILITIES"
    ),
    "CUDA_ERROR_JIT_COMPILATION_DISABLED": "Unset CUDA_DISABLE_PTX_JIT and CUDA_DISABLE_JIT",
    "CUDA_ERROR_ILLEGAL_ADDRESS": (
        "A kernel that ran before has used a wrong address, and the process cannot use the GPU "
        "any more: start it again"
    ),
    "CUDA_ERROR_OUT_OF_MEMORY": (
        "The GPU's memory is full: lower XLA_PYTHON_CLIENT_MEM_FRACTION, and see in nvidia-smi who "
        "else uses the GPU"
    ),
}
