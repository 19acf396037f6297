"""Deformable convolutions of tiny groups: the kernels without tiles are chosen, and worth it."""

import dataclasses
import functools
import math

import numpy as np
import pytest

from ptx.definition import KernelDefinition, PlanLike
from ptx.isa.dtypes import bf16, f16, f32, f64
from ptx.isa.targets import TARGETS
from ptx.kernels.deform_conv import (
    BACKWARD_INPUT,
    BACKWARD_OFFSET,
    BACKWARD_WEIGHT,
    FORWARD,
    DeformConvConfig,
    backward_weight_parts,
)
from ptx.kernels.deform_conv.plan import (
    backward_data_tiles,
    backward_weight_tiles,
    forward_tiles,
    grouped_plan,
    segmented_plan,
    shuffled_plan,
)
from ptx.launch import entry_name
from ptx.testing import call

pytestmark = pytest.mark.proof

KERNELS = {
    "forward": FORWARD,
    "backward_input": BACKWARD_INPUT,
    "backward_offset": BACKWARD_OFFSET,
    "backward_weight": BACKWARD_WEIGHT,
}
TILES = {
    "forward": forward_tiles,
    "backward_input": backward_data_tiles,
    "backward_offset": backward_data_tiles,
    "backward_weight": backward_weight_tiles,
}
TARGET = TARGETS["sm_80"]
TYPES = (f16, bf16, f32, f64)
DEPTHWISE = DeformConvConfig(16, 16, groups=16)
IMAGE = (1, 5, 9)


@dataclasses.dataclass(frozen=True)
class Run:
    """What a launch left, and the instructions that its threads executed."""

    results: list[np.ndarray]
    executed: int


def sizes_of(
    config: DeformConvConfig, image: tuple[int, int, int], parts: int | None = None
) -> dict[str, int]:
    """The sizes of a call's dimensions that the configuration does not know."""
    (n, h, w), (p, q) = image, config.output_size(*image[1:])
    if parts is None:
        parts = backward_weight_parts(config, n * p * q)
    return {"n": n, "h": h, "w": w, "p": p, "q": q, "s": parts}


def run(
    kernel: KernelDefinition,
    config: DeformConvConfig,
    *,
    parts: int | None = None,
    schedule: int | None = None,
    plan: PlanLike | None = None,
) -> Run:
    """Launches a kernel on random operands, in float32."""
    sizes, generator = sizes_of(config, IMAGE, parts), np.random.default_rng(0)
    every, operands = {**kernel.known_sizes(config), **sizes}, {}
    for name, parameter in kernel.operands(config).items():
        shape = [every[dim] for dim in parameter.dims_of(config)]
        scale = {"offset": 2, "zeros": 0}.get(name, 1)
        operands[name] = scale * generator.standard_normal(shape, dtype=np.float32)
    outcome = call.run(kernel, config, TARGET, operands, sizes, plan=plan, schedule=schedule)
    assert outcome.report is not None
    return Run(list(outcome.results.values()), sum(outcome.report.executed.values()))


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_tiny_groups_have_no_tiles(kernel, dtype, target):
    small = dataclasses.replace(DEPTHWISE, float_type=dtype)
    large = dataclasses.replace(small, groups=2)
    texts = [KERNELS[kernel].write(config, target).text for config in (small, large)]
    assert ["_tile" in text for text in texts] == [False, True]
    assert "mma" not in texts[0]
    names = [entry_name(text) for text in texts]
    assert names[0] == names[1] == f"deformable_conv_{kernel}_{dtype}_3x3"


@pytest.mark.parametrize("kernel", KERNELS)
def test_more_groups_than_a_grid_has_rows(kernel):
    config = DeformConvConfig(70_000, 70_000, groups=70_000, offset_groups=70_000)
    shapes = KERNELS[kernel].shapes(config, sizes_of(config, (1, 2, 2)))
    grid = KERNELS[kernel].launch(config, TARGET, list(shapes.values())).grid
    assert grid[0] > 1
    assert grid[1:] == (1, 1)  # of these a launch can have 65,535


@pytest.mark.parametrize(("kernel", "gain"), list(zip(KERNELS, (10, 8, 8, 20), strict=True)))
def test_fewer_instructions_than_tiles_and_the_same_results(kernel, gain):
    config = dataclasses.replace(DEPTHWISE, exact=True)
    run_direct = functools.partial(run, KERNELS[kernel], config)
    run_tiles = functools.partial(run_direct, plan=TILES[kernel](config, TARGET))
    direct, other = run_direct(), run_tiles()
    for result, expected in zip(direct.results, other.results, strict=True):
        result, expected = (v.sum(axis=0) for v in (result, expected))  # parts, or one image
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    assert direct.executed * gain < other.executed


@pytest.mark.parametrize(
    "layer",
    [
        DeformConvConfig(16, 32, groups=16),
        DeformConvConfig(24, 24, 1, 2, groups=24, offset_groups=2, pad_w=0),
        DeformConvConfig(12, 8, groups=4, offset_groups=6, stride_w=2),
    ],
)
def test_parts_of_the_pixels(layer):
    """Whole parts, one that ends within, and one that has no pixels."""
    whole, parts = (run(BACKWARD_WEIGHT, layer, parts=count).results[0] for count in (1, 3))
    assert not np.any(parts[2])
    np.testing.assert_allclose(parts.sum(axis=0), whole[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", ["forward", "backward_offset", "backward_weight"])
def test_any_schedule_gives_the_same_bits(kernel):
    config = dataclasses.replace(DEPTHWISE, offset_groups=2)
    runs = [run(KERNELS[kernel], config, schedule=seed) for seed in (None, 1, 2)]
    for other in runs[1:]:
        for result, expected in zip(other.results, runs[0].results, strict=True):
            np.testing.assert_array_equal(result, expected)


def test_plans_cover_all_channels():
    sizes = (1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 24, 33, 60, 64, 96, 127, 128, 264, 1024)
    for dtype in TYPES:
        for groups in sizes:
            for in_group in (1, 2, 3, 4):
                channels = groups * in_group
                for offset_groups in {1, groups, channels, math.gcd(channels, 12)}:
                    config = DeformConvConfig(
                        channels, groups, groups=groups, offset_groups=offset_groups,
                        float_type=dtype,
                    )  # fmt: skip
                    _check_plans(config)


def _check_plans(config: DeformConvConfig) -> None:
    forward_, segmented, offset = (
        plan(config) for plan in (grouped_plan, segmented_plan, shuffled_plan)
    )
    assert forward_.channels * forward_.units == config.in_channels
    assert forward_.channels % config.in_channels_per_group == 0
    assert segmented.channels * segmented.units == config.in_channels
    assert config.channels_per_offset_group % segmented.channels == 0
    assert offset.units == config.offset_groups
    assert 32 % offset.lanes == 0
    for plan in (forward_, segmented, offset):
        assert plan.across * plan.chunks >= plan.units
        assert plan.across * (plan.chunks - 1) < plan.units  # no block is empty
        assert 3 * plan.threads <= 4 * plan.across * plan.down * plan.lanes <= 4 * plan.threads
        assert plan.blocks(0) == 0
        assert plan.blocks(plan.down + 1) == 2 * plan.chunks
