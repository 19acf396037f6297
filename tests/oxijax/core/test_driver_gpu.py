"""The driver file on a real GPU."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from oxijax._core.gpu.driver import DriverError, driver
from oxijax._core.gpu.driver_errors import LOWEST
from ptx import TARGETS, Kernel, f32, u32
from ptx.launch import Launch

pytestmark = pytest.mark.gpu

KIB = 1024


def text_of(name: str, static_shared: int = 0) -> str:
    """PTX for GPU 0 with one kernel, which has static shared memory that it uses."""
    k = Kernel(name, driver().target(0), block=128)
    x, out = k.pointer("x", f32, readonly=True), k.pointer("out", f32)
    n = k.param("n", u32)
    i = k.ctaid() * 128 + k.tid()
    with k.if_(i < n):
        value = x.load(i)
        if static_shared:
            tile = k.shared("tile", f32, static_shared // 4)
            tile.store(k.tid(), value)
            value = tile.load(k.tid())
        out.store(i, 2.0 * value)
    return k.text()


def load(text: str, dynamic_shared: int = 0, device: int = 0) -> int:
    return driver().load(Launch((1, 1, 1), (128, 1, 1), (), text, dynamic_shared), device)


def test_devices():
    assert driver().version >= LOWEST
    assert driver().launch_pointer > 2**32
    for ordinal, device in enumerate(driver().devices):
        assert device.ordinal == ordinal
        assert device.name.isprintable()
        assert device.memory > 2**30
        target = driver().target(ordinal)
        assert target.name in TARGETS
        assert target.sm <= device.sm
        if target.sm == device.sm:
            assert device.shared_per_block == target.shared_per_block
            assert device.shared_per_sm == target.shared_per_sm
            assert device.reserved_shared == (1024 if target.sm >= 80 else 0)


def test_load():
    text = text_of("load_once")
    kernel = load(text)
    assert kernel != 0
    assert load(text) == kernel
    assert load(text_of("load_twice")) != kernel


def test_load_from_many_threads():
    texts = [text_of(f"threaded_{i % 4}") for i in range(16)]
    with ThreadPoolExecutor(8) as pool:
        kernels = list(pool.map(load, texts))
    assert len(set(kernels)) == 4
    assert kernels[:4] == kernels[4:8] == kernels[8:12] == kernels[12:]


def test_bad_ptx():
    text = text_of("bad").replace("st.global", "st.globule")
    with pytest.raises(DriverError, match=r"CUDA_ERROR_INVALID_PTX \(218\)") as raised:
        load(text)
    assert "error log of the driver's compiler:\n  ptxas" in str(raised.value)
    assert "globule" in str(raised.value)
    load(text_of("bad"))  # the next one loads


def test_ptx_of_the_future():
    text = re.sub(r"\.version .*", ".version 99.0", text_of("future"))
    with pytest.raises(DriverError, match=r"UNSUPPORTED_PTX_VERSION \(222\).*99\.0.*update"):
        load(text)


def test_wrong_sm():
    text = re.sub(r"\.target .*", ".target sm_990", text_of("wrong"))
    # Where modules are loaded lazily the compiler runs when the kernel is asked for.
    with pytest.raises(DriverError, match=r"cuLibraryLoadData|cuLibraryGetKernel"):
        load(text)


def asked_for(kernel: int, device: int) -> tuple[int, int]:
    """The limit of dynamic shared memory and the carve-out of a kernel, as the driver has them."""
    api = driver()._api
    attributes, handles = api.CUfunction_attribute, (api.CUkernel(kernel), api.CUdevice(device))
    limit = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    carve_out = attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    (limit,) = driver()._call("cuKernelGetAttribute", limit, *handles)
    (carve_out,) = driver()._call("cuKernelGetAttribute", carve_out, *handles)
    return limit, carve_out


def test_a_text_is_loaded_once_for_all_gpus():
    """And each of them has what is its own: the limit and the carve-out."""
    text, devices = text_of("of_all_gpus"), range(len(driver().devices))
    kernels = {load(text, 60 * KIB, device) for device in devices}
    (kernel,) = kernels
    for device in devices:
        gpu = driver().devices[device]
        block = 60 * KIB + gpu.reserved_shared
        # A block has 128 threads of few registers, so nothing but shared memory bounds them.
        blocks = gpu.shared_per_sm // block
        assert asked_for(kernel, device) == (
            60 * KIB,
            -(-100 * blocks * block // gpu.shared_per_sm),
        )


def test_no_shared_memory_is_asked_for_where_there_is_none():
    default = -1
    assert asked_for(load(text_of("without_shared")), 0)[1] == default


@pytest.mark.parametrize("static", [0, 16 * KIB])
def test_much_shared_memory(static):
    device = driver().devices[0]
    text = text_of(f"shared_{static}", static)
    kernel = load(text)
    assert load(text, device.shared_per_block - static) == kernel
    with pytest.raises(DriverError, match=rf"{device.shared_per_block + 16} bytes .* has"):
        load(text, device.shared_per_block - static + 16)


def test_describe():
    assert driver().describe(700).startswith("CUDA_ERROR_ILLEGAL_ADDRESS (700): ")
    assert "illegal memory access" in driver().describe(700)
