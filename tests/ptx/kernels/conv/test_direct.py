"""Convolutions of tiny groups: the kernels without tiles are chosen, right, and worth it."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
from support.conv_kernels import KERNELS, ConvCall, assert_written_once
from support.far import window

from ptx.isa.dtypes import bf16, f16, f32, f64
from ptx.kernels.conv import ConvConfig, backward_weight_parts, definitions, plan
from ptx.kernels.conv.catalog import CONFIGS
from ptx.kernels.conv.direct.common import direct_plan, is_direct, outputs_of
from ptx.kernels.conv.strides import stride_classes
from ptx.launch import entry_name
from ptx.oxicuda.convolutions import ConvProblem, ImplicitGemmConv
from ptx.testing.call import launch
from ptx.tile.direct import THREADS

pytestmark = pytest.mark.proof

TYPES = (f16, bf16, f32, f64)
DEPTHWISE = ConvConfig(16, 16, groups=16)
DIRECT = [name for name, config in CONFIGS.items() if is_direct(config)]


@pytest.fixture
def tiled(monkeypatch):
    """A function that has the tiled kernels chosen for everything from then on."""

    def choose() -> None:
        for module in (definitions, plan):
            monkeypatch.setattr(module, "is_direct", lambda config: False)

    return choose


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_tiny_groups_have_no_tiles(kernel, dtype, target):
    small = dataclasses.replace(DEPTHWISE, float_type=dtype)
    large = dataclasses.replace(small, groups=2)
    texts = [ConvCall(kernel, config, target=target).text for config in (small, large)]
    assert ["_tile" in text for text in texts] == [False, True]
    assert not re.search(r"\bmma\b|\b(red|atom)\.global", texts[0])
    middle = "" if kernel == "forward" else f"{kernel}_"
    for text in texts:
        assert re.fullmatch(rf"implicit_gemm_conv_{middle}\d+x\d+x\d+_{dtype}", entry_name(text))


def test_names_say_what_a_block_has():
    config = dataclasses.replace(DEPTHWISE, float_type=bf16)  # two threads for 16 channels
    for kernel, name in (
        ("forward", "256x16x9"),
        ("backward_input", "backward_input_256x16x9"),
        ("backward_weight", "backward_weight_3x16x256"),
    ):
        text = ConvCall(kernel, config).text
        assert entry_name(text) == f"implicit_gemm_conv_{name}_bf16"


def test_problems_keep_their_tiles():
    """`ImplicitGemmConv` is the kernel with tiles, whose sizes it states."""
    conv = ImplicitGemmConv(ConvProblem(1, 16, (5, 5), 16, (3, 3), (1, 1), (1, 1), (1, 1), 16))
    assert is_direct(conv.problem.config())
    assert "a_tile" in conv.generate_ptx()
    assert entry_name(conv.generate_ptx()) == conv.kernel_name


@pytest.mark.parametrize("kernel", KERNELS)
def test_more_groups_than_a_grid_has_rows(kernel):
    config = ConvConfig(70_000, 70_000, groups=70_000)
    grid = ConvCall(kernel, config, images=1, height=2, width=2).launch.grid
    assert grid[0] > 1
    assert grid[1:] == (1, 1)  # of these a launch can have 65,535


@pytest.mark.parametrize(("kernel", "gain"), list(zip(KERNELS, (25, 25, 15), strict=True)))
def test_fewer_instructions_than_tiles(kernel, gain, tiled):
    config = dataclasses.replace(DEPTHWISE, float_type=bf16)
    counts = []
    for choose in (lambda: None, tiled):
        choose()
        call = ConvCall(kernel, config, images=1, height=12, width=16)
        counts.append(sum(call.run().executed.values()))  # both results are exact
    assert counts[0] * gain < counts[1]


# ---- what they compute, exactly

LAYERS = {
    "one channel": ConvConfig(1, 1),
    "three channels": ConvConfig(3, 4, 3, 2),
    "odd channels": ConvConfig(33, 33, groups=33),
    "vectors of two": ConvConfig(6, 12, 2, 3, pad_h=0, groups=6),
    "to fewer channels": ConvConfig(24, 6, groups=6, stride_w=2),
    "groups of 2": ConvConfig(8, 6, groups=2, dilation_h=2),
    "groups of 3": ConvConfig(15, 10, 1, 5, 2, 1, 0, 3, groups=5),
    "many units": ConvConfig(272, 272, 2, 2, groups=272),
    "stride 2": ConvConfig(16, 16, 3, 3, 2, 2, groups=16),
    "stride 2, dilation 2": ConvConfig(8, 8, 3, 3, 2, 2, 2, 2, 2, 2, groups=8),
    "stride 4, dilation 6": ConvConfig(8, 8, 3, 4, 4, 4, 3, 9, 3, 6, groups=8),
    "stride over kernel": ConvConfig(8, 16, 1, 2, 2, 5, 0, 0, groups=8),
    "kernel over image": ConvConfig(4, 4, 11, 13, 1, 2, 6, 7, groups=4),
    "tap loop": ConvConfig(8, 8, 1, 36, 1, 1, 0, 33, groups=8),
    "tap loop, stride 2, dilation 3": ConvConfig(4, 4, 1, 70, 1, 2, 0, 200, 1, 3, groups=4),
    "prime taps": ConvConfig(4, 4, 1, 37, 1, 1, 0, 36, groups=4),
    "negative padding": ConvConfig(8, 8, 2, 2, 1, 1, -1, -2, groups=8),
}
COMBINATIONS = list(itertools.product(TYPES, ("sm_75", "sm_80", "sm_90")))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("name", "dtype", "target"),
    [(n, *pair) for n, pair in zip(LAYERS, itertools.cycle(COMBINATIONS), strict=False)],
)
def test_layer(name, dtype, target, kernel):
    """Results are exact whatever the order of the warps, and every byte is written once."""
    config = dataclasses.replace(LAYERS[name], float_type=dtype, use_bias=True)
    call = ConvCall(kernel, config, target=target)
    assert_written_once(call, call.run(schedule=len(name)))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", [name for name in DIRECT if name.endswith(("/bf16", "/f64"))])
def test_every_instruction_runs(name, kernel):
    call = ConvCall(kernel, CONFIGS[name], height=12, width=50, target="sm_90")
    assert call.run().never_executed == []


def test_without_a_bias():
    without, with_bias = (
        ConvCall("forward", dataclasses.replace(DEPTHWISE, use_bias=use_bias))
        for use_bias in (False, True)
    )
    assert without.run().never_executed == []
    loads = [len(re.findall(r"ld\.global\.nc", call.text)) for call in (without, with_bias)]
    assert loads[1] == loads[0] + 1
    assert "bias" not in without.text


@pytest.mark.parametrize("out_size", [(4, 1), (1, 6), (3, 7), (9, 12)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_outputs_of_other_sizes(kernel, out_size):
    """Less and more padding below and to the right than above and to the left."""
    config = dataclasses.replace(DEPTHWISE, stride_w=2)
    ConvCall(kernel, config, out_size=out_size).run()


@pytest.mark.parametrize("images", [0, 1])
def test_no_output_pixels(images):
    """Gradients are zeros where there is no output."""
    sizes = {"images": images, "height": 3, "width": 3, "out_size": (0, 0)}
    for kernel in ("backward_input", "backward_weight"):
        call = ConvCall(kernel, DEPTHWISE, parts=2, **sizes)
        result, report = call.result(call.arrays)
        assert report is not None or result.size == 0
        assert not np.any(result)
    assert ConvCall("forward", DEPTHWISE, **sizes).launch.grid[0] == 0


@pytest.mark.parametrize("name", ["groups of 3", "stride 2", "many units", "prime taps"])
def test_parts_of_the_pixels(name):
    """Whole parts, one that ends within, and some that have no pixels."""
    for parts in (1, 3, 7, 40):
        ConvCall("backward_weight", LAYERS[name], parts=parts).run()


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 6])
def test_what_no_window_reads_does_not_matter(columns):
    """Strips end beyond the last output, where the images may have anything."""
    config = dataclasses.replace(DEPTHWISE, pad_h=0, pad_w=0)
    call = ConvCall("backward_weight", config, width=20, out_size=(3, columns))
    inputs = {name: value.copy() for name, value in call.arrays.items()}
    inputs["x"][:, 5:], inputs["x"][:, :, columns + 2 :] = np.nan, np.inf
    result, _ = call.result(inputs)
    call.compare(result)


@pytest.mark.parametrize("kernel", KERNELS)
def test_far_end_of_large_images(kernel):
    """Of more than 2^32 elements: the last rows are as those of a small image."""
    rows, parts = 8 * (2**18 + 1), 2**18 + 1  # a part has eight rows, and so have eight blocks
    config = ConvConfig(64, 64, groups=64)
    call = ConvCall(kernel, config, images=1, height=16, width=32)
    if kernel == "backward_weight":
        call.operands["grad_y"][:, :-8] = 0.0  # of other parts
    expected = call.expected if kernel == "backward_weight" else call.expected[:, -8:]
    sizes = {**call.sizes, "h": rows, "p": rows, "s": parts}
    shapes = call.definition.shapes(config, sizes)
    assert max(np.prod(shape) for shape in shapes.values()) > 2**32
    buffers = {n: window(v, shapes[n], writable=False) for n, v in call.arrays.items()}
    (name,) = call.definition.results(config)
    result = window(np.full(expected.shape, np.nan, np.float32), shapes[name], writable=True)

    grid = call.launch_of(shapes).grid
    last = grid[0] // parts if kernel == "backward_weight" else 8
    launch(
        call.definition, config, call.target, {**buffers, name: result}, shapes,
        blocks=list(range(grid[0] - last, grid[0])),
    )  # fmt: skip
    call.compare(result.array.ravel()[-expected.size :].reshape(1, *expected.shape), expected)


# ---- plans


def test_plans_cover_all_channels():
    for dtype in TYPES:
        for groups in (1, 2, 3, 5, 8, 11, 16, 24, 33, 60, 96, 127, 128, 264, 1024):
            for in_group, out_group in itertools.product(range(1, 5), range(1, 5)):
                config = ConvConfig(
                    groups * in_group, groups * out_group, groups=groups, float_type=dtype
                )
                plan = direct_plan(config)
                assert plan.channels % in_group == 0
                assert plan.channels * plan.units == config.in_channels
                assert outputs_of(config, plan) * plan.units == config.out_channels
                most = max(plan.channels, outputs_of(config, plan)) * dtype.bytes
                assert most <= max(16, 4 * dtype.bytes)
                assert plan.across * plan.down <= THREADS


def test_parts_are_of_many_pixels():
    config = dataclasses.replace(DEPTHWISE, kernel_h=7, kernel_w=7)
    assert [backward_weight_parts(config, n) for n in (0, 1, 1024, 1025)] == [1, 1, 1, 2]
    assert 100 < backward_weight_parts(config, 10**9) < 200  # of seven blocks each


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "pad"),
    [(3, 1, 1, 1), (3, 2, 1, 1), (4, 3, 2, 5), (5, 4, 6, 9), (2, 5, 1, 0), (7, 6, 4, -2)],
)
def test_stride_classes(kernel, stride, dilation, pad):
    """Each row is read by the taps of its class, and by no others."""
    classes = stride_classes(kernel, stride, dilation, pad)
    assert sorted(c.first for c in classes) == list(range(stride))
    for c in classes:
        for u in range(9):
            taps = range(c.tap, c.tap + c.taps * c.step, c.step)
            read = [(u + c.start - t * c.output_step, tap) for t, tap in enumerate(taps)]
            row = u * stride + c.first
            assert sorted(read) == sorted(
                ((row + pad - tap * dilation) // stride, tap)
                for tap in range(kernel)
                if (row + pad - tap * dilation) % stride == 0
            )
