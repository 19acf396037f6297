"""Integer instructions in the emulator against Python's integers, bit for bit.

Each runs over 4,096 inputs: every limit of the type against every other, shift counts and bit
fields beyond the width, then random numbers of all lengths. The expected values are written down
as the PTX ISA's pseudocode has them, one bit at a time where it does.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from support.elementwise import check, integer_inputs

TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")


def width_of(dtype: str) -> int:
    return int(dtype[1:])


def value(bits: int, dtype: str) -> int:
    """The number that a bit pattern stands for."""
    width = width_of(dtype)
    negative = dtype[0] == "s" and bits >> (width - 1)
    return bits - (1 << width) if negative else bits


def quotient(a: int, b: int) -> int:
    """Rounded towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def numbers(dtype: str, result: str, compute: Callable[..., int]) -> Callable[..., int]:
    """`compute` on numbers of `dtype`, as bit patterns, cut to the result's width."""
    mask = (1 << width_of(result)) - 1
    return lambda *bits: compute(*(value(x, dtype) for x in bits)) & mask


SIGNED = ("s16", "s32", "s64")
BITS = ("b16", "b32", "b64")


def saturated(number: int) -> int:
    return min(max(number, -(2**31)), 2**31 - 1)


# Instructions of which all operands and the result have one type: these types, and the result.
UNIFORM: dict[str, tuple[Sequence[str], Callable[..., int]]] = {
    "add": (TYPES, lambda a, b: a + b),
    "sub": (TYPES, lambda a, b: a - b),
    "mul.lo": (TYPES, lambda a, b: a * b),
    "mad.lo": (TYPES, lambda a, b, c: a * b + c),
    "min": (TYPES, lambda a, b: min(a, b)),
    "max": (TYPES, lambda a, b: max(a, b)),
    "min.relu": (["s32"], lambda a, b: max(min(a, b), 0)),
    "max.relu": (["s32"], lambda a, b: max(a, b, 0)),
    "add.sat": (["s32"], lambda a, b: saturated(a + b)),
    "sub.sat": (["s32"], lambda a, b: saturated(a - b)),
    "div": (TYPES, quotient),
    "rem": (TYPES, lambda a, b: a - b * quotient(a, b)),
    "sad": (TYPES, lambda a, b, c: c + abs(a - b)),
    "abs": (SIGNED, lambda a: abs(a)),
    "neg": (SIGNED, lambda a: -a),
    "and": (BITS, lambda a, b: a & b),
    "or": (BITS, lambda a, b: a | b),
    "xor": (BITS, lambda a, b: a ^ b),
    "not": (BITS, lambda a: ~a),
    "cnot": (BITS, lambda a: int(a == 0)),
}


@pytest.mark.spread(30)
@pytest.mark.parametrize(
    ("instruction", "dtype"), [(name, t) for name, (types, _) in UNIFORM.items() for t in types]
)
def test_operands_and_result_of_one_type(instruction, dtype):
    """Divisors of zero are left out: their result is unspecified."""
    compute, width = UNIFORM[instruction][1], width_of(dtype)
    inputs = integer_inputs([width] * compute.__code__.co_argcount)
    if instruction in ("div", "rem"):
        inputs[1][inputs[1] == 0] = 3
    check(f"{instruction}.{dtype}", inputs, width, numbers(dtype, dtype, compute))


@pytest.mark.parametrize("dtype", TYPES)
def test_high_half_of_a_product(dtype):
    width = width_of(dtype)
    inputs = integer_inputs([width] * 3)
    check(f"mul.hi.{dtype}", inputs[:2], width, numbers(dtype, dtype, lambda a, b: a * b >> width))
    expected = numbers(dtype, dtype, lambda a, b, c: (a * b >> width) + c)
    check(f"mad.hi.{dtype}", inputs, width, expected)


@pytest.mark.parametrize("dtype", ["u16", "s16", "u32", "s32"])
def test_wide_product(dtype):
    width = width_of(dtype)
    double = f"{dtype[0]}{2 * width}"
    inputs = integer_inputs([width, width, 2 * width])
    product = numbers(dtype, double, lambda a, b: a * b)
    check(f"mul.wide.{dtype}", inputs[:2], 2 * width, product)
    check(
        f"mad.wide.{dtype}",
        inputs,
        2 * width,
        lambda a, b, c: (product(a, b) + c) % (1 << 2 * width),
    )


@pytest.mark.parametrize("dtype", [*TYPES, *BITS])
def test_shift_counts_beyond_the_width_are_clamped(dtype):
    width = width_of(dtype)
    inputs = integer_inputs([width, 32])
    right = numbers(dtype, dtype, lambda a: a)
    check(
        f"shr.{dtype}",
        inputs,
        width,
        lambda a, n: value(right(a), dtype) >> min(n, width) & ((1 << width) - 1),
    )
    if dtype[0] == "b":
        check(
            f"shl.{dtype}",
            inputs,
            width,
            lambda a, n: a << min(n, width) & ((1 << width) - 1),
        )


@pytest.mark.parametrize("width", [32, 64])
def test_counting_and_reversing_bits(width):
    inputs = integer_inputs([width])
    check(f"popc.b{width}", inputs, 32, lambda a: a.bit_count())
    check(f"clz.b{width}", inputs, 32, lambda a: width - a.bit_length())
    check(f"brev.b{width}", inputs, width, lambda a: int(f"{a:0{width}b}"[::-1], 2))


@pytest.mark.parametrize("dtype", ["u32", "s32", "u64", "s64"])
def test_finding_the_first_bit_that_is_no_sign(dtype):
    width = width_of(dtype)
    inputs = integer_inputs([width])
    none = 0xFFFFFFFF

    def expected(a: int) -> int:
        number = value(a, dtype)
        return (number if number >= 0 else ~number).bit_length() - 1

    check(f"bfind.{dtype}", inputs, 32, lambda a: expected(a) & none)
    check(
        f"bfind.shiftamt.{dtype}",
        inputs,
        32,
        lambda a: none if expected(a) < 0 else width - 1 - expected(a),
    )


def bit_field(a: int, b: int, c: int, dtype: str) -> int:
    """The pseudocode of bfe in the ISA."""
    last = width_of(dtype) - 1
    start, length = b & 0xFF, c & 0xFF
    sign = 0 if dtype[0] == "u" or length == 0 else a >> min(start + length - 1, last) & 1
    return sum(
        (a >> (start + i) & 1 if i < length and start + i <= last else sign) << i
        for i in range(last + 1)
    )


@pytest.mark.parametrize("dtype", ["u32", "s32", "u64", "s64"])
def test_bit_field_extract(dtype):
    width = width_of(dtype)
    inputs = integer_inputs([width, 32, 32])
    inputs[1] &= 0x7F
    inputs[2] &= 0x7F
    check(f"bfe.{dtype}", inputs, width, lambda a, b, c: bit_field(a, b, c, dtype))


@pytest.mark.parametrize("width", [32, 64])
def test_bit_field_insert(width):
    a, b, start, length = integer_inputs([width, width, 32, 32])
    start &= 0x7F
    length &= 0x7F

    def expected(a: int, b: int, start: int, length: int) -> int:
        for i in range(length):
            if start + i < width:
                b = b & ~(1 << (start + i)) | (a >> i & 1) << (start + i)
        return b

    check(f"bfi.b{width}", [a, b, start, length], width, expected)


@pytest.mark.parametrize("table", [0xE8, 0x96, 0xCA, 0xF8, 0x78, 0x01, 0x80, 0x3C, 0xD8, 0xB1])
def test_three_input_logic(table):
    """Bit i of the table is the result of a = i >> 2, b = i >> 1 & 1, c = i & 1."""
    inputs = integer_inputs([32, 32, 32])

    def expected(a: int, b: int, c: int) -> int:
        return sum(
            (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i
            for i in range(32)
        )

    check(f"lop3.b32 {{d}}, {{0}}, {{1}}, {{2}}, {table:#x};", inputs, 32, expected)


# PTX ISA, prmt: the bytes that each mode selects, d.b3 first, by the selector's low two bits.
PERMUTATIONS = {
    "f4e": ("3210", "4321", "5432", "6543"),
    "b4e": ("5670", "6701", "7012", "0123"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("3210", "3211", "3222", "3333"),
    "ecr": ("0000", "1110", "2210", "3210"),
    "rc16": ("1010", "3232", "1010", "3232"),
}


@pytest.mark.parametrize("mode", ["", *PERMUTATIONS])
def test_permutation_of_bytes(mode):
    inputs = integer_inputs([32, 32, 32])

    def expected(a: int, b: int, selector: int) -> int:
        source = (b << 32 | a).to_bytes(8, "little")
        result = 0
        for i in range(4):
            if mode:
                result |= source[int(PERMUTATIONS[mode][selector & 3][3 - i])] << 8 * i
                continue
            nibble = selector >> 4 * i
            byte = source[nibble & 7]
            if nibble & 8:  # its sign, eight times
                byte = 0xFF if byte & 0x80 else 0
            result |= byte << 8 * i
        return result

    check(f"prmt.b32{'.' * bool(mode)}{mode}", inputs, 32, expected)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
@pytest.mark.parametrize("direction", ["l", "r"])
def test_funnel_shift(direction, mode):
    inputs = integer_inputs([32, 32, 32])

    def expected(a: int, b: int, c: int) -> int:
        count = min(c, 32) if mode == "clamp" else c & 31
        both = b << 32 | a
        return (both << count >> 32 if direction == "l" else both >> count) & 0xFFFFFFFF

    check(f"shf.{direction}.{mode}.b32", inputs, 32, expected)


ORDERINGS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


@pytest.mark.parametrize("dtype", [*TYPES, *BITS])
def test_setp(dtype):
    """Every comparison that the type has, one bit of the result each."""
    operators = list(ORDERINGS) if dtype[0] != "b" else ["eq", "ne"]
    if dtype[0] == "u":
        operators += UNSIGNED
    a, b = integer_inputs([width_of(dtype)] * 2)
    same = np.arange(len(a)) % 5 == 0
    b[same] = a[same]
    lines = ["mov.b32 %w5, 0;"]
    for i, operator in enumerate(operators):
        lines += [
            f"setp.{operator}.{dtype} p, {{0}}, {{1}};",
            f"selp.b32 %w6, {1 << i}, 0, p;",
            "or.b32 %w5, %w5, %w6;",
        ]

    def expected(a: int, b: int) -> int:
        x, y = value(a, dtype), value(b, dtype)
        return sum(ORDERINGS[UNSIGNED.get(o, o)](x, y) << i for i, o in enumerate(operators))

    check("\n".join([*lines, "mov.b32 {d}, %w5;"]), [a, b], 32, expected)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_selp(width):
    a, b, c = integer_inputs([width, width, 32])
    condition = f"setp.gt.s32 p, {{2}}, 0;\nselp.b{width} {{d}}, {{0}}, {{1}}, p;"
    check(condition, [a, b, c], width, lambda x, y, z: x if value(z, "s32") > 0 else y)


def test_logic_of_predicates():
    inputs = integer_inputs([32, 32])

    def expected(a: int, b: int) -> int:
        p, q = a & 1, b & 1
        return (p & q) | (p | q) << 1 | (p ^ q) << 2 | (1 - p) << 3

    lines = [
        ".reg .pred r;",
        "and.b32 %w5, {0}, 1;",
        "setp.ne.u32 p, %w5, 0;",
        "and.b32 %w5, {1}, 1;",
        "setp.ne.u32 q, %w5, 0;",
        "mov.b32 %w6, 0;",
    ]
    for i, operation in enumerate(("and.pred r, p, q", "or.pred r, p, q", "xor.pred r, p, q")):
        lines += [f"{operation};", f"@r or.b32 %w6, %w6, {1 << i};"]
    lines += ["not.pred r, p;", "@!r bra skip;", "or.b32 %w6, %w6, 8;", "skip: mov.b32 {d}, %w6;"]
    check("\n".join(lines), inputs, 32, expected)


def test_vectors_of_registers_are_packed_low_element_first():
    a, b = integer_inputs([16, 16])
    check(
        "mov.b32 {d}, {{{0}, {1}}};",
        [a, b],
        32,
        lambda x, y: x | y << 16,
    )
    a, b = integer_inputs([32, 32])
    check("mov.b64 {d}, {{{0}, {1}}};", [a, b], 64, lambda x, y: x | y << 32)
    (a,) = integer_inputs([64])
    check(
        "mov.b64 {{%w5, %w6}}, {0};\nxor.b32 %w5, %w5, 1;\nmov.b64 {d}, {{%w6, %w5}};",
        [a],
        64,
        lambda x: x >> 32 | ((x ^ 1) & 0xFFFFFFFF) << 32,
    )
