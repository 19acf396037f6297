"""The driver file loading kernels, on a fake of `cuda.bindings.driver`."""

import dataclasses
import re
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest
from support.driver_calls import KIB, TEXT, load, text_of
from support.fake_cuda import CUresult, FakeCuda, Gpu

from oxijax._core.gpu.driver import DriverError, driver

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


class Gate:
    """A hook of the fake driver: its first call waits until the gate is opened, and may fail then.

    Attributes:
      entered: set by the first call.
      opened: what the first call waits for.
    """

    def __init__(self, error: Exception | None = None) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self._error = error

    def __call__(self, *args) -> None:
        if not self.entered.is_set():
            self.entered.set()
            assert self.opened.wait(10)
            if self._error is not None:
                raise self._error


def test_many_threads_load_once(fake):
    driver()
    gate = fake.hooks["cuLibraryLoadData"] = Gate()
    with ThreadPoolExecutor(8) as pool:
        loads = [pool.submit(load, TEXT) for _ in range(8)]
        assert gate.entered.wait(10)
        gate.opened.set()
        assert len({load.result(10) for load in loads}) == 1
    assert fake.counts["cuLibraryLoadData"] == 1


def test_one_load_does_not_block_another(fake):
    driver()
    gate = fake.hooks["cuLibraryLoadData"] = Gate()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(load, text_of("slow"))
        assert gate.entered.wait(10)
        quick = load(text_of("quick"))
        assert not slow.done()
        gate.opened.set()
        assert slow.result(10) != quick


def test_two_gpus_wait_for_one_library_and_not_for_each_other(monkeypatch):
    fake = FakeCuda(monkeypatch, Gpu(), Gpu())
    driver()
    loading = fake.hooks["cuLibraryLoadData"] = Gate()
    fetching = fake.hooks["cuKernelGetFunction"] = Gate()
    with ThreadPoolExecutor(2) as pool:
        loads = {pool.submit(load, TEXT, 0, device) for device in (0, 1)}
        assert loading.entered.wait(10)
        loading.opened.set()
        assert fetching.entered.wait(10)
        quick, slow = wait(loads, 10, FIRST_COMPLETED)
        assert len(slow) == 1
        fetching.opened.set()
        assert len({done.result(10) for done in (*quick, *slow)}) == 1
    assert fake.counts["cuLibraryLoadData"] == 1
    (library,) = fake.libraries.values()
    assert sorted(library.fetched) == [0, 1]
    fake.assert_balanced()


def test_a_gpu_that_waits_loads_after_a_failure_of_the_other(monkeypatch):
    fake = FakeCuda(monkeypatch, Gpu(), Gpu())
    driver()
    gate = fake.hooks["cuKernelGetFunction"] = Gate(RuntimeError("out of luck"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(load, TEXT, 0, 0)
        assert gate.entered.wait(10)
        kernel = pool.submit(load, TEXT, 0, 1).result(10)
        gate.opened.set()
        with pytest.raises(DriverError, match="out of luck"):
            first.result(10)
    assert load(TEXT, 0, 0) == kernel  # what the second has is left to it
    assert fake.counts["cuLibraryLoadData"] == 1
    fake.assert_balanced()


def test_those_who_wait_try_again_after_a_failure(fake):
    driver()
    gate = fake.hooks["cuLibraryLoadData"] = Gate(RuntimeError("out of luck"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(load, TEXT)
        assert gate.entered.wait(10)
        second = pool.submit(load, TEXT)
        gate.opened.set()
        with pytest.raises(DriverError, match="out of luck"):
            first.result(10)
        assert second.result(10) in {handle + 1 for handle in fake.libraries}
