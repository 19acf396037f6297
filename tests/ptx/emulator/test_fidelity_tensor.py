"""Tensor core instructions in the emulator against the PTX ISA's fragment tables.

The tables are written out here as data, from the sections "Matrix Fragments for mma.m8n8k4 with
.f64 floating point type", "... mma.m16n8k4", "... mma.m16n8k8", "... mma.m16n8k16 with floating
point type", those of "... integer type" and "Warp-level matrix load instruction: ldmatrix" (PTX
ISA 9.0, 9.7.14.5), with the ISA's names: `group` is groupID = %laneid >> 2, `member` is
threadID_in_group = %laneid % 4, `i` is the element of the fragment. All operands are integers
whose products and sums are exact, so that every result has to equal numpy's.
"""

import dataclasses
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from support.elementwise import COUNT, apply
from support.hand_written import kernel, run

from ptx.emulator import Buffer

# (group, member, i) -> row or column
Coordinate = Callable[[int, int, int], int]


@dataclasses.dataclass(frozen=True)
class Table:
    """Where the elements of a fragment lie in its matrix: `count` of them in each thread."""

    count: int
    row: Coordinate
    col: Coordinate

    def positions(self) -> list[tuple[int, int, int, int]]:
        """(lane, i, row, column) of every element of every thread."""
        return [
            (lane, i, self.row(lane >> 2, lane % 4, i), self.col(lane >> 2, lane % 4, i))
            for lane in range(32)
            for i in range(self.count)
        ]


def of_group(group: int, member: int, i: int) -> int:
    return group


def of_member(group: int, member: int, i: int) -> int:
    return member


# Accumulators of every m16n8 shape: "row = groupID for c0 and c1, groupID + 8 for c2 and c3;
# col = (threadID_in_group * 2) + (i & 0x1)".
C_16X8 = Table(
    4,
    lambda group, member, i: group if i in (0, 1) else group + 8,
    lambda group, member, i: member * 2 + (i & 1),
)

# mma.m8n8k4, .f64
A_8X4_F64 = Table(1, of_group, of_member)
B_4X8_F64 = Table(1, of_member, of_group)
C_8X8_F64 = Table(2, of_group, lambda group, member, i: member * 2 + (i & 1))

# mma.m16n8k4, .tf32 and .f64
A_16X4 = Table(2, lambda group, member, i: {0: group, 1: group + 8}[i], of_member)
B_4X8 = B_4X8_F64

# mma.m16n8k8, .f16 and .bf16
A_16X8_HALF = C_16X8
B_8X8_HALF = Table(2, lambda group, member, i: member * 2 + i, of_group)

# mma.m16n8k8, .tf32 and .f64
A_16X8 = Table(
    4,
    lambda group, member, i: group if i in (0, 2) else group + 8,
    lambda group, member, i: member if i in (0, 1) else member + 4,
)
B_8X8 = Table(2, lambda group, member, i: {0: member, 1: member + 4}[i], of_group)

# mma.m16n8k16, .f16 and .bf16
A_16X16_HALF = Table(
    8,
    lambda group, member, i: group if 0 <= i < 2 or 4 <= i < 6 else group + 8,
    lambda group, member, i: member * 2 + (i & 1) + (0 if i < 4 else 8),
)
B_16X8_HALF = Table(
    4, lambda group, member, i: member * 2 + (i & 1) + (0 if i < 2 else 8), of_group
)

# mma.m16n8k16, .f64
A_16X16_F64 = Table(
    8,
    lambda group, member, i: group if i % 2 == 0 else group + 8,
    lambda group, member, i: i * 2 + member if i % 2 == 0 else i * 2 - 2 + member,
)
B_16X8_F64 = Table(4, lambda group, member, i: member + i * 4, of_group)

# mma.m8n8k16, mma.m16n8k16 and mma.m16n8k32, .s8 and .u8
A_8X16_BYTE = Table(4, of_group, lambda group, member, i: member * 4 + (i & 3))
B_16X8_BYTE = Table(4, lambda group, member, i: member * 4 + (i & 3), of_group)
C_8X8_BYTE = C_8X8_F64
A_16X16_BYTE = Table(
    8,
    lambda group, member, i: group if i < 4 else group + 8,
    lambda group, member, i: member * 4 + (i & 3),
)
A_16X32_BYTE = Table(
    16,
    lambda group, member, i: group if 0 <= i < 4 or 8 <= i < 12 else group + 8,
    lambda group, member, i: member * 4 + (i & 3) + (0 if i < 8 else 16),
)
B_32X8_BYTE = Table(
    8, lambda group, member, i: member * 4 + (i & 3) + (0 if i < 4 else 16), of_group
)


@dataclasses.dataclass(frozen=True)
class Mma:
    """An mma instruction.

    Attributes:
      shape, types: as in its name; types are those of D, A, B and C.
      a, b, c: the tables of its fragments; D's is C's.
      limit: operands are integers below it, so that results are exact.
      target: lowest target that has it.
    """

    shape: str
    types: str
    a: Table
    b: Table
    c: Table
    limit: int
    target: str = "sm_80"

    @property
    def name(self) -> str:
        return f"mma.sync.aligned.{self.shape}.row.col.{self.types}"

    @property
    def dtypes(self) -> tuple[np.dtype, np.dtype]:
        """Of multiplicands and of accumulators, as numpy holds them."""
        result, multiplicand, *_ = self.types.split(".")[-4:]
        return NUMPY[multiplicand], NUMPY[result]


NUMPY: dict[str, np.dtype] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "s32": np.dtype(np.int32),
}

INSTRUCTIONS = [
    Mma("m16n8k8", "f32.f16.f16.f32", A_16X8_HALF, B_8X8_HALF, C_16X8, 512, "sm_75"),
    Mma("m16n8k8", "f16.f16.f16.f16", A_16X8_HALF, B_8X8_HALF, C_16X8, 12, "sm_75"),
    Mma("m16n8k8", "f32.bf16.bf16.f32", A_16X8_HALF, B_8X8_HALF, C_16X8, 256),
    Mma("m16n8k16", "f32.f16.f16.f32", A_16X16_HALF, B_16X8_HALF, C_16X8, 512),
    Mma("m16n8k16", "f16.f16.f16.f16", A_16X16_HALF, B_16X8_HALF, C_16X8, 9),
    Mma("m16n8k16", "f32.bf16.bf16.f32", A_16X16_HALF, B_16X8_HALF, C_16X8, 256),
    Mma("m16n8k4", "f32.tf32.tf32.f32", A_16X4, B_4X8, C_16X8, 1024),
    Mma("m16n8k8", "f32.tf32.tf32.f32", A_16X8, B_8X8, C_16X8, 1024),
    Mma("m8n8k4", "f64.f64.f64.f64", A_8X4_F64, B_4X8_F64, C_8X8_F64, 1 << 24),
    Mma("m16n8k4", "f64.f64.f64.f64", A_16X4, B_4X8, C_16X8, 1 << 24, "sm_90"),
    Mma("m16n8k8", "f64.f64.f64.f64", A_16X8, B_8X8, C_16X8, 1 << 24, "sm_90"),
    Mma("m16n8k16", "f64.f64.f64.f64", A_16X16_F64, B_16X8_F64, C_16X8, 1 << 24, "sm_90"),
]
INTEGER_INSTRUCTIONS = [
    Mma(shape, f"{modifier}s32.{dtype}.{dtype}.s32", a, b, c, 100, target)
    for shape, a, b, c, target in (
        ("m8n8k16", A_8X16_BYTE, B_16X8_BYTE, C_8X8_BYTE, "sm_75"),
        ("m16n8k16", A_16X16_BYTE, B_16X8_BYTE, C_16X8, "sm_80"),
        ("m16n8k32", A_16X32_BYTE, B_32X8_BYTE, C_16X8, "sm_80"),
    )
    for dtype in ("s8", "u8")
    for modifier in ("", "satfinite.")
]
each_instruction = pytest.mark.parametrize(
    "mma", INSTRUCTIONS, ids=[f"{m.shape}.{m.types}" for m in INSTRUCTIONS]
)


def to_fragments(table: Table, matrices: np.ndarray) -> np.ndarray:
    """Matrices [warps, rows, columns] -> registers' bytes, [warps, 32, elements of a thread]."""
    fragments = np.empty((len(matrices), 32, table.count), matrices.dtype)
    for lane, i, row, col in table.positions():
        fragments[:, lane, i] = matrices[:, row, col]
    return fragments


def to_matrices(table: Table, fragments: np.ndarray, rows: int, columns: int) -> np.ndarray:
    matrices = np.empty((len(fragments), rows, columns), fragments.dtype)
    for lane, i, row, col in table.positions():
        matrices[:, row, col] = fragments[:, lane, i]
    return matrices


def kernel_text(mma: Mma) -> str:
    """One warp a block: registers from memory as they are, one mma, registers to memory."""
    multiplicand, accumulator = (dtype.itemsize for dtype in mma.dtypes)
    bits = 64 if accumulator == 8 else 32
    counts = {
        "a": mma.a.count * multiplicand * 8 // bits,
        "b": mma.b.count * multiplicand * 8 // bits,
        "c": mma.c.count * accumulator * 8 // bits,
    }
    counts["d"] = counts["c"]
    registers = {x: [f"%m{x}{j}" for j in range(count)] for x, count in counts.items()}
    lines = []
    for x in "abcd":
        lines.append(f"mad.wide.u32 %d0, %i, {counts[x] * bits // 8}, %{x};")
        if x == "d":
            operands = ", ".join("{" + ", ".join(registers[y]) + "}" for y in "dabc")
            lines.append(f"{mma.name} {operands};")
        for j, register in enumerate(registers[x]):
            address = f"[%d0+{j * bits // 8}]"
            if x == "d":
                lines.append(f"st.global.b{bits} {address}, {register};")
            else:
                lines.append(f"ld.global.b{bits} {register}, {address};")
    declared = "\n".join(f".reg .b{bits} %m{x}<{count}>;" for x, count in counts.items())
    return kernel("\n".join(lines), "a b c d", declared).replace("sm_90", mma.target)


def multiply(mma: Mma, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """D = A B + C of a batch of matrices [warps, rows, columns] through fragments."""
    warps, rows, columns = c.shape
    multiplicand, accumulator = mma.dtypes
    out = Buffer(np.empty((warps, 32, mma.c.count), accumulator), initialized=False)
    fragments = [
        Buffer(to_fragments(table, matrices.astype(dtype)), writable=False)
        for table, matrices, dtype in (
            (mma.a, a, multiplicand),
            (mma.b, b, multiplicand),
            (mma.c, c, accumulator),
        )
    ]
    run(kernel_text(mma), *fragments, out, grid=warps)
    return to_matrices(mma.c, out.array, rows, columns)


def sizes(mma: Mma) -> tuple[int, int, int]:
    m, rest = mma.shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


@pytest.mark.parametrize("mma", [*INSTRUCTIONS, *INTEGER_INSTRUCTIONS], ids=lambda m: m.name)
def test_the_tables_cover_each_matrix_once(mma):
    m, n, k = sizes(mma)
    for table, rows, columns in ((mma.a, m, k), (mma.b, k, n), (mma.c, m, n)):
        places = sorted((row, col) for _, _, row, col in table.positions())
        assert places == [(row, col) for row in range(rows) for col in range(columns)]


@pytest.mark.parametrize("mma", [*INSTRUCTIONS, *INTEGER_INSTRUCTIONS], ids=lambda m: m.name)
def test_mma_equals_numpy(mma):
    """Integer accumulators near the ends of their range wrap around, or saturate."""
    (m, n, k), (multiplicand, accumulator) = sizes(mma), mma.dtypes
    random, low, high = np.random.default_rng(1), -mma.limit + 1, mma.limit
    if multiplicand.kind in "iu":
        low, high = np.iinfo(multiplicand).min, np.iinfo(multiplicand).max + 1
    a, b, c = (random.integers(low, high, (8, *shape)) for shape in ((m, k), (k, n), (m, n)))
    if accumulator.kind == "i":
        c = random.choice([-(2**31), -5, 7, 2**31 - 1], c.shape)
    total = a @ b + c
    if "satfinite" in mma.types:
        total = np.clip(total, -(2**31), 2**31 - 1)
    expected = total.astype(np.int32) if accumulator.kind == "i" else total
    np.testing.assert_array_equal(multiply(mma, a, b, c).astype(np.float64), expected)


def test_signed_times_unsigned():
    mma = Mma("m16n8k32", "s32.u8.s8.s32", A_16X32_BYTE, B_32X8_BYTE, C_16X8, 100)
    random = np.random.default_rng(1)
    a, b = random.integers(0, 256, (1, 16, 32)), random.integers(-128, 128, (1, 32, 8))
    c = np.zeros((1, 16, 8), np.int64)
    np.testing.assert_array_equal(multiply(mma, a, b.astype(np.uint8), c), a @ b)


@each_instruction
def test_infinities_and_nans_stay_in_their_row_and_column(mma):
    m, n, k = sizes(mma)
    a, b, c = np.ones((1, m, k)), np.ones((1, k, n)), np.zeros((1, m, n))
    a[0, 1, 2] = np.inf
    b[0, 3, 4] = np.nan
    expected = np.full((1, m, n), float(k))
    expected[0, 1] = np.inf
    expected[0, :, 4] = np.nan
    np.testing.assert_array_equal(multiply(mma, a, b, c).astype(np.float64), expected)


# ldmatrix, "fragment layout for one 8x8 Matrix with 16-bit elements": the thread that holds each
# element, which is in the low half of its register in even columns and in the high half in odd.
THREAD_OF_ELEMENT = [[4 * row + column // 2 for column in range(8)] for row in range(8)]
# The threads whose addresses are those of each matrix's rows, by .num.
ADDRESSES = {
    1: (range(0, 8),),
    2: (range(0, 8), range(8, 16)),
    4: (range(0, 8), range(8, 16), range(16, 24), range(24, 32)),
}
_ROW_STRIDE = 48
TILE = f".shared .align 16 .b8 tile[{32 * _ROW_STRIDE}];"


def _matrices(count: int, trans: bool) -> str:
    return f"sync.aligned.m8n8.x{count}{'.trans' * trans}.shared.b16"


def load_matrices(
    rows: np.ndarray, places: np.ndarray, addresses: np.ndarray, count: int, trans: bool
) -> np.ndarray:
    """Lays rows in shared memory and has a warp load from it with ldmatrix.

    Args:
      rows: [32, 8] 16-bit elements.
      places: [32], the offset in bytes at which each row is put.
      addresses: [32], the offset that each thread gives to ldmatrix.
      count: 1, 2 or 4 matrices.
      trans: whether with .trans.

    Returns:
      [32, count, 2]: each thread's registers, low half first.
    """
    registers = [f"%r{j}" for j in range(count)]
    stores = [f"st.global.b32 [%d1+{4 * j}], {register};" for j, register in enumerate(registers)]
    text = kernel(
        f"""
        mov.u32 %r5, tile;
        ld.global.u32 %r6, [%atplaces];
        add.u32 %r6, %r6, %r5;
        mad.wide.u32 %d0, %t, 16, %rows;
        ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [%d0];
        st.shared.v4.b32 [%r6], {{%r0, %r1, %r2, %r3}};
        bar.sync 0;
        ld.global.u32 %r6, [%ataddresses];
        add.u32 %r6, %r6, %r5;
        ldmatrix.{_matrices(count, trans)} {{{", ".join(registers)}}}, [%r6];
        mad.wide.u32 %d1, %t, {4 * count}, %out;
        """
        + "\n".join(stores),
        "rows places addresses out",
        TILE,
    )
    out = Buffer(np.empty((32, count, 2), rows.dtype), initialized=False)
    inputs = [rows, places.astype(np.uint32), addresses.astype(np.uint32)]
    run(text, *(Buffer(x, writable=False) for x in inputs), out)
    return out.array


@pytest.mark.parametrize("trans", [False, True], ids=["", "trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count, trans):
    rows = np.arange(1, 257, dtype=np.uint16).reshape(32, 8)
    places = np.random.default_rng(2).permutation(32) * _ROW_STRIDE
    got = load_matrices(rows, places, places, count, trans)
    for j, threads in enumerate(ADDRESSES[count]):
        matrix = rows[list(threads)]
        if trans:
            matrix = matrix.T
        for row in range(8):
            for col in range(8):
                assert got[THREAD_OF_ELEMENT[row][col], j, col % 2] == matrix[row, col]


@pytest.mark.parametrize("count", [1, 2])
def test_ldmatrix_takes_addresses_from_its_own_threads_only(count):
    """On sm_80 and later, threads whose row no matrix needs may give any address."""
    rows = np.arange(1, 257, dtype=np.uint16).reshape(32, 8)
    places = np.arange(32) * _ROW_STRIDE
    addresses = np.where(np.arange(32) < 8 * count, places, 1 << 20)
    got = load_matrices(rows, places, addresses, count, trans=False)
    np.testing.assert_array_equal(got, load_matrices(rows, places, places, count, trans=False))


def test_ldmatrix_gives_the_fragments_of_mma():
    """How tile kernels load: A by rows; B by columns as it is, B by rows with .trans."""
    matrix = np.arange(1, 257, dtype=np.uint16).reshape(16, 16)
    lane = np.arange(32)
    # Rows of 8: the 16 rows' left halves, then their right halves.
    halves = matrix.reshape(16, 2, 8).transpose(1, 0, 2).reshape(32, 8)
    places = lane * _ROW_STRIDE

    # A [m, k], four matrices: rows 0-7 and 8-15 of columns 0-7, then of columns 8-15.
    a = load_matrices(halves, places, places, 4, trans=False)
    np.testing.assert_array_equal(a.reshape(1, 32, 8), to_fragments(A_16X16_HALF, matrix[None]))

    # B [k, n] by rows, of n = 0..7, two matrices: k = 0..7 and 8..15.
    b = load_matrices(halves, places, places, 2, trans=True)
    np.testing.assert_array_equal(
        b.reshape(1, 32, 4), to_fragments(B_16X8_HALF, matrix[None, :, :8])
    )

    # B given as [n, k], n = 0..7, two matrices: k = 0..7 and 8..15.
    addresses = (lane % 8 + lane // 8 % 2 * 16) * _ROW_STRIDE
    b = load_matrices(halves, places, addresses, 2, trans=False)
    np.testing.assert_array_equal(
        b.reshape(1, 32, 4), to_fragments(B_16X8_HALF, matrix[None, :8].transpose(0, 2, 1))
    )


@pytest.mark.parametrize("trans", [False, True], ids=["", "trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_puts_each_element_where_ldmatrix_finds_it(count, trans):
    """Section "Warp-level matrix store instruction: stmatrix": the same layout and addresses."""
    elements = np.arange(1, 32 * count * 2 + 1, dtype=np.uint16).reshape(32, count, 2)
    places = np.random.default_rng(3).permutation(32) * _ROW_STRIDE
    registers = [f"%r{j}" for j in range(count)]
    loads = [f"ld.global.b32 {register}, [%d0+{4 * j}];" for j, register in enumerate(registers)]
    text = kernel(
        f"mad.wide.u32 %d0, %t, {4 * count}, %elements;\n"
        + "\n".join(loads)
        + f"""
        mov.u32 %r5, tile;
        ld.global.u32 %r6, [%atplaces];
        add.u32 %r6, %r6, %r5;
        stmatrix.{_matrices(count, trans)} [%r6], {{{", ".join(registers)}}};
        bar.sync 0;
        setp.ge.u32 %p0, %t, {8 * count};
        @%p0 ret;
        ld.shared.v4.b32 {{%r0, %r1, %r2, %r3}}, [%r6];
        mad.wide.u32 %d1, %t, 16, %out;
        st.global.v4.b32 [%d1], {{%r0, %r1, %r2, %r3}};
        """,
        "elements places out",
        TILE,
    )
    out = Buffer(np.empty((8 * count, 8), np.uint16), initialized=False)
    inputs = [Buffer(x, writable=False) for x in (elements, places.astype(np.uint32))]
    run(text, *inputs, out)
    for j, threads in enumerate(ADDRESSES[count]):
        matrix = out.array[list(threads)]
        if trans:
            matrix = matrix.T
        for row in range(8):
            for col in range(8):
                assert matrix[row, col] == elements[THREAD_OF_ELEMENT[row][col], j, col % 2]


def test_movmatrix_transposes():
    elements = np.arange(COUNT * 2, dtype=np.uint16).reshape(COUNT // 32, 32, 2)
    words = elements.view(np.uint32).reshape(-1)
    got = apply("movmatrix.sync.aligned.m8n8.trans.b16", [words], 32)
    got = got.view(np.uint16).reshape(elements.shape)
    for row in range(8):
        for col in range(8):
            to, source = THREAD_OF_ELEMENT[row][col], THREAD_OF_ELEMENT[col][row]
            np.testing.assert_array_equal(got[:, to, col % 2], elements[:, source, row % 2])
