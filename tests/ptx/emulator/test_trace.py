"""The trace of each warp: branches, accesses, and their times."""

import numpy as np

from ptx import Kernel, f32, u32
from ptx.emulator import Buffer, launch
from ptx.emulator.trace import ALL, NONE, SOME, Trace


def traced(k: Kernel, *buffers: Buffer, grid: int = 1, **options) -> tuple[Trace, list[str]]:
    text = k.text()
    trace = launch(text, grid, 64, list(buffers), report=Trace, **options)
    assert isinstance(trace, Trace)
    return trace, ["", *text.splitlines()]


def line_of(lines: list[str], part: str) -> int:
    (found,) = [number for number, line in enumerate(lines) if part in line]
    return found


def test_branches_and_loops():
    k = Kernel("branches", "sm_80", block=64)
    out = k.pointer("out", u32)
    total = k.var(u32, 0)
    with k.loop(k.tid() >> 5, 3, name="i"):  # three rounds of warp 0, two of warp 1
        total += 1
    with k.if_(k.tid() < 40):  # all of warp 0, some of warp 1
        total += 10
    out.store(k.tid(), total)
    result = Buffer(np.zeros(64, np.uint32))
    trace, lines = traced(k, result)
    assert result.array[[0, 33, 63]].tolist() == [13, 12, 2]
    again = next(n for n, s in enumerate(lines) if "bra" in s and s.endswith("$loop_i_1;"))
    beyond = next(n for n, s in enumerate(lines) if "bra" in s and s.endswith("$if_1_end;"))
    first, second = trace.warps[0, 0], trace.warps[0, 1]
    assert (first.branches[again], second.branches[again]) == ([ALL, ALL, NONE], [ALL, NONE])
    assert (first.branches[beyond], second.branches[beyond]) == ([NONE], [SOME])


def test_accesses():
    k = Kernel("accesses", "sm_80", block=64)
    x, out = k.pointer("x", f32, readonly=True), k.pointer("out", f32)
    shared = k.shared("shared", f32, 64 * 4)
    with k.loop(0, 2, name="i", unroll=False) as i:
        value = x.load(k.tid() * 8, where=(k.tid() >> 5).eq(i))  # each warp in a round of its own
        k.barrier()
        shared.store(k.tid() * 4, value)
    k.barrier()
    out.store(k.tid(), shared.load(k.tid() * 4))
    trace, lines = traced(k, Buffer(np.ones(512, np.float32), writable=False), Buffer(
        np.zeros(64, np.float32)
    ), check_races=False)  # fmt: skip
    loaded, stored = line_of(lines, "ld.global"), line_of(lines, "st.global")
    kept = line_of(lines, "st.shared")
    for warp in (0, 1):
        done = trace.warps[0, warp].accesses
        ((when, load),) = done[loaded]
        assert when == warp  # of the two rounds, the one in which the predicate was on
        assert (len(load.sectors), load.lanes, load.width, load.passes) == (32, 32, 4, 8)
        assert np.diff(load.sectors).tolist() == [1] * 31
        assert [when for when, _ in done[kept]] == [0, 1]
        assert {a.passes for _, a in done[kept]} == {4}  # every fourth bank
        ((_, store),) = done[stored]
        assert (len(store.sectors), store.passes, store.buffer) == (4, 1, load.buffer + 1)


def test_a_copy_is_one_access():
    k = Kernel("copies", "sm_80", block=64)
    x, out = k.pointer("x", f32, readonly=True), k.pointer("out", f32)
    shared = k.shared("shared", f32, 64 * 8)
    k.cp_async(shared + k.tid() * 8, x + k.tid() * 4, 16)
    k.cp_async_commit()
    k.cp_async_wait(0)
    k.barrier()
    out.store(k.tid(), shared.load(k.tid() * 8))
    trace, lines = traced(
        k, Buffer(np.ones(256, np.float32), writable=False), Buffer(np.zeros(64, np.float32))
    )
    ((_, copy),) = trace.warps[0, 1].accesses[line_of(lines, "cp.async.cg")]
    assert (len(copy.sectors), copy.passes, copy.width) == (16, 8, 16)


def test_chosen_blocks_keep_their_numbers():
    k = Kernel("blocks", "sm_80", block=64)
    out = k.pointer("out", u32)
    out.store(k.ctaid() * 64 + k.tid(), k.tid())
    trace, _ = traced(k, Buffer(np.zeros(640, np.uint32)), grid=10, blocks=[3, 7])
    assert sorted(trace.warps) == [(3, 0), (3, 1), (7, 0), (7, 1)]
