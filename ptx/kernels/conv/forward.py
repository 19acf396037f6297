"""Convolution as a matrix product that never sees its matrix (implicit GEMM): forward."""

from __future__ import annotations

from typing import Any

from ptx.builder import Kernel
from ptx.definition import Instance, KernelDefinition
from ptx.kernels.conv.catalog import CONFIGS, LAUNCH_SIZES
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct.common import PIXELS, is_direct, outputs_of, strip_count
from ptx.kernels.conv.direct.forward import direct_forward
from ptx.kernels.conv.limits import check_windows
from ptx.kernels.conv.operations import BIAS, WEIGHT, X, Y
from ptx.kernels.conv.parameters import entry, strip_width, writer
from ptx.kernels.conv.plan import forward_plan
from ptx.kernels.conv.product import GroupWeights, WindowProduct
from ptx.kernels.conv.windows import Axis, WindowRows
from ptx.tile.direct import DirectPlan
from ptx.tile.epilogue import plus_bias
from ptx.tile.pixels import SIZES
from ptx.tile.plan import TilePlan
from ptx.tile.strips import strip_blocks

__all__ = ["FORWARD"]


def _tiled_forward(k: Kernel, config: ConvConfig, plan: TilePlan, p: Any) -> None:
    """Writes the kernel that multiplies tiles.

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


def _direct_tile(config: ConvConfig, plan: DirectPlan) -> tuple[int, int, int]:
    depth = config.taps * config.in_channels_per_group
    return plan.down * PIXELS, plan.across * outputs_of(config, plan), depth


def _outputs(instance: Instance) -> tuple[int, int, int]:
    return instance.sizes["n"], instance.sizes["p"], instance.sizes["q"]


def _grid(instance: Instance) -> tuple[int, int, int]:
    config, plan = instance.config, instance.plan
    pixels = _outputs(instance)
    if isinstance(plan, DirectPlan):
        return plan.blocks(strip_count(*pixels)), 1, 1
    tiles = config.groups * -(-config.out_channels_per_group // plan.n)
    return strip_blocks(*pixels, plan.m), tiles, 1


FORWARD = KernelDefinition(
    name="conv_forward",
    configs=CONFIGS,
    launch_sizes=LAUNCH_SIZES,
    parameters=(
        X,
        # What the products run along lies together; threads of direct kernels run along outputs.
        WEIGHT.laid(lambda config: "i j e o" if is_direct(config) else "o i j e"),
        *(BIAS, Y, *SIZES),
        strip_width(_outputs),
    ),
    plan=forward_plan,
    entry=entry("implicit_gemm_conv", _direct_tile),
    body=writer(_tiled_forward, direct_forward),
    grid=_grid,
    check=check_windows,
)
