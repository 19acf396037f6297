"""One PTX instruction applied to arrays of bit patterns in the emulator, and inputs that hurt."""

import functools
import itertools
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from ptx.emulator import Buffer, launch
from support import exact
from support.hand_written import kernel

__all__ = ["COUNT", "apply", "check", "float_inputs", "integer_inputs", "kernel_text", "packed"]

COUNT = 4096
_BLOCK = 128

_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def kernel_text(instruction: str, sources: Sequence[int], result: int) -> str:
    """A kernel that computes `instruction` of one element of each source per thread.

    Args:
      instruction: an opcode ("add.rn.f32"), or lines of PTX with {d}, {0}, {1}, ... for the
        registers, p, q for predicates and %w0, %w1, ... for others of 32 bits.
      sources: width in bits of each source's elements.
      result: width in bits of the result's elements.
    """
    if "{d}" not in instruction:
        operands = ", ".join(f"{{{i}}}" for i in range(len(sources)))
        instruction = f"{instruction} {{d}}, {operands};"
    registers = {16: "%h", 32: "%w", 64: "%d"}
    names = [f"{registers[max(bits, 16)]}{i}" for i, bits in enumerate(sources)]
    destination = f"{registers[max(result, 16)]}9"
    inputs = [f"in{i}" for i in range(len(sources))]
    loads = [
        f"mad.wide.u32 %d19, %i, {bits // 8}, %{pointer};\n"
        f"ld.global.{'u8' if bits == 8 else f'b{bits}'} {name}, [%d19];"
        for bits, name, pointer in zip(sources, names, inputs, strict=True)
    ]
    store = (
        f"mad.wide.u32 %d19, %i, {result // 8}, %out;\n"
        f"st.global.{'u8' if result == 8 else f'b{result}'} [%d19], {destination};"
    )
    return kernel(
        "\n".join([*loads, instruction.format(*names, d=destination), store]),
        " ".join([*inputs, "out"]),
        ".reg .pred p, q;\n.reg .b32 %w<10>;",
    )


def apply(instruction: str, sources: Sequence[np.ndarray], result: int) -> np.ndarray:
    """The bit patterns [COUNT] that `instruction` gives for the bit patterns in `sources`."""
    text = kernel_text(instruction, [source.itemsize * 8 for source in sources], result)
    out = Buffer(np.empty(COUNT, _UNSIGNED[result]), initialized=False)
    inputs = [Buffer(source, writable=False) for source in sources]
    launch(text, grid=COUNT // _BLOCK, block=_BLOCK, arguments=[*inputs, out])
    return out.array


def check(
    instruction: str,
    sources: Sequence[np.ndarray],
    result: int,
    expected: Callable[..., int],
    nan_of: exact.Format | None = None,
) -> None:
    """Compares every element with `expected` of the same bit patterns.

    Args:
      instruction: see `kernel_text`.
      sources: bit patterns [COUNT] of each operand.
      result: width of the result in bits.
      expected: from the operands' bit patterns to the result's.
      nan_of: where the ISA leaves open which NaN an instruction gives, the format in which any
        NaN equals any other; a result twice as wide holds two such numbers.
    """
    got = apply(instruction, sources, result).tolist()
    wrong = []
    for inputs, ours in zip(zip(*(s.tolist() for s in sources), strict=True), got, strict=True):
        right = expected(*inputs)
        if ours != right and not (nan_of and _same_but_nans(ours, right, result, nan_of)):
            wrong.append((inputs, ours, right))
    digits = result // 4
    shown = "\n".join(
        f"  {', '.join(f'{x:#x}' for x in inputs)}: got {ours:#0{digits + 2}x}, "
        f"expected {right:#0{digits + 2}x}"
        for inputs, ours, right in wrong[:8]
    )
    assert not wrong, f"{instruction}: {len(wrong)} of {COUNT} are wrong, such as\n{shown}"


def _same_but_nans(ours: int, right: int, bits: int, format: exact.Format) -> bool:
    mask = (1 << format.bits) - 1
    halves = [(ours >> at & mask, right >> at & mask) for at in range(0, bits, format.bits)]
    return all(x == y or (format.is_nan(x) and format.is_nan(y)) for x, y in halves)


def _seed(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def _specials(format: exact.Format) -> list[int]:
    """Zeros, infinities, NaNs, the ends of the subnormal and normal ranges, ones and halves."""
    one = format.round(exact.from_int(1))
    ulp = 1 << format.padding
    magnitudes = [
        0,
        ulp,
        2 * ulp,
        3 * ulp,
        format.smallest_normal // 2,
        format.smallest_normal - ulp,
        format.smallest_normal,
        format.smallest_normal + ulp,
        one - ulp,
        one,
        one + ulp,
        *(format.round(exact.Exact("finite", 0, n, -1)) for n in (1, 3, 4, 5, 6, 7)),
        format.infinity - ulp,
        format.infinity,
        format.nan,
        format.infinity + (format.smallest_normal >> 1),
        format.infinity + 1,
    ]
    return [magnitude | sign << (format.bits - 1) for magnitude in magnitudes for sign in (0, 1)]


def float_inputs(format: exact.Format, operands: int) -> list[np.ndarray]:
    """Bit patterns [COUNT] for each operand.

    A grid of special values, then random patterns, operands of nearly one magnitude, and cases
    that lie on or right beside the middle between two results.
    """
    return [column.copy() for column in _float_inputs(format, operands)]


@functools.cache
def _float_inputs(format: exact.Format, operands: int) -> list[np.ndarray]:
    random = _seed(f"{format.name} {operands}")
    specials = _specials(format)
    grid = list(itertools.product(*[specials] * operands))
    rows = [grid[i] for i in random.permutation(len(grid))[: COUNT // 2]]

    def pattern() -> int:
        return int.from_bytes(random.bytes(format.bits // 8), "little")

    def scaled(significand: int, exponent: int) -> int:
        sign = int(random.integers(2))
        return format.round(exact.Exact("finite", sign, significand, exponent))

    p = format.precision
    middle = -(p // 2)  # significands are integers; around 1 in value
    while len(rows) < COUNT:
        kind = len(rows) % 4
        if kind == 0:
            row = [pattern() for _ in range(operands)]
        elif kind == 1:  # one magnitude: sums cancel, quotients are near 1
            base = pattern() & format.nan
            row = [
                (base + int(random.integers(-8, 9)) * (1 << int(random.integers(p))))
                % (1 << format.bits)
                for _ in range(operands)
            ]
        elif kind == 2:  # a + half an ulp of a, and the third operand tiny: ties, and almost ties
            significand = int(random.integers(1 << (p - 1), 1 << p))
            row = [
                scaled(significand, middle),
                scaled(1, middle - 1),
                scaled(1, format.quantum + int(random.integers(4))),
            ]
            if operands == 3:  # product = p + 1 bits, an odd number of half ulps
                a = (1 << (p // 2)) | int(random.integers(1 << (p // 2))) | 1
                row = [scaled(a, middle), scaled((1 << (p - p // 2)) + 1, middle), row[2]]
            row = row[:operands]
        else:  # odd, short significands: products of p + 1 bits, sums and products subnormal
            row = [
                scaled(int(random.integers(1 << (p // 2), 2 << (p // 2))) | 1, int(e))
                for e in random.integers(format.quantum // 2 - p, format.quantum // 2 + p, operands)
            ]
        rows.append(tuple(row))
    dtype = _UNSIGNED[format.bits]
    return [np.array(column, dtype) for column in zip(*rows, strict=True)]


def packed(columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Pairs of 16-bit patterns: each in the low half, another one of its column in the high."""
    return [
        column.astype(np.uint32) | np.roll(column, 1777).astype(np.uint32) << 16
        for column in columns
    ]


def integer_inputs(widths: Sequence[int]) -> list[np.ndarray]:
    """Bit patterns [COUNT] for operands of `widths` bits: limits against limits, then random.

    Half of the random ones are short, so that quotients and shift counts vary.
    """
    return [column.copy() for column in _integer_inputs(tuple(widths))]


@functools.cache
def _integer_inputs(widths: tuple[int, ...]) -> list[np.ndarray]:
    random = _seed(f"integers {widths}")
    limits = [
        [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 255, (1 << (w - 1)) - 2, (1 << (w - 1)) - 1,
         1 << (w - 1), (1 << (w - 1)) + 1, (1 << w) - 2, (1 << w) - 1, (1 << w) // 3]
        for w in widths
    ]  # fmt: skip
    grid = list(
        itertools.product(
            *(
                [x & ((1 << w) - 1) for x in values]
                for values, w in zip(limits, widths, strict=True)
            )
        )
    )
    rows = [grid[i] for i in random.permutation(len(grid))[: COUNT // 2]]
    while len(rows) < COUNT:
        row = []
        for width in widths:
            value = int.from_bytes(random.bytes(width // 8), "little")
            if random.integers(2):
                value >>= int(random.integers(width))
                if random.integers(2):
                    value = -value % (1 << width)
            row.append(value)
        rows.append(tuple(row))
    return [
        np.array(column, _UNSIGNED[width])
        for column, width in zip(zip(*rows, strict=True), widths, strict=True)
    ]
