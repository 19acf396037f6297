"""`cuda.bindings.driver` without a GPU: as strict as the driver, and fails when told to.

Its enumerations are those of the bindings, which can be imported without a driver. A call that the
driver or the bindings would not accept raises AssertionError or TypeError, which
`oxijax._core.gpu.driver` never catches.
"""

import collections
import dataclasses
import functools
import re
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from cuda.bindings.driver import (
    CUdevice_attribute,
    CUdriverProcAddress_flags,
    CUdriverProcAddressQueryResult,
    CUfunction_attribute,
    CUjit_option,
    CUresult,
)

from oxijax._core.gpu import driver as _driver

__all__ = ["CUresult", "FakeCuda", "Gpu"]

_Logs = dict[CUjit_option, Any]  # the values of options


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU that the fake shows."""

    name: str = "Fake H100"
    sm: int = 90
    memory: int = 80 * 2**30
    shared_per_block: int = 227 * 1024
    shared_per_sm: int = 228 * 1024
    reserved_shared: int = 1024
    sms: int = 132
    clock_khz: int = 1_980_000
    memory_clock_khz: int = 2_619_000
    bus_width: int = 5120


class CUdevice:
    """A number, which int() is for."""

    def __init__(self, init_value: int = 0) -> None:
        self.value = init_value

    def __int__(self) -> int:
        return self.value


class _Handle:
    """An address, which `cuda.bindings.utils` reads where the bindings have it."""

    def __init__(self, init_value: int = 0) -> None:
        self.value = init_value

    def __int__(self) -> int:
        if getattr(sys.modules["cuda.bindings"], "utils", None):
            raise DeprecationWarning(f"int() of a {type(self).__name__}")
        return self.value


class CUcontext(_Handle): ...


class CUlibrary(_Handle): ...


class CUmodule(_Handle): ...


class CUkernel(_Handle): ...


class CUfunction(_Handle): ...


@dataclasses.dataclass
class _Library:
    """A library that is loaded.

    Attributes:
      compiled: ordinals of the GPUs that it has been compiled for.
      fetched: ordinals of the GPUs that its kernel has been fetched for, in order.
      dynamic_shared: the limit that was set, by ordinal.
      carve_out: the percentage of shared memory that was asked for last, by ordinal.
    """

    text: str
    compiled: set[int] = dataclasses.field(default_factory=set)
    fetched: list[int] = dataclasses.field(default_factory=list)
    dynamic_shared: dict[int, int] = dataclasses.field(default_factory=dict)
    carve_out: dict[int, int] = dataclasses.field(default_factory=dict)

    @property
    def static_shared(self) -> int:
        return sum(map(int, re.findall(r"^\s*\.shared .*\[(\d+)\];", self.text, re.M)))


class _RefusedError(Exception):
    def __init__(self, result: CUresult) -> None:
        self.result = result


def _call(results: int) -> Callable:
    """Makes a driver function of a method, which returns `results` results besides the status."""

    def decorate(method: Callable) -> Callable:
        name = method.__name__

        @functools.wraps(method)
        def function(self: "FakeCuda", *args: Any) -> tuple:
            with self.lock:
                self.counts[name] += 1
            self.hooks.get(name, lambda *args: None)(*args)
            failed = self.fail.get(name)
            if isinstance(failed, Exception):
                raise failed
            refused = (None,) * results
            if failed is not None:
                return (failed, *refused)
            if not self.initialized and name not in ("cuInit", "cuGetErrorString"):
                return (CUresult.CUDA_ERROR_NOT_INITIALIZED, *refused)
            try:
                return (CUresult.CUDA_SUCCESS, *method(self, *args))
            except _RefusedError as error:
                return (error.result, *refused)

        return function

    return decorate


class FakeCuda(types.ModuleType):
    """The module.

    Attributes:
      gpus: the GPUs that it shows.
      current: the GPU whose context the caller, who is XLA, has made current.
      version: the version of CUDA, as cuDriverGetVersion returns it.
      newest_ptx: the newest PTX version that its compiler takes.
      lazy: whether a library is compiled for a GPU when a kernel of it is asked for there, as where
        CUDA_MODULE_LOADING is LAZY, rather than for all GPUs when it is loaded: XLA has made a
        context for each.
      registers: the registers of a thread of every kernel.
      fail: the result, or the exception, with which a function fails instead of doing anything.
      hooks: functions that are called with the arguments first.
      counts: the number of calls of each function.
    """

    CUresult = CUresult
    CUdevice_attribute = CUdevice_attribute
    CUfunction_attribute = CUfunction_attribute
    CUjit_option = CUjit_option
    CUdriverProcAddress_flags = CUdriverProcAddress_flags
    CUdriverProcAddressQueryResult = CUdriverProcAddressQueryResult
    CUdevice, CUcontext, CUlibrary = CUdevice, CUcontext, CUlibrary
    CUmodule, CUkernel, CUfunction = CUmodule, CUkernel, CUfunction

    launch_kernel = 0x7F0000001000  # an address of more than 32 bits
    copy = 0x7F0000002000

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *gpus: Gpu, lazy: bool = True) -> None:
        """Takes the place of `cuda.bindings.driver`, which `oxijax._core.gpu.driver` opens anew."""
        super().__init__("cuda.bindings.driver")
        self.gpus = gpus or (Gpu(),)
        self.current = 0
        self.version = 12080
        self.newest_ptx = (8, 7)
        self.lazy = lazy
        self.registers = 32
        self.fail: dict[str, CUresult | Exception] = {}
        self.hooks: dict[str, Callable] = {}
        self.counts: collections.Counter[str] = collections.Counter()
        self.lock = threading.Lock()
        self.initialized = False
        self.libraries: dict[int, _Library] = {}
        self.modules: set[int] = set()
        self.retained: collections.Counter[int] = collections.Counter()
        self.pushed = 0
        self._stack = threading.local()  # of contexts: each thread has its own

        bindings = types.ModuleType("cuda.bindings")
        bindings.driver = self  # pyright: ignore[reportAttributeAccessIssue]
        bindings.utils = utils = types.ModuleType("cuda.bindings.utils")  # pyright: ignore[reportAttributeAccessIssue]
        utils.get_cuda_native_handle = _native_handle  # pyright: ignore[reportAttributeAccessIssue]
        monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
        monkeypatch.setitem(sys.modules, "cuda.bindings.driver", self)
        monkeypatch.setitem(sys.modules, "cuda.bindings.utils", utils)
        monkeypatch.setattr(_driver, "_opened", None)

    def assert_balanced(self) -> None:
        """No context is retained or pushed, and no module is left."""
        assert self.modules == set()
        assert +self.retained == {}
        assert self.pushed == 0

    @property
    def functions(self) -> Mapping[str, Callable]:
        """The driver functions that there are."""
        return {name: getattr(self, name) for name in dir(FakeCuda) if re.match("cu[A-Z]", name)}

    # ---- initialization, version, errors

    @_call(0)
    def cuInit(self, Flags):
        assert Flags == 0
        if not self.gpus:
            raise _RefusedError(CUresult.CUDA_ERROR_NO_DEVICE)
        self.initialized = True
        return ()

    @_call(1)
    def cuDriverGetVersion(self):
        return (self.version,)

    @_call(2)
    def cuGetProcAddress(self, symbol, cudaVersion, flags):
        assert type(symbol) is bytes, "char* symbol takes bytes"
        assert int(flags) == 0
        if cudaVersion > self.version:
            raise _RefusedError(CUresult.CUDA_ERROR_INVALID_VALUE)
        status = CUdriverProcAddressQueryResult
        addresses = {b"cuLaunchKernel": self.launch_kernel, b"cuMemcpyDtoDAsync": self.copy}
        if symbol not in addresses:
            return 0, status.CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
        return addresses[symbol], status.CU_GET_PROC_ADDRESS_SUCCESS

    @_call(1)
    def cuGetErrorString(self, error):
        _expect(error, CUresult)
        if error == CUresult.CUDA_ERROR_ILLEGAL_ADDRESS:
            return (b"an illegal memory access was encountered",)
        return (f"words for {int(error)}".encode(),)

    # ---- devices

    @_call(1)
    def cuDeviceGetCount(self):
        return (len(self.gpus),)

    @_call(1)
    def cuDeviceGet(self, ordinal):
        _expect(ordinal, int)
        assert 0 <= ordinal < len(self.gpus)
        return (CUdevice(ordinal),)

    @_call(1)
    def cuDeviceGetName(self, length, dev):
        name = self._gpu(dev).name.encode()[: length - 1] + b"\0"
        return (name + b" " * (length - len(name)),)  # the bindings pad with blanks

    @_call(1)
    def cuDeviceTotalMem(self, dev):
        return (self._gpu(dev).memory,)

    @_call(1)
    def cuDeviceGetAttribute(self, attrib, dev):
        _expect(attrib, CUdevice_attribute)
        gpu = self._gpu(dev)
        values = {
            "CLOCK_RATE": gpu.clock_khz,
            "MULTIPROCESSOR_COUNT": gpu.sms,
            "MEMORY_CLOCK_RATE": gpu.memory_clock_khz,
            "GLOBAL_MEMORY_BUS_WIDTH": gpu.bus_width,
            "COMPUTE_CAPABILITY_MAJOR": gpu.sm // 10,
            "COMPUTE_CAPABILITY_MINOR": gpu.sm % 10,
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": gpu.shared_per_sm,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": gpu.shared_per_block,
            "RESERVED_SHARED_MEMORY_PER_BLOCK": gpu.reserved_shared,
        }
        return (values[attrib.name.removeprefix("CU_DEVICE_ATTRIBUTE_")],)

    # ---- contexts

    @_call(1)
    def cuDevicePrimaryCtxRetain(self, dev):
        self._gpu(dev)
        with self.lock:
            self.retained[int(dev)] += 1
        return (CUcontext(0x100 + int(dev)),)

    @_call(0)
    def cuDevicePrimaryCtxRelease(self, dev):
        assert self.retained[int(dev)] > 0, "released more often than retained"
        with self.lock:
            self.retained[int(dev)] -= 1
        return ()

    @_call(0)
    def cuCtxPushCurrent(self, ctx):
        _expect(ctx, CUcontext)
        assert self.retained[ctx.value - 0x100] > 0, "the context is not retained"
        self._contexts.append(ctx.value - 0x100)
        with self.lock:
            self.pushed += 1
        return ()

    @_call(1)
    def cuCtxPopCurrent(self):
        assert self._contexts, "no context is current in this thread"
        with self.lock:
            self.pushed -= 1
        return (CUcontext(0x100 + self._contexts.pop()),)

    @_call(1)
    def cuCtxGetDevice(self):
        return (CUdevice(self._contexts[-1] if self._contexts else self.current),)

    # ---- libraries

    @_call(1)
    def cuLibraryLoadData(
        self,
        code,
        jitOptions,
        jitOptionsValues,
        numJitOptions,
        libraryOptions,
        libraryOptionValues,
        numLibraryOptions,
    ):
        assert type(code) is bytes, "PTX is taken as a buffer"
        assert code.endswith(b"\0"), "PTX ends with a zero"
        assert (list(libraryOptions), list(libraryOptionValues), numLibraryOptions) == ([], [], 0)
        # The driver may write to the values of options when it compiles, which may be later; the
        # bindings have freed them by then.
        assert (list(jitOptions), list(jitOptionsValues), numJitOptions) == ([], [], 0)
        library = _Library(code[:-1].decode())
        if not self.lazy:
            for ordinal in range(len(self.gpus)):
                self._compile(library.text, ordinal)
                library.compiled.add(ordinal)
        with self.lock:
            handle = 0x7F0000002000 + 16 * self.counts["cuLibraryLoadData"]
            while handle in self.libraries:
                handle += 16
            self.libraries[handle] = library
        return (CUlibrary(handle),)

    @_call(1)
    def cuLibraryGetKernel(self, library, name):
        _expect(library, CUlibrary)
        assert type(name) is bytes, "char* name takes bytes"
        text = self.libraries[library.value].text
        if not re.search(rf"\.entry\s+{re.escape(name.decode())}\s*\(", text):
            raise _RefusedError(CUresult.CUDA_ERROR_NOT_FOUND)
        return (CUkernel(library.value + 1),)

    @_call(0)
    def cuLibraryUnload(self, library):
        _expect(library, CUlibrary)
        with self.lock:
            del self.libraries[library.value]
        return ()

    @_call(1)
    def cuKernelGetFunction(self, kernel):
        library = self._library(kernel)
        assert self._contexts, "no context is current in this thread"
        ordinal = self._contexts[-1]
        if ordinal not in library.compiled:
            self._compile(library.text, ordinal)
            library.compiled.add(ordinal)
        library.fetched.append(ordinal)
        return (CUfunction(kernel.value + 1),)

    @_call(1)
    def cuKernelGetAttribute(self, attrib, kernel, dev):
        assert attrib is CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        self._gpu(dev)
        return (self._library(kernel).static_shared,)

    @_call(0)
    def cuKernelSetAttribute(self, attrib, val, kernel, dev):
        _expect(attrib, CUfunction_attribute)
        _expect(val, int)
        library = self._library(kernel)
        if attrib == CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            if not -1 <= val <= 100:
                raise _RefusedError(CUresult.CUDA_ERROR_INVALID_VALUE)
            library.carve_out[int(dev)] = val
            return ()
        assert attrib is CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if library.static_shared + val > self._gpu(dev).shared_per_block:
            raise _RefusedError(CUresult.CUDA_ERROR_INVALID_VALUE)
        library.dynamic_shared[int(dev)] = val
        return ()

    @_call(1)
    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, func, blockSize, dynamicSMemSize):
        """For a CUkernel in place of a CUfunction: of the current context."""
        _expect(func, CUfunction)
        assert self._contexts, "no context is current in this thread"
        ordinal = self._contexts[-1]
        gpu, library = self.gpus[ordinal], self.libraries[func.value - 1]
        if dynamicSMemSize > library.dynamic_shared.get(ordinal, 48 * 1024 - library.static_shared):
            return (0,)
        # The preference bounds the blocks, but for the first one.
        all_shared = library.carve_out.get(ordinal, 100) * gpu.shared_per_sm // 100
        of_block = library.static_shared + dynamicSMemSize + gpu.reserved_shared
        by_shared = max(all_shared // of_block, 1) if of_block else 32
        return (min(32, 2048 // blockSize, 65536 // (blockSize * self.registers), by_shared),)

    # ---- modules

    @_call(1)
    def cuModuleLoadDataEx(self, image, numOptions, options, optionValues):
        assert type(image) is bytes, "PTX is taken as a buffer"
        assert image.endswith(b"\0"), "PTX ends with a zero"
        assert self._contexts, "no context is current in this thread"
        logs = _jit_options(options, optionValues, numOptions)
        _write(logs, "INFO", "info of the compiler")
        self._compile(image[:-1].decode(), self._contexts[-1], logs)
        handle = 0x7F0000003000 + 16 * self.counts["cuModuleLoadDataEx"]
        self.modules.add(handle)
        return (CUmodule(handle),)

    @_call(0)
    def cuModuleUnload(self, hmod):
        _expect(hmod, CUmodule)
        self.modules.remove(hmod.value)
        return ()

    def _gpu(self, device: Any) -> Gpu:
        _expect(device, CUdevice)
        return self.gpus[int(device)]

    def _library(self, kernel: Any) -> _Library:
        _expect(kernel, CUkernel)
        return self.libraries[kernel.value - 1]  # KeyError: its library is unloaded

    @property
    def _contexts(self) -> list[int]:
        return self._stack.__dict__.setdefault("contexts", [])

    def _compile(self, text: str, ordinal: int, logs: _Logs | None = None) -> None:
        """What the driver's compiler does, and refuses to do."""
        version = re.search(r"^\.version (\d+)\.(\d+)$", text, re.M)
        target = re.search(r"^\.target sm_(\d+)$", text, re.M)
        if version is None or target is None or "st.globule" in text:
            if logs:
                _write(logs, "ERROR", "ptxas line 9: error : Unknown modifier '.globule'")
            raise _RefusedError(CUresult.CUDA_ERROR_INVALID_PTX)
        if (int(version[1]), int(version[2])) > self.newest_ptx:
            raise _RefusedError(CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
        if int(target[1]) > self.gpus[ordinal].sm:
            raise _RefusedError(CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU)


def _native_handle(handle: Any) -> int:
    """`cuda.bindings.utils.get_cuda_native_handle`."""
    if not isinstance(handle, _Handle):
        raise TypeError(f"Unknown type: {type(handle)}")
    return handle.value


def _expect(value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} is expected, got {value!r}")


def _jit_options(options: Sequence[Any], values: Sequence[Any], count: int) -> _Logs:
    assert count == len(options) == len(values)
    for option in options:
        _expect(option, CUjit_option)
    given = dict(zip(options, values, strict=True))
    for kind in ("INFO", "ERROR"):
        buffer = given[getattr(CUjit_option, f"CU_JIT_{kind}_LOG_BUFFER")]
        size = given[getattr(CUjit_option, f"CU_JIT_{kind}_LOG_BUFFER_SIZE_BYTES")]
        _expect(buffer, bytearray)  # bytes would do for the bindings, but never change
        assert size == len(buffer), "the driver would write outside of the buffer"
    return given


def _write(logs: _Logs, kind: str, text: str) -> None:
    buffer = logs[getattr(CUjit_option, f"CU_JIT_{kind}_LOG_BUFFER")]
    written = text.encode() + b"\0"
    buffer[: len(written)] = written
