"""Convolution backward to input: each pixel of the gradient gathers what it was read for."""

from __future__ import annotations

import functools
from typing import Any

from ptx.builder import Kernel, Val
from ptx.definition import Instance, KernelDefinition
from ptx.isa.dtypes import s32
from ptx.kernels.conv.catalog import CONFIGS, LAUNCH_SIZES
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct.backward_input import direct_backward_input
from ptx.kernels.conv.direct.common import PIXELS, strip_count
from ptx.kernels.conv.limits import check_windows
from ptx.kernels.conv.operations import GRAD_X, GRAD_Y, WEIGHT
from ptx.kernels.conv.parameters import entry, strip_width, writer
from ptx.kernels.conv.plan import backward_input_plan
from ptx.kernels.conv.product import GroupWeights, WindowProduct
from ptx.kernels.conv.strides import chosen, stride_classes
from ptx.kernels.conv.windows import Axis, WindowRows
from ptx.tile.direct import DirectPlan
from ptx.tile.pixels import SIZES
from ptx.tile.plan import TilePlan
from ptx.tile.strips import strip_blocks

__all__ = ["BACKWARD_INPUT"]


def _tiled_backward_input(k: Kernel, config: ConvConfig, plan: TilePlan, p: Any) -> None:
    """Writes the kernel that multiplies tiles.

    Tap i of output p reads row `p * stride - pad + i * dilation`. So row y is read by taps with
    `i * dilation = y + pad` modulo the stride, and no others. Rows, and columns, are sorted by that
    remainder: those of one class are read by the same taps, and their gradient is a convolution of
    grad_y with these taps, without a zero in it.

    A block has `plan.m` pixels of one class (grid x, classes in grid z) and `plan.n` input channels
    of one group (grid y).
    """
    stride_class = k.ctaid("z")
    class_y, class_x = stride_class // config.stride_w, stride_class % config.stride_w
    y = _axis(k, class_y, p.in_h, p.out_h, config.kernel_h, config.stride_h, config.dilation_h,
              config.pad_h)  # fmt: skip
    x = _axis(k, class_x, p.in_w, p.out_w, config.kernel_w, config.stride_w, config.dilation_w,
              config.pad_w)  # fmt: skip
    rows = WindowRows(
        k, p.batch_size, y, x, (p.in_h, p.in_w),
        strip_width=p.strip_width, rows=plan.m, threads=plan.threads,
    )  # fmt: skip

    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    tiles = -(-in_group // plan.n)
    group, first_in = k.ctaid("y") // tiles, k.ctaid("y") % tiles * plan.n
    k.name(group=group, first_in=first_in)
    weights = GroupWeights(
        first=p.weight + k.mul_wide(first_in, config.out_channels) + group * out_group,
        columns=in_group - first_in,
        column=config.out_channels,
        tap=in_group * config.out_channels,
        all_columns=in_group % plan.n == 0,
    )
    product = WindowProduct(
        k, config, plan, rows, p.grad_y + group * out_group, config.out_channels, out_group, weights
    )
    sums = product.run()
    k.comment("the gradient")
    product.store(sums, p.grad_x + (group * in_group + first_in), config.in_channels)


def _axis(
    k: Kernel, class_index: Val, size: Val, outputs: Val, kernel: int, stride: int, dilation: int,
    pad: int,
) -> Axis:  # fmt: skip
    """The windows along the rows, or columns, of a class."""
    classes = stride_classes(kernel, stride, dilation, pad)
    first_row = chosen(k, class_index, [c.first for c in classes])
    windows = (size + (stride - 1) - k.min(first_row, size + (stride - 1))) // stride
    most = max(c.taps for c in classes)
    return Axis(
        outputs,
        windows,
        scale=1,
        step=-classes[0].output_step,
        first=k.bitcast(chosen(k, class_index, [c.start & 0xFFFFFFFF for c in classes]), s32),
        taps=most if stride == 1 else chosen(k, class_index, [c.taps for c in classes]),
        most_taps=most,
        kernel_first=chosen(k, class_index, [c.tap for c in classes]),
        kernel_step=classes[0].step,
        result_first=first_row,
        result_scale=stride,
    )


def _direct_tile(config: ConvConfig, plan: DirectPlan) -> tuple[int, int, int]:
    depth = config.taps * config.out_channels_per_group
    return plan.down * PIXELS, plan.across * plan.channels, depth


def _pixels_of_a_class(instance: Instance) -> tuple[int, int, int]:
    """Of the largest class; blocks, or threads, of smaller ones that have nothing end at once."""
    config, sizes = instance.config, instance.sizes
    return sizes["n"], -(-sizes["h"] // config.stride_h), -(-sizes["w"] // config.stride_w)


def _grid(instance: Instance) -> tuple[int, int, int]:
    config, plan = instance.config, instance.plan
    classes = config.stride_h * config.stride_w
    pixels = _pixels_of_a_class(instance)
    if isinstance(plan, DirectPlan):
        return plan.blocks(strip_count(*pixels)) * classes, 1, 1
    tiles = config.groups * -(-config.in_channels_per_group // plan.n)
    return strip_blocks(*pixels, plan.m), tiles, classes


BACKWARD_INPUT = KernelDefinition(
    name="conv_backward_input",
    configs=CONFIGS,
    launch_sizes=LAUNCH_SIZES,
    parameters=(
        *(WEIGHT, GRAD_Y, GRAD_X, *SIZES),
        strip_width(_pixels_of_a_class),
    ),
    plan=backward_input_plan,
    entry=entry("implicit_gemm_conv_backward_input", _direct_tile),
    body=writer(_tiled_backward_input, direct_backward_input),
    grid=_grid,
    check=functools.partial(check_windows, backward_input=True),
)
