"""Convolution backward to input: each pixel of the gradient gathers what it was read for."""

from __future__ import annotations

import numpy as np

from ptx.builder import Kernel, Val
from ptx.isa.dtypes import s32, u32
from ptx.isa.targets import TARGETS, Target
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct import is_direct
from ptx.kernels.conv.direct_backward_input import (
    direct_backward_input,
    direct_backward_input_launch,
)
from ptx.kernels.conv.limits import check_windows
from ptx.kernels.conv.plan import backward_input_plan
from ptx.kernels.conv.product import Weights, WindowProduct
from ptx.kernels.conv.strides import chosen, stride_classes
from ptx.kernels.conv.windows import Axis, WindowRows
from ptx.kernels.limits import check_grid
from ptx.launch import Address, Launch
from ptx.registry import Shapes
from ptx.tile.stream import StreamedTile

__all__ = [
    "backward_input_dynamic_shared",
    "backward_input_launch",
    "generate_conv_backward_input_ptx",
]


def generate_conv_backward_input_ptx(config: ConvConfig, target: Target | str = "sm_80") -> str:
    """The PTX of the gradient to the input.

    Tap i of output p reads row `p * stride - pad + i * dilation`. So row y is read by taps with
    `i * dilation = y + pad` modulo the stride, and no others. Rows, and columns, are sorted by that
    remainder: those of one class are read by the same taps, and their gradient is a convolution of
    grad_output with these taps, without a zero in it.

    Parameters: weight [T, C/G, Co], grad_output [N, P, Q, Co], grad_input [N, H, W, C], and the u32
    batch_size, in_h, in_w, out_h, out_w and strip_width. A block has `TilePlan.m` pixels of one
    class (grid x, classes in grid z) and `TilePlan.n` input channels of one group (grid y).

    Tiny groups, see `is_direct`, have no strip_width: a block has `direct.PIXELS` pixels of a row
    and class for each thread, and the grid is all in x.

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    config.validate()
    target = TARGETS[target] if isinstance(target, str) else target
    if is_direct(config):
        return direct_backward_input(config, target)
    plan = backward_input_plan(config, target)
    dtype = config.float_type
    name = f"implicit_gemm_conv_backward_input_{plan.m}x{plan.n}x{plan.k}_{dtype}"
    k = Kernel(name, target, block=plan.threads, min_blocks=plan.min_blocks)
    weight = k.pointer("weight", dtype, readonly=True)
    grad_y = k.pointer("grad_output", dtype, readonly=True)
    grad_x = k.pointer("grad_input", dtype)
    names = ("batch_size", "in_h", "in_w", "out_h", "out_w")
    images, in_h, in_w, out_h, out_w = (k.param(name, u32) for name in names)
    number = k.ctaid("z")
    class_y, class_x = number // config.stride_w, number % config.stride_w
    y = _axis(k, class_y, in_h, out_h, config.kernel_h, config.stride_h, config.dilation_h,
              config.pad_h)  # fmt: skip
    x = _axis(k, class_x, in_w, out_w, config.kernel_w, config.stride_w, config.dilation_w,
              config.pad_w)  # fmt: skip
    rows = WindowRows(k, images, y, x, (in_h, in_w), rows=plan.m, threads=plan.threads)

    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    tiles = -(-in_group // plan.n)
    group, first_in = k.ctaid("y") // tiles, k.ctaid("y") % tiles * plan.n
    k.name(group=group, first_in=first_in)
    weights = Weights(
        first=weight + k.mul_wide(first_in, config.out_channels) + group * out_group,
        columns=in_group - first_in,
        column=config.out_channels,
        tap=in_group * config.out_channels,
        channel=1,
        all_columns=in_group % plan.n == 0,
    )
    product = WindowProduct(
        k, config, plan, rows, grad_y + group * out_group, config.out_channels, out_group, weights
    )
    sums = product.run()
    k.comment("the gradient")
    product.store(sums, grad_x + (group * in_group + first_in), config.in_channels)
    return k.text()


def _axis(
    k: Kernel, number: Val, size: Val, outputs: Val, kernel: int, stride: int, dilation: int,
    pad: int,
) -> Axis:  # fmt: skip
    """The rows, or columns, of a class."""
    classes = stride_classes(kernel, stride, dilation, pad)
    place = chosen(k, number, [c.place for c in classes])
    windows = (size + (stride - 1) - k.min(place, size + (stride - 1))) // stride
    most = max(c.taps for c in classes)
    return Axis(
        outputs,
        windows,
        scale=1,
        step=-classes[0].output_step,
        first=k.bitcast(chosen(k, number, [c.start & 0xFFFFFFFF for c in classes]), s32),
        taps=most if stride == 1 else chosen(k, number, [c.taps for c in classes]),
        most_taps=most,
        kernel_first=chosen(k, number, [c.tap for c in classes]),
        kernel_step=classes[0].step,
        place_first=place,
        place_scale=stride,
    )


def backward_input_launch(config: ConvConfig, target: Target, shapes: Shapes) -> Launch:
    """The launch for weight, grad_y and grad_x.

    Raises:
      ValueError: the images, or the output, are larger than the kernel can count.
    """
    (_, out_h, out_w, _), (images, in_h, in_w, _) = shapes[1], shapes[2]
    check_windows(config, images, (in_h, in_w), (out_h, out_w), backward_input=True)
    if is_direct(config):
        return direct_backward_input_launch(config, shapes)
    plan = backward_input_plan(config, target)
    # The largest class; blocks of smaller ones that have nothing end at once.
    height, width = -(-in_h // config.stride_h), -(-in_w // config.stride_w)
    strip = WindowRows.strip_width(width)
    tiles = config.groups * -(-config.in_channels_per_group // plan.n)
    classes = config.stride_h * config.stride_w
    grid = (WindowRows.blocks(images, height, width, plan.m), tiles, classes)
    check_grid(grid)
    numbers = (images, in_h, in_w, out_h, out_w, strip)
    buffers = (Address(0), Address(1), Address(2))
    return Launch(grid, (plan.threads, 1, 1), (*buffers, *(np.uint32(n) for n in numbers)))


def backward_input_dynamic_shared(config: ConvConfig, target: Target) -> int:
    """Bytes of dynamic shared memory."""
    plan = backward_input_plan(config, target)
    return StreamedTile.shared_bytes(plan.n, plan.stages) if plan.streamed else 0
