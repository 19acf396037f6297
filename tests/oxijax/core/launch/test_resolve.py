"""The launch that a call on a GPU is resolved to, with a fake driver: its GPU, and its errors."""

import contextlib
import ctypes
import dataclasses
import itertools
import threading
from typing import Any

import pytest
from support.fake_cuda import CUresult, FakeCuda, Gpu
from support.launch_samples import SCALE_AND_ADD

import ptx
from oxijax._core import process
from oxijax._core.arguments.precision import numpy_dtype
from oxijax._core.gpu.driver import driver
from oxijax._core.launch import Emulation, _handler, _resolve
from oxijax._core.launch._handler import XLA_NUMBERS, BufferType
from oxijax._core.launch._spec import VERSION, Spec, key_of
from ptx import registry
from ptx.definition import KernelDefinition

F32, F64 = 11, 12  # XLA's numbers of types


def call_of(
    text: str, buffers=((F32, 4, 8),) * 3, *, operands=2, device=0, key=None, version=VERSION
) -> _handler.CallRecord:
    """A call as the handler passes it on; of each buffer its type and dimensions."""
    words = [word for dtype, *shape in buffers for word in (dtype, len(shape), *shape)]
    spec = ctypes.create_string_buffer(text.encode())
    record = _handler.CallRecord(
        spec=ctypes.cast(spec, ctypes.c_void_p).value,
        spec_size=len(spec) - 1,
        key=key_of(text) if key is None else key,
        version=version,
        device=device,
        operand_count=operands,
        buffer_count=len(buffers),
        buffers=(ctypes.c_int64 * len(words))(*words),
    )
    record.kept = spec  # which the record only points to
    return record


SPEC = Spec("scale_and_add", SCALE_AND_ADD.configs["default"])


def resolve(device: int) -> _handler.LaunchRecord:
    """Resolves a call of three arrays [4, 8] on XLA's device of this number."""
    record = _handler.LaunchRecord()
    _resolve.resolve(call_of(SPEC.to_json(), device=device), record)
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


def changed(**fields: Any) -> str:
    """The text of the spec with other fields."""
    return dataclasses.replace(SPEC, **fields).to_json()


BUFFER, GROUP = (F32, 4, 8), (F32, 3, 4, 8)
TEXT, GROUPED = changed(), changed(grouped=(1,))
REFUSED = {
    "version": ({"version": VERSION - 1}, f"version {VERSION - 1} of its kernels' descriptions"),
    "key": ({"key": key_of(TEXT) + 1}, "key is not that of its spec"),
    "a buffer too many": ({"buffers": [BUFFER] * 4}, "was given 2 and 2"),
    "an operand for a result": ({"operands": 3}, "was given 3 and 0"),
    "no operands": ({"operands": 0}, "was given 0 and 3"),
    "type": (
        {"buffers": [BUFFER, (F64, 4, 8), BUFFER]},
        "y must be float32, got float64\\[4, 8\\]",
    ),
    "type that no kernel has": (
        {"buffers": [BUFFER, BUFFER, (2, 4, 8)]},
        "buffer 2 must have one of the types int32, .*, got XLA's type 2",
    ),
    "size": ({"buffers": [BUFFER, (F32, 4, 7), BUFFER]}, "y must have m = 8"),
    "size of a result": ({"buffers": [BUFFER, BUFFER, (F32, 3, 8)]}, "out must have n = 4"),
    "rank": ({"buffers": [BUFFER, BUFFER, (F32, 32)]}, r"out must be \['n', 'm'\]"),
    "number of groups": (
        {"text": GROUPED, "buffers": [GROUP, GROUP, (F32, 2, 6, 8)]},
        "buffers of one leading dimension are expected",
    ),
    "no groups": (
        {"text": GROUPED, "buffers": [(F32, 3), GROUP, GROUP]},
        "buffers of one leading dimension are expected",
    ),
    "the emulator on a GPU": (
        {"text": changed(emulation=Emulation("sm_80"))},
        "a call for the emulator runs on the CPU",
    ),
    "a GPU on the CPU": ({"device": -1}, "a call for the emulator runs on the CPU"),
    "an emulated GPU that there is not": (
        {"text": changed(emulation=Emulation("sm_1")), "device": -1},
        "target must be one of sm_75",
    ),
    "a schedule below 0": (
        {"text": changed(emulation=Emulation("sm_80", -1)), "device": -1},
        "schedule must be None or at least 0, got -1",
    ),
    **{
        f"groups of {numbers}": (
            {"text": changed(grouped=numbers), "buffers": [GROUP] * 3},
            "grouped has numbers of operands in order",
        )
        for numbers in ((2,), (3,), (-1,), (1, 0), (1, 1))
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(monkeypatch, name):
    """Before anything is loaded a call is compared with what its kernel declares."""
    fake = FakeCuda(monkeypatch, Gpu())
    changes, message = REFUSED[name]
    call = call_of(**{"text": TEXT, **changes})
    with pytest.raises(RuntimeError, match=message):
        _resolve.resolve(call, _handler.LaunchRecord())
    assert not fake.libraries


def declarations(kernel: KernelDefinition) -> dict[tuple, Any]:
    """Of each sequence of types that the kernel's buffers may have, a configuration."""
    found = {}
    for config in kernel.configs.values():
        fields = [f.name for f in dataclasses.fields(config) if f.name.endswith("_type")]
        for types in itertools.product((ptx.f16, ptx.bf16, ptx.f32, ptx.f64), repeat=len(fields)):
            changes = {
                name: dtype
                for name, dtype in zip(fields, types, strict=True)
                if getattr(config, name) is not None
            }
            with contextlib.suppress(ValueError):
                typed = dataclasses.replace(config, **changes)
                kernel.validate(typed)
                arrays = {**kernel.operands(typed), **kernel.results(typed)}
                found[tuple((n, a.dtype_of(typed).name) for n, a in arrays.items())] = typed
    return found


@pytest.mark.parametrize("number", sorted({*range(64)} - {*XLA_NUMBERS.values()}))
def test_types_that_no_kernel_has(number):
    """They raise where they are read, whatever else is in the call."""
    for index in range(3):
        numbers = [F64] * 3
        numbers[index] = number
        call = call_of(TEXT, [(n, 4, 8) for n in numbers])
        with pytest.raises(TypeError, match=f"buffer {index} must .* got XLA's type {number}"):
            call.read_buffers()


@pytest.mark.parametrize("name", sorted(registry.KERNELS))
def test_no_type_is_taken_for_another(name):
    """Each buffer of a kernel, for all types that its configurations may have, in all types."""
    kernel = registry.KERNELS[name]
    for config in declarations(kernel).values():
        operands, results = kernel.operands(config), kernel.results(config)
        arrays = [*operands.values(), *results.values()]
        right = [XLA_NUMBERS[numpy_dtype(array.dtype_of(config))] for array in arrays]
        spec = Spec(name, config, emulation=Emulation("sm_80"))
        for index, number in itertools.product(range(len(arrays)), XLA_NUMBERS.values()):
            buffers = [BufferType(n, (1,)) for n in (*right[:index], number, *right[index + 1 :])]
            resolved = _resolve._Resolved(spec, tuple(buffers), len(operands))
            accepts = contextlib.nullcontext()
            if number != right[index]:
                accepts = pytest.raises(TypeError, match=f"{[*operands, *results][index]} must be")
            with accepts:
                _resolve._checked_call(kernel, resolved)


def test_nothing_is_run_dry_that_another_process_has_made(monkeypatch):
    """Its results would be what lay in their memory before."""
    monkeypatch.setattr(process, "_dry_runs", threading.Event())
    text = changed(emulation=Emulation("sm_80", dry_run=True))
    call = call_of(text, device=-1)
    with pytest.raises(RuntimeError, match="dry_run is for programs that this process has made"):
        _resolve.resolve(call, _handler.LaunchRecord())
    process.allow_dry_runs()
    _resolve.resolve(call, _handler.LaunchRecord())
