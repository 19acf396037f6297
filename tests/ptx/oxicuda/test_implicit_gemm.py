"""Statements of OxiCUDA's `implicit_gemm.rs` about the names that `ptx` has from it."""

import dataclasses
import math
import re

import ml_dtypes
import numpy as np
import pytest

from ptx import (
    TARGETS,
    ConvConfig,
    ConvProblem,
    ImplicitGemmConv,
    TileConfig,
    assemble,
    bf16,
    f16,
    f32,
    f64,
    gemm_k_to_filter_coords,
    gemm_m_to_conv_coords,
    generate_conv_forward_ptx,
    input_coord,
    u32,
)
from ptx.emulator import Buffer, launch
from ptx.launch import BufferAddress

PROBLEM = ConvProblem(
    batch=2, in_channels=64, in_dims=(32, 32), out_channels=128, filter_dims=(3, 3),
    padding=(1, 1), stride=(1, 1), dilation=(1, 1), groups=1, input_type=f32, output_type=f32,
)  # fmt: skip
TILES = TileConfig(tile_m=64, tile_n=64, tile_k=16, warp_m=32, warp_n=32, stages=2)
NUMPY = {f16: np.float16, bf16: ml_dtypes.bfloat16, f32: np.float32, f64: np.float64}


def changed(**fields) -> ConvProblem:
    return dataclasses.replace(PROBLEM, **fields)


def tiles(**fields) -> TileConfig:
    return dataclasses.replace(TILES, **fields)


# ---- coordinates


@pytest.mark.parametrize(("m", "coords"), [(0, (0, 0, 0)), (5, (0, 1, 1)), (16, (1, 0, 0))])
def test_output_coordinates_of_the_document(m, coords):
    assert gemm_m_to_conv_coords(m, 4, 4) == coords


@pytest.mark.parametrize(("k", "coords"), [(0, (0, 0, 0)), (4, (0, 1, 1)), (9, (1, 0, 0))])
def test_filter_coordinates_of_the_document(k, coords):
    assert gemm_k_to_filter_coords(k, 3, 3) == coords


@pytest.mark.parametrize("coordinates", [gemm_m_to_conv_coords, gemm_k_to_filter_coords])
def test_coordinates_of_sides_that_differ(coordinates):
    shape = (3, 2, 5)
    for index in range(math.prod(shape)):
        assert coordinates(index, 2, 5) == tuple(np.unravel_index(index, shape))


@pytest.mark.parametrize(
    ("arguments", "position"),
    [
        ((1, 0, 1, 1, 1, 32), 0),
        ((0, 0, 1, 1, 1, 32), None),  # the padding above
        ((31, 2, 1, 1, 1, 32), None),  # and below
        ((31, 1, 1, 1, 1, 32), 31),
        ((2, 3, 4, 5, 7, 32), 27),  # 2 * 5 - 4 + 3 * 7
        ((2, 3, 4, 5, 7, 27), None),
    ],
)
def test_input_coordinate(arguments, position):
    assert input_coord(*arguments) == position


# ---- problems


@pytest.mark.parametrize(
    ("fields", "dims"),
    [
        ({}, (32, 32)),
        ({"layout": "NCHW"}, (32, 32)),
        ({"in_dims": (7, 30)}, (7, 30)),
        ({"stride": (2, 3)}, (16, 11)),
        ({"dilation": (2, 4), "padding": (0, 3)}, (28, 30)),
        ({"filter_dims": (5, 1), "padding": (0, 0)}, (28, 32)),
        ({"in_dims": (2, 0), "padding": (0, 0)}, (0, 0)),
        (
            {
                **{"in_dims": (40,), "filter_dims": (7,), "padding": (2,)},
                **{"stride": (3,), "dilation": (2,)},
            },
            (11,),
        ),
    ],
)
def test_output_dims(fields, dims):
    problem = changed(**fields)
    assert problem.output_dims() == dims
    m, n, k = problem.conv_to_gemm_dims()
    assert (m, n, k) == (2 * math.prod(dims), 128, 64 * math.prod(problem.filter_dims))


def test_groups_share_the_product():
    """All groups' output channels, and the filter volume of one."""
    assert changed(groups=4).conv_to_gemm_dims() == (2048, 128, 16 * 9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch": -1}, "batch must be at least 0, got -1"),
        ({"in_dims": (1, 2, 3)}, "in_dims must be (height, width) or (width,), got (1, 2, 3)"),
        ({"in_dims": ()}, "in_dims must be (height, width) or (width,), got ()"),
        ({"in_dims": (-1, 2)}, "in_dims must be at least 0, got (-1, 2)"),
        ({"stride": (1,)}, "stride must have 2 numbers, got (1,)"),
        ({"stride": (1, 0)}, "stride must be at least 1, got (1, 0)"),
        ({"dilation": (0, 1)}, "dilation must be at least 1, got (0, 1)"),
        ({"filter_dims": (3, 0)}, "filter_dims must be at least 1, got (3, 0)"),
        ({"padding": (-1, 0)}, "padding must be at least 0, got (-1, 0)"),
        ({"in_channels": 0}, "in_channels must be at least 1, got 0"),
        ({"groups": 3}, "groups=3 must divide in_channels=64"),
        ({"input_type": u32, "output_type": None}, "float_type must be f16, bf16, f32 or f64"),
        ({"output_type": f16}, "output_type must be input_type, f32, got f16"),
        ({"layout": "NWHC"}, "layout must be 'NHWC' or 'NCHW', got 'NWHC'"),
        ({"batch": 2**21}, "must be below 2**31 pixels, got 2097152 * (34, 34)"),
    ],
)
def test_what_is_no_problem(fields, message):
    problem = changed(**fields)
    for use in (
        problem.validate,
        problem.output_dims,
        problem.conv_to_gemm_dims,
        ImplicitGemmConv(problem).generate_ptx,
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            use()


def test_kernels_are_of_nhwc():
    conv = ImplicitGemmConv(changed(layout="NCHW"))
    with pytest.raises(ValueError, match="transpose the images and set layout='NHWC'"):
        conv.generate_ptx()


def test_configuration():
    assert PROBLEM.config() == changed(batch=64).config() == ConvConfig(64, 128)
    line = ConvProblem(1, 8, (50,), 4, (5,), (2,), (3,), (1,), groups=2, input_type=f16)
    assert line.config() == ConvConfig(8, 4, 1, 5, 1, 3, 0, 2, 1, 1, groups=2, float_type=f16)
    assert line.sizes() == {"n": 1, "h": 1, "w": 50, "p": 1, "q": 17}


# ---- kernels


def pointers(text: str) -> tuple[str, list[str]]:
    """The name of the kernel of a text, and its parameters that are addresses."""
    found = re.search(r"\.visible \.entry (\w+)\((.*?)\)", text, re.S)
    assert found is not None
    return found[1], re.findall(r"\.param \.u64 (\w+)", found[2])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
def test_names_and_texts(target, dtype):
    problem = changed(input_type=dtype, output_type=None)
    for given in (None, TileConfig.default_conv(target)):
        conv = ImplicitGemmConv(problem, target, given)
        text, plan = conv.generate_ptx(), conv.plan
        assert conv.kernel_name == f"implicit_gemm_conv_{plan.m}x{plan.n}x{plan.k}_{dtype}"
        assert pointers(text) == (conv.kernel_name, ["x", "weight", "y"])
        with_bias = pointers(conv.generate_ptx(bias=True))
        assert with_bias == (conv.kernel_name, ["x", "weight", "bias", "y"])
        assert f".target {target}\n" in text
        assert f".maxntid {plan.threads}\n" in text


def test_default_tiles_are_those_of_the_generator():
    problem = changed(batch=64)
    text = generate_conv_forward_ptx(problem.config(), "sm_90")
    assert ImplicitGemmConv(problem, "sm_90").generate_ptx() == text


def test_small_problems_have_small_tiles():
    small, large = (ImplicitGemmConv(p, "sm_90").plan for p in (PROBLEM, changed(batch=64)))
    assert (small.m, large.m) == (64, 128)


def test_workspace():
    """What is written is the output, and nothing else is read than the operands."""
    conv = ImplicitGemmConv(PROBLEM)
    assert conv.workspace_bytes == 0
    text = conv.generate_ptx()
    assert not re.search(r"\b(red|atom)\b|\.local|\.global \.", text)
    assert len(pointers(text)[1]) == 3


@pytest.mark.parametrize("given", [TILES, tiles(tile_k=32), tiles(tile_m=32, warp_m=16)])
def test_tiles_in_shared_memory(given):
    conv = ImplicitGemmConv(PROBLEM, "sm_80", given)
    declared = dict(re.findall(r"\.b8 (\w+)\[(\d+)\]", conv.generate_ptx()))
    assert int(declared["a_tile"]) == 4 * conv.smem_input_elements
    assert int(declared["b_tile"]) == 4 * conv.smem_filter_elements
    assert conv.smem_input_elements >= 2 * given.tile_m * given.tile_k
    assert conv.smem_filter_elements >= 2 * given.tile_n * given.tile_k
    assert conv.dynamic_shared == 0


def test_streamed_tiles_in_shared_memory():
    """Images do not go there, and each stage of filters is as large as its tile."""
    for stages in (3, 5):
        given = tiles(tile_m=128, warp_m=32, warp_n=64, stages=stages)
        conv = ImplicitGemmConv(PROBLEM, "sm_80", given)
        assert conv.smem_input_elements == 0
        assert conv.smem_filter_elements == stages * 64 * 16
        assert conv.dynamic_shared == 4 * conv.smem_filter_elements
        assert f"{conv.dynamic_shared} bytes of dynamic shared memory" in conv.generate_ptx()


def test_pipeline():
    """Copies are asynchronous from sm_80 on; below there is a plain loop."""
    for target in TARGETS:
        text = ImplicitGemmConv(PROBLEM, target).generate_ptx()
        assert ("cp.async.commit_group" in text) == (target != "sm_75")
        assert ("mma.sync" in text) == (target != "sm_75")


def test_bias_is_added():
    """What is loaded of it is added; without a bias nothing is."""
    conv = ImplicitGemmConv(PROBLEM)
    assert "bias" not in conv.generate_ptx()
    text = conv.generate_ptx(bias=True)
    epilogue = text[text.index("// bias, and the output") :]
    loads = re.findall(r"ld\.global\.nc\S*\.f32 +\{(.*?)\}, \[(%\w+)\]", epilogue)
    assert loads
    for _, address in loads:
        assert re.search(rf"mad\.\S+ +{address}, .*, %bias;", epilogue)
    loaded = {register for group, _ in loads for register in group.split(", ")}
    added = re.findall(r"add\.rn\.f32 +%\w+, %\w+, (%\w+);", epilogue)
    assert sorted(added) == sorted(loaded)
    assert "st.global" in epilogue


# ---- tiles


@pytest.mark.spread(16)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
def test_default_tiles_are_of_every_problem(target, dtype):
    given = TileConfig.default_conv(target)
    for fields in ({"in_channels": 5}, {"exact": True}, {"groups": 64}):
        problem = changed(input_type=dtype, output_type=None, **fields)
        conv = ImplicitGemmConv(problem, target, given)
        assert TileConfig.of_plan(conv.plan) == given
    used = assemble(conv.generate_ptx(), target)[conv.kernel_name]
    assert used.spills == 0
    assert 2 * (used.shared_bytes + 1024) <= TARGETS[target].shared_per_sm


@pytest.mark.parametrize(
    ("given", "fields", "target", "possible"),
    [
        (tiles(tile_m=0), {}, "sm_80", "tile_m >= 1"),
        (tiles(stages=1), {}, "sm_80", "stages >= 2"),
        (tiles(warp_m=24), {}, "sm_80", "a tile_m that warp_m divides"),
        (tiles(warp_n=24), {}, "sm_80", "a tile_n that warp_n divides"),
        (tiles(warp_m=1, warp_n=32), {}, "sm_80", "32 warps at most"),
        (tiles(tile_m=256, warp_m=128), {}, "sm_80", "a thread for each row of tile_m"),
        (tiles(tile_k=10), {}, "sm_80", "a tile_k in multiples of 4"),
        (tiles(tile_k=48), {}, "sm_80", "a tile_k that divides the threads"),
        (tiles(warp_m=8), {}, "sm_80", "warp_m in multiples of 16 for f32 on sm_80"),
        (tiles(warp_n=8), {}, "sm_80", "warp_n in multiples of 16 for f32 on sm_80"),
        (tiles(tile_k=4), {}, "sm_80", "tile_k in multiples of 8 for f32 on sm_80"),
        (tiles(tile_k=8), {"input_type": bf16}, "sm_80", "tile_k in multiples of 16 for bf16"),
        (tiles(tile_m=60, warp_m=30), {}, "sm_75", "a tile_m in multiples of 8"),
        (tiles(tile_n=40, warp_n=20), {}, "sm_75", "a tile_n in multiples of 16"),
        (tiles(stages=3), {"exact": True}, "sm_80", "2 stages for f32 exact on sm_80"),
        (tiles(stages=3), {}, "sm_75", "2 stages for f32 on sm_75"),
        (
            *(tiles(stages=3), {"in_channels": 24}, "sm_80"),
            "2 stages for 24 input channels of a group: more are for multiples of 16",
        ),
        (tiles(stages=3, tile_k=32), {}, "sm_80", "tile_k = 16 for f32 on sm_80, in more stages"),
        (tiles(stages=3, tile_m=128, warp_m=64), {}, "sm_80", "warp_m = 16 or 32, in more than"),
        (tiles(stages=3), {}, "sm_80", "warp_n = tile_n, multiples of 32, in more than 2 stages"),
        (tiles(tile_k=64), {}, "sm_80", "49152 bytes of shared memory, not 70656,"),
        (
            *(tiles(stages=26, warp_n=64), {}, "sm_86"),
            "101376 bytes of shared memory, not 107520,",
        ),
        (
            *(tiles(tile_m=128, tile_n=256, warp_m=64, warp_n=128), {"input_type": bf16}, "sm_80"),
            "128 registers of sums in a thread, not 256,",
        ),
    ],
)
def test_tiles_that_cannot_be(given, fields, target, possible):
    conv = ImplicitGemmConv(changed(**{"output_type": None, **fields}), target, given)
    message = f"tiles must have {possible}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}.*got TileConfig"):
        conv.generate_ptx()


def test_registers_of_large_blocks():
    """Two blocks fit on an SM, unless their sums take half of the registers."""
    for given, blocks in ((TILES, 2), (tiles(tile_m=128, tile_n=256, warp_m=64, warp_n=64), 1)):
        conv = ImplicitGemmConv(changed(input_type=bf16, output_type=None), "sm_80", given)
        assert f".minnctapersm {blocks}\n" in conv.generate_ptx()


# ---- what they compute


def product(problem: ConvProblem, x: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """The matrix product that the document describes, of x [N, H, W, C] and filters [Co, C, R, S].

    Returns:
      [M, N] in float64.
    """
    (in_h, in_w), (taps_h, taps_w) = x.shape[1:3], filters.shape[2:]
    out = (1, *problem.output_dims())[-2:]
    strides = [(1, *problem.stride)[-2:], (1, *problem.dilation)[-2:], (0, *problem.padding)[-2:]]
    (stride_h, stride_w), (dilation_h, dilation_w), (pad_h, pad_w) = strides
    m, n, k = problem.conv_to_gemm_dims()
    a = np.zeros((problem.groups, m, k))
    for i in range(m):
        image, row, column = gemm_m_to_conv_coords(i, *out)
        for j in range(k):
            c, r, s = gemm_k_to_filter_coords(j, taps_h, taps_w)
            y = input_coord(row, r, pad_h, stride_h, dilation_h, in_h)
            z = input_coord(column, s, pad_w, stride_w, dilation_w, in_w)
            if y is not None and z is not None:
                a[:, i, j] = x[image, y, z].reshape(problem.groups, -1)[:, c]
    b = filters.reshape(problem.groups, n // problem.groups, k).astype(np.float64)
    return np.concatenate([a[g] @ b[g].T for g in range(problem.groups)], axis=1)


CASES = {
    "plain loop": (
        "sm_75",
        ConvProblem(2, 5, (5, 6), 20, (3, 2), (2, 0), (2, 1), (1, 2)),
        TileConfig(32, 16, 8, 16, 16, 2),
    ),
    "three warps": (
        "sm_80",
        ConvProblem(2, 12, (5, 5), 20, (2, 3), (0, 1), (1, 1), (1, 1), groups=2, input_type=f16),
        TileConfig(48, 16, 48, 16, 16, 2),
    ),
    "three stages": (
        "sm_80",
        ConvProblem(1, 32, (5, 9), 40, (3, 2), (1, 1), (1, 2), (1, 1), input_type=bf16),
        TileConfig(32, 32, 32, 16, 32, 3),
    ),
    "one warp": (
        "sm_80",
        ConvProblem(1, 16, (4, 5), 33, (2, 2), (1, 0), (1, 1), (1, 1)),
        TileConfig(32, 64, 16, 32, 64, 5),
    ),
    "1-D": (
        "sm_90",
        ConvProblem(2, 6, (23,), 9, (4,), (3,), (2,), (3,), groups=3, input_type=f64),
        TileConfig.default_conv("sm_90"),
    ),
}
# Of the largest output: sums of rounded products, and what is written is rounded once.
TOLERANCES = {f16: 1e-3, bf16: 6e-3, f32: 2e-3, f64: 1e-14}


@pytest.mark.parametrize("name", CASES)
def test_custom_tiles_compute_the_product(name):
    target, problem, given = CASES[name]
    conv = ImplicitGemmConv(problem, target, given)
    rng, dtype = np.random.default_rng(3), NUMPY[problem.input_type]
    x = rng.standard_normal((problem.batch, *(1, *problem.in_dims)[-2:], problem.in_channels))
    filters = rng.standard_normal(
        (
            *(problem.out_channels, problem.in_channels // problem.groups),
            *(1, *problem.filter_dims)[-2:],
        )
    )
    x, filters = x.astype(dtype), filters.astype(dtype)
    bias = rng.standard_normal(problem.out_channels).astype(dtype)
    weight = filters.transpose(0, 2, 3, 1).reshape(problem.out_channels, -1)
    expected = product(problem, x, filters)

    for number, added in enumerate((None, bias)):
        operands = [x, weight] if added is None else [x, weight, added]
        y = Buffer(np.empty(expected.shape, dtype), initialized=False)
        buffers = [*(Buffer(np.ascontiguousarray(o), writable=False) for o in operands), y]
        plan = conv.launch(bias=added is not None)
        assert plan.text == conv.generate_ptx(bias=added is not None)
        assert plan.dynamic_shared == conv.dynamic_shared
        arguments = [
            buffers[a.buffer] if isinstance(a, BufferAddress) else a for a in plan.arguments
        ]
        report = launch(
            plan.text, plan.grid, plan.block, arguments,
            schedule=number, dynamic_shared=plan.dynamic_shared,
        )  # fmt: skip
        lines = plan.text.splitlines()
        conflicts = [c for n, c in report.bank_conflicts.items() if "ldmatrix" in lines[n - 1]]
        assert all(conflict.worst == 1 for conflict in conflicts)
        assert bool(conflicts) == ("ldmatrix" in plan.text)
        wanted = expected if added is None else expected + added.astype(np.float64)
        limit = TOLERANCES[problem.input_type] * np.abs(wanted).max()
        np.testing.assert_allclose(y.array.astype(np.float64), wanted, rtol=0, atol=limit)
        assert plan.grid[0] * given.tile_m >= problem.conv_to_gemm_dims()[0]
        assert plan.block == (given.threads, 1, 1)
