"""Sums of several words in the emulator, linked by the carry flag, against Python's integers."""

from collections.abc import Callable

import pytest
from support.elementwise import check, integer_inputs
from support.hand_written import fails, kernel, output, passes

from ptx.emulator import UninitializedError

WORDS = {32: "w", 64: "d"}


def wide(low: int, high: int, width: int) -> int:
    return low | high << width


# What three words of the result are of two operands of two words each, and the flag that is set
# before by a sum of the low words.
CHAINS: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, width: a + b,
    "sub": lambda a, b, width: a - b,
}


@pytest.mark.parametrize("sign", ["u", "s"])
@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("operation", CHAINS)
def test_three_words(operation, width, sign):
    """The third word is the carry or borrow out of the second, which took that of the first."""
    inputs = integer_inputs([width] * 4)
    dtype, register = f"{sign}{width}", f"%{WORDS[width]}"
    chain = f"""{operation}.cc.{dtype} {register}7, {{0}}, {{2}};
    {operation}c.cc.{dtype} {register}8, {{1}}, {{3}};
    {operation}c.{dtype} {register}6, 0, 0;
    """
    mask = (1 << width) - 1
    for i, word in enumerate((7, 8, 6)):

        def expected(a, b, c, d, i=i):
            total = CHAINS[operation](wide(a, b, width), wide(c, d, width), width)
            return total >> i * width & mask

        check(f"{chain}mov.b{width} {{d}}, {register}{word};", inputs, width, expected)


@pytest.mark.parametrize("dtype", ["u32", "s32", "u64", "s64"])
def test_product_of_two_words_is_added_to_two_words(dtype):
    width = int(dtype[1:])
    inputs = integer_inputs([width] * 4)
    register, mask = f"%{WORDS[width]}", (1 << width) - 1

    def signed(a: int) -> int:
        return a - (1 << width) if dtype[0] == "s" and a >> (width - 1) else a

    def total(a: int, b: int, c: int, d: int) -> int:
        return (signed(a) * signed(b) & (1 << 2 * width) - 1) + wide(c, d, width)

    chain = f"""mad.lo.cc.{dtype} {register}7, {{0}}, {{1}}, {{2}};
    madc.hi.cc.{dtype} {register}8, {{0}}, {{1}}, {{3}};
    addc.{dtype} {register}6, 0, 0;
    """
    for i, word in enumerate((7, 8, 6)):
        check(
            f"{chain}mov.b{width} {{d}}, {register}{word};",
            inputs,
            width,
            lambda a, b, c, d, i=i: total(a, b, c, d) >> i * width & mask,
        )


def test_each_thread_has_a_flag_and_guards_spare_it():
    text = kernel(
        """
        setp.lt.u32 %p0, %t, 8;
        add.cc.u32 %r0, 0, 0;
        @%p0 add.cc.u32 %r0, %r0, -1;
        @%p0 add.cc.u32 %r0, %r0, 1;
        addc.u32 %r1, 0, 0;
        st.global.u32 [%aty], %r1;
        """,
        "y",
    )
    passes(text, output(), expected=[1] * 8 + [0] * 24)


def test_a_flag_that_nothing_has_set():
    text = kernel("addc.u32 %r0, %t, 0;  // fault\n st.global.u32 [%aty], %r0;", "y")
    fault = fails(UninitializedError, text, output())
    assert "CC.CF" in str(fault)
