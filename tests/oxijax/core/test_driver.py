"""The driver file, on a fake of `cuda.bindings.driver`; the fake itself, beside the real one."""

import ast
import ctypes
import dataclasses
import enum
import importlib
import inspect
import pathlib
import re
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest
from support.fake_cuda import CUresult, FakeCuda, Gpu

import ptx.kernels
from oxijax._core import driver as _driver
from oxijax._core import driver_errors
from oxijax._core.driver import DriverError, driver
from ptx import Kernel, f32, registry
from ptx.isa.opcodes import OPCODES
from ptx.isa.targets import TARGETS
from ptx.launch import Launch

KIB = 1024
KERNELS = [
    kernel
    for name, kernel in registry.kernels().items()
    if name.startswith(tuple(ptx.kernels.__all__))
]
# What the compilers of drivers know. Source: PTX ISA, "Release Notes".
NEWEST_PTX = {(12, 0): (8, 0), (12, 1): (8, 1)}


def text_of(name: str = "kernel", target: str = "sm_90", static_shared: int = 0) -> str:
    """PTX with one kernel."""
    k = Kernel(name, target)
    out = k.pointer("out", f32)
    if static_shared:
        k.shared("tile", f32, static_shared // 4)
    out.store(k.tid(), 1.0)
    return k.text()


TEXT = text_of()


def load(text: str, dynamic_shared: int = 0, device: int = 0, threads: int = 128) -> int:
    """Loads the kernel of a text for blocks of so many threads in two dimensions."""
    block = (32, threads // 32, 1)
    return driver().load(Launch((1, 1, 1), block, (), text, dynamic_shared), device)


@pytest.fixture
def fake(monkeypatch):
    fake = FakeCuda(monkeypatch)
    yield fake
    if not fake.fail:
        fake.assert_balanced()


def use_everything() -> int:
    """Opens the driver and loads a kernel with more than 48 KiB of shared memory."""
    return load(TEXT, 100 * KIB, driver().current_device())


# ---- opening the driver


@pytest.mark.quick
def test_open(monkeypatch):
    fake = FakeCuda(monkeypatch, Gpu(), Gpu("Fake Orin", 87, 32 * 2**30, 163 * KIB))
    opened = driver()
    assert driver() is opened
    assert fake.counts["cuInit"] == 1
    assert opened.version == (12, 8)
    assert opened.launch_pointer == fake.launch_kernel
    assert opened.copy_pointer == fake.copy
    first, second = opened.devices
    assert (first.ordinal, first.name, first.sm) == (0, "Fake H100", 90)
    assert (first.memory, first.shared_per_block) == (80 * 2**30, 227 * KIB)
    assert (first.sms, first.clock_khz) == (132, 1_980_000)
    assert (first.memory_clock_khz, first.bus_width) == (2_619_000, 5120)
    assert (second.ordinal, second.name, second.sm) == (1, "Fake Orin", 87)
    assert (second.memory, second.shared_per_block) == (32 * 2**30, 163 * KIB)
    assert [opened.target(i).name for i in (0, 1)] == ["sm_90", "sm_86"]


def test_open_once_from_many_threads(fake):
    fake.hooks["cuInit"] = lambda flags: time.sleep(0.05)  # long enough for all to ask
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: driver(), range(8)))) == 1
    assert fake.counts["cuInit"] == 1


def test_importing_does_not_open():
    source = pathlib.Path(_driver.__file__).read_text()
    assert not re.search(r"^(from|import) cuda", source, re.M)
    assert re.search(r"^ +from cuda\.bindings import", source, re.M)


@pytest.mark.parametrize(
    ("plugin", "extra"), [("12", "cuda12"), ("13", "cuda13"), (None, "cuda13")]
)
def test_no_cuda_python(monkeypatch, plugin, extra):
    def find_spec(name):
        return object() if name == f"jax_cuda{plugin}_plugin" else None

    monkeypatch.setattr(_driver.importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(_driver, "_opened", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DriverError, match=rf'cuda-python.*pip install "oxijax\[{extra}\]"'):
        driver()


def test_broken_cuda_python(fake, monkeypatch):
    monkeypatch.delattr(sys.modules["cuda.bindings"], "driver")
    monkeypatch.delitem(sys.modules, "cuda.bindings.driver")
    with pytest.raises(DriverError, match=r"cannot be imported .*install cuda-python again"):
        driver()


# The bindings' own words, of 13.5 and of 12.8.
@pytest.mark.parametrize(
    "words",
    [
        '"cuda" is an NVIDIA driver library and can only be found via system search.',
        "Failed to dlopen libcuda.so.1",
    ],
)
def test_no_driver(fake, words):
    fake.fail["cuInit"] = RuntimeError(words)
    with pytest.raises(DriverError, match=r"there is no NVIDIA driver.*nvidia-smi") as raised:
        driver()
    assert words in str(raised.value)


def test_driver_older_than_the_bindings_take(fake):
    fake.fail["cuInit"] = RuntimeError("Failed to get cuGetProcAddress_v2")
    with pytest.raises(
        DriverError, match=r"CUDA up to 11, .* CUDA 12\.1.* 530 on.*: update the driver"
    ):
        driver()


@pytest.mark.parametrize(("number", "version"), [(11080, r"11\.8"), (12000, r"12\.0")])
def test_old_driver(fake, number, version):
    fake.version = number
    message = (
        rf"CUDA up to {version}, .* CUDA 12\.1, which drivers from 530 on .*: update the driver"
    )
    with pytest.raises(DriverError, match=message):
        driver()


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_the_oldest_driver_compiles_all_texts(fake, target):
    """A driver that knows a GPU knows the version of PTX that it came with."""
    opcodes = [opcode for opcode in OPCODES.values() if target.supports(opcode.lowest_sm)]
    newest = max(target.lowest_ptx, *(opcode.lowest_ptx for opcode in opcodes))
    assert newest <= max(NEWEST_PTX[driver_errors.LOWEST], target.lowest_ptx)
    for kernel in KERNELS:
        if target.supports(kernel.needs):
            text = kernel.write(next(iter(kernel.configs.values())), target).text
            assert version_of(text) <= newest, kernel.name


def test_the_oldest_driver_is_no_newer_than_it_has_to_be(fake):
    kernel = registry.kernels()["deform_conv_backward_input"]
    versions = [version_of(kernel.write_named(name, "sm_90").text) for name in kernel.configs]
    assert max(versions) == NEWEST_PTX[driver_errors.LOWEST]
    fake.version = 1000 * driver_errors.LOWEST[0] + 10 * driver_errors.LOWEST[1]
    assert driver().version == driver_errors.LOWEST


def version_of(text: str) -> tuple[int, int]:
    found = re.search(r"^\.version (\d+)\.(\d+)$", text, re.M)
    assert found
    return int(found[1]), int(found[2])


def test_no_device(fake):
    fake.gpus = ()
    with pytest.raises(DriverError, match=r"CUDA_ERROR_NO_DEVICE \(100\).*CUDA_VISIBLE_DEVICES"):
        driver()


def test_count_of_zero(fake):
    fake.hooks["cuDeviceGetCount"] = lambda: setattr(fake, "gpus", ())
    with pytest.raises(DriverError, match=r"shows no GPU.*CUDA_VISIBLE_DEVICES"):
        driver()


def test_mismatch_of_driver_and_kernel_module(fake):
    fake.fail["cuInit"] = CUresult.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
    with pytest.raises(DriverError, match="reboot"):
        driver()


def test_no_launch_function(fake, monkeypatch):
    def get(symbol, version, flags):
        return CUresult.CUDA_SUCCESS, 0, fake.CUdriverProcAddressQueryResult(1)

    monkeypatch.setattr(fake, "cuGetProcAddress", get)
    with pytest.raises(
        DriverError, match="no cuLaunchKernel: CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND"
    ):
        driver()


def test_driver_lacks_a_function(fake):
    fake.fail["cuLibraryLoadData"] = RuntimeError("function cuLibraryLoadData is not found")
    with pytest.raises(DriverError, match=r"cuLibraryLoadData failed: .* is not found"):
        use_everything()


def test_result_newer_than_the_bindings(fake):
    fake.fail["cuKernelGetFunction"] = ValueError("4444 is not a valid CUresult")
    with pytest.raises(DriverError, match="cuKernelGetFunction failed: 4444"):
        use_everything()
    assert fake.libraries == {}
    assert driver().describe(4444) == (
        "CUresult 4444, which this version of cuda-python does not know"
    )


def test_unsupported_gpu(monkeypatch):
    FakeCuda(monkeypatch, Gpu("Fake V100", 70))
    with pytest.raises(DriverError, match=r"GPU 0, Fake V100 of sm_70 is too old.*sm_75"):
        driver().target(0)


@pytest.mark.parametrize("ordinal", [-1, 1])
def test_no_such_gpu(fake, ordinal):
    for use in (lambda: driver().target(ordinal), lambda: load(TEXT, 0, ordinal)):
        with pytest.raises(DriverError, match=rf"no GPU {ordinal}; .*GPU 0, Fake H100"):
            use()


# ---- every call fails

CALLED = (
    "cuInit",
    "cuDriverGetVersion",
    "cuGetProcAddress",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceTotalMem",
    "cuDeviceGetAttribute",
    "cuCtxGetDevice",
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent",
    "cuLibraryLoadData",
    "cuLibraryGetKernel",
    "cuKernelGetFunction",
    "cuKernelGetAttribute",
    "cuKernelSetAttribute",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuCtxPopCurrent",
    "cuDevicePrimaryCtxRelease",
)


AFTER_FAILURES = ("cuLibraryUnload", "cuGetErrorString", "cuModuleLoadDataEx", "cuModuleUnload")


def test_called_are_all(fake):
    use_everything()
    assert set(fake.counts) == set(CALLED)
    assert {*CALLED, *AFTER_FAILURES} == set(fake.functions)


@pytest.mark.parametrize("function", CALLED)
@pytest.mark.parametrize("result", [CUresult.CUDA_ERROR_UNKNOWN, CUresult.CUDA_ERROR_OUT_OF_MEMORY])
def test_every_call_fails(fake, function, result):
    fake.fail[function] = result
    with pytest.raises(DriverError) as raised:
        use_everything()
    assert f"{function} failed: {result.name} ({int(result)}): words for" in str(raised.value)

    assert fake.libraries == {}
    assert sum(fake.retained.values()) == (function == "cuDevicePrimaryCtxRelease")
    assert fake.pushed == (function == "cuCtxPopCurrent")
    fake.fail.clear()
    fake.retained.clear()
    fake.pushed = 0

    kernel = use_everything()  # neither the driver nor the kernel was kept
    assert use_everything() == kernel
    assert len(fake.libraries) == 1


@pytest.mark.parametrize(
    "cleanup",
    ["cuLibraryUnload", "cuModuleLoadDataEx", "cuCtxPopCurrent", "cuDevicePrimaryCtxRelease"],
)
def test_a_failing_cleanup_hides_nothing(fake, cleanup):
    fake.fail = {
        "cuLibraryGetKernel": CUresult.CUDA_ERROR_NOT_FOUND,
        cleanup: CUresult.CUDA_ERROR_UNKNOWN,
    }
    with pytest.raises(DriverError, match="cuLibraryGetKernel failed: CUDA_ERROR_NOT_FOUND"):
        use_everything()
    assert fake.counts[cleanup] == 1


def test_describe(fake):
    words = "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered"
    assert driver().describe(700) == words
    fake.fail["cuGetErrorString"] = CUresult.CUDA_ERROR_INVALID_VALUE
    assert driver().describe(700) == "CUDA_ERROR_ILLEGAL_ADDRESS (700)"


# ---- loading


@pytest.mark.quick
@pytest.mark.parametrize("lazy", [False, True])
def test_load(fake, lazy):
    fake.lazy = lazy
    kernel = load(TEXT)
    assert type(kernel) is int
    (handle,) = fake.libraries
    assert kernel == handle + 1
    assert fake.libraries[handle].compiled == {0}
    assert fake.libraries[handle].fetched == [0]
    assert fake.counts["cuKernelSetAttribute"] == fake.counts["cuLibraryUnload"] == 0
    assert fake.counts["cuModuleLoadDataEx"] == 0

    assert load(TEXT) == kernel
    assert fake.counts["cuLibraryLoadData"] == 1
    assert load(text_of("other")) != kernel
    assert len(fake.libraries) == 2


@pytest.mark.parametrize("lazy", [False, True])
def test_load_into_two_gpus(monkeypatch, lazy):
    fake = FakeCuda(monkeypatch, Gpu(), Gpu(shared_per_sm=200 * KIB), lazy=lazy)
    first, second = (load(TEXT, 60 * KIB, device) for device in (0, 1))
    assert first == second
    (library,) = fake.libraries.values()
    assert fake.counts["cuLibraryLoadData"] == 1
    assert library.fetched == [0, 1]  # nothing is left to load in a capture
    assert library.compiled == {0, 1}
    assert library.dynamic_shared == {0: 60 * KIB, 1: 60 * KIB}
    assert library.carve_out == {0: 81, 1: 92}  # 3 * 61 of 228, and of 200 KiB
    fake.assert_balanced()


def test_a_gpu_that_asks_for_nothing_compiles_nothing(monkeypatch):
    fake = FakeCuda(monkeypatch, Gpu(), Gpu())
    load(TEXT, 0, 1)
    (library,) = fake.libraries.values()
    assert library.compiled == {1}


@pytest.mark.parametrize("function", ["cuKernelGetFunction", "cuKernelSetAttribute"])
def test_a_failure_on_one_gpu_leaves_the_library_to_the_other(monkeypatch, function):
    fake = FakeCuda(monkeypatch, Gpu(), Gpu())
    kernel = load(TEXT, 100 * KIB, 0)
    fake.fail[function] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(DriverError, match=rf"{function} failed: CUDA_ERROR_OUT_OF_MEMORY"):
        load(TEXT, 100 * KIB, 1)
    fake.fail.clear()
    assert len(fake.libraries) == 1
    assert load(TEXT, 100 * KIB, 0) == load(TEXT, 100 * KIB, 1) == kernel
    (library,) = fake.libraries.values()
    assert library.fetched[-1] == 1
    assert library.carve_out == {0: 89, 1: 89}
    assert fake.counts["cuLibraryLoadData"] == 1
    fake.assert_balanced()


H100, A100 = Gpu(), Gpu("Fake A100", 80, shared_per_block=163 * KIB, shared_per_sm=164 * KIB)


@pytest.mark.parametrize("lazy", [False, True])
def test_gpus_of_several_kinds(monkeypatch, lazy):
    """Each asks for PTX of its own; an eager driver compiles the newer one's for both."""
    fake = FakeCuda(monkeypatch, A100, H100, lazy=lazy)
    old = load(text_of(target="sm_80"), 0, 0)
    if lazy:
        assert load(TEXT, 0, 1) != old
        assert [library.compiled for library in fake.libraries.values()] == [{0}, {1}]
    else:
        message = (
            r"NO_BINARY_FOR_GPU \(209\).*PTX for sm_90, which GPU 1, Fake H100 .* asks for.*"
            "for GPU 0, Fake A100 .* too: set CUDA_MODULE_LOADING=LAZY before"
        )
        with pytest.raises(DriverError, match=message):
            load(TEXT, 0, 1)
        assert len(fake.libraries) == 1
    fake.assert_balanced()


@pytest.mark.parametrize(("text", "found"), [("", "none"), (TEXT + text_of("b"), "kernel, b")])
def test_not_one_kernel(fake, text, found):
    with pytest.raises(ValueError, match=f"one kernel .* this has {found}"):
        load(text)


@pytest.mark.parametrize("lazy", [False, True])
def test_bad_ptx(fake, lazy):
    fake.lazy = lazy
    with pytest.raises(DriverError, match=r"CUDA_ERROR_INVALID_PTX \(218\)") as raised:
        load(TEXT.replace("st.global", "st.globule"))
    assert "\n  ptxas line 9: error : Unknown modifier '.globule'\n" in str(raised.value)
    assert "\n  info of the compiler" in str(raised.value)
    assert fake.libraries == {}
    assert fake.counts["cuModuleLoadDataEx"] == 1  # which the log is of


def test_the_log_of_a_text_that_loads_after_all(fake):
    """The library has failed for another reason than its text, and nothing of that is left."""
    fake.fail["cuLibraryLoadData"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(DriverError, match=r"OUT_OF_MEMORY.*\n.*\n  info of the compiler"):
        load(TEXT)
    assert fake.counts["cuModuleUnload"] == 1
    fake.assert_balanced()


def test_ptx_newer_than_the_driver(fake):
    text = re.sub(r"\.version .*", ".version 9.3", TEXT)
    message = r"UNSUPPORTED_PTX_VERSION \(222\).*version 9\.3.*CUDA 12\.8.*update the driver"
    with pytest.raises(DriverError, match=message):
        load(text)


def test_wrong_sm(fake):
    message = r"NO_BINARY_FOR_GPU \(209\).*PTX for sm_100 does not run on GPU 0.*sm_90"
    with pytest.raises(DriverError, match=message):
        load(text_of(target="sm_100"))


def test_out_of_memory(fake):
    fake.fail["cuKernelGetFunction"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    message = r"OUT_OF_MEMORY \(2\).*The 80 GiB of GPU 0.*XLA_PYTHON_CLIENT_MEM_FRACTION"
    with pytest.raises(DriverError, match=message):
        load(TEXT)


def test_after_a_fork(fake):
    driver()
    fake.initialized = False  # what the driver says in the child
    with pytest.raises(DriverError, match=r"CUDA_ERROR_NOT_INITIALIZED.*spawn instead of fork"):
        load(TEXT)


# ---- shared memory


@pytest.mark.parametrize(
    ("static", "dynamic", "limit"),
    [
        (0, 48 * KIB, None),
        (0, 48 * KIB + 16, 48 * KIB + 16),
        (16 * KIB, 32 * KIB, None),
        (16 * KIB, 32 * KIB + 16, 32 * KIB + 16),
        (0, 227 * KIB, 227 * KIB),
        (16 * KIB, 211 * KIB, 211 * KIB),
    ],
)
def test_shared_limit(fake, static, dynamic, limit):
    load(text_of(static_shared=static), dynamic)
    (library,) = fake.libraries.values()
    assert library.static_shared == static
    assert library.dynamic_shared.get(0) == limit


def test_shared_limit_of_a_loaded_kernel(fake):
    for dynamic, limit in [(0, None), (60_000, 60_000), (50_000, 60_000), (70_000, 70_000)]:
        load(TEXT, dynamic)
        (library,) = fake.libraries.values()
        assert library.dynamic_shared.get(0) == limit
    # The limit twice, and for each of three launches the preference of before, and the new one.
    assert fake.counts["cuKernelSetAttribute"] == 2 + 3 * 2


def test_too_much_dynamic_shared_memory(fake):
    with pytest.raises(DriverError, match=r"232464 bytes .* has 232448") as raised:
        load(TEXT, 227 * KIB + 16)
    assert "kernel kernel" in str(raised.value)
    assert fake.counts["cuLibraryLoadData"] == 0


def test_too_much_shared_memory_in_all(fake):
    with pytest.raises(DriverError, match=r"233472 bytes .* has 232448"):
        load(text_of(static_shared=16 * KIB), 212 * KIB)
    assert fake.counts["cuKernelSetAttribute"] == 0
    assert fake.libraries == {}


# ---- the part of L1 that is shared memory


@pytest.mark.parametrize(
    ("static", "dynamic", "threads", "registers", "percent"),
    [
        (0, 0, 128, 32, None),  # what the driver does by itself is right
        (0, 54 * KIB, 256, 64, 97),  # 4 blocks by registers, and by shared memory: 4 * 55 of 228
        (0, 54 * KIB, 256, 120, 49),  # 2 blocks by registers
        (0, 54 * KIB, 256, 250, 25),
        (16 * KIB, 38 * KIB, 256, 120, 49),  # as much, but static
        (16 * KIB, 0, 256, 120, 15),
        (0, 10_000, 1024, 32, 10),  # 2 blocks by threads; the 10,000 take 40 times 256
        (0, 16, 32, 32, 18),  # 32 blocks at most
        (0, 227 * KIB, 128, 32, 100),
        (0, 115 * KIB, 128, 32, 51),  # one: 2 * 116 are more than 228
    ],
)
def test_carve_out(fake, static, dynamic, threads, registers, percent):
    fake.registers = registers
    load(text_of(static_shared=static), dynamic, threads=threads)
    (library,) = fake.libraries.values()
    assert library.carve_out.get(0) == percent


def test_carve_out_where_the_driver_keeps_nothing_of_a_block(monkeypatch):
    turing = Gpu("Fake T4", 75, shared_per_block=64 * KIB, shared_per_sm=64 * KIB)
    fake = FakeCuda(monkeypatch, dataclasses.replace(turing, reserved_shared=0))
    load(text_of(target="sm_75"), 16 * KIB, threads=512)
    (library,) = fake.libraries.values()
    assert library.carve_out == {0: 100}
    fake.assert_balanced()


def test_carve_out_of_several_launches(fake):
    """A launch that needs less takes nothing from one that needs more, whichever comes first."""
    asked = []
    for dynamic in (20 * KIB, 40 * KIB, 20 * KIB, 10 * KIB):
        load(TEXT, dynamic, threads=512)
        (library,) = fake.libraries.values()
        asked.append(library.carve_out[0])
    assert asked == [37, 72, 72, 72]  # of 228 KiB, 4 blocks by threads
    assert fake.counts["cuOccupancyMaxActiveBlocksPerMultiprocessor"] == 3


def test_carve_out_of_a_kernel_that_fits_nowhere(fake):
    """Its launch will say so."""
    fake.registers = 255
    load(TEXT, 1024, threads=1024)
    (library,) = fake.libraries.values()
    assert library.carve_out == {0: 0}


# ---- threads


def test_many_threads_load_once(fake):
    driver()
    entered = threading.Event()
    go_on = threading.Event()

    def hook(*args):
        entered.set()
        assert go_on.wait(10)

    fake.hooks["cuLibraryLoadData"] = hook
    with ThreadPoolExecutor(8) as pool:
        loads = [pool.submit(load, TEXT) for _ in range(8)]
        assert entered.wait(10)
        go_on.set()
        assert len({load.result(10) for load in loads}) == 1
    assert fake.counts["cuLibraryLoadData"] == 1


def test_one_load_does_not_block_another(fake):
    driver()
    entered, go_on = threading.Event(), threading.Event()

    def hook(code, *args):
        if b"slow" in code:
            entered.set()
            assert go_on.wait(10)

    fake.hooks["cuLibraryLoadData"] = hook
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(load, text_of("slow"))
        assert entered.wait(10)
        quick = load(text_of("quick"))
        assert not slow.done()
        go_on.set()
        assert slow.result(10) != quick


def test_two_gpus_wait_for_one_library_and_not_for_each_other(monkeypatch):
    fake = FakeCuda(monkeypatch, Gpu(), Gpu())
    driver()
    loading, loaded = threading.Event(), threading.Event()
    fetching, fetched = threading.Event(), threading.Event()

    def wait_to_load(*args):
        loading.set()
        assert loaded.wait(10)

    def wait_to_fetch(*args):
        if not fetching.is_set():
            fetching.set()
            assert fetched.wait(10)

    fake.hooks["cuLibraryLoadData"] = wait_to_load
    fake.hooks["cuKernelGetFunction"] = wait_to_fetch
    with ThreadPoolExecutor(2) as pool:
        loads = {pool.submit(load, TEXT, 0, device) for device in (0, 1)}
        assert loading.wait(10)
        loaded.set()
        assert fetching.wait(10)
        quick, slow = wait(loads, 10, FIRST_COMPLETED)
        assert len(slow) == 1
        fetched.set()
        assert len({done.result(10) for done in (*quick, *slow)}) == 1
    assert fake.counts["cuLibraryLoadData"] == 1
    (library,) = fake.libraries.values()
    assert sorted(library.fetched) == [0, 1]
    fake.assert_balanced()


def test_a_gpu_that_waits_loads_after_a_failure_of_the_other(monkeypatch):
    fake = FakeCuda(monkeypatch, Gpu(), Gpu())
    driver()
    entered, go_on = threading.Event(), threading.Event()

    def fail_once(*args):
        if not entered.is_set():
            entered.set()
            assert go_on.wait(10)
            raise RuntimeError("out of luck")

    fake.hooks["cuKernelGetFunction"] = fail_once
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(load, TEXT, 0, 0)
        assert entered.wait(10)
        kernel = pool.submit(load, TEXT, 0, 1).result(10)
        go_on.set()
        with pytest.raises(DriverError, match="out of luck"):
            first.result(10)
    assert load(TEXT, 0, 0) == kernel  # what the second has is left to it
    assert fake.counts["cuLibraryLoadData"] == 1
    fake.assert_balanced()


def test_those_who_wait_try_again_after_a_failure(fake):
    driver()
    entered, go_on = threading.Event(), threading.Event()

    def fail_once(*args):
        if not entered.is_set():
            entered.set()
            assert go_on.wait(10)
            raise RuntimeError("out of luck")

    fake.hooks["cuLibraryLoadData"] = fail_once
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(load, TEXT)
        assert entered.wait(10)
        second = pool.submit(load, TEXT)
        go_on.set()
        with pytest.raises(DriverError, match="out of luck"):
            first.result(10)
        assert second.result(10) in {handle + 1 for handle in fake.libraries}


# ---- the real bindings


@pytest.fixture(scope="module")
def real_bindings():
    return importlib.import_module("cuda.bindings.driver")


def test_fake_has_the_real_parameters(fake, real_bindings):
    assert len(fake.functions) == len(CALLED) + len(AFTER_FAILURES)
    for name, function in fake.functions.items():
        expected = list(inspect.signature(getattr(real_bindings, name)).parameters)
        assert list(inspect.signature(function).parameters) == expected, name


def test_addresses_are_read_without_what_is_deprecated(monkeypatch, real_bindings):
    """By the bindings' own function where they have it, and by int() before 12.9."""
    read = _driver._address_reader()
    assert read is importlib.import_module("cuda.bindings.utils").get_cuda_native_handle
    for kind in (real_bindings.CUkernel, real_bindings.CUfunction, real_bindings.CUlibrary):
        assert read(kind(0x7F0000001000)) == 0x7F0000001000
    monkeypatch.setitem(sys.modules, "cuda.bindings.utils", None)
    assert _driver._address_reader() is int


def test_bindings_without_the_function_that_reads_addresses(fake, monkeypatch):
    monkeypatch.delattr(sys.modules["cuda.bindings"], "utils")
    monkeypatch.setitem(sys.modules, "cuda.bindings.utils", None)
    assert use_everything() in {handle + 1 for handle in fake.libraries}


def test_fake_has_the_real_types(real_bindings):
    for name, kind in vars(FakeCuda).items():
        if not name.startswith("CU"):
            continue
        real_kind = getattr(real_bindings, name)
        if issubclass(kind, enum.IntEnum):
            for member in kind:
                real_member = getattr(real_kind, member.name)
                assert (real_member.name, int(real_member)) == (member.name, int(member))
        else:
            # DeprecationWarning is an error here, as everywhere in the tests.
            reader = int if name == "CUdevice" else _driver._address_reader()
            assert reader(real_kind(5)) == 5


def test_advice_is_on_real_results(fake, real_bindings):
    gpus = driver().devices
    advice = driver_errors.load_advice(TEXT, gpus[0], gpus, (12, 8))
    assert set(driver_errors.ADVICE) < set(advice)
    for name in advice:
        assert getattr(real_bindings.CUresult, name).name == name


def test_driver_files_use_what_the_bindings_have(fake, real_bindings):
    nodes = [
        node
        for file in (_driver.__file__, driver_errors.__file__)
        for node in ast.walk(ast.parse(pathlib.Path(file).read_text()))
    ]
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    strings = {node.value for node in nodes if isinstance(node, ast.Constant)}
    used = {
        str(name) for name in attributes | strings if re.fullmatch(r"(cu|CU)[A-Z]\w+", str(name))
    }
    assert set(CALLED) < used
    in_enums = {
        name
        for kind in vars(real_bindings).values()
        if isinstance(kind, type) and hasattr(kind, "__members__")
        for name in kind.__members__
    }
    elsewhere = {name for name in used if not hasattr(real_bindings, name)} - in_enums
    assert elsewhere == {"cuGetProcAddress_v2"}  # in an error of the bindings


def test_real_bindings_on_this_machine(monkeypatch, real_bindings):
    monkeypatch.setattr(_driver, "_opened", None)
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(DriverError, match="there is no NVIDIA driver: libcuda cannot be open"):
            driver()
        return
    # With a driver there may still be no GPU, which is another error.
    message = ""
    try:
        driver()
    except DriverError as error:
        message = str(error)
    assert "there is no NVIDIA driver" not in message
