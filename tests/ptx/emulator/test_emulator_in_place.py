"""The library's own kernels, launched as a driver does it: strictly, and on memory in place."""

import functools

import numpy as np
import pytest
from support.deform_conv_kernels import DeformConvCall
from support.gemm_kernels import GemmProblem

import ptx.emulator
from ptx.emulator import Allocation, Buffer, LoadedModule, OutOfBoundsError, Report, UnwrittenError
from ptx.isa.dtypes import f32
from ptx.kernels.deform_conv import CONFIGS


def launch(text, grid, block, arguments, *, statistics=True, short=None, **options) -> Report:
    """Does what `ptx.emulator.launch` does, by way of a module.

    The argument at the position `short` lacks its last four bytes.
    """
    parameters, allocations, arrays = [], {}, {}
    for position, argument in enumerate(arguments):
        if not isinstance(argument, Buffer):
            parameters.append(np.asarray(argument).tobytes())
            continue
        if id(argument) not in allocations:
            size = argument.array.nbytes
            room = np.full(size + 512, 0xCB, np.uint8)
            start = -room.ctypes.data % 256
            data = room[start : start + size - 4 * (position == short)]
            data[:] = np.ascontiguousarray(argument.array).reshape(-1).view(np.uint8)[: len(data)]
            allocations[id(argument)] = Allocation(
                data.ctypes.data, data, argument.writable, argument.initialized
            )
            arrays[id(argument)] = argument, room[start : start + size]
        parameters.append(allocations[id(argument)].address.to_bytes(8, "little"))
    module = LoadedModule(text)
    (kernel,) = module.kernels
    report = module.launch(kernel, grid, block, parameters, [*allocations.values()], **options)
    for argument, data in arrays.values():
        argument.array = data.view(argument.array.dtype).reshape(argument.array.shape)
    return report


def product(**kw) -> GemmProblem:
    return GemmProblem(70, 40, 24, "cache_persistent", float_type=f32, exact=True, **kw)


@pytest.fixture
def in_place(monkeypatch):
    """Calls of kernels go by way of a module."""
    monkeypatch.setattr(ptx.emulator, "launch", launch)


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("schedule", [None, 3])
def test_product(schedule):
    product(alpha=2.0, beta=-1.0, use_c=True).run(schedule=schedule)


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("kernel", ["forward", "backward_input", "backward_weight"])
def test_deformable_convolution(kernel):
    name = min(CONFIGS, key=lambda name: CONFIGS[name].in_channels * CONFIGS[name].taps)
    DeformConvCall(
        kernel, CONFIGS[name], images=1, height=5, width=6, target="sm_80", small=True
    ).run()


@pytest.mark.parametrize("operand", [0, 1, 2])
def test_an_allocation_that_is_too_short(operand, monkeypatch):
    monkeypatch.setattr(ptx.emulator, "launch", functools.partial(launch, short=operand))
    with pytest.raises(OutOfBoundsError, match="which has"):
        product().run()


@pytest.mark.usefixtures("in_place")
def test_results_that_are_not_written_completely():
    problem = product()
    text = problem.text
    assert "st.global" in text
    start = text.index("st.global")
    start = text.rindex("\n", 0, start)
    cut = text[:start] + text[text.index(";", start) + 1 :]
    with pytest.raises(UnwrittenError, match="bytes of the allocation"):
        problem.run(cut)
