"""The driver file, on a fake of `cuda.bindings.driver`; the fake itself, beside the real one."""

import ast
import ctypes
import importlib
import inspect
import pathlib
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.driver_calls import KIB, TEXT, load
from support.fake_cuda import CUresult, FakeCuda, Gpu

import ptx.kernels
from oxijax._core.gpu import driver as _driver
from oxijax._core.gpu import driver_errors
from oxijax._core.gpu.driver import DriverError, driver
from ptx import registry
from ptx.isa.opcodes import OPCODES
from ptx.isa.targets import TARGETS

KERNELS = [
    kernel
    for name, kernel in registry.KERNELS.items()
    if name.startswith(tuple(ptx.kernels.__all__))
]
# What the compilers of drivers know. Source: PTX ISA, "Release Notes".
NEWEST_PTX = {(12, 0): (8, 0), (12, 1): (8, 1)}


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
    ("plugin", "packages"),
    [
        ("12", r'"jax\[cuda12\]>=\S+" "cuda-python>=12\S+,<13"'),
        ("13", r'"jax\[cuda13\]>=\S+" "cuda-python>=13,<14"'),
        (None, r'"jax\[cuda13\]>=\S+" "cuda-python>=13,<14"'),
    ],
)
def test_no_cuda_python(monkeypatch, plugin, packages):
    def find_spec(name):
        return object() if name == f"jax_cuda{plugin}_plugin" else None

    monkeypatch.setattr(_driver.importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(_driver, "_opened", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DriverError, match=f"cuda-python.*pip install {packages}"):
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


@pytest.mark.spread(2)
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
    kernel = registry.KERNELS["deform_conv_backward_input"]
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
        if kind is not real_kind:  # as enumerations are
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
