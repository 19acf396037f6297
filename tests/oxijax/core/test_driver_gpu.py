"""The driver file on a real GPU."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from oxijax._core.driver import DriverError, driver
from ptx import TARGETS, Kernel, f32, u32

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


def test_devices():
    assert driver().version >= (12, 0)
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


def test_load():
    text = text_of("load_once")
    kernel = driver().load(text, 0, 0)
    assert kernel != 0
    assert driver().load(text, 0, 0) == kernel
    assert driver().load(text_of("load_twice"), 0, 0) != kernel


def test_load_from_many_threads():
    texts = [text_of(f"threaded_{i % 4}") for i in range(16)]
    with ThreadPoolExecutor(8) as pool:
        kernels = list(pool.map(lambda text: driver().load(text, 0, 0), texts))
    assert len(set(kernels)) == 4
    assert kernels[:4] == kernels[4:8] == kernels[8:12] == kernels[12:]


def test_bad_ptx():
    text = text_of("bad").replace("st.global", "st.globule")
    with pytest.raises(DriverError, match=r"CUDA_ERROR_INVALID_PTX \(218\)") as raised:
        driver().load(text, 0, 0)
    assert "error log of the driver's compiler:\n  ptxas" in str(raised.value)
    assert "globule" in str(raised.value)
    driver().load(text_of("bad"), 0, 0)  # the next one loads


def test_ptx_of_the_future():
    text = re.sub(r"\.version .*", ".version 99.0", text_of("future"))
    with pytest.raises(DriverError, match=r"UNSUPPORTED_PTX_VERSION \(222\).*99\.0.*update"):
        driver().load(text, 0, 0)


def test_wrong_sm():
    text = re.sub(r"\.target .*", ".target sm_990", text_of("wrong"))
    with pytest.raises(DriverError, match=r"cuLibraryLoadData|cuKernelGetFunction"):
        driver().load(text, 0, 0)


@pytest.mark.parametrize("static", [0, 16 * KIB])
def test_much_shared_memory(static):
    device = driver().devices[0]
    text = text_of(f"shared_{static}", static)
    kernel = driver().load(text, 0, 0)
    assert driver().load(text, device.shared_per_block - static, 0) == kernel
    with pytest.raises(DriverError, match=rf"{device.shared_per_block + 16} bytes .* has"):
        driver().load(text, device.shared_per_block - static + 16, 0)


def test_describe():
    assert driver().describe(700).startswith("CUDA_ERROR_ILLEGAL_ADDRESS (700): ")
    assert "illegal memory access" in driver().describe(700)
