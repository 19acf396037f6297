"""The text that the builder writes, and what its memory and warp operations do."""

import ml_dtypes
import numpy as np
import pytest

import ptx
from ptx import Kernel, bf16, bf16x2, f16, f16x2, f32, f64, s32, s64, u8, u16, u32, u64
from ptx.emulator import Buffer, launch

SCALE = """\
.version 7.0
.target sm_80
.address_size 64

.visible .entry scale(
    .param .u64 x,
    .param .f32 alpha,
    .param .u32 n
)
.maxntid 128
.minnctapersm 2
{
    .reg .u32  %r<1>;
    .reg .pred %p<3>;
    .reg .u64  %rd<1>;
    .reg .f32  %f<2>;
    .reg .u64  %x;
    .reg .f32  %alpha, %value;
    .reg .u32  %n, %ctaid_x, %tid_x, %i, %power;

    ld.param.u64           %x, [x];
    cvta.to.global.u64     %x, %x;
    ld.param.f32           %alpha, [alpha];
    ld.param.u32           %n, [n];
    mov.u32                %ctaid_x, %ctaid.x;
    mov.u32                %tid_x, %tid.x;

    mul.lo.u32             %r0, %ctaid_x, 128;
    add.u32                %i, %r0, %tid_x;
    setp.lt.u32            %p0, %i, %n;
    @!%p0 bra              $if_1_else;
        // alpha to the third power
        mad.wide.u32           %rd0, %i, 4, %x;
        ld.global.f32          %f0, [%rd0];
        mov.f32                %value, %f0;
        mov.u32                %power, 0;
    $loop_power_1:
            mul.rn.f32             %value, %value, %alpha;
            add.u32                %power, %power, 1;
            setp.lt.u32            %p1, %power, 3;
            @%p1 bra               $loop_power_1;
        st.global.f32          [%rd0], %value;
        bra                    $if_1_end;
$if_1_else:
        setp.eq.u32            %p2, %i, 0;
        mov.f32                %f1, 0f3F800000;
        @%p2 ld.global.f32     %f1, [%x+-4];
$if_1_end:
    ret;
}
"""


def test_text():
    k = Kernel("scale", "sm_80", block=128, min_blocks=2)
    x, alpha, n = k.pointer("x", f32), k.param("alpha", f32), k.param("n", u32)
    i = k.ctaid() * 128 + k.tid()
    k.name(i=i)
    with k.if_(i < n):
        k.comment("alpha to the third power")
        place = x + i
        value = k.var(f32, place.load(), "value")
        with k.loop(3, name="power"):
            value *= alpha
        place.store(0, value)
    with k.else_:
        x.load(-1, where=i.eq(0), otherwise=1.0)
    assert k.text() == SCALE
    assert k.text() == SCALE  # printing changes nothing
    ptx.assemble(SCALE, "sm_80")


def test_names_are_unique_and_never_reserved():
    k = Kernel("names", "sm_80")
    first, second = k.tid() + 1, k.tid() + 2
    k.name(row=first)
    k.name(row=second)
    tid, numbered = first + second, first * second
    k.name(tid=tid, r0=numbered)
    k.pointer("out", u32).store(0, tid ^ numbered)
    text = k.text()
    assert ".reg .u32  %tid_x, %row, %row_2, %tid_, %r0_;" in text
    ptx.assemble(text, "sm_80")


def test_labels_are_unique():
    k = Kernel("labels", "sm_80")
    for _ in range(2):
        with k.loop(2, name="tap"), k.if_(k.tid() < 4):
            pass
    labels = [line.strip() for line in k.text().splitlines() if line.strip().startswith("$")]
    assert labels == ["$loop_tap_1:", "$if_1_end:", "$loop_tap_2:", "$if_2_end:"]
    ptx.assemble(k.text(), "sm_80")


@pytest.mark.parametrize(
    ("target", "hint", "version"),
    [("sm_75", None, "6.3"), ("sm_75", "cg", "6.3"), ("sm_75", "L1::no_allocate", "7.4"),
     ("sm_80", "L2::256B", "7.4"), ("sm_90", "L2::128B", "7.8"), ("sm_120", None, "8.7")],
)  # fmt: skip
def test_version_is_the_lowest_that_is_needed(target, hint, version):
    k = Kernel("versions", target)
    out = k.pointer("out", f32)
    out.store(0, k.pointer("x", f32, readonly=True).load(0, hint=hint))
    assert k.text().startswith(f".version {version}\n.target {target}\n")
    ptx.assemble(k.text(), target)


def test_every_operation_assembles():
    """Instructions that no other test uses, on a target that has all of them."""
    k = Kernel("all_operations", "sm_90", block=(32, 2, 2))
    x, out = k.pointer("x", f32, readonly=True), k.pointer("out", f32)
    words, longs = k.pointer("words", u32), k.pointer("longs", u64)
    halves, pairs, doubles = (k.pointer(n, t) for n, t in (("h", f16), ("p", bf16x2), ("d", f64)))
    tile = k.shared("tile", f32, 256)
    lane = k.laneid()
    for axis in "xyz":
        k.name(**{f"thread_{axis}": k.tid(axis) + k.ntid(axis) + k.ctaid(axis) + k.nctaid(axis)})
    for hint in ("ca", "cg", "cs", "L1::evict_last", "L2::128B"):
        out.store(lane, x.load(lane, hint=hint))
    for hint in ("wb", "cg", "cs", "wt", "L1::evict_first"):
        out.store(lane, 1.0, hint=hint)
    for pointer, value in ((out, 1.0), (words, 1), (longs, 1), (doubles, 1.0)):
        pointer.red(lane, value)
    one, two = k.pack(x.load(0), x.load(1), f16x2), k.pack(x.load(0), x.load(1), bf16x2)
    halves.red(lane, k.unpack(one)[0])
    halves.view(f16x2).red(lane, one)
    pairs.red(lane, two, where=lane < 4)
    pairs.view(bf16).red(lane, k.unpack(two)[1])
    out.red(lane, [1.0, 2.0])
    longs.view(s64).red(lane, -1)
    tile.red(lane, 1.0)
    k.fence()
    k.fence("cta")
    k.barrier(1)
    out.store(2, k.select(k.isnan(x.load(2)) | k.any(lane < 3) | k.all(lane < 4), 1.0, 0.0, f32))
    words.store(2, k.bitcast(k.ballot(lane < 7), u32))
    k.cp_async(tile, x, 16, hint="L2::128B")
    k.cp_async(tile + 4, x + 4, 8, where=lane < 4)
    k.cp_async_commit()
    k.cp_async_wait()
    out.store(3, tile.load(lane * 4, 4)[3])
    text = k.text()
    (assembled,) = ptx.assemble(text, "sm_90").values()
    assert assembled.spill_stores == 0
    assert text.startswith(".version 8.1\n.target sm_90\n")
    assert ".maxntid 32, 2, 2\n" in text
    assert ".shared .align 16 .b8 tile[1024];" in text


# ---- memory


def run(k: Kernel, out: np.ndarray, *inputs: np.ndarray | int | float, block: int = 32, **kw):
    """Assembles and emulates one block; the parameter `out` is last."""
    ptx.assemble(k.text(), k.target)
    result = kw.pop("result", None) or Buffer(out, initialized=False)
    arguments = [Buffer(x, writable=False) if isinstance(x, np.ndarray) else x for x in inputs]
    launch(k.text(), grid=1, block=block, arguments=[*arguments, result], **kw)
    return result.array


@pytest.mark.parametrize("index_type", [u32, s32, u64, s64], ids=str)
def test_indices_of_each_type(index_type):
    k = Kernel("gather", "sm_75", block=32)
    x, index = k.pointer("x", f32, readonly=True), k.pointer("index", index_type, readonly=True)
    out = k.pointer("out", f32)
    # A negative index counts back from a pointer into the middle.
    back = 0 if index_type.kind == "unsigned" else 16
    out.store(k.tid(), (x + back).load(index.load(k.tid())))
    values = np.arange(32, dtype=np.float32)
    order = np.random.default_rng(0).permutation(32).astype(np.int64)
    indices = (order - back).astype({"u": np.uint64, "s": np.int64}[index_type.name[0]])
    indices = indices.astype(f"{'u' if index_type.name[0] == 'u' else ''}int{index_type.bits}")
    result = run(k, np.empty(32, np.float32), values, indices)
    np.testing.assert_array_equal(result, values[order])


def test_addresses_are_64_bits_wide():
    """There and back over 4 GiB, by indices of 32 and 64 bits and by a constant."""
    k = Kernel("far", "sm_75", block=32)
    x, far, back = k.pointer("x", f32, readonly=True), k.param("far", u32), k.param("back", s64)
    out = k.pointer("out", f32)
    there = x + far
    out.store(k.tid(), (there + back).load() * 10.0 + (there - 2**30).load(5))
    values = np.arange(8, dtype=np.float32)
    result = run(k, np.empty(32, np.float32), values, 2**30, 3 - 2**30)
    np.testing.assert_array_equal(result, 35.0)


@pytest.mark.parametrize(
    ("dtype", "count"),
    [(f32, 1), (f32, 2), (f32, 4), (f64, 2), (u16, 4), (u64, 2), (u8, 4), (f16, 2), (f16, 4),
     (bf16, 4)],
)  # fmt: skip
def test_vectors(dtype, count):
    """Reversed in blocks of `count`, lanes above 20 switched off in the load."""
    k = Kernel("vectors", "sm_75", block=32)
    x, out = k.pointer("x", dtype, readonly=True), k.pointer("out", dtype)
    i = k.tid() * count
    out.store(i, x.load(i, count, where=k.tid() < 20, otherwise=3)[::-1])
    numpy = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
    numpy |= {"u8": np.uint8, "u16": np.uint16, "u64": np.uint64}
    values = np.arange(20 * count).astype(numpy[dtype.name])
    result = run(k, np.empty(32 * count, values.dtype), values)
    expected = np.full((32, count), 3).astype(values.dtype)
    expected[:20] = values.reshape(20, count)[:, ::-1]
    np.testing.assert_array_equal(
        result.astype(np.float64), expected.reshape(-1).astype(np.float64)
    )


def test_predicated_stores():
    k = Kernel("masked", "sm_75", block=32)
    out = k.pointer("out", u32)
    out.store(k.tid(), k.tid() * 2, where=k.tid() < 9)
    result = run(k, np.empty(0), result=Buffer(np.full(9, 7, np.uint32)))
    np.testing.assert_array_equal(result, np.arange(9) * 2)


def test_pointers_that_advance():
    k = Kernel("walk", "sm_75", block=32)
    x, step, out = k.pointer("x", u32, readonly=True), k.param("step", u32), k.pointer("out", u32)
    walker = (x + k.tid()).variable("walker")
    total = k.var(u32, 0)
    with k.loop(3):
        total += walker.load()
        walker.advance(step)
    walker.advance(-5)
    total += walker.load() * 1000
    (out + 1).add_bytes(-4).store(k.tid(), total)
    values = np.random.default_rng(0).integers(0, 100, 64, np.uint32)
    result = run(k, np.empty(32, np.uint32), values, 7)
    i = np.arange(32)
    expected = values[i] + values[i + 7] + values[i + 14] + values[i + 16] * 1000
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_shared_memory(dynamic):
    """Two arrays: one is written forwards, the other, as halves, backwards."""
    k = Kernel("shared", "sm_75", block=64)
    if dynamic:
        words, halves = k.dynamic_shared(u32, 63), k.dynamic_shared(u16, 64)
    else:
        words, halves = k.shared("words", u32, 63), k.shared("halves", u16, 64)
    out = k.pointer("out", u32)
    i = k.tid()
    words.store(i, i * 3, where=i < 63)
    halves.store(63 - i, k.convert(i, u16))
    k.barrier()
    word = words.load(62 - i, where=i < 63, otherwise=1)
    half = k.convert(halves.load(i), u32)
    out.store(i, word + half * 1000)
    assert k.dynamic_shared_bytes == (256 + 128 if dynamic else 0)
    assert (".extern .shared" in k.text()) == dynamic
    kw = {"block": 64, "dynamic_shared": k.dynamic_shared_bytes}
    result = run(k, np.empty(64, np.uint32), **kw)
    i = np.arange(64)
    np.testing.assert_array_equal(result, np.where(i < 63, (62 - i) * 3, 1) + (63 - i) * 1000)


def test_cp_async_fills_with_zeros():
    k = Kernel("copies", "sm_80", block=32)
    x, out = k.pointer("x", u32, readonly=True), k.pointer("out", u32)
    tile = k.shared("tile", u32, 12 * 32)
    i = k.tid()
    k.cp_async(tile + i * 12, x + i * 4, 16, where=i < 5)
    k.cp_async(tile + (i * 12 + 4), x + i * 2, 8, where=i >= 3)
    k.cp_async(tile + (i * 12 + 8), x + i, 4)
    k.cp_async_commit()
    k.cp_async_wait()
    for word in (0, 1, 2, 3, 4, 5, 8):
        out.store(i * 7 + (word if word < 6 else 6), tile.load(i * 12 + word))
    values = np.random.default_rng(0).integers(1, 2**32, 128, np.uint32)
    result = run(k, np.empty((32, 7), np.uint32), values)
    expected = np.zeros((32, 7), np.uint32)
    expected[:5, :4] = values[:20].reshape(5, 4)
    expected[3:, 4:6] = values[6:64].reshape(29, 2)
    expected[:, 6] = values[:32]
    np.testing.assert_array_equal(result, expected)


def test_atomics():
    k = Kernel("atomics", "sm_75", block=64)
    index, counts = k.pointer("index", u32, readonly=True), k.pointer("counts", u32)
    bucket = index.load(k.tid())
    counts.red(bucket, 1)
    counts.red(3, bucket + 5)
    counts.red(4, 1, where=k.tid() < 9)
    buckets = np.random.default_rng(0).integers(0, 3, 64).astype(np.uint32)
    buffer = Buffer(np.array([0, 0, 0, 100, 0], np.uint32))
    result = run(k, np.empty(0), buckets, block=64, result=buffer)
    expected = [*np.bincount(buckets), 100 + (buckets + 5).sum(), 9]
    np.testing.assert_array_equal(result, expected)


# ---- warps


@pytest.mark.parametrize("dtype", [u32, f64], ids=str)
@pytest.mark.parametrize(("mode", "width"), [(m, w) for m in ("idx", "up", "down", "bfly")
                                             for w in (32, 8)])  # fmt: skip
def test_shuffles(dtype, mode, width):
    k = Kernel("shuffle", "sm_75", block=32)
    x, out = k.pointer("x", dtype, readonly=True), k.pointer("out", dtype)
    out.store(k.tid(), k.shuffle(mode, x.load(k.tid()), 3, width=width))
    values = np.arange(100, 132).astype(np.float64 if dtype is f64 else np.uint32)
    lane = np.arange(32)
    start = lane // width * width
    source = {"idx": start + 3, "up": lane - 3, "down": lane + 3, "bfly": lane ^ 3}[mode]
    source = np.where((source >= start) & (source < start + width), source, lane)
    np.testing.assert_array_equal(run(k, np.empty_like(values), values), values[source])


def test_votes():
    k = Kernel("votes", "sm_75", block=32)
    x, out = k.pointer("x", u32, readonly=True), k.pointer("out", u32)
    odd = (x.load(k.tid()) & 1).ne(0)
    ballot = k.bitcast(k.ballot(odd), u32)
    some, each = k.any(odd), k.all(odd | (k.tid() < 32))
    result = k.select(some, ballot, 0) + k.select(each, 1, 0, u32)
    out.store(k.tid(), result)
    values = np.random.default_rng(0).integers(0, 2**32, 32, np.uint32)
    bits = sum(int(v & 1) << i for i, v in enumerate(values))
    np.testing.assert_array_equal(run(k, np.empty(32, np.uint32), values), bits + 1)
