"""Kernels launched with raw parameters, on memory that is used where it lies."""

import struct
import sys
import threading

import numpy as np
import pytest
from support.hand_written import kernel

from ptx.emulator import (
    Allocation,
    LoadedModule,
    OutOfBoundsError,
    RaceError,
    ReadOnlyError,
    UninitializedError,
    UnwrittenError,
)

COPY = kernel("ld.global.u32 %r0, [%atx];\n st.global.u32 [%aty], %r0;")
# Each thread follows a pointer of its own, which it finds in memory.
FOLLOW = kernel(
    """
    mad.wide.u32 %d0, %i, 8, %x;
    ld.global.u64 %d1, [%d0];
    ld.u32 %r0, [%d1];
    st.global.u32 [%aty], %r0;
    """
)


def memory(*values: int, size: int = 0) -> np.ndarray:
    """uint32 in memory of its own, at an address that is a multiple of 256."""
    count = max(len(values), size)
    room = np.zeros(4 * count + 256, np.uint8)
    start = -room.ctypes.data % 256
    array = room[start : start + 4 * count].view(np.uint32)
    array[: len(values)] = values
    return array


def allocation(array: np.ndarray, first: int = 0, stop: int | None = None, **kw) -> Allocation:
    part = array[first:stop]
    return Allocation(part.ctypes.data, part.view(np.uint8), **kw)


def pointer(array: np.ndarray, offset: int = 0) -> bytes:
    return struct.pack("<Q", array.ctypes.data + offset)


def numbers(count: int = 32) -> np.ndarray:
    return memory(*range(100, 100 + count))


def launch(module: LoadedModule | str, parameters, allocations: list[Allocation], **kw) -> None:
    """Runs one block of 32 threads."""
    module = LoadedModule(module) if isinstance(module, str) else module
    module.launch("test", 1, 32, parameters, allocations, **kw)


LENIENT = pytest.mark.parametrize("lenient", [False, True])


@LENIENT
def test_memory_is_used_in_place(lenient):
    x, y = numbers(), memory(size=34)
    y[:] = 7
    launch(
        COPY,
        [pointer(x), pointer(y, 4)],
        [allocation(x, writable=False), allocation(y)],
        lenient=lenient,
    )
    np.testing.assert_array_equal(y, [7, *range(100, 132), 7])


@LENIENT
def test_a_device_address_may_differ_from_the_hosts(lenient):
    x, y = numbers(), memory(size=32)
    allocations = [
        Allocation(0x7000_0000, x.view(np.uint8)),
        Allocation(0x1_7000_0000, y.view(np.uint8)),
    ]
    parameters = [struct.pack("<Q", a.address) for a in allocations]
    launch(COPY, parameters, allocations, lenient=lenient)
    np.testing.assert_array_equal(y, x)


@LENIENT
@pytest.mark.parametrize(("operand", "offset"), [(0, 4), (0, -4), (1, 4), (1, -4)])
def test_beyond_an_allocation(operand, offset, lenient):
    """What lies beside it is memory of this process, but of no allocation."""
    arrays = [numbers(64), memory(size=64)]
    allocations = [allocation(array, 16, 48) for array in arrays]
    parameters = [pointer(array, 64 + offset * (i == operand)) for i, array in enumerate(arrays)]
    with pytest.raises(OutOfBoundsError) as info:
        launch(COPY, parameters, allocations, lenient=lenient)
    position = 128 if offset > 0 else -4
    base = allocations[operand].address
    expected = f"byte {position} of the allocation at {base:#x}, which has 128"
    if offset < 0 and not lenient:  # the parameter points to no allocation at all
        expected = f"address {base - 4:#x}, which is in no buffer"
    elif lenient:
        expected += f": address {base + position:#x}"
    assert expected in str(info.value)
    assert info.value.thread == (31 if offset > 0 else 0, 0, 0)
    np.testing.assert_array_equal(arrays[1][48:], 0)


def test_an_index_that_reaches_another_allocation():
    """Allocations side by side: ours is strict, a compiler's kernel may reach all of them."""
    both = numbers(64)
    x, y = both[:32], both[32:]
    text = kernel("ld.global.u32 %r0, [%atx+128];\n st.global.u32 [%aty], %r0;")
    parameters, allocations = [pointer(x), pointer(y)], [allocation(x), allocation(y)]
    with pytest.raises(OutOfBoundsError, match="byte 128 of the allocation"):
        launch(text, parameters, allocations)
    launch(text, parameters, allocations, lenient=True)


def test_two_parameters_in_one_allocation():
    both = numbers(64)
    launch(COPY, [pointer(both), pointer(both, 128)], [allocation(both)])
    np.testing.assert_array_equal(both[32:], both[:32])


def test_pointers_found_in_memory():
    x, y, z = numbers(), memory(size=32), memory(size=32)
    pointers = np.array([a.ctypes.data + 4 * i for i in range(16) for a in (x, y)], np.uint64)
    table = memory(size=64)
    table.view(np.uint64)[:] = pointers
    y[:] = 7
    allocations = [allocation(a) for a in (x, y, z, table)]
    parameters = [pointer(table), pointer(z)]
    module = LoadedModule(FOLLOW)
    launch(module, parameters, allocations, lenient=True)
    np.testing.assert_array_equal(z, np.stack([x[:16], y[:16]], axis=1).reshape(-1))
    with pytest.raises(OutOfBoundsError, match="which is in no buffer"):
        launch(module, parameters, allocations)
    with pytest.raises(OutOfBoundsError, match=f"address {x.ctypes.data:#x}"):
        launch(module, parameters, allocations[1:], lenient=True)


@LENIENT
def test_memory_that_is_barred(lenient):
    x, y = numbers(), memory(size=32)
    allocations = [allocation(x, barred="freed"), allocation(y)]
    with pytest.raises(OutOfBoundsError) as info:
        launch(COPY, [pointer(x, 8), pointer(y)], allocations, lenient=lenient)
    assert f"byte 8 of the allocation at {x.ctypes.data:#x}, which has 128" in str(info.value)
    assert f"address {x.ctypes.data + 8:#x}: it is freed" in str(info.value)
    barred = allocation(x, barred="freed", initialized=False)  # is nobody's to write
    text = kernel("st.global.u32 [%aty], %t;", "y")
    launch(text, [pointer(y)], [barred, allocation(y)], lenient=lenient)


@LENIENT
def test_flags_of_allocations(lenient):
    x, y = numbers(), memory(size=33)
    module, parameters = LoadedModule(COPY), [pointer(x), pointer(y)]

    def copy(*allocations: Allocation) -> None:
        launch(module, parameters, list(allocations), lenient=lenient)

    where = f"byte 0 of the allocation at {y.ctypes.data:#x}, which has 132.*: it is read-only"
    with pytest.raises(ReadOnlyError, match=f"4-byte write at {where}"):
        copy(allocation(x), allocation(y, writable=False))
    where = f"byte 0 of the allocation at {x.ctypes.data:#x}, which has 128.*: nothing has written"
    with pytest.raises(UninitializedError, match=f"4-byte read at {where}"):
        copy(allocation(x, initialized=False), allocation(y))
    with pytest.raises(UnwrittenError, match=r"4 of 132 bytes of weights .*, the first .* 128"):
        copy(allocation(x), allocation(y, initialized=False, name="weights"))
    copy(allocation(x), allocation(y, stop=32, initialized=False))


def test_an_allocation_at_an_odd_address():
    """What is remembered of bytes is remembered of the right ones, at any alignment."""
    x, y = numbers(64), memory(size=65)
    for shift in (0, 1, 2, 3):
        launch(
            COPY,
            [pointer(x, 4 * shift), pointer(y, 4 * shift)],
            [
                allocation(x, shift, writable=False),
                allocation(y, shift, shift + 32, initialized=False),
            ],
        )
        np.testing.assert_array_equal(y[shift : shift + 32], x[shift : shift + 32])


def test_races_are_found():
    y = memory(size=1)
    text = kernel("st.global.u32 [%y], %t;", "y")
    launch(text, [pointer(y)], [allocation(y)], lenient=True)
    with pytest.raises(RaceError):
        launch(text, [pointer(y)], [allocation(y)])


def test_arguments_that_are_wrong():
    x, y = numbers(), memory(size=32)
    module = LoadedModule(COPY)
    good = [allocation(x), allocation(y)]
    with pytest.raises(TypeError, match=r"parameters of \[8, 8\] bytes, and gets \[8\]"):
        launch(module, [pointer(x)], good)
    with pytest.raises(TypeError, match=r"gets \[8, 4\]"):
        launch(module, [pointer(x), bytes(4)], good)
    with pytest.raises(ValueError, match="overlap"):
        launch(module, [pointer(x)] * 2, [*good, allocation(x, 31)], lenient=True)
    with pytest.raises(ValueError, match="another alignment"):
        launch(module, [bytes(8)] * 2, [Allocation(4, x.view(np.uint8))], lenient=True)
    with pytest.raises(TypeError, match="contiguous uint8"):
        Allocation(0, x)
    with pytest.raises(ValueError, match="neither writable nor initialized"):
        allocation(x, writable=False, initialized=False)
    with pytest.raises(KeyError):
        module.launch("other", 1, 32, [], [])
    with pytest.raises(ValueError, match="at most 1024"):
        module.launch("test", 1, 2048, [pointer(x), pointer(y)], good)


PARAMETERS = """
.version 8.1
.target sm_90
.address_size 64
.visible .entry first(.param .align 8 .b8 p[16], .param .u8 q, .param .f64 r) .maxntid 64
{
  .shared .align 16 .b8 s[48];
  .reg .b32 %r<4>;
  .reg .b64 %d<4>;
  ld.param.u64 %d0, [p+8];
  ld.param.v2.u32 {%r0, %r1}, [p];
  ld.param.u8 %r2, [q];
  st.global.v2.u32 [%d0], {%r0, %r1};
  st.global.u32 [%d0+8], %r2;
  ld.param.u64 %d1, [r];
  st.global.u64 [%d0+16], %d1;
  ret;
}
.visible .entry second() { ret; }
"""


def test_parameters_of_several_values():
    module, y = LoadedModule(PARAMETERS), memory(size=8)
    assert module.kernels == ("first", "second")
    facts = module.facts("first")
    assert (facts.parameter_sizes, facts.static_shared, facts.max_threads) == ((16, 1, 8), 48, 64)
    assert module.facts("second").max_threads == 1024
    # The last parameter is a number that looks like an address, and stays what it is.
    (number,) = struct.unpack("<d", pointer(y))
    parameters = [struct.pack("<IIQ", 5, 6, y.ctypes.data), bytes([7]), struct.pack("<d", number)]
    module.launch("first", 1, 1, parameters, [allocation(y)], lenient=True)
    assert y[:3].tolist() == [5, 6, 7]
    assert y.view(np.uint64)[2] == y.ctypes.data


VARIABLES = kernel(
    "red.global.add.u32 [total], 1;\n ld.const.u32 %r0, [step];\n st.global.u32 [%aty], %r0;", "y"
).replace(".visible .entry", ".global .u32 total = 5;\n.const .u32 step[2] = {3, 4};\n.entry")


@LENIENT
def test_variables_live_as_long_as_their_module(lenient):
    module, y = LoadedModule(VARIABLES), memory(size=32)

    def add() -> None:
        launch(module, [pointer(y)], [allocation(y)], lenient=lenient)

    total, step = module.variable("total"), module.variable("step")
    assert (total.data.nbytes, step.data.nbytes) == (4, 8)
    assert total.address == total.data.ctypes.data
    add()
    add()
    assert total.data.view(np.uint32) == 5 + 2 * 32
    step.data.view(np.uint32)[:] = 9
    add()
    np.testing.assert_array_equal(y, 9)
    assert LoadedModule(VARIABLES).variable("total").data.view(np.uint32) == 5
    with pytest.raises(KeyError):
        module.variable("sum")


def test_a_module_of_variables_alone():
    text = ".version 8.1\n.target sm_90\n.address_size 64\n.visible .global .b8 table[3] = {1, 2};"
    module = LoadedModule(text)
    assert (module.kernels, module.variables) == ((), ("table",))
    assert module.variable("table").data.tolist() == [1, 2, 0]


@pytest.fixture
def hasty():
    """Threads that take turns as often as Python lets them."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty")
def test_launches_of_several_threads():
    """Sums of all threads in one place, and copies of each in another."""
    text = kernel(
        "mov.u32 %r1, 0;\nLOOP:\n atom.global.add.u32 %r0, [%x], 1;\n add.u32 %r1, %r1, 1;\n"
        "setp.lt.u32 %p0, %r1, 20;\n @%p0 bra LOOP;\n st.global.u32 [%aty], %r1;"
    )
    module, total, launches = LoadedModule(text), memory(size=1), 12
    results = [memory(size=64) for _ in range(launches)]
    errors = []

    def work(y: np.ndarray) -> None:
        try:
            parameters = [pointer(total), pointer(y)]
            module.launch("test", 2, 32, parameters, [allocation(total), allocation(y)])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(y,)) for y in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert total[0] == launches * 64 * 20
    assert all((y == 20).all() for y in results)
