"""A tile GEMM on tensor cores: cp.async, ldmatrix, mma.sync, several stages, any shape."""

import dataclasses

from ptx import ATOMS, Atom, DType, Kernel, Pointer, Target, Val, Var, f32, s32, tf32, u32

__all__ = ["Gemm", "gemm"]

_THREADS = 128  # four warps, 2 x 2, each 32 x 32 of the output


@dataclasses.dataclass(frozen=True)
class Gemm:
    """c[m, n] = a[m, k] @ b[k, n], row-major, c in f32; the grid is the tiles along (n, m).

    Attributes:
      m: rows of a. Shapes are arbitrary: cp.async copies 16, 8 or 4 bytes, as the rows' lengths
        allow; rows of an odd number of halves are copied through registers.
      n: columns of b.
      k: columns of a.
      dtype: of a and b: f16, bf16, or f32, which is rounded to tf32.
      stages: tiles in shared memory: while one is multiplied, the next are on their way.
    """

    m: int
    n: int
    k: int
    dtype: DType
    stages: int = 3

    tile_m = 64
    tile_n = 64
    threads = _THREADS

    @property
    def tile_k(self) -> int:
        return 64 // self.dtype.bytes

    @property
    def grid(self) -> tuple[int, int]:
        return -(-self.n // self.tile_n), -(-self.m // self.tile_m)

    @property
    def atom(self) -> Atom:
        return ATOMS["m16n8k8.tf32" if self.dtype is f32 else f"m16n8k16.{self.dtype}"]


def gemm(config: Gemm, target: Target | str) -> str:
    """Parameters: a, b, c."""
    k = Kernel(f"gemm_{config.dtype}_{config.m}x{config.n}x{config.k}", target, block=_THREADS)
    a, b = (k.pointer(name, config.dtype, readonly=True) for name in ("a", "b"))
    c = k.pointer("c", f32)
    m0, n0 = k.ctaid("y", s32) * config.tile_m, k.ctaid("x", s32) * config.tile_n
    k.name(m0=m0, n0=n0)

    copy_a = TileCopy(
        k, "a_tile", a, tile=(config.tile_m, config.tile_k), shape=(config.m, config.k),
        origin=(m0, 0), stages=config.stages, pad=16,
    )  # fmt: skip
    copy_b = TileCopy(
        k, "b_tile", b, tile=(config.tile_k, config.tile_n), shape=(config.k, config.n),
        origin=(0, n0), stages=config.stages, pad=32 if config.dtype is f32 else 16,
    )  # fmt: skip
    left = k.var(s32, config.k, "left")  # elements along K that are not yet on their way
    write_stage, read_stage = k.var(u32, 0, "write_stage"), k.var(u32, 0, "read_stage")

    def copy_next() -> None:
        copy_a.issue(write_stage, left)
        copy_b.issue(write_stage, left)
        k.cp_async_commit()
        left.set(left - config.tile_k)
        advance(k, write_stage, config.stages)

    k.comment("where this lane reads its fragments")
    lane, warp = k.laneid(), k.tid() >> 5
    warp_m, warp_n = (warp & 1) * 32, (warp >> 1) * 32
    k.name(warp_m=warp_m, warp_n=warp_n)
    read_a = copy_a.at(warp_m + (lane & 15), (lane >> 4) * (16 // config.dtype.bytes))
    if config.dtype is f32:
        read_b = copy_b.at(lane & 3, warp_n + (lane >> 2))
    else:
        read_b = copy_b.at(lane & 15, warp_n + (lane >> 4) * 8)
    sums = [[[k.var(f32, 0.0) for _ in range(4)] for _ in range(4)] for _ in range(2)]

    k.comment("fill all stages but one")
    for _ in range(config.stages - 1):
        copy_next()
    with k.loop(-(-config.k // config.tile_k), name="k"):
        k.comment("the oldest stage has arrived, and all are done with the one to be overwritten")
        k.cp_async_wait(config.stages - 2)
        k.barrier()
        copy_next()
        tile_a = read_a.add_bytes(read_stage * copy_a.stage_bytes)
        tile_b = read_b.add_bytes(read_stage * copy_b.stage_bytes)
        for step in range(0, config.tile_k, config.atom.k):
            k.comment(f"multiply k = {step} to {step + config.atom.k - 1} of the tile")
            b_fragments = load_b(k, config.atom, tile_b + step * copy_b.pitch, copy_b.pitch)
            for i in range(2):
                a_fragment = load_a(k, config.atom, tile_a + i * 16 * copy_a.pitch + step)
                for j in range(4):
                    k.mma(config.atom, sums[i][j], a_fragment, b_fragments[j])
        advance(k, read_stage, config.stages)

    k.comment("store the fragments of c")
    row = m0 + k.bitcast(warp_m + (lane >> 2), s32)
    column = n0 + k.bitcast(warp_n + (lane & 3) * 2, s32)
    k.name(row=row, column=column)
    corner = c + k.mul_wide(row, config.n) + column
    pairs = config.n % 2 == 0  # both of a pair are inside, and aligned
    inside = [[column + 8 * j + i < config.n for i in range(2 - pairs)] for j in range(4)]
    for down in range(0, 32, 8):
        row_inside = row + down < config.m
        for j in range(4):
            half = down % 16 // 8 * 2
            pair = sums[down // 16][j][half : half + 2]
            index = down * config.n + 8 * j
            if pairs:
                corner.store(index, pair, where=row_inside & inside[j][0])
                continue
            for i in range(2):
                corner.store(index + i, pair[i], where=row_inside & inside[j][i])
    return k.text()


class TileCopy:
    """Copies tiles of a row-major matrix, one after the other along K, to a ring of stages.

    A thread copies the same place of the tile to each stage, and every `row_step`-th row from
    there. What lies outside the matrix becomes zero.

    Args:
      k: the kernel.
      name: of the array in shared memory.
      matrix: in global memory.
      tile: rows and columns of a tile.
      shape: rows and columns of the matrix.
      origin: row and column where the first tile begins: 0 along K, a register otherwise.
      stages: tiles in shared memory.
      pad: bytes after each row in shared memory, for which the rows that are read together
        start in different banks.
    """

    def __init__(
        self, k: Kernel, name: str, matrix: Pointer, *, tile: tuple[int, int],
        shape: tuple[int, int], origin: tuple[Val | int, Val | int], stages: int, pad: int,
    ):  # fmt: skip
        self.k, self.dtype = k, matrix.dtype
        self.rows, columns = tile
        height, self.width = shape
        self.pitch = columns + pad // self.dtype.bytes
        self.stage_bytes = self.rows * self.pitch * self.dtype.bytes
        self.shared = k.shared(name, self.dtype, stages * self.rows * self.pitch)

        k.comment(f"where this thread copies {name} from and to")
        row_bytes = self.width * self.dtype.bytes
        self.count = next(count for count in (16, 8, 4, 2) if row_bytes % count == 0)
        elements = self.count // self.dtype.bytes
        across = columns // elements
        self.row_step = _THREADS // across
        row, column = k.tid() // across, k.tid() % across * elements
        self.destination = self.at(row, column)
        self.row, self.column = k.bitcast(row, s32), k.bitcast(column, s32)
        first_row, first_column = self.row + origin[0], self.column + origin[1]
        start = matrix + k.mul_wide(first_row, self.width) + first_column
        self.source = start.variable(f"{name}_source")

        self.along_rows = isinstance(origin[0], int)  # K counts rows
        self.step = self.rows * self.width if self.along_rows else columns
        # What of "inside the matrix" is the same for each tile, for each row that is copied.
        steps = range(0, self.rows, self.row_step)
        if self.along_rows:
            self.inside = [first_column < self.width] * len(steps)
        else:
            self.inside = [first_row + i < height for i in steps]

    def at(self, row: Val, column: Val) -> Pointer:
        """A place in the first stage."""
        return self.shared + self.k.mad(row, self.pitch, column)

    def issue(self, stage: Val, left: Val) -> None:
        """Starts to copy the next tile, of whose elements along K `left` exist."""
        k = self.k
        destination = self.destination.add_bytes(stage * self.stage_bytes)
        column_left = None if self.along_rows else self.column < left
        for fixed, i in zip(self.inside, range(0, self.rows, self.row_step), strict=True):
            inside = fixed & (self.row + i < left if column_left is None else column_left)
            source, target = self.source + i * self.width, destination + i * self.pitch
            if self.count >= 4:
                k.cp_async(target, source, self.count, where=inside)
            else:
                target.store(0, source.load(where=inside))
        self.source.advance(self.step)


def advance(k: Kernel, stage: Var, stages: int) -> None:
    """The next stage of the ring."""
    stage += 1
    stage.set(k.select(stage.eq(stages), 0, stage))


def load_a(k: Kernel, atom: Atom, place: Pointer) -> tuple[Val, ...]:
    """A fragment of A: its four 8-row matrices, 16 bytes wide, as one ldmatrix."""
    if atom.dtype is not tf32:
        return k.ldmatrix(place, 4)
    return tuple(k.convert(v, tf32, "rna") for v in k.ldmatrix(place, 4, dtype=f32))


def load_b(k: Kernel, atom: Atom, place: Pointer, pitch: int) -> list[tuple[Val, ...]]:
    """Four fragments of B, side by side along N."""
    if atom.dtype is not tf32:
        pairs = [k.ldmatrix(place + 16 * i, 4, transpose=True) for i in range(2)]
        return [pair[half : half + 2] for pair in pairs for half in (0, 2)]
    rows = [row for row, _ in atom.b.offsets]
    return [
        tuple(k.convert(place.load(row * pitch + 8 * j), tf32, "rna") for row in rows)
        for j in range(4)
    ]
