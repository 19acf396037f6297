"""The kernels of bandwidth-optimised GEMM: what they compute, move and keep on its way."""

import dataclasses
import itertools

import numpy as np
import pytest
from support.gemm_kernels import NUMPY, GemmProblem

from ptx import emulator
from ptx.emulator import Buffer, Report
from ptx.isa.assembler import assemble
from ptx.isa.dtypes import bf16, f16, f32, f64
from ptx.isa.sass import disassemble, opcode
from ptx.isa.targets import TARGETS
from ptx.kernels.gemm import GEMM, GemmConfig, choose, streaming
from ptx.kernels.gemm.catalog import CONFIGS, ROWS, SHAPES
from ptx.kernels.gemm.plan import gemm_plan
from ptx.launch import BufferAddress
from ptx.tile.layout import Layout

pytestmark = pytest.mark.proof

ALIGNED = list(SHAPES)[:5]
DTYPES = {"bf16": bf16, "f16": f16, "f32": f32, "f32-exact": f32, "f64": f64}
DEPTHS = {"shallow_k": (8, 24, 31), "cache_persistent": (48, 130), "warp_parallel": (256, 1111)}

# Strategies with layouts, types and GPUs that come up in turn.
_TURNS = itertools.cycle(
    itertools.product(("sm_75", "sm_80", "sm_90"), ("bf16", "f16", "f32", "f32-exact", "f64"))
)
DRAWN = [
    (strategy, k, layout, size, *next(_TURNS))
    for strategy, depths in DEPTHS.items()
    for k in depths
    for layout in ("NN", "NT", "TN", "TT")
    for size in ((200, 48), (37, 130))
]


@pytest.mark.parametrize(("strategy", "k", "layout", "size", "target", "dtype"), DRAWN)
def test_product(strategy, k, layout, size, target, dtype):
    m, n = size
    problem = GemmProblem(
        m, n, k, strategy,
        transpose_a=layout[0] == "T", transpose_b=layout[1] == "T",
        float_type=DTYPES[dtype], exact=dtype == "f32-exact", target=target,
    )  # fmt: skip
    problem.run(schedule=k, statistics=False)


@pytest.mark.parametrize("strategy", ["shallow_k", "cache_persistent"])
@pytest.mark.parametrize(("m", "n"), [(300, 33), (33, 300)])  # as it is, and swapped
@pytest.mark.parametrize("alpha", [None, -0.5])
@pytest.mark.parametrize("beta", [None, 0.0, 2.0])
def test_alpha_and_beta(strategy, m, n, alpha, beta):
    problem = GemmProblem(m, n, 20, strategy, alpha=alpha, beta=beta, use_c=True, float_type=f32)
    problem.run(schedule=1)


@pytest.mark.parametrize("strategy", ["shallow_k", "cache_persistent"])
def test_c_is_not_read_where_beta_is_0(strategy):
    problem = GemmProblem(70, 20, 16, strategy, beta=0.0, use_c=True, float_type=f32)
    problem.operands["c"][:] = np.nan
    result, _ = problem.result()
    np.testing.assert_array_equal(result, problem.operands["a"] @ problem.operands["b"])


@pytest.mark.parametrize("strategy", list(DEPTHS))
@pytest.mark.parametrize("shared", ["", "a", "b"])
@pytest.mark.parametrize(("m", "n"), [(130, 20), (20, 130)])
def test_batches(strategy, shared, m, n):
    problem = GemmProblem(m, n, 24, strategy, batch=3, shared=shared, transpose_a=True)
    problem.run(schedule=2)


@pytest.mark.parametrize("strategy", list(DEPTHS))
def test_not_finite(strategy):
    """Infinite and NaN operands reach the rows and columns that they belong to, and no others."""
    problem = GemmProblem(150, 40, 21, strategy, float_type=f32, exact=True)
    problem.operands["a"][0, 7, 3], problem.operands["b"][0, 20, 5] = np.inf, np.nan
    result, _ = problem.result()
    wrong = ~np.isfinite(result[0])
    expected = np.zeros((150, 40), bool)
    expected[7], expected[:, 5] = True, True
    np.testing.assert_array_equal(wrong, expected)


PATHS = [
    (strategy, layout, dtype, target, columns)
    for strategy in DEPTHS
    for layout in ("NN", "TT")
    for dtype, target, columns in (
        *(("bf16", "sm_80", 128), ("f16", "sm_75", 64), ("f32", "sm_80", 64)),
        *(("f64", "sm_80", 32), ("f32-exact", "sm_80", 64), ("bf16", "sm_75", 16)),
    )
]


@pytest.mark.parametrize(("strategy", "layout", "dtype", "target", "columns"), PATHS)
def test_every_instruction_runs(strategy, layout, dtype, target, columns, monkeypatch):
    monkeypatch.setattr(streaming, "_BLOCKS", 8)  # so that blocks have several turns
    # A padding of K would have instructions of its own, which never load.
    k = 32 if strategy == "shallow_k" else DEPTHS[strategy][-1]
    fused = strategy != "warp_parallel"
    problems = [
        GemmProblem(
            m, columns, depth, strategy,
            transpose_a=layout[0] == "T", transpose_b=layout[1] == "T", batch=2,
            float_type=DTYPES[dtype], exact=dtype == "f32-exact", target=target,
            alpha=2.0 if fused else None, beta=beta if fused else None, use_c=fused,
        )
        for m, depth, beta in ((700, k, 0.5), (700, k, 0.0))
    ]  # fmt: skip
    first, second = (problem.run(statistics=False) for problem in problems)
    assert first.merge(second).never_executed == []


def moved(name: str, dtype_name: str) -> int:
    """Bytes that the blocks of a named product load and store.

    One block is run, on memory that has only what it touches, with as many turns as it has in the
    whole product, or a few chunks of K: the others do the same elsewhere.
    """
    dtype, target = DTYPES[dtype_name], TARGETS["sm_80"]
    m, n, k = SHAPES[name]
    config = choose(m, n, k, float_type=dtype)
    rows = n if config.swapped else m
    plan = gemm_plan(config, target, {"r": rows})
    across = -(-config.columns // plan.n)
    tiles = -(-rows // plan.m)
    shapes = GEMM.shapes(config, {"g": 1, "r": rows})
    blocks = GEMM.launch(config, target, [*shapes.values()]).grid[0]
    config = dataclasses.replace(config, columns=min(config.columns, plan.n))
    if config.parts is None:
        few = -(-tiles // blocks) * plan.m
        report = run_one_block(config, few)
        return across * blocks * sectors_of(report) * 32
    parts, few = config.parts, min(rows, plan.m)
    config = dataclasses.replace(config, parts=1, depth=8 * plan.k)
    sums = few * config.columns * (8 if dtype is f64 else 4)
    loaded = sectors_of(run_one_block(config, few)) * 32 - sums
    return across * tiles * (loaded * k // config.depth + parts * sums)


def run_one_block(config: GemmConfig, rows: int) -> Report:
    """Runs a launch's only block on zeros."""
    target, element = TARGETS["sm_80"], NUMPY[config.float_type]
    *operands, result = GEMM.shapes(config, {"g": 1, "r": rows}).values()
    wide = np.float64 if config.float_type is f64 else np.float32
    result_type = element if config.parts is None else wide
    buffers = [Buffer(np.zeros(shape, element), writable=False) for shape in operands]
    buffers.append(Buffer(np.empty(result, result_type), initialized=False))
    how = GEMM.launch(config, target, [b.array.shape for b in buffers])
    arguments = [buffers[v.buffer] if isinstance(v, BufferAddress) else v for v in how.arguments]
    arguments[4] = np.uint32(1)  # blocks of a product
    return emulator.launch(
        how.text, (1, 1, 1), how.block, arguments,
        dynamic_shared=how.dynamic_shared, check_races=False,
    )  # fmt: skip


def sectors_of(report: Report) -> int:
    return sum(line.sectors for line in report.sectors.values())


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f64"])
@pytest.mark.parametrize("name", ALIGNED)
def test_little_more_is_moved_than_has_to_be(name, dtype):
    m, n, k = SHAPES[name]
    least = (m * k + k * n + m * n) * DTYPES[dtype].bytes
    assert least <= moved(name, dtype) <= 1.1 * least


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", ["bf16", "f32", "f64"])
@pytest.mark.parametrize("name", ALIGNED)
def test_enough_is_on_its_way(name, dtype, target):
    """26 KB an SM: what an H200's memory brings in the time of one access."""
    case, gpu = f"{name}/{dtype}", TARGETS[target]
    config, written = CONFIGS[case], GEMM.write_named(case, target)
    plan = gemm_plan(config, gpu, ROWS[case])
    stage = Layout.padded(
        config.float_type, k_extent=plan.k, extent=plan.m, k_axis=config.large_k_axis
    ).bytes
    (made,) = assemble(written.text, gpu).values()
    blocks = made.blocks_per_sm(dynamic_shared=written.dynamic_shared)
    assert blocks * (plan.stages - 1) * stage >= 26 * 1024


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", ["bf16", "f32", "f64"])
@pytest.mark.parametrize("name", ALIGNED)
def test_loads_are_of_16_bytes(name, dtype, target):
    """In the machine code of the main loop every global load brings 16 bytes."""
    text = GEMM.write_named(f"{name}/{dtype}", target).text
    sass = disassemble(text, TARGETS[target])
    opcodes = [opcode(i) for loop in sass.loops if loop.has_tensor for i in loop.own]
    loads = [name for name in opcodes if name.startswith(("LDG.", "LDGSTS"))]
    assert loads
    assert all(".128" in name for name in loads)
