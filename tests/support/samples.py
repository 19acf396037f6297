"""Sample kernels, written with the builder: each is a function of a configuration and a target."""

import dataclasses

from ptx import DType, Kernel, Target, Val, f32, u32, u64

__all__ = [
    "Reduction",
    "ScaleAndAdd",
    "Scatter",
    "Transpose",
    "reduction",
    "scale_and_add",
    "scatter",
    "transpose",
]


@dataclasses.dataclass(frozen=True)
class ScaleAndAdd:
    """out[i] = alpha * x[i] + y[i], for i < n.

    Attributes:
      dtype: of x, y and out: f32, f16 or bf16. It is computed in f32.
      vector: elements of a thread: 1, 2 or 4. The arrays are aligned to so many elements.
      block: threads of a block; the grid has ceil(n / (block * vector)) blocks.
    """

    dtype: DType = f32
    vector: int = 4
    block: int = 128


def scale_and_add(config: ScaleAndAdd, target: Target | str) -> str:
    """Parameters: x, y, out, alpha (f32), n (u32)."""
    k = Kernel(f"scale_and_add_{config.dtype}", target, block=config.block)
    x, y = (k.pointer(name, config.dtype, readonly=True) for name in ("x", "y"))
    out = k.pointer("out", config.dtype)
    alpha, n = k.param("alpha", f32), k.param("n", u32)

    def result(x: Val, y: Val) -> Val:
        return k.convert(k.fma(k.convert(x, f32), alpha, k.convert(y, f32)), config.dtype, "rn")

    first = (k.ctaid() * config.block + k.tid()) * config.vector
    k.name(first=first)
    with k.if_(first + config.vector <= n):
        k.comment("a whole vector")
        pairs = zip(x.load(first, config.vector), y.load(first, config.vector), strict=True)
        out.store(first, [result(a, b) for a, b in pairs])
    with k.else_:
        k.comment("the end of the arrays, element by element")
        with k.loop(first, n) as i:
            out.store(i, result(x.load(i), y.load(i)))
    return k.text()


@dataclasses.dataclass(frozen=True)
class Reduction:
    """out[b] = the sum of the x[i] that block b reads: every x[i] is read by one block.

    Attributes:
      block: threads of a block, a multiple of 32; any number of blocks.
    """

    block: int = 128


def reduction(config: Reduction, target: Target | str) -> str:
    """Parameters: x (f32), out (f32, one a block), n (u32)."""
    k = Kernel("reduction", target, block=config.block)
    x, out, n = k.pointer("x", f32, readonly=True), k.pointer("out", f32), k.param("n", u32)
    warps = config.block // 32
    partial = k.shared("partial", f32, warps)
    lane, warp = k.laneid(), k.tid() >> 5
    k.name(warp=warp)

    k.comment("each thread sums every grid-sized step of x")
    total = k.var(f32, 0.0, "total")
    with k.loop(k.ctaid() * config.block + k.tid(), n, k.nctaid() * config.block) as i:
        total += x.load(i)

    k.comment("the lanes of a warp exchange halves, quarters, ...")
    for distance in (16, 8, 4, 2, 1):
        total += k.shuffle("bfly", total, distance)
    with k.if_(lane.eq(0)):
        partial.store(warp, total)
    k.barrier()

    k.comment("the first warp does the same with the warps' sums")
    with k.if_(warp.eq(0)):
        sums = k.var(f32, partial.load(lane, where=lane < warps, otherwise=0.0), "sums")
        for distance in (16, 8, 4, 2, 1):
            sums += k.shuffle("down", sums, distance)
        with k.if_(lane.eq(0)):
            out.store(k.ctaid(), sums)
    return k.text()


@dataclasses.dataclass(frozen=True)
class Transpose:
    """out[c, r] = x[r, c].

    Attributes:
      dtype: of x and out.
      tile: side of the square that a block moves.
      rows: threads of a block along y, a divisor of tile; along x it has `tile`.
      pad: elements by which the tile's rows are longer in shared memory. With 1, the threads of
        a warp read a column from 32 different banks; with 0, all from one.
    """

    dtype: DType = f32
    tile: int = 32
    rows: int = 8
    pad: int = 1


def transpose(config: Transpose, target: Target | str) -> str:
    """Parameters: x, out, rows (u32), columns (u32); the grid is the tiles along (c, r)."""
    tile, pitch = config.tile, config.tile + config.pad
    k = Kernel(f"transpose_{config.dtype}", target, block=(tile, config.rows, 1))
    x, out = k.pointer("x", config.dtype, readonly=True), k.pointer("out", config.dtype)
    rows, columns = k.param("rows", u32), k.param("columns", u32)
    square = k.shared("square", config.dtype, tile * pitch)
    tx, ty = k.tid("x"), k.tid("y")
    row0, column0 = k.ctaid("y") * tile, k.ctaid("x") * tile
    k.name(row0=row0, column0=column0)

    def at(row: Val, column: Val, width: Val) -> Val:
        return k.mad_wide(row, width, k.convert(column, u64))

    k.comment("rows of x into rows of the tile")
    for step in range(0, tile, config.rows):
        row, column = row0 + ty + step, column0 + tx
        inside = (row < rows) & (column < columns)
        value = x.load(at(row, column, columns), where=inside)
        square.store((ty + step) * pitch + tx, value)
    k.barrier()

    k.comment("columns of the tile into rows of out")
    for step in range(0, tile, config.rows):
        row, column = column0 + ty + step, row0 + tx
        inside = (row < columns) & (column < rows)
        value = square.load(tx * pitch + ty + step)
        out.store(at(row, column, rows), value, where=inside)
    return k.text()


@dataclasses.dataclass(frozen=True)
class Scatter:
    """out[index[i], c] += value[i, c], for i < n and c < channels.

    Attributes:
      channels: of a row.
      vector: channels of f32 that one atomic instruction adds: 1, or on sm_90 2 or 4, which
        divide `channels`.
      block: threads of a block; the grid has ceil(n * channels / (block * vector)) blocks.
    """

    channels: int
    vector: int = 1
    block: int = 128


def scatter(config: Scatter, target: Target | str) -> str:
    """Parameters: index (u32), value, out, n (u32)."""
    if config.channels % config.vector:
        raise ValueError(f"{config.channels=} is no multiple of {config.vector=}")
    k = Kernel(f"scatter_v{config.vector}", target, block=config.block)
    index = k.pointer("index", u32, readonly=True)
    value, out = k.pointer("value", f32, readonly=True), k.pointer("out", f32)
    n = k.param("n", u32)

    vectors = config.channels // config.vector
    thread = k.ctaid() * config.block + k.tid()
    i, channel = thread // vectors, thread % vectors * config.vector
    k.name(i=i, channel=channel)
    with k.if_(i < n):
        source = value + k.mul_wide(i, config.channels) + channel
        destination = out + k.mul_wide(index.load(i), config.channels) + channel
        destination.red(0, source.load(0, config.vector))
    return k.text()
