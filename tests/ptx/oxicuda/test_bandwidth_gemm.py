"""Statements of OxiCUDA's `bandwidth_gemm.rs` about the names that `ptx` has from it."""

import dataclasses
import re

import pytest

import ptx
from ptx import (
    BandwidthGemmConfig,
    BandwidthPrecision,
    BandwidthStrategy,
    BandwidthTileConfig,
    analyze_intensity,
    bf16,
    f16,
    f32,
    f64,
    generate_bandwidth_gemm_ptx,
    is_bandwidth_limited,
    select_bandwidth_tiles,
)
from ptx.devices import DATA_SHEETS
from ptx.isa.assembler import assemble

SHALLOW_K, CACHE_PERSISTENT, WARP_PARALLEL, AUTO = BandwidthStrategy
F16, BF16, F32, F64 = BandwidthPrecision
CONFIG = BandwidthGemmConfig(512, 512, 64, "sm_80", F32, AUTO)


def changed(**fields) -> BandwidthGemmConfig:
    return dataclasses.replace(CONFIG, **fields)


def tiles(**fields) -> BandwidthTileConfig:
    return select_bandwidth_tiles(changed(**fields))


# ---- types


@pytest.mark.parametrize(
    ("precision", "dtype", "elem_bytes", "accumulator", "width"),
    [(F16, f16, 2, f32, 8), (BF16, bf16, 2, f32, 8), (F32, f32, 4, f32, 4), (F64, f64, 8, f64, 2)],
)
def test_precisions(precision, dtype, elem_bytes, accumulator, width):
    assert precision.ptx_type is dtype
    assert precision.elem_bytes == elem_bytes
    assert precision.accumulator_type is accumulator
    assert precision.vector_width == width
    assert BandwidthPrecision(dtype) is precision


def test_labels_of_kernels():
    labels = [strategy.kernel_label for strategy in BandwidthStrategy]
    assert labels == ["shallowk", "cachepersist", "warppar", "auto"]


# ---- analysis


@pytest.mark.parametrize(
    ("m", "n", "k", "limited"),
    [
        (4096, 4096, 4, True),
        (4096, 4096, 8, True),
        (8192, 8192, 4, True),
        (16384, 16384, 2, True),
        (1024, 1024, 4096, False),
    ],
)
def test_memory_or_arithmetic_bounds_a_product(m, n, k, limited):
    """By the peaks of the reference."""
    analysis = analyze_intensity(m, n, k, 4)
    assert (analysis.peak_compute_tflops, analysis.peak_bandwidth_tbps) == (19.5, 2.0)
    assert analysis.balance_point == 9.75
    assert analysis.flops == 2 * m * n * k
    assert analysis.bytes == 4 * (m * k + k * n + m * n)
    assert analysis.intensity == analysis.flops / analysis.bytes
    assert (analysis.intensity < 9.75) is analysis.is_memory_bound is limited
    assert is_bandwidth_limited(m, n, k, 4) is limited


@pytest.mark.parametrize(
    ("m", "n", "k", "strategy"),
    [
        (4096, 4096, 8, SHALLOW_K),
        (4096, 4096, 16, SHALLOW_K),
        (16, 4096, 31, SHALLOW_K),
        (16, 4096, 32, CACHE_PERSISTENT),
        (16, 4096, 127, CACHE_PERSISTENT),
        (16, 4096, 128, WARP_PARALLEL),
        (4096, 4096, 31, WARP_PARALLEL),  # bound by arithmetic
        (1024, 1024, 4096, WARP_PARALLEL),
    ],
)
def test_recommended_strategy(m, n, k, strategy):
    analysis = analyze_intensity(m, n, k, 4)
    assert analysis.recommended_strategy is strategy
    assert changed(m=m, n=n, k=k).resolved_strategy() is strategy


def test_a_strategy_that_is_given_stays():
    for strategy in (SHALLOW_K, CACHE_PERSISTENT, WARP_PARALLEL):
        assert changed(strategy=strategy).resolved_strategy() is strategy


def test_wider_elements_move_more():
    halves, doubles = (analyze_intensity(640, 64, 32, size) for size in (2, 8))
    assert doubles.bytes == 4 * halves.bytes
    assert doubles.flops == halves.flops
    assert halves.intensity == 4 * doubles.intensity


def test_batches_and_a_third_operand():
    one = analyze_intensity(3, 5, 7, 4)
    assert (one.flops, one.bytes) == (210, 4 * (21 + 35 + 15))
    batch = analyze_intensity(3, 5, 7, 4, batch=6)
    assert (batch.flops, batch.bytes) == (6 * one.flops, 6 * one.bytes)
    assert analyze_intensity(3, 5, 7, 4, reads_c=True).bytes == one.bytes + 4 * 15


def test_nothing_to_do():
    empty = analyze_intensity(0, 0, 0, 4)
    assert (empty.flops, empty.bytes, empty.intensity) == (0, 0, 0.0)
    assert empty.attainable_seconds == empty.attainable_tflops == 0
    zeros = analyze_intensity(16, 16, 0, 4)
    assert zeros.bytes == 4 * 256
    assert zeros.attainable_seconds == pytest.approx(4 * 256 / 2e12)


@pytest.mark.parametrize(("k", "is_memory_bound"), [(4, True), (4096, False)])
def test_the_roof(k, is_memory_bound):
    analysis = analyze_intensity(4096, 4096, k, 4)
    roof = analysis.intensity * 2.0 if is_memory_bound else 19.5
    assert analysis.attainable_tflops == roof
    assert analysis.flops / analysis.attainable_seconds == pytest.approx(roof * 1e12)


@pytest.mark.parametrize(
    ("elem_bytes", "exact", "tflops"),
    [(2, False, 312), (2, True, 312), (4, False, 156), (4, True, 19.5), (8, False, 19.5)],
)
def test_of_a_device_the_peak_is_that_of_the_type(elem_bytes, exact, tflops):
    for device in ("A100", DATA_SHEETS["A100 80GB"], "NVIDIA A100-SXM4-80GB", "sm_80"):
        analysis = analyze_intensity(64, 64, 64, elem_bytes, device=device, exact=exact)
        assert analysis.peak_compute_tflops == tflops
        assert analysis.peak_bandwidth_tbps == 2.039
        assert analysis.balance_point == tflops / 2.039
        limited = is_bandwidth_limited(64, 64, 64, elem_bytes, device=device, exact=exact)
        assert limited is analysis.is_memory_bound is (analysis.intensity < tflops / 2.039)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((-1, 1, 1, 4), {}, "m must be at least 0, got -1"),
        ((1, -2, 1, 4), {}, "n must be at least 0, got -2"),
        ((1, 1, -3, 4), {}, "k must be at least 0, got -3"),
        ((1, 1, 1, 0), {}, "elem_bytes must be at least 1, got 0"),
        ((1, 1, 1, 4), {"batch": -1}, "batch must be at least 0, got -1"),
        ((1, 1, 1, 1), {"device": "H200"}, "elem_bytes must be 2, 4 or 8 for a device, got 1"),
        ((1, 1, 1, 4), {"device": "V100"}, "device must be one of A100 40GB, A100 80GB"),
    ],
)
def test_what_cannot_be_analyzed(arguments, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        analyze_intensity(*arguments, **options)


# ---- tiles


def test_tiles_of_the_document():
    assert tiles(m=256, n=256, k=16, strategy=SHALLOW_K) == BandwidthTileConfig(
        128, 128, 16, pipeline_stages=1, warps_m=4, warps_n=4, vector_width=4, prefetch_distance=0
    )
    assert tiles(strategy=CACHE_PERSISTENT) == BandwidthTileConfig(
        64, 64, 8, pipeline_stages=2, warps_m=2, warps_n=2, vector_width=4, prefetch_distance=1
    )
    assert tiles(m=256, n=256, k=128, strategy=WARP_PARALLEL) == BandwidthTileConfig(
        128, 64, 16, pipeline_stages=2, warps_m=4, warps_n=2, vector_width=4, prefetch_distance=2
    )


@pytest.mark.parametrize(
    ("strategy", "sizes"),
    [
        (SHALLOW_K, [(128, 128), (64, 64), (64, 64), (32, 32)]),
        (CACHE_PERSISTENT, [(64, 64), (64, 64), (64, 64), (32, 32)]),
        (WARP_PARALLEL, [(128, 64), (64, 64), (64, 64), (32, 32)]),
    ],
)
def test_tiles_fit_the_output_both_ways(strategy, sizes):
    for extent, size in zip((128, 127, 64, 63), sizes, strict=True):
        for m, n in ((extent, 4096), (4096, extent)):
            chosen = tiles(m=m, n=n, strategy=strategy)
            assert (chosen.tile_m, chosen.tile_n) == size
            assert (chosen.warps_m, chosen.warps_n) == (size[0] // 32, size[1] // 32)


@pytest.mark.parametrize("strategy", [CACHE_PERSISTENT, WARP_PARALLEL])
def test_a_step_is_no_deeper_than_k(strategy):
    assert tiles(k=3, strategy=strategy).tile_k == 3


def test_auto_has_the_tiles_of_its_strategy():
    assert tiles(m=4096, n=4096, k=8) == tiles(m=4096, n=4096, k=8, strategy=SHALLOW_K)


def test_narrow_types_have_wide_vectors():
    widths = [tiles(precision=precision).vector_width for precision in BandwidthPrecision]
    assert widths == [8, 8, 4, 2]


# ---- errors


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"m": 0}, ValueError, "m must be at least 1, got 0"),
        ({"n": 0}, ValueError, "n must be at least 1, got 0"),
        ({"k": 0}, ValueError, "k must be at least 1, got 0"),
        ({"target": "sm_81"}, ValueError, "target must be one of sm_75, sm_80"),
        ({"precision": f32}, TypeError, "precision must be a BandwidthPrecision, got f32"),
        ({"strategy": "auto"}, TypeError, "strategy must be a BandwidthStrategy, got 'auto'"),
    ],
)
def test_what_is_no_problem(fields, error, message):
    config = changed(**fields)
    for use in (
        config.validate,
        config.resolved_strategy,
        lambda: select_bandwidth_tiles(config),
    ):
        with pytest.raises(error, match=re.escape(message)):
            use()


def test_a_valid_problem_validates():
    for target in ("sm_75", ptx.TARGETS["sm_90a"]):
        changed(target=target, m=1, n=1, k=1).validate()


# ---- the kernel


def test_the_text_has_an_entry():
    text = generate_bandwidth_gemm_ptx(changed(m=256, n=256, k=16, strategy=SHALLOW_K))
    for part in (".entry bw_gemm_f32_", "_shallowk(", "ld.global", "fma.rn", "$BW_K_LOOP"):
        assert part in text


@pytest.mark.parametrize("precision", BandwidthPrecision)
@pytest.mark.parametrize(
    ("strategy", "label"),
    [(SHALLOW_K, "shallowk"), (CACHE_PERSISTENT, "cachepersist"), (WARP_PARALLEL, "warppar")],
)
def test_each_strategy_assembles(precision, strategy, label):
    config = changed(m=4096, n=64, k=32, precision=precision, strategy=strategy)
    (made,) = assemble(generate_bandwidth_gemm_ptx(config), "sm_80").values()
    assert re.fullmatch(rf"bw_gemm_{precision.ptx_type}_\d+x\d+x\d+_{label}", made.kernel)
    assert made.spills == 0


def test_a_strategy_that_cannot_take_the_problem():
    with pytest.raises(ValueError, match="depth must be at most 32, got 33"):
        generate_bandwidth_gemm_ptx(changed(k=33, strategy=SHALLOW_K))
