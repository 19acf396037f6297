"""Small kernels on the simulated SM: what makes them slower, and what the simulator refuses."""

import numpy as np
import pytest

from ptx import Kernel, f32, u32
from ptx.emulator import Buffer, launch
from ptx.emulator.trace import ALL, NONE, Accessed, Trace
from ptx.isa.sass import Instruction, parse
from ptx.replay import MACHINES, Memory, Replayed, compile_code, replay
from ptx.replay.code import Kind, Pipe
from ptx.replay.warps import Block, TraceError

pytestmark = pytest.mark.slow

H200 = MACHINES["H200"]


def kernel(loads: int = 8, stride: int = 1, *, barriers: int = 0, chain: bool = False) -> Kernel:
    """Each thread adds up some elements of x, which lie apart."""
    k = Kernel("small", H200.target, block=64)
    x, out = k.pointer("x", f32, readonly=True), k.pointer("out", f32)
    total, at = k.var(f32, 0.0), k.var(u32, k.ctaid() * 64 + k.tid())
    for number in range(loads):
        value = x.load(at * stride + number)
        total += value
        if chain:  # the next address needs this value, which is 0
            at += k.convert(value, u32, "rz")
    for _ in range(barriers):
        k.barrier()
    out.store(k.ctaid() * 64 + k.tid(), total)
    return k


def run(
    k: Kernel, *, blocks: int = 1, resident: int = 1, l1_bytes: int = 64 << 10, cold: float = 0.0
) -> Replayed:
    text = k.text()
    buffers = [Buffer(np.zeros(1 << 18, np.float32), writable=False), Buffer(np.zeros(4096, "f4"))]
    trace = launch(text, blocks, 64, buffers, report=Trace)
    assert isinstance(trace, Trace)
    traces = [[trace.warps[block, warp] for warp in (0, 1)] for block in range(blocks)]
    memory = Memory(H200, 1, l1_bytes, cold={0: cold, 1: cold})
    return replay(compile_code(text, H200.target), memory, traces, resident=resident)


def test_loads_that_wait_for_each_other_take_longer():
    together, chain = run(kernel()), run(kernel(chain=True))
    assert chain.cycles > together.cycles + 7 * H200.l1_latency.words


def test_memory_is_slower_than_l2_and_l2_slower_than_l1():
    stride = 8  # a sector for each element, of which the loads after the first are in L1
    first, more = (run(kernel(loads, stride)).cycles for loads in (1, 2))
    assert first > H200.l2_latency
    assert more - first < H200.l2_latency / 4
    assert run(kernel(1, stride), cold=1.0).cycles == pytest.approx(
        first + H200.memory_latency - H200.l2_latency, abs=40
    )


def test_what_l1_has_no_room_for_comes_from_l2_again():
    roomy, narrow = (run(kernel(8, 8), l1_bytes=size) for size in (64 << 10, 512))
    assert narrow.busy["L2"] * narrow.cycles > 5 * roomy.busy["L2"] * roomy.cycles


def test_more_lines_take_more_passes():
    one, many = (run(kernel(8, stride)) for stride in (1, 33))
    assert many.busy["L1"] * many.cycles > 6 * one.busy["L1"] * one.cycles


@pytest.mark.parametrize(
    ("width", "lines", "passes"), [(16, 4, 4), (16, 32, 4 + 0.6 * 28), (4, 1, 1), (4, 33, 9)]
)
def test_passes_of_an_access_to_some_lines(width, lines, passes):
    """Lanes of 16 bytes fill four passes, and what lies in more lines takes longer."""
    sectors = tuple(4 * line for line in range(lines))
    accessed = Accessed(sectors, buffer=0, passes=1, lanes=32, width=width)
    memory = Memory(H200, 1, 1 << 16, {})
    memory.load(0.0, Block([], 0), accessed, through_l1=True)
    assert memory.busy["L1"] == pytest.approx(passes * H200.pass_cycles)


def test_additions_of_16_bytes_have_a_rate_of_their_own():
    busy = []
    for width in (4, 16):
        memory = Memory(H200, 132, 1 << 16, {})
        memory.add(0.0, Block([], 0), Accessed((0, 1, 2, 3), 0, 1, 32, width))
        busy.append(memory.busy["atomics"])
    assert busy[0] / busy[1] == pytest.approx(H200.additions.quads / H200.additions.words)


def test_blocks_come_one_after_the_other_or_together():
    alone = run(kernel(), blocks=1)
    after, together = (run(kernel(), blocks=4, resident=n) for n in (1, 4))
    assert len(after.ends) == len(together.ends) == 4
    assert after.cycles > 3.5 * alone.cycles
    assert together.cycles < 1.5 * alone.cycles
    assert after.issued == together.issued == 4 * alone.issued


def test_barriers():
    none, ten = (run(kernel(barriers=n)).cycles for n in (0, 10))
    assert 10 * 20 < ten - none < 10 * 40


def test_it_is_the_same_each_time():
    assert run(kernel(), blocks=3, resident=2) == run(kernel(), blocks=3, resident=2)
    assert isinstance(run(kernel()), Replayed)


def test_instructions_of_the_code():
    steps = compile_code(kernel(barriers=1).text(), H200.target).steps
    kinds = [step.kind for step in steps]
    assert kinds.count(Kind.LOAD) == 8
    assert kinds.count(Kind.STORE) == kinds.count(Kind.BARRIER) == 1
    assert {s.pipe for s in steps if s.opcode == "FADD"} == {Pipe.FMA}
    # The store needs what comes last: it waits for a counter that a load has freed.
    (last,) = [s for s in steps if s.opcode == "FADD" and s.wait][-1:]
    assert set(last.wait) & {s.write_barrier for s in steps if s.kind is Kind.LOAD}


def looped(rounds: int) -> Kernel:
    """Each thread adds up some elements of x, in a loop that the machine code keeps."""
    k = Kernel("looped", H200.target, block=64)
    x, out = k.pointer("x", f32, readonly=True), k.pointer("out", f32)
    total = k.var(f32, 0.0)
    with k.loop(0, k.ctaid() + rounds, name="i", unroll=False) as i:
        total += x.load(k.tid() + i * 64)
    out.store(k.tid(), total)
    return k


def test_a_trace_of_another_text():
    """The machine code of three rounds does not do what a warp did in four, or in two."""
    buffers = [Buffer(np.zeros(4096, np.float32), writable=False), Buffer(np.zeros(64, "f4"))]
    trace = launch(looped(3).text(), 1, 64, buffers, report=Trace)
    assert isinstance(trace, Trace)
    blocks = [[trace.warps[0, 0], trace.warps[0, 1]]]
    code = compile_code(looped(3).text(), H200.target)
    assert replay(code, Memory(H200, 1, 1 << 16, {}), blocks, resident=1).cycles > 0
    (first,) = [b for b in trace.warps[0, 0].branches.values() if b == [ALL, ALL, NONE]]
    for changed, message in (
        ([ALL, NONE, NONE], "has branched 2 times, and 3 times in the emulator"),
        ([ALL, ALL, ALL], "is a branch once more than in the emulator"),
        ([ALL, NONE], "has accessed memory 2 times, and 3 times in the emulator"),
    ):
        first[:] = changed
        with pytest.raises(TraceError, match=f"line \\d+ {message}"):
            replay(code, Memory(H200, 1, 1 << 16, {}), blocks, resident=1)


def test_machines_have_sheets_of_their_own():
    assert [m.sheet.name for m in MACHINES.values()] == list(MACHINES)
    for machine in MACHINES.values():
        assert machine.memory < machine.sheet.bandwidth * 1e12 < machine.l2


def test_control_codes():
    """The figures that ptxas gives each instruction, of two that nvdisasm has printed."""
    printed = (
        '\t//## File ".nv_debug_ptx_txt", line 7\n'
        "        /*0010*/                   LDC R17, c[0x0][0x244] ;"
        "                                     /* 0x00009100ff117b82 */\n"
        "                                                     /* 0x000e620000000800 */\n"
        "        /*0020*/                   IMAD R0, R17, UR4, RZ ;"
        "                                      /* 0x0000000411007c24 */\n"
        "                                                     /* 0x002fce000f8e02ff */\n"
    )
    first, second = parse(printed).instructions
    assert first == Instruction("LDC R17, c[0x0][0x244]", 7, None, 1, 1, None, ())
    assert second == Instruction("IMAD R0, R17, UR4, RZ", 7, None, 7, None, None, (1,))
