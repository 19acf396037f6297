"""Exchange between the threads of a warp in the emulator, against the PTX ISA's pseudocode.

Each runs over 4,096 threads, 128 warps.
"""

from collections.abc import Callable

import numpy as np
import pytest
from support.elementwise import COUNT, apply, integer_inputs

WARP = 32
FULL = 0xFFFFFFFF


def of_warps(values: np.ndarray) -> list[list[int]]:
    return values.reshape(-1, WARP).tolist()


def shuffled(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """The lane that is read and whether it is in range: PTX ISA, "shfl.sync", semantics."""
    distance, clamp, segment = b & 0x1F, c & 0x1F, c >> 8 & 0x1F
    highest = (lane & segment) | (clamp & ~segment)
    lowest = lane & segment
    match mode:
        case "up":
            source = lane - distance
            valid = source >= highest
        case "down":
            source = lane + distance
            valid = source <= highest
        case "bfly":
            source = lane ^ distance
            valid = source <= highest
        case _:
            source = lowest | (distance & ~segment)
            valid = source <= highest
    return (source if valid else lane), valid


@pytest.mark.parametrize("width", [32, 16, 8, 2])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffle(mode, width):
    """Every thread with a distance of its own, in segments of `width` lanes as CUDA makes them."""
    values, distances = integer_inputs([32, 32])
    control = (WARP - width) << 8 | (0 if mode == "up" else 0x1F)
    got = apply(
        f"shfl.sync.{mode}.b32 %w5|p, {{0}}, {{1}}, {control:#x}, -1;\n"
        "mov.b32 %w6, 0;\n"
        "@p mov.b32 %w6, 1;\n"
        "mov.b64 {d}, {{%w5, %w6}};",
        [values, distances],
        64,
    )
    for results, inputs, steps in zip(
        got.reshape(-1, WARP).tolist(), of_warps(values), of_warps(distances), strict=True
    ):
        for lane in range(WARP):
            source, valid = shuffled(mode, lane, steps[lane], control)
            assert results[lane] == inputs[source] | valid << 32


def check_warps(
    instruction: str, sources: list[np.ndarray], expected: Callable[..., list[int]]
) -> None:
    """Compares the results of each warp with `expected` of its inputs."""
    got = of_warps(apply(instruction, sources, 32))
    for results, *inputs in zip(got, *(of_warps(source) for source in sources), strict=True):
        assert results == expected(*inputs)


def few() -> np.ndarray:
    """Small numbers, in some warps all the same."""
    (values,) = integer_inputs([32])
    values %= 3
    values[: COUNT // 4] = np.repeat(values[: COUNT // 4 : WARP], WARP)
    return values


def ballot(inputs: list[int]) -> int:
    return sum((value != 0) << lane for lane, value in enumerate(inputs))


def test_ballot():
    text = "setp.ne.u32 p, {0}, 0;\nvote.sync.ballot.b32 {d}, p, -1;"
    check_warps(text, [few()], lambda x: [ballot(x)] * WARP)


@pytest.mark.parametrize(
    ("mode", "holds"),
    [
        ("all", lambda mask: mask == FULL),
        ("any", lambda mask: mask != 0),
        ("uni", lambda mask: mask in (0, FULL)),
    ],
)
def test_votes(mode, holds):
    text = f"""setp.ne.u32 p, {{0}}, 0;
    vote.sync.{mode}.pred q, p, -1;
    selp.u32 {{d}}, 1, 0, q;"""
    check_warps(text, [few()], lambda x: [int(holds(ballot(x)))] * WARP)


def test_ballot_of_the_lanes_that_are_there():
    """Odd lanes vote, under their own mask; even ones keep what they have."""
    text = """and.b32 %w5, %t, 1;
    setp.ne.u32 q, %w5, 0;
    setp.ne.u32 p, {0}, 0;
    mov.u32 %w6, 7;
    @q vote.sync.ballot.b32 %w6, p, 0xaaaaaaaa;
    mov.b32 {d}, %w6;"""
    check_warps(
        text,
        [few()],
        lambda x: [ballot(x) & 0xAAAAAAAA if lane % 2 else 7 for lane in range(WARP)],
    )


def test_match_any():
    text = "match.any.sync.b32 {d}, {0}, -1;"
    check_warps(
        text,
        [few()],
        lambda x: [sum((other == value) << i for i, other in enumerate(x)) for value in x],
    )


def test_match_all():
    text = "match.all.sync.b32 %w5|p, {0}, -1;\n@!p add.u32 %w5, %w5, 7;\nmov.b32 {d}, %w5;"
    check_warps(text, [few()], lambda x: [FULL if len(set(x)) == 1 else 7] * WARP)


def test_elect():
    text = "elect.sync %w5|p, -1;\nselp.b32 %w6, 16, 0, p;\nadd.u32 {d}, %w5, %w6;"
    check_warps(text, [few()], lambda x: [16] + [0] * (WARP - 1))


@pytest.mark.parametrize("dtype", ["u32", "s32"])
@pytest.mark.parametrize(("name", "reduce"), [("add", sum), ("min", min), ("max", max)])
def test_redux_of_integers(name, reduce, dtype):
    (values,) = integer_inputs([32])

    def expected(inputs: list[int]) -> list[int]:
        signed = [x - (x >> 31 << 32) if dtype == "s32" else x for x in inputs]
        return [reduce(signed) % 2**32] * WARP

    check_warps(f"redux.sync.{name}.{dtype} {{d}}, {{0}}, -1;", [values], expected)


@pytest.mark.parametrize(
    ("name", "reduce"),
    [("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)],
)
def test_redux_of_bits(name, reduce):
    (values,) = integer_inputs([32])
    check_warps(
        f"redux.sync.{name}.b32 {{d}}, {{0}}, -1;",
        [values],
        lambda x: [int(reduce.reduce(np.array(x, np.uint32)))] * WARP,
    )


def test_special_registers_of_a_lane():
    (x,) = integer_inputs([32])
    for name, value in {
        "laneid": lambda lane: lane,
        "lanemask_eq": lambda lane: 1 << lane,
        "lanemask_lt": lambda lane: (1 << lane) - 1,
        "lanemask_le": lambda lane: (2 << lane) - 1,
        "lanemask_gt": lambda lane: FULL ^ ((2 << lane) - 1),
        "lanemask_ge": lambda lane: FULL ^ ((1 << lane) - 1),
    }.items():
        check_warps(
            f"mov.u32 %w5, %{name};\nxor.b32 {{d}}, %w5, {{0}};",
            [x],
            lambda inputs, value=value: [x ^ value(lane) for lane, x in enumerate(inputs)],
        )
