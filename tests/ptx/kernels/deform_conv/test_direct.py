"""Deformable convolutions of tiny groups: the kernels without tiles are chosen, and worth it."""

import dataclasses
import math

import numpy as np
import pytest

from ptx.emulator import Buffer, launch
from ptx.isa.dtypes import bf16, f16, f32, f64
from ptx.isa.targets import TARGETS
from ptx.kernels.deform_conv import (
    DeformableConvConfig,
    backward_data,
    backward_weight,
    backward_weight_parts,
    forward,
)
from ptx.kernels.deform_conv.direct import backward_offset_plan, grouped_plan, segmented_plan
from ptx.kernels.deform_conv.plan import THREADS
from ptx.launch import Address, entry_name
from ptx.registry import kernels

KERNELS = ("forward", "backward_input", "backward_offset", "backward_weight")
TYPES = (f16, bf16, f32, f64)
DEPTHWISE = DeformableConvConfig(16, 16, groups=16)
IMAGE = (1, 5, 9)


@dataclasses.dataclass(frozen=True)
class Run:
    """What a launch left, and the instructions that its threads executed."""

    results: list[np.ndarray]
    executed: int


def run(kernel: str, config: DeformableConvConfig, parts=None, schedule=None) -> Run:
    """Launches a kernel on random operands, in float32."""
    images, out_h, out_w = (IMAGE[0], *config.output_size(*IMAGE[1:]))
    generator = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape, dtype=np.float32)

    x = array(*IMAGE, config.in_channels)
    offset = array(images, out_h, out_w, config.offset_channels) * 2
    mask = array(images, out_h, out_w, config.mask_channels)
    weight = array(config.taps, config.in_channels_per_group, config.out_channels)
    y = array(images, out_h, out_w, config.out_channels)
    if parts is None:
        parts = backward_weight_parts(config, images * out_h * out_w)
    zeros = Buffer(np.zeros_like(x))
    inputs, results = {
        "forward": ([x, offset, weight.transpose(2, 0, 1), mask], [y.shape]),
        "backward_input": ([offset, weight, mask, y], []),
        "backward_offset": ([x, offset, weight, mask, y], [offset.shape, mask.shape]),
        "backward_weight": ([x, offset, mask, y], [(parts, *weight.shape)]),
    }[kernel]
    buffers = [Buffer(v, writable=False) for v in inputs]
    outs = [Buffer(np.empty(shape, np.float32), initialized=False) for shape in results]
    if kernel == "backward_input":
        outs = [zeros]
        buffers.append(zeros)
    buffers += outs
    entry, target = kernels()[f"deform_conv_{kernel}"], TARGETS["sm_80"]
    assert entry.launch is not None
    call = entry.launch(config, target, [b.array.shape for b in buffers])
    arguments = [buffers[a.buffer] if isinstance(a, Address) else a for a in call.arguments]
    text = entry.generate(config, target)
    report = launch(text, call.grid, call.block, arguments, schedule=schedule)
    return Run([b.array for b in outs], sum(report.executed.values()))


@pytest.fixture
def tiled(monkeypatch):
    """A function that has the tiled kernels chosen for everything from then on."""

    def choose() -> None:
        for module in (forward, backward_data, backward_weight):
            monkeypatch.setattr(module, "is_direct", lambda config: False)

    return choose


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_tiny_groups_have_no_tiles(kernel, dtype, target):
    generate = kernels()[f"deform_conv_{kernel}"].generate
    small = dataclasses.replace(DEPTHWISE, float_type=dtype)
    large = dataclasses.replace(small, groups=2)
    texts = [generate(config, TARGETS[target]) for config in (small, large)]
    assert ["_tile" in text for text in texts] == [False, True]
    assert "mma" not in texts[0]
    names = [entry_name(text) for text in texts]
    assert names[0] == names[1] == f"deformable_conv_{kernel}_{dtype}_3x3"


@pytest.mark.parametrize("kernel", KERNELS)
def test_more_groups_than_a_grid_has_rows(kernel):
    config = DeformableConvConfig(70_000, 70_000, groups=70_000, offset_groups=70_000)
    x, offset, mask = (1, 2, 2, 70_000), (1, 2, 2, 18 * 70_000), (1, 2, 2, 9 * 70_000)
    weight, last = (9, 1, 70_000), {"backward_weight": (1, 9, 1, 70_000)}.get(kernel, mask)
    shapes = {
        "forward": [x, offset, weight, mask, x],
        "backward_input": [offset, weight, mask, x, x, x],
        "backward_offset": [x, offset, weight, mask, x, offset, last],
        "backward_weight": [x, offset, mask, x, last],
    }[kernel]
    entry = kernels()[f"deform_conv_{kernel}"]
    assert entry.launch is not None
    grid = entry.launch(config, TARGETS["sm_80"], shapes).grid
    assert grid[0] > 1
    assert grid[1:] == (1, 1)  # of these a launch can have 65,535


@pytest.mark.parametrize(("kernel", "gain"), list(zip(KERNELS, (10, 8, 8, 20), strict=True)))
def test_fewer_instructions_than_tiles_and_the_same_results(kernel, gain, tiled):
    config = dataclasses.replace(DEPTHWISE, exact=True)
    direct = run(kernel, config)
    tiled()
    other = run(kernel, config)
    for result, expected in zip(direct.results, other.results, strict=True):
        result, expected = (v.sum(axis=0) for v in (result, expected))  # parts, or one image
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    assert direct.executed * gain < other.executed


@pytest.mark.parametrize(
    "layer",
    [
        DeformableConvConfig(16, 32, groups=16),
        DeformableConvConfig(24, 24, 1, 2, groups=24, offset_groups=2, pad_w=0),
        DeformableConvConfig(12, 8, groups=4, offset_groups=6, stride_w=2),
    ],
)
def test_parts_of_the_pixels(layer):
    """Whole parts, one that ends within, and one that has no pixels."""
    whole, parts = (run("backward_weight", layer, parts=count).results[0] for count in (1, 3))
    assert not np.any(parts[2])
    np.testing.assert_allclose(parts.sum(axis=0), whole[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", ["forward", "backward_offset", "backward_weight"])
def test_any_schedule_gives_the_same_bits(kernel):
    config = dataclasses.replace(DEPTHWISE, offset_groups=2)
    runs = [run(kernel, config, schedule=seed) for seed in (None, 1, 2)]
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
                    config = DeformableConvConfig(
                        channels, groups, groups=groups, offset_groups=offset_groups,
                        float_type=dtype,
                    )  # fmt: skip
                    _check_plans(config)


def _check_plans(config: DeformableConvConfig) -> None:
    forward_, segmented, offset = (
        plan(config) for plan in (grouped_plan, segmented_plan, backward_offset_plan)
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
        assert 3 * THREADS <= 4 * plan.across * plan.down * plan.lanes <= 4 * THREADS
        assert plan.blocks(0) == 0
        assert plan.blocks(plan.down + 1) == 2 * plan.chunks
