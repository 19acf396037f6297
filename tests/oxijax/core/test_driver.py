"""The driver file, on a fake of `cuda.bindings.driver`; the fake itself, beside the real one."""

import ast
import ctypes
import enum
import importlib
import inspect
import pathlib
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.fake_cuda import CUresult, FakeCuda, Gpu

from oxijax._core import driver as _driver
from oxijax._core.driver import DriverError, driver
from ptx import Kernel, f32

KIB = 1024


def text_of(name: str = "kernel", target: str = "sm_90", static_shared: int = 0) -> str:
    """PTX with one kernel."""
    k = Kernel(name, target)
    out = k.pointer("out", f32)
    if static_shared:
        k.shared("tile", f32, static_shared // 4)
    out.store(k.tid(), 1.0)
    return k.text()


TEXT = text_of()


@pytest.fixture
def fake(monkeypatch):
    fake = FakeCuda(monkeypatch)
    yield fake
    if not fake.fail:
        fake.assert_balanced()


def use_everything() -> int:
    """Opens the driver and loads a kernel with more than 48 KiB of shared memory."""
    return driver().load(TEXT, 100 * KIB, driver().current_device())


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
    with pytest.raises(DriverError, match=r"CUDA up to 11, .* CUDA 12\.0: update the driver"):
        driver()


def test_old_driver(fake):
    fake.version = 11080
    with pytest.raises(DriverError, match=r"CUDA up to 11\.8, .* CUDA 12\.0: update the driver"):
        driver()


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
    for use in (lambda: driver().target(ordinal), lambda: driver().load(TEXT, 0, ordinal)):
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
    "cuCtxPopCurrent",
    "cuDevicePrimaryCtxRelease",
)


def test_called_are_all(fake):
    use_everything()
    assert set(fake.counts) == set(CALLED)
    assert {*CALLED, "cuLibraryUnload", "cuGetErrorString"} == set(fake.functions)


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
    "cleanup", ["cuLibraryUnload", "cuCtxPopCurrent", "cuDevicePrimaryCtxRelease"]
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
    kernel = driver().load(TEXT, 0, 0)
    assert type(kernel) is int
    (handle,) = fake.libraries
    assert kernel == handle + 1
    assert fake.libraries[handle].compiled == {0}
    assert fake.counts["cuKernelSetAttribute"] == fake.counts["cuLibraryUnload"] == 0

    assert driver().load(TEXT, 0, 0) == kernel
    assert fake.counts["cuLibraryLoadData"] == 1
    assert driver().load(text_of("other"), 0, 0) != kernel
    assert len(fake.libraries) == 2


def test_load_into_two_gpus(monkeypatch):
    fake = FakeCuda(monkeypatch, Gpu(), Gpu())
    first, second = (driver().load(TEXT, 100 * KIB, device) for device in (0, 1))
    assert first != second
    assert [library.compiled for library in fake.libraries.values()] == [{0}, {1}]
    limits = [library.dynamic_shared for library in fake.libraries.values()]
    assert limits == [{0: 100 * KIB}, {1: 100 * KIB}]
    fake.assert_balanced()


@pytest.mark.parametrize(("text", "found"), [("", "none"), (TEXT + text_of("b"), "kernel, b")])
def test_not_one_kernel(fake, text, found):
    with pytest.raises(ValueError, match=f"one kernel .* this has {found}"):
        driver().load(text, 0, 0)


@pytest.mark.parametrize("lazy", [False, True])
def test_bad_ptx(fake, lazy):
    fake.lazy = lazy
    with pytest.raises(DriverError, match=r"CUDA_ERROR_INVALID_PTX \(218\)") as raised:
        driver().load(TEXT.replace("st.global", "st.globule"), 0, 0)
    assert "\n  ptxas line 9: error : Unknown modifier '.globule'\n" in str(raised.value)
    assert "\n  info of the compiler" in str(raised.value)
    assert fake.libraries == {}


def test_ptx_newer_than_the_driver(fake):
    text = re.sub(r"\.version .*", ".version 9.3", TEXT)
    message = r"UNSUPPORTED_PTX_VERSION \(222\).*version 9\.3.*CUDA 12\.8.*update the driver"
    with pytest.raises(DriverError, match=message):
        driver().load(text, 0, 0)


def test_wrong_sm(fake):
    message = r"NO_BINARY_FOR_GPU \(209\).*PTX for sm_100 does not run on GPU 0.*sm_90"
    with pytest.raises(DriverError, match=message):
        driver().load(text_of(target="sm_100"), 0, 0)


def test_out_of_memory(fake):
    fake.fail["cuKernelGetFunction"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    message = r"OUT_OF_MEMORY \(2\).*The 80 GiB of GPU 0.*XLA_PYTHON_CLIENT_MEM_FRACTION"
    with pytest.raises(DriverError, match=message):
        driver().load(TEXT, 0, 0)


def test_after_a_fork(fake):
    driver()
    fake.initialized = False  # what the driver says in the child
    with pytest.raises(DriverError, match=r"CUDA_ERROR_NOT_INITIALIZED.*spawn instead of fork"):
        driver().load(TEXT, 0, 0)


def test_logs_live_as_long_as_the_library(fake):
    """A driver that loads lazily may compile later, for another context, and write then."""
    driver().load(TEXT, 0, 0)
    (library,) = fake.libraries.values()
    for buffer in [value for value in library.logs.values() if isinstance(value, bytearray)]:
        assert sys.getrefcount(buffer) > 4  # that list, library.logs, `buffer` and the argument


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
    driver().load(text_of(static_shared=static), dynamic, 0)
    (library,) = fake.libraries.values()
    assert library.static_shared == static
    assert library.dynamic_shared.get(0) == limit


def test_shared_limit_of_a_loaded_kernel(fake):
    for dynamic, limit in [(0, None), (60_000, 60_000), (50_000, 60_000), (70_000, 70_000)]:
        driver().load(TEXT, dynamic, 0)
        (library,) = fake.libraries.values()
        assert library.dynamic_shared.get(0) == limit
    assert fake.counts["cuKernelSetAttribute"] == 2


def test_too_much_dynamic_shared_memory(fake):
    with pytest.raises(DriverError, match=r"232464 bytes .* has 232448") as raised:
        driver().load(TEXT, 227 * KIB + 16, 0)
    assert "kernel kernel" in str(raised.value)
    assert fake.counts["cuLibraryLoadData"] == 0


def test_too_much_shared_memory_in_all(fake):
    with pytest.raises(DriverError, match=r"233472 bytes .* has 232448"):
        driver().load(text_of(static_shared=16 * KIB), 212 * KIB, 0)
    assert fake.counts["cuKernelSetAttribute"] == 0
    assert fake.libraries == {}


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
        loads = [pool.submit(driver().load, TEXT, 0, 0) for _ in range(8)]
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
        slow = pool.submit(driver().load, text_of("slow"), 0, 0)
        assert entered.wait(10)
        quick = driver().load(text_of("quick"), 0, 0)
        assert not slow.done()
        go_on.set()
        assert slow.result(10) != quick


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
        first = pool.submit(driver().load, TEXT, 0, 0)
        assert entered.wait(10)
        second = pool.submit(driver().load, TEXT, 0, 0)
        go_on.set()
        with pytest.raises(DriverError, match="out of luck"):
            first.result(10)
        assert second.result(10) in {handle + 1 for handle in fake.libraries}


# ---- the real bindings


@pytest.fixture(scope="module")
def real_bindings():
    return importlib.import_module("cuda.bindings.driver")


def test_fake_has_the_real_parameters(fake, real_bindings):
    assert len(fake.functions) == len(CALLED) + 2
    for name, function in fake.functions.items():
        expected = list(inspect.signature(getattr(real_bindings, name)).parameters)
        assert list(inspect.signature(function).parameters) == expected, name


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
            assert int(real_kind(5)) == 5


def test_advice_is_on_real_results(fake, real_bindings):
    advice = _driver._load_advice(TEXT, driver().devices[0], (12, 8))
    assert set(_driver._ADVICE) < set(advice)
    for name in advice:
        assert getattr(real_bindings.CUresult, name).name == name


def test_driver_file_uses_what_the_bindings_have(fake, real_bindings):
    tree = ast.parse(pathlib.Path(_driver.__file__).read_text())
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
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
