"""Forward: y = bias + sampled images @ weights, without a column buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptx.builder import Kernel, Pointer, Val
from ptx.definition import Instance, KernelDefinition
from ptx.isa.dtypes import u64
from ptx.kernels.deform_conv.catalog import CONFIGS, LAUNCH_SIZES
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.direct.forward import direct_forward
from ptx.kernels.deform_conv.operations import BIAS, MASK, OFFSET, WEIGHT, X, Y
from ptx.kernels.deform_conv.parameters import STRIP_WIDTH, check, entry, output_pixels
from ptx.kernels.deform_conv.plan import SamplePlan, forward_plan
from ptx.kernels.deform_conv.samples.positions import Offsets
from ptx.kernels.deform_conv.tiled.forward import ForwardBlock, streamed_forward, tiled_forward
from ptx.tile.direct import DirectPlan
from ptx.tile.epilogue import LocateColumn, store_rows
from ptx.tile.pixels import SIZES
from ptx.tile.strips import strip_blocks
from ptx.tile.vectors import load_words, widen

__all__ = ["FORWARD"]


def _grid(instance: Instance) -> tuple[int, int, int]:
    """Blocks of pixels in x, and tiles of a group's output channels in y."""
    config, plan, sizes = instance.config, instance.plan, instance.sizes
    if isinstance(plan, DirectPlan):
        return plan.blocks(output_pixels(sizes)), 1, 1
    blocks = -(-output_pixels(sizes) // plan.m)
    if plan.has_strips:
        blocks = strip_blocks(sizes["n"], sizes["p"], sizes["q"], plan.m)
    return blocks, config.groups * -(-config.out_channels_per_group // plan.n), 1


def _body(k: Kernel, config: DeformConvConfig, plan: SamplePlan | DirectPlan, p: Any) -> None:
    offsets = Offsets.of(k, config, p)
    if isinstance(plan, DirectPlan):
        direct_forward(k, config, plan, p, offsets)
        return
    dtype, bias, y = config.float_type, p.bias, p.y
    out_group = config.out_channels_per_group
    tiles = -(-out_group // plan.n)
    group, first_out = k.ctaid("y") // tiles, k.ctaid("y") % tiles * plan.n
    k.name(group=group, first_out=first_out)
    main_loop = streamed_forward if plan.streamed else tiled_forward
    math, pixel_of = main_loop(ForwardBlock(k, config, plan, p, offsets, group, first_out))

    k.comment("bias, and the output")
    first_channel = group * out_group + first_out

    def locate(row: Val) -> LocateColumn:
        pixel, exists = pixel_of(row)

        def element(column: Val, further: int) -> tuple[Pointer, Val]:
            channel = k.convert(first_channel + column + further, u64)
            address = y + k.mad_wide(pixel, config.out_channels, channel)
            return address, exists & (first_out + column + further < out_group)

        return element

    def with_bias(sums: Sequence[Val], column: Val, address: Pointer, exists: Val) -> Sequence[Val]:
        assert bias is not None
        words = load_words(bias + (first_channel + column), len(sums), where=exists)
        return [total + b for total, b in zip(sums, widen(k, words), strict=True)]

    finish = None if bias is None else with_bias
    store_rows(math, locate, dtype=dtype, extent=out_group, finish=finish)


FORWARD = KernelDefinition(
    name="deform_conv_forward",
    configs=CONFIGS,
    launch_sizes=LAUNCH_SIZES,
    parameters=(
        *(X, OFFSET, WEIGHT.laid("o i j e"), MASK, BIAS, Y),
        *(*SIZES, STRIP_WIDTH),
    ),
    plan=forward_plan,
    check=check,
    grid=_grid,
    entry=entry("forward"),
    body=_body,
)
