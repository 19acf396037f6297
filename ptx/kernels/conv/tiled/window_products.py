"""Forward, and backward to input, with tiles: sums over windows of pixels."""

from __future__ import annotations

from typing import Any

from ptx.builder import Kernel, Val
from ptx.isa.dtypes import s32
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.strides import chosen, stride_classes
from ptx.kernels.conv.tiled.product import GroupWeights, WindowProduct
from ptx.kernels.conv.tiled.windows import Axis, WindowRows
from ptx.tile.epilogue import plus_bias
from ptx.tile.plan import TilePlan

__all__ = ["tiled_backward_input", "tiled_forward"]


def tiled_forward(k: Kernel, config: ConvConfig, plan: TilePlan, p: Any) -> None:
    """Writes the kernel forward: a matrix product that never sees its matrix (implicit GEMM).

    A block has `plan.m` pixels (grid x) and `plan.n` output channels of one group (grid y).
    """
    axes = (
        Axis(p.in_h, p.out_h, config.stride_h, config.dilation_h, -config.pad_h,
             config.kernel_h, config.kernel_h),
        Axis(p.in_w, p.out_w, config.stride_w, config.dilation_w, -config.pad_w,
             config.kernel_w, config.kernel_w),
    )  # fmt: skip
    rows = WindowRows(
        k, p.batch_size, *axes, (p.out_h, p.out_w),
        strip_width=p.strip_width, rows=plan.m, threads=plan.threads,
    )  # fmt: skip

    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    tiles = -(-out_group // plan.n)
    group, first_out = k.ctaid("y") // tiles, k.ctaid("y") % tiles * plan.n
    channel = group * out_group + first_out
    k.name(group=group, first_out=first_out)
    weights = GroupWeights(
        first=p.weight + k.mul_wide(channel, config.taps * in_group),
        columns=out_group - first_out,
        column=config.taps * in_group,
        tap=in_group,
        all_columns=out_group % plan.n == 0,
    )
    product = WindowProduct(
        k, config, plan, rows, p.x + group * in_group, config.in_channels, in_group, weights
    )
    math = product.run()

    k.comment("bias, and the output" if config.use_bias else "the output")
    columns = None if weights.all_columns else weights.columns
    finish = plus_bias(p.bias, channel, columns) if config.use_bias else None
    product.store(math, p.y + channel, config.out_channels, finish)


def tiled_backward_input(k: Kernel, config: ConvConfig, plan: TilePlan, p: Any) -> None:
    """Writes the kernel backward to input: each pixel gathers what it was read for.

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
