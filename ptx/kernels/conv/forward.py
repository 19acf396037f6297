"""Convolution as a matrix product that never sees its matrix (implicit GEMM): forward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ptx.builder import Kernel, Pointer, Val
from ptx.isa.dtypes import u32, u64
from ptx.isa.targets import TARGETS, Target
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct import is_direct
from ptx.kernels.conv.direct_forward import direct_forward, direct_forward_launch
from ptx.kernels.conv.limits import check_windows
from ptx.kernels.conv.plan import forward_plan
from ptx.kernels.conv.product import Weights, WindowProduct
from ptx.kernels.conv.windows import Axis, WindowRows
from ptx.kernels.limits import check_grid
from ptx.launch import Address, Launch
from ptx.registry import Shapes
from ptx.tile.plan import TilePlan
from ptx.tile.stream import StreamedTile
from ptx.tile.vectors import load_words, widen

__all__ = ["forward_dynamic_shared", "forward_launch", "generate_conv_forward_ptx"]


def generate_conv_forward_ptx(
    config: ConvConfig, target: Target | str = "sm_80", *, plan: TilePlan | None = None
) -> str:
    """The PTX of the forward kernel.

    Parameters: input [N, H, W, C], weight [Co, T, C/G], bias [Co] or null, output [N, P, Q, Co],
    and the u32 batch_size, in_h, in_w, out_h, out_w and strip_width. A block has `TilePlan.m`
    pixels (grid x) and `TilePlan.n` output channels of one group (grid y).

    Tiny groups, see `is_direct`, have weight [T, C/G, Co] and no strip_width: a block has
    `direct.PIXELS` pixels of a row for each thread, and the grid is all in x.

    Args:
      config: the convolution.
      target: GPU.
      plan: other tiles than `forward_plan` chooses: those that `TileConfig.plan` makes.

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    config.validate()
    target = TARGETS[target] if isinstance(target, str) else target
    if plan is None and is_direct(config):
        return direct_forward(config, target)
    plan = plan or forward_plan(config, target)
    dtype = config.float_type
    name = f"implicit_gemm_conv_{plan.m}x{plan.n}x{plan.k}_{dtype}"
    k = Kernel(name, target, block=plan.threads, min_blocks=plan.min_blocks)
    x = k.pointer("input", dtype, readonly=True)
    weight = k.pointer("weight", dtype, readonly=True)
    bias = k.pointer("bias", dtype, readonly=True)
    y = k.pointer("output", dtype)
    names = ("batch_size", "in_h", "in_w", "out_h", "out_w")
    images, in_h, in_w, out_h, out_w = (k.param(name, u32) for name in names)
    axes = (
        Axis(in_h, out_h, config.stride_h, config.dilation_h, -config.pad_h,
             config.kernel_h, config.kernel_h),
        Axis(in_w, out_w, config.stride_w, config.dilation_w, -config.pad_w,
             config.kernel_w, config.kernel_w),
    )  # fmt: skip
    rows = WindowRows(k, images, *axes, (out_h, out_w), rows=plan.m, threads=plan.threads)

    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    tiles = -(-out_group // plan.n)
    group, first_out = k.ctaid("y") // tiles, k.ctaid("y") % tiles * plan.n
    channel = group * out_group + first_out
    k.name(group=group, first_out=first_out)
    weights = Weights(
        first=weight + k.mul_wide(channel, config.taps * in_group),
        columns=out_group - first_out,
        column=config.taps * in_group,
        tap=in_group,
        channel=1,
        all_columns=out_group % plan.n == 0,
    )
    product = WindowProduct(
        k, config, plan, rows, x + group * in_group, config.in_channels, in_group, weights
    )
    math = product.run()

    k.comment("bias, unless it is null, and the output")
    has_bias = _address(bias).ne(0)

    def with_bias(sums: Sequence[Val], column: Val, address: Pointer, exists: Val) -> Sequence[Val]:
        words = load_words(bias + (channel + column), len(sums), where=exists & has_bias)
        return [total + b for total, b in zip(sums, widen(k, words), strict=True)]

    product.store(math, y + channel, config.out_channels, with_bias)
    return k.text()


def _address(pointer) -> Val:
    assert isinstance(pointer.base, Val)
    assert pointer.base.dtype is u64
    return pointer.base


def forward_launch(
    config: ConvConfig, target: Target, shapes: Shapes, *, plan: TilePlan | None = None
) -> Launch:
    """The launch for x, weight, bias if there is one, and y; with the plan of the text.

    Raises:
      ValueError: the images, or the output, are larger than the kernel can count.
    """
    (images, in_h, in_w, _), y = shapes[0], shapes[-1]
    check_windows(config, images, (in_h, in_w), (y[1], y[2]))
    if plan is None and is_direct(config):
        return direct_forward_launch(config, shapes)
    plan = plan or forward_plan(config, target)
    bias = Address(2) if len(shapes) == 4 else np.uint64(0)
    numbers = (images, in_h, in_w, y[1], y[2], WindowRows.strip_width(y[2]))
    tiles = config.groups * -(-config.out_channels_per_group // plan.n)
    grid = (WindowRows.blocks(y[0], y[1], y[2], plan.m), tiles, 1)
    check_grid(grid)
    arguments = (Address(0), Address(1), bias, Address(len(shapes) - 1))
    return Launch(grid, (plan.threads, 1, 1), (*arguments, *(np.uint32(n) for n in numbers)))


def forward_dynamic_shared(
    config: ConvConfig, target: Target, *, plan: TilePlan | None = None
) -> int:
    """Bytes of dynamic shared memory, with the plan of the text."""
    plan = plan or forward_plan(config, target)
    return StreamedTile.shared_bytes(plan.n, plan.stages) if plan.streamed else 0
