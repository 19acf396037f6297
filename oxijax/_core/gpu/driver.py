"""The CUDA driver: which GPUs there are, and kernels loaded into them from PTX.

The only file that imports `cuda`, and it does so when the driver is first asked for.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from oxijax._core import install
from oxijax._core.gpu.driver_errors import (
    ADVICE,
    LOWEST,
    Device,
    DriverError,
    cannot_open,
    load_advice,
    too_old,
)
from ptx.isa.targets import TARGETS, Target, UnsupportedError, target_for
from ptx.launch import Launch, entry_name

__all__ = ["Device", "Driver", "DriverError", "driver", "install_command"]


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

    Source: CUDA driver API, "Initialization", "Device Management", "Library Management",
    "Occupancy".
    """

    version: tuple[int, int]
    launch_pointer: int
    copy_pointer: int
    devices: tuple[Device, ...]

    def __init__(self) -> None:
        self._api = api = _import_bindings()
        self._address_of = _address_reader()
        self._lock = threading.Lock()
        self._libraries: dict[bytes, _Library] = {}

        try:
            status, *_ = api.cuInit(0)
        except RuntimeError as error:
            raise cannot_open(error) from error
        self._check("cuInit", status)
        (version,) = self._call("cuDriverGetVersion")
        self.version = version // 1000, version % 1000 // 10
        if self.version < LOWEST:
            raise too_old("{}.{}".format(*self.version))
        self.launch_pointer = self._address(b"cuLaunchKernel")
        self.copy_pointer = self._address(b"cuMemcpyDtoDAsync")

        (count,) = self._call("cuDeviceGetCount")
        if count == 0:
            raise DriverError(f"the driver shows no GPU: {ADVICE['CUDA_ERROR_NO_DEVICE']}")
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
        # A CUdevice is a number and no address: int() is what the bindings have for it.
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

    def load(self, launch: Launch, device: int) -> int:
        """Loads the kernel of a launch into a GPU, so that the launch has nothing left to load.

        A text is loaded once for all GPUs, and its kernel is fetched once for each. Other threads
        that ask for the same text on the same GPU wait meanwhile. Those that ask for it on another
        GPU wait only until the library is there, and those that ask for another text do not wait.

        Args:
          launch: the launch; of its text, the one kernel.
          device: ordinal of the GPU.

        Returns:
          The CUkernel.

        Raises:
          DriverError: the driver refuses; the message has the log of its compiler.
          ValueError: the text has no kernel, or several.
        """
        name, gpu = entry_name(launch.text), self._device(device)
        _check_shared(gpu, name, 0, launch.dynamic_shared)
        key = hashlib.sha256(launch.text.encode()).digest()
        with self._lock:
            if key not in self._libraries:
                self._libraries[key] = _Library(name, [_Slot() for _ in self.devices])
            library = self._libraries[key]
        slot = library.slots[device]
        with slot.lock:
            if slot.kernel is None or _shape(launch) not in slot.kernel.prepared:
                slot.kernel = self._prepare(library, slot.kernel, launch, gpu)
            return self._address_of(slot.kernel.handle)

    @contextlib.contextmanager
    def context(self, device: int) -> Iterator[Callable[..., Any]]:
        """Makes the context of a GPU current within a block, the one that XLA uses too.

        Yields a function that calls one of the driver by name, with its arguments, and returns its
        one result; None where it has none.

        Args:
          device: ordinal of the GPU.

        Raises:
          DriverError: there is no such GPU; within the block, what the driver says.
        """

        def call(function: str, *args: Any) -> Any:
            results = self._call(function, *args)
            return results[0] if results else None

        with self._primary_context(self._handles[self._device(device).ordinal]):
            yield call

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
                attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
                attribute.CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK,
                attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                attribute.CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
                attribute.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
                attribute.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH,
            )
        )
        # The bytes after the first zero are padding.
        return Device(ordinal, _string(name), 10 * major + minor, memory, *others)

    def _prepare(
        self, library: "_Library", kernel: "_Kernel | None", launch: Launch, gpu: Device
    ) -> "_Kernel":
        """Makes all ready for a launch on a GPU, which has the kernel already unless it is None."""
        with contextlib.ExitStack() as undo:
            with self._primary_context(self._handles[gpu.ordinal]):
                if kernel is None:
                    self._open(library, launch.text, gpu)
                    undo.callback(self._close, library)
                    kernel = self._fetch(library, launch.text, gpu)
                self._allow_shared(kernel, launch.dynamic_shared, gpu)
                self._carve_out(kernel, launch, gpu)
                kernel.prepared.add(_shape(launch))
            undo.pop_all()  # all went well: the library stays
        return kernel

    def _open(self, library: "_Library", text: str, gpu: Device) -> None:
        """Loads a library if no GPU has it, and notes that one more will have it.

        Where CUDA loads modules eagerly (CUDA_MODULE_LOADING=EAGER, drivers before CUDA 12.2) the
        text is compiled here for all GPUs that have a context, once each, and not once for each
        GPU that asks for it. Where it loads lazily, `_fetch` has it compiled for one GPU.

        A text is for one target, so on a machine with several kinds of GPUs each kind asks for its
        own. A lazy driver compiles each for those that ask. An eager one compiles it for the older
        ones too, which cannot run it, and may refuse the library for that. Nothing but lazy
        loading keeps it from that, and it is chosen before CUDA starts: the advice says so.
        """
        with library.lock:
            if not library.users:
                handle = self._load_call("cuLibraryLoadData", text, gpu, *_library_image(text))
                try:
                    name = library.name.encode()
                    library.kernel = self._load_call("cuLibraryGetKernel", text, gpu, handle, name)
                except BaseException:
                    self._unload(handle)
                    raise
                library.handle = handle
            library.users += 1

    def _close(self, library: "_Library") -> None:
        """Takes back what `_open` has done."""
        with library.lock:
            library.users -= 1
            if not library.users:
                self._unload(library.handle)

    def _unload(self, library: Any) -> None:
        with contextlib.suppress(DriverError):  # what went wrong before is what counts
            self._call("cuLibraryUnload", library)

    def _fetch(self, library: "_Library", text: str, gpu: Device) -> "_Kernel":
        """The kernel of a library on the GPU whose context is current."""
        # Where modules load lazily, this compiles: a launch may come inside the capture of a CUDA
        # graph, where that can fail. It is for one context alone, so each GPU does it.
        self._load_call("cuKernelGetFunction", text, gpu, library.kernel)
        (static,) = self._call(
            "cuKernelGetAttribute",
            self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            *(library.kernel, self._handles[gpu.ordinal]),
        )
        return _Kernel(library.kernel, library.name, static)

    def _load_call(self, function: str, text: str, gpu: Device, *args: Any) -> Any:
        """Calls a function that may compile a text, and returns its one result."""
        advice = load_advice(text, gpu, self.devices, self.version)
        (result,) = self._call(function, *args, advice=advice, log=lambda: self._log_of(text))
        return result

    def _log_of(self, text: str) -> str:
        """What the driver's compiler says of a text, as lines of a message; "" for nothing.

        The text is loaded once more, as a module of the current context, which is compiled before
        the call returns. A library may be compiled later than it is loaded, and the driver writes
        the options' values then too: the bindings have freed them.
        """
        logs = _Logs()
        options = logs.options(self._api.CUjit_option)
        image, lists = text.encode() + b"\0", (list(options), list(options.values()))
        with contextlib.suppress(DriverError):
            (module,) = self._call("cuModuleLoadDataEx", image, len(options), *lists)
            self._call("cuModuleUnload", module)
        return logs.shown()

    def _allow_shared(self, kernel: "_Kernel", dynamic_shared: int, gpu: Device) -> None:
        """Raises the kernel's limit of dynamic shared memory, where it is lower than that."""
        if kernel.static_shared + dynamic_shared <= Target.static_shared_per_block:
            return
        if dynamic_shared <= kernel.allowed_shared:
            return
        _check_shared(gpu, kernel.name, kernel.static_shared, dynamic_shared)
        limit = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._set(limit, dynamic_shared, kernel, gpu)
        kernel.allowed_shared = dynamic_shared

    def _carve_out(self, kernel: "_Kernel", launch: Launch, gpu: Device) -> None:
        """Asks for as much of an SM's L1 as the kernel's blocks can use as shared memory.

        With too little of it fewer blocks run on an SM than could, and nothing says so; what is
        asked for beyond is lost to L1, which the kernels that sample images live on.
        """
        threads, dynamic_shared = _shape(launch)
        shared = kernel.static_shared + dynamic_shared
        if not shared:
            return  # what the driver does by itself is right
        preference = (
            self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        )
        # What was asked for before may bound the blocks that the driver counts.
        self._set(preference, 100, kernel, gpu)
        (blocks,) = self._call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            # Of a CUkernel, which it takes too, it counts for the current context.
            self._api.CUfunction(self._address_of(kernel.handle)),
            *(threads, dynamic_shared),
        )
        block = math.ceil(shared / _SHARED_UNIT) * _SHARED_UNIT + gpu.reserved_shared
        percent = min(math.ceil(100 * blocks * block / gpu.shared_per_sm), 100)
        kernel.carve_out = max(kernel.carve_out, percent)  # of all launches that it has
        self._set(preference, kernel.carve_out, kernel, gpu)

    def _set(self, attribute: Any, value: int, kernel: "_Kernel", gpu: Device) -> None:
        handle = self._handles[gpu.ordinal]
        self._call("cuKernelSetAttribute", attribute, value, kernel.handle, handle)

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
        do = (advice or ADVICE).get(status.name)
        message = f"{function} failed: {self.describe(int(status))}" + (f". {do}" if do else "")
        raise DriverError(message + log())


@dataclasses.dataclass
class _Kernel:
    """A kernel as one GPU has it.

    Attributes:
      handle: the CUkernel, which is the same on all GPUs.
      name: the name of its PTX entry.
      static_shared: bytes of static shared memory of a block.
      allowed_shared: bytes of dynamic shared memory up to which its limit has been raised.
      carve_out: percent of an SM's shared memory that it has asked for.
      prepared: the launches that it is ready for, by `_shape`.
    """

    handle: Any
    name: str
    static_shared: int
    allowed_shared: int = 0
    carve_out: int = 0
    prepared: set[tuple[int, int]] = dataclasses.field(default_factory=set)


class _Slot:
    """Where a GPU's kernel is kept once it is there, and the lock of those who wait for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kernel: _Kernel | None = None


@dataclasses.dataclass
class _Library:
    """A text as the driver has it, for all GPUs.

    Attributes:
      name: the name of its kernel.
      slots: its kernel on each GPU, by ordinal.
      lock: guards what follows. Who holds a slot's lock may take it, and not the other way round.
      handle: the CUlibrary.
      kernel: its CUkernel.
      users: the GPUs that have it, or are about to; without any, nothing is loaded.
    """

    name: str
    slots: list[_Slot]
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    handle: Any = None
    kernel: Any = None
    users: int = 0


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
    return install.install_command("cuda12" if cuda12 else "cuda13")


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


def _address_reader() -> Callable[[Any], int]:
    """What reads the address out of a handle that the bindings have made."""
    try:
        from cuda.bindings.utils import (
            get_cuda_native_handle,  # pyright: ignore[reportAttributeAccessIssue, reportMissingImports]
        )
    except ImportError:
        return int  # which bindings from 12.9 on, that have the other, deprecate
    return get_cuda_native_handle


def _shape(launch: Launch) -> tuple[int, int]:
    """What a kernel is prepared for: threads and bytes of dynamic shared memory of a block."""
    return math.prod(launch.block), launch.dynamic_shared


def _library_image(text: str) -> tuple[Any, ...]:
    """The arguments of cuLibraryLoadData for a text, without options."""
    return text.encode() + b"\0", [], [], 0, [], [], 0


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


_SHARED_UNIT = 256  # bytes in which a block's shared memory comes at most: 128 from sm_80 on
_NAME_SIZE = 128
_LOG_SIZE = 8192
