"""What a call on a GPU is resolved to, with a fake driver: which GPU it is for, and its errors."""

import ctypes

import numpy as np
import pytest
from support.fake_cuda import CUresult, FakeCuda, Gpu
from support.launch_samples import SCALE_AND_ADD

from oxijax._core.driver import driver
from oxijax._core.launch import _handler, _resolve
from oxijax._core.launch._spec import VERSION, Spec

F32 = np.dtype(np.float32)


def resolve(device: int) -> _handler.LaunchRecord:
    """Resolves a call of three arrays [4, 8] on XLA's device of this number."""
    spec = Spec("scale_and_add", SCALE_AND_ADD.configs["default"], (F32, F32), (F32,))
    text = ctypes.create_string_buffer(spec.to_json().encode())
    shapes = (ctypes.c_int64 * 9)(*[2, 4, 8] * 3)
    address = ctypes.cast(text, ctypes.c_void_p).value
    record = _handler.LaunchRecord()
    _resolve.resolve(
        _handler.CallRecord(address, len(text) - 1, VERSION, device, 3, shapes), record
    )
    return record


@pytest.mark.parametrize("device", [0, 1, 5])
def test_the_gpu_is_that_of_the_context(monkeypatch, device):
    """XLA's number of a device may be that of one of the logical devices of a GPU."""
    fake = FakeCuda(monkeypatch, Gpu(), Gpu("Fake A100", 80))
    fake.current = 1
    record = resolve(device)
    (library,) = fake.libraries.values()
    assert library.compiled == {1}
    assert ".target sm_80" in library.text
    assert record.function in {handle + 1 for handle in fake.libraries}
    assert record.launch == driver().launch_pointer


def test_without_a_context(monkeypatch):
    fake = FakeCuda(monkeypatch)
    fake.fail["cuCtxGetDevice"] = CUresult.CUDA_ERROR_NOT_INITIALIZED
    with pytest.raises(RuntimeError, match="cuCtxGetDevice failed: CUDA_ERROR_NOT_INITIALIZED"):
        resolve(0)


@pytest.mark.parametrize(("gpus", "printed"), [(1, False), (2, True)])
def test_one_of_several_gpus_prints_why_it_fails(monkeypatch, capsys, gpus, printed):
    fake = FakeCuda(monkeypatch, *[Gpu()] * gpus)
    fake.fail["cuLibraryLoadData"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(RuntimeError, match="CUDA_ERROR_OUT_OF_MEMORY") as raised:
        resolve(0)
    assert capsys.readouterr().err == (f"{raised.value}\n" if printed else "")


def test_without_a_driver_nothing_is_printed(monkeypatch, capsys):
    fake = FakeCuda(monkeypatch, Gpu(), Gpu())
    fake.fail["cuInit"] = CUresult.CUDA_ERROR_NO_DEVICE
    with pytest.raises(RuntimeError, match="CUDA_ERROR_NO_DEVICE"):
        resolve(0)
    assert capsys.readouterr().err == ""
