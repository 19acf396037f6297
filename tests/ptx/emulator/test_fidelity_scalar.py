"""Floating point instructions in the emulator, bit for bit against exact arithmetic.

Each runs over 4,096 inputs: a grid of special values (NaNs, infinities, signed zeros, the ends of
the subnormal and normal ranges), random bit patterns, cancellations, and cases on and beside the
middle between two results, with which a product rounded twice is caught. Where PTX leaves open
which NaN comes out ("Single-precision instructions return an unspecified NaN", PTX ISA 9.7.3),
any NaN is right; elsewhere every bit counts.
"""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from support import exact
from support.elementwise import apply, check, float_inputs, packed
from support.exact import BF16, F16, F32, F64, FORMATS, Exact, Format

Operation = Callable[..., Exact]

OPERATIONS: dict[str, tuple[int, Operation]] = {
    "add": (2, exact.add),
    "sub": (2, lambda a, b, mode: exact.add(a, exact.neg(b), mode)),
    "mul": (2, lambda a, b, mode: exact.mul(a, b)),
    "fma": (3, exact.fma),
    "div": (2, lambda a, b, mode: exact.div(a, b)),
    "rcp": (1, lambda a, mode: exact.div(exact.from_int(1), a)),
    "sqrt": (1, lambda a, mode: exact.sqrt(a)),
}


def rounded(operation: str, format: Format, modifiers: list[str]) -> Callable[..., int]:
    """The instruction's result as the ISA defines it, from bit patterns to a bit pattern."""
    compute = OPERATIONS[operation][1]
    mode = next((m for m in modifiers if m in ("rn", "rz", "rm", "rp")), "rn")
    flush = format.flush if "ftz" in modifiers else lambda bits: bits

    def expected(*inputs: int) -> int:
        values = [format.decode(flush(bits)) for bits in inputs]
        result = flush(format.round(compute(*values, mode), mode))
        return saturated(format, result) if "sat" in modifiers else result

    return expected


def saturated(format: Format, bits: int) -> int:
    """Clamped to 0..1, NaN and -0 to +0 (PTX ISA, .sat)."""
    one = format.round(exact.from_int(1))
    if format.is_nan(bits) or bits >> (format.bits - 1):
        return 0
    return min(bits, one)


def by_halves(expected: Callable[..., int]) -> Callable[..., int]:
    """The same on the low and the high 16 bits of each operand."""

    def both(*inputs: int) -> int:
        low = expected(*(bits & 0xFFFF for bits in inputs))
        return low | expected(*(bits >> 16 for bits in inputs)) << 16

    return both


def check_numbers(
    instruction: str,
    operands: int,
    expected: Callable[..., int],
    *,
    any_nan: bool = True,
    result: int | None = None,
) -> None:
    """Compares an instruction with `expected` of one number, and of both in packed halves.

    Args:
      instruction: the name; it ends in the type of the operands.
      operands: how many there are.
      expected: from the operands' bit patterns to the result's.
      any_nan: whether any NaN is right.
      result: bits of the result, where they are not those of an operand.
    """
    dtype = instruction.split(".")[-1]
    format = FORMATS[dtype.removesuffix("x2")]
    inputs = float_inputs(format, operands)
    if dtype.endswith("x2"):
        inputs, expected, result = packed(inputs), by_halves(expected), 32
    check(instruction, inputs, result or format.bits, expected, format if any_nan else None)


ARITHMETIC = [
    *(f"{op}.{t}" for op in ("add", "sub", "mul") for t in ("f32", "f64", "f16", "f16x2")),
    *(f"{op}.rn.{t}" for op in ("add", "sub", "mul") for t in ("f32", "f64", "f16", "f16x2")),
    *(f"{op}.rn.{t}" for op in ("add", "sub", "mul") for t in ("bf16", "bf16x2")),
    *(f"fma.rn.{t}" for t in ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2")),
    *(f"{op}.rn.{t}" for op in ("div", "rcp", "sqrt") for t in ("f32", "f64")),
    *(f"{op}.rn.ftz.f32" for op in ("add", "sub", "mul", "fma", "div", "rcp", "sqrt")),
    *(f"{op}.ftz.{t}" for op in ("add", "sub", "mul") for t in ("f32", "f16", "f16x2")),
    *(f"fma.rn.ftz.{t}" for t in ("f16", "f16x2")),
    *(f"{op}.sat.f32" for op in ("add", "sub", "mul")),
    "fma.rn.sat.f32",
    *(f"{op}.{m}.{t}" for op in OPERATIONS for m in ("rz", "rm", "rp") for t in ("f32", "f64")),
]


@pytest.mark.spread(30)
@pytest.mark.parametrize("instruction", ARITHMETIC)
def test_arithmetic_is_rounded_once(instruction):
    operation, *modifiers, dtype = instruction.split(".")
    expected = rounded(operation, FORMATS[dtype.removesuffix("x2")], modifiers)
    check_numbers(instruction, OPERATIONS[operation][0], expected)


def minimum(format: Format, sign: int, modifiers: list[str]) -> Callable[[int, int], int]:
    """Min (sign 0) or max (sign 1): the number where one is a NaN, unless .NaN; -0 < +0."""

    def expected(a: int, b: int) -> int:
        if "ftz" in modifiers:
            a, b = format.flush(a), format.flush(b)
        nans = format.is_nan(a) + format.is_nan(b)
        if nans == 2 or (nans and "NaN" in modifiers):
            return format.nan
        if nans:
            return b if format.is_nan(a) else a
        x, y = format.decode(a), format.decode(b)
        if exact.equal(x, y):  # zeros of both signs
            return b if x.sign == sign else a
        return b if exact.less(x, y) == bool(sign) else a

    return expected


@pytest.mark.parametrize("operation", ["min", "max"])
@pytest.mark.parametrize(
    "modifiers",
    [
        *("f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "ftz.f32", "ftz.f16"),
        *("NaN.f32", "ftz.NaN.f32", "NaN.f16", "NaN.bf16", "NaN.f16x2", "NaN.bf16x2"),
    ],
)
def test_min_and_max(operation, modifiers):
    *flags, dtype = modifiers.split(".")
    expected = minimum(FORMATS[dtype.removesuffix("x2")], int(operation == "max"), flags)
    # With .NaN, "the result is canonical NaN": every bit counts.
    check_numbers(f"{operation}.{modifiers}", 2, expected, any_nan="NaN" not in flags)


@pytest.mark.parametrize("operation", ["abs", "neg"])
@pytest.mark.parametrize(
    "modifiers", ["f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "ftz.f32", "ftz.f16"]
)
def test_abs_and_neg(operation, modifiers):
    *flags, dtype = modifiers.split(".")
    format = FORMATS[dtype.removesuffix("x2")]
    sign = 1 << (format.bits - 1)

    def expected(a: int) -> int:
        a = format.flush(a) if flags else a
        return a & ~sign if operation == "abs" else a ^ sign

    check_numbers(f"{operation}.{modifiers}", 1, expected)


ORDERINGS: dict[str, Callable[[Exact, Exact], bool]] = {
    "eq": exact.equal,
    "ne": lambda a, b: not exact.equal(a, b),
    "lt": exact.less,
    "le": lambda a, b: exact.less(a, b) or exact.equal(a, b),
    "gt": lambda a, b: exact.less(b, a),
    "ge": lambda a, b: exact.less(b, a) or exact.equal(a, b),
}


def compared(operator: str, a: Exact, b: Exact) -> bool:
    """PTX ISA 9.3.1.2, tables of floating point comparison operators."""
    unordered = "nan" in (a.kind, b.kind)
    if operator in ("num", "nan"):
        return unordered == (operator == "nan")
    if operator in ORDERINGS:
        return not unordered and ORDERINGS[operator](a, b)
    return unordered or ORDERINGS[operator.removesuffix("u")](a, b)


OPERATORS = [*ORDERINGS, *(f"{operator}u" for operator in ORDERINGS), "num", "nan"]


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "ftz.f32"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_setp_of_floats(operator, dtype):
    format = FORMATS[dtype.split(".")[-1]]
    flush = format.flush if dtype == "ftz.f32" else lambda bits: bits
    inputs = float_inputs(format, 2)
    check(
        f"setp.{operator}.{dtype} p, {{0}}, {{1}};\nselp.b32 {{d}}, 1, 0, p;",
        inputs,
        32,
        lambda a, b: int(compared(operator, format.decode(flush(a)), format.decode(flush(b)))),
    )


def test_setp_gives_the_complement_too_and_combines_with_a_predicate():
    inputs = float_inputs(F32, 2)

    def expected(a: int, b: int) -> int:
        x, y = F32.decode(a), F32.decode(b)
        lower, greater = compared("lt", x, y), compared("geu", x, y)
        both = compared("neu", x, y) and lower
        either = compared("eq", x, y) or not lower
        return lower | greater << 1 | both << 2 | either << 3

    check(
        """setp.lt.f32 p|q, {0}, {1};
        selp.b32 %w5, 1, 0, p;
        selp.b32 %w6, 2, 0, q;
        or.b32 %w7, %w5, %w6;
        setp.neu.and.f32 q, {0}, {1}, p;
        selp.b32 %w5, 4, 0, q;
        or.b32 %w7, %w7, %w5;
        setp.eq.or.f32 q, {0}, {1}, !p;
        selp.b32 %w5, 8, 0, q;
        or.b32 {d}, %w7, %w5;""",
        inputs,
        32,
        expected,
    )


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_selp_and_mov_keep_every_bit(dtype):
    format = FORMATS[dtype]
    a, b = float_inputs(format, 2)
    condition = np.arange(len(a), dtype=np.uint32) % 3
    check(
        f"""setp.ne.b32 p, {{2}}, 0;
        selp.{dtype} {{0}}, {{0}}, {{1}}, p;
        mov.{dtype} {{d}}, {{0}};""",
        [a, b, condition],
        format.bits,
        lambda x, y, c: x if c else y,
    )


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_copysign_takes_the_sign_of_its_first_operand(dtype):
    sign = 1 << (FORMATS[dtype].bits - 1)
    check_numbers(f"copysign.{dtype}", 2, lambda a, b: (b & ~sign) | (a & sign), any_nan=False)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_testp(dtype):
    """Zeros are normal numbers (PTX ISA, testp)."""
    format = FORMATS[dtype]
    tests: dict[str, Callable[[int], bool]] = {
        "finite": lambda a: format.decode(a).kind == "finite",
        "infinite": lambda a: format.decode(a).kind == "inf",
        "number": lambda a: not format.is_nan(a),
        "notanumber": format.is_nan,
        "normal": lambda a: format.decode(a).kind == "finite" and not format.is_subnormal(a),
        "subnormal": format.is_subnormal,
    }
    lines = ["mov.b32 %w5, 0;"]
    for i, name in enumerate(tests):
        lines += [f"testp.{name}.{dtype} p, {{0}};", f"@p or.b32 %w5, %w5, {1 << i};"]
    check(
        "\n".join([*lines, "mov.b32 {d}, %w5;"]),
        float_inputs(format, 1),
        32,
        lambda a: sum(test(a) << i for i, test in enumerate(tests.values())),
    )


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f16x2", "bf16x2"])
def test_fma_with_relu(dtype):
    format = FORMATS[dtype.removesuffix("x2")]
    plain = rounded("fma", format, ["rn"])

    def expected(*bits: int) -> int:
        """Negative numbers become 0, a NaN the canonical one."""
        result = plain(*bits)
        return 0 if result >> (format.bits - 1) else result

    check_numbers(f"fma.rn.relu.{dtype}", 3, expected, any_nan=False)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("operator", ["eq", "lt", "geu", "neu", "nan"])
def test_packed_comparison_gives_a_predicate_for_each_half(operator, dtype):
    format = FORMATS[dtype]
    inputs = packed(float_inputs(format, 2))

    def half(a: int, b: int) -> int:
        return int(compared(operator, format.decode(a), format.decode(b)))

    check(
        f"""setp.{operator}.{dtype}x2 p|q, {{0}}, {{1}};
        selp.b32 %w5, 1, 0, p;
        selp.b32 %w6, 0x10000, 0, q;
        or.b32 {{d}}, %w5, %w6;""",
        inputs,
        32,
        by_halves(half),
    )


@pytest.mark.parametrize("operator", ["eq", "lt", "geu", "neu", "nan"])
@pytest.mark.parametrize(
    "types", ["u32.f32", "s32.f64", "f32.f32", "f16.f16", "u32.f16x2", "f16x2.f16x2"]
)
def test_set(operator, types):
    """All ones, or 1.0, where the comparison holds (PTX ISA, set)."""
    result, source = types.split(".")
    format = FORMATS[source.removesuffix("x2")]
    width = format.bits if result.startswith("f") else 32
    if result.startswith("f"):
        one = format.round(exact.from_int(1))
    else:
        one = (1 << min(width, format.bits)) - 1

    def expected(a: int, b: int) -> int:
        return one * compared(operator, format.decode(a), format.decode(b))

    check_numbers(f"set.{operator}.{types}", 2, expected, any_nan=False, result=width)


# Maximal errors that the ISA gives for approximations: relative, or absolute where negative
# results of a logarithm or of a sine come close to zero.
@pytest.mark.parametrize(
    ("instruction", "reference", "low", "high", "relative", "absolute"),
    [
        ("rcp.approx.f32", lambda x: 1 / x, 1e-30, 1e30, 2**-23, 0),
        ("sqrt.approx.f32", np.sqrt, 1e-30, 1e30, 2**-23, 0),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x), 1e-30, 1e30, 2**-22.9, 0),
        ("ex2.approx.f32", np.exp2, -125.0, 127.0, 2**-22, 0),
        ("ex2.approx.ftz.f32", np.exp2, -125.0, 127.0, 2**-22, 0),
        ("lg2.approx.f32", np.log2, 2.0, 1e30, 2**-22, 0),
        ("lg2.approx.f32", np.log2, 0.5, 2.0, 0, 2**-22),
        ("sin.approx.f32", np.sin, -2 * np.pi, 2 * np.pi, 0, 2**-20.5),
        ("cos.approx.f32", np.cos, -2 * np.pi, 2 * np.pi, 0, 2**-20.5),
        ("tanh.approx.f32", np.tanh, -8.0, 8.0, 2**-10.987, 0),
    ],
)
def test_approximations_are_within_the_documented_error(
    instruction, reference, low, high, relative, absolute
):
    random = np.random.default_rng(7)
    if low > 0 and high / low > 1e6:
        x = np.exp(random.uniform(np.log(low), np.log(high), 4096)).astype(np.float32)
    else:
        x = random.uniform(low, high, 4096).astype(np.float32)
    got = apply(instruction, [x.view(np.uint32)], 32).view(np.float32).astype(np.float64)
    right = reference(x.astype(np.float64))
    # Half an ulp more for a result that is, in the end, a float32.
    tolerance = absolute + (relative + 2**-24) * np.abs(right)
    assert np.all(np.abs(got - right) <= tolerance)


@pytest.mark.parametrize("instruction", ["div.approx.f32", "div.full.f32", "div.full.ftz.f32"])
def test_approximate_division_is_within_two_ulps(instruction):
    random = np.random.default_rng(8)
    a = random.normal(size=4096).astype(np.float32)
    b = np.exp2(random.uniform(-100, 100, 4096)).astype(np.float32)
    got = apply(instruction, [a.view(np.uint32), b.view(np.uint32)], 32).view(np.float32)
    right = a.astype(np.float64) / b
    assert np.all(np.abs(got - right) <= 2 * np.spacing(np.abs(got)).astype(np.float64))


@pytest.mark.parametrize(
    ("instruction", "values"),
    [
        ("rcp.approx.f32", {"-inf": "-0", "-0": "-inf", "0": "inf", "inf": "0", "nan": "nan"}),
        ("sqrt.approx.f32", {"-inf": "nan", "-0": "-0", "0": "0", "inf": "inf", "-1": "nan"}),
        ("rsqrt.approx.f32", {"-inf": "nan", "-0": "-inf", "0": "inf", "inf": "0", "-1": "nan"}),
        ("ex2.approx.f32", {"-inf": "0", "-0": "1", "0": "1", "inf": "inf", "nan": "nan"}),
        ("lg2.approx.f32", {"-inf": "nan", "-0": "-inf", "0": "-inf", "inf": "inf", "-1": "nan"}),
        ("sin.approx.f32", {"-inf": "nan", "-0": "-0", "0": "0", "inf": "nan", "nan": "nan"}),
        ("cos.approx.f32", {"-inf": "nan", "-0": "1", "0": "1", "inf": "nan", "nan": "nan"}),
        ("tanh.approx.f32", {"-inf": "-1", "-0": "-0", "0": "0", "inf": "1", "nan": "nan"}),
    ],
)
def test_approximations_of_special_values(instruction, values):
    """The tables in the ISA's descriptions."""
    x = np.resize(np.array(list(values), np.float32), 4096)
    right = np.resize(np.array(list(values.values()), np.float32), 4096)
    got = apply(instruction, [x.view(np.uint32)], 32).view(np.float32)
    np.testing.assert_array_equal(got, right)
    assert np.array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(right[~np.isnan(right)]))


NUMPY = {
    "f32": (F32, np.dtype(np.float32)),
    "f64": (F64, np.dtype(np.float64)),
    "f16": (F16, np.dtype(np.float16)),
}


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("operation", ["add", "sub", "mul", "div", "sqrt"])
def test_the_oracle_agrees_with_numpy(operation, name):
    format, dtype = NUMPY[name]
    inputs = float_inputs(format, OPERATIONS[operation][0])
    longer = {"sub": "subtract", "mul": "multiply", "div": "divide"}
    function = getattr(np, longer.get(operation) or operation)
    with np.errstate(all="ignore"):
        theirs = function(*(x.view(dtype) for x in inputs)).view(inputs[0].dtype)
    expected = rounded(operation, format, ["rn"])
    for right, *bits in zip(theirs.tolist(), *(x.tolist() for x in inputs), strict=True):
        ours = expected(*bits)
        assert ours == right or (format.is_nan(ours) and format.is_nan(right)), bits


@pytest.mark.parametrize("source", ["f32", "f64"])
@pytest.mark.parametrize("target", ["f16", "bf16", "f32"])
def test_the_oracle_narrows_as_numpy_does(source, target):
    if source == target:
        source = "f64"
    wide, wide_dtype = NUMPY[source]
    narrow = FORMATS[target]
    dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}[target]
    with np.errstate(all="ignore"):
        if source == "f64" and target == "bf16":  # ml_dtypes rounds to float32 on the way
            bits = float_inputs(F32, 1)[0].view(np.float32).astype(np.float64)
            bits = bits.view(np.uint64)
        else:
            bits = float_inputs(wide, 1)[0]
        theirs = bits.view(wide_dtype).astype(dtype)
    theirs = theirs.view(np.uint32 if target == "f32" else np.uint16)
    for right, pattern in zip(theirs.tolist(), bits.tolist(), strict=True):
        ours = narrow.round(wide.decode(pattern))
        assert ours == right or (narrow.is_nan(ours) and narrow.is_nan(right)), hex(pattern)


def test_the_inputs_contain_what_they_should():
    """Specials of every kind, and exact ties of a sum, a product and a fused product."""
    for format in (F16, BF16, F32, F64):
        for operation in ("add", "mul", "fma"):
            operands, compute = OPERATIONS[operation]
            columns = float_inputs(format, operands)
            values = columns[0].tolist()
            kinds = {format.decode(v).kind for v in values}
            assert kinds == {"finite", "inf", "nan"}
            assert {0, 1 << (format.bits - 1)} <= set(values)
            assert any(format.is_subnormal(v) for v in values)
            ties = 0
            for bits in zip(*(c.tolist() for c in columns), strict=True):
                result = compute(*(format.decode(b) for b in bits), "rn")
                if operation == "fma":  # the product alone
                    result = exact.mul(*(format.decode(b) for b in bits[:2]))
                down, up = format.round(result, "rm"), format.round(result, "rp")
                away, even = format.round(result, "rna"), format.round(result, "rn")
                ties += down != up and away != even
            assert ties > 100, (format.name, operation, ties)
