"""The shares of the work that blocks have, by configuration, target and sizes."""

from __future__ import annotations

from ptx.definition import Sizes
from ptx.isa.targets import Target
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct.common import direct_plan, direct_weight_plan, is_direct
from ptx.tile.direct import DirectPlan
from ptx.tile.occupancy import leaves_idle
from ptx.tile.plan import TilePlan, at_least, atom_of, streams

__all__ = [
    "backward_input_plan",
    "backward_weight_plan",
    "forward_plan",
    "tiled_forward_plan",
]


def forward_plan(
    config: ConvConfig, target: Target, sizes: Sizes | None = None
) -> TilePlan | DirectPlan:
    """The plan of the forward kernel; `sizes` are those of the launch, None is a large one."""
    if is_direct(config):
        return direct_plan(config)
    return tiled_forward_plan(config, target, sizes)


def tiled_forward_plan(config: ConvConfig, target: Target, sizes: Sizes | None = None) -> TilePlan:
    """The same, with tiles also for tiny groups.

    M are output pixels, N output channels of a group, K taps and input channels.
    """
    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    pixels = None if sizes is None else sizes["n"] * sizes["p"] * sizes["q"]
    return _product_plan(config, target, in_group, out_group, pixels)


def backward_input_plan(
    config: ConvConfig, target: Target, sizes: Sizes | None = None
) -> TilePlan | DirectPlan:
    """The plan of the gradient to the input; `sizes` as for `forward_plan`.

    M are input pixels, N input channels of a group, K taps and output channels.
    """
    if is_direct(config):
        return direct_plan(config)
    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    pixels = None if sizes is None else sizes["n"] * sizes["h"] * sizes["w"]
    return _product_plan(config, target, out_group, in_group, pixels)


def backward_weight_plan(
    config: ConvConfig, target: Target, sizes: Sizes | None = None
) -> TilePlan | DirectPlan:
    """The plan of the gradient to the weights, the same for launches of all sizes.

    M are taps and input channels of a group, N its output channels, K output pixels. A warp reads
    its rows and its columns from shared memory, where the larger its share is the fewer others read
    them again: 64 x 64 of halves, if copies go past the registers that this takes.
    """
    if is_direct(config):
        return direct_weight_plan(config)
    width = config.float_type.bytes
    in_group, out_group = config.in_channels_per_group, config.out_channels_per_group
    rows = config.taps * in_group
    if width == 2 and in_group >= 64 and out_group > 32 and atom_of(config, target) is not None:
        m, n = at_least(rows, 64, 128), at_least(out_group, 64, 128)
        vectors = in_group % 8 == 0 and out_group % 8 == 0
        if streams(config, target) and vectors and m * n > 64 * 64:
            return TilePlan(m, n, 32, (m // 64, n // 64))
        if out_group > 64:
            # 64 KiB of shared memory are an SM's, on sm_75: there is room for one block.
            fit = 2 if target.shared_per_sm > 64 * 1024 else 1
            return TilePlan(128, 128, 32, (2, 4), min_blocks=fit)
    largest = 64 if width < 8 else 32
    m, n = at_least(rows, 32, largest), at_least(out_group, 32, largest)
    return TilePlan(m, n, 64 // width, (2, 2))


def _product_plan(
    config: ConvConfig, target: Target, k_channels: int, n_channels: int, pixels: int | None
) -> TilePlan:
    """The tiles of a product whose rows are pixels.

    Channels along K that are a multiple of 64 bytes are streamed, where tensor cores take them:
    what a warp multiplies goes from L1 into its registers, for 32 pixels and all columns.

    Args:
      config: the convolution.
      target: the GPU.
      k_channels: channels of a group along K.
      n_channels: channels of a group along N.
      pixels: the pixels of all results; None is many.
    """
    width = config.float_type.bytes
    slice_ = 64 // width
    columns = config.groups * -(-n_channels // 128)
    small = pixels is not None and leaves_idle(-(-pixels // 128) * columns)
    if streams(config, target) and k_channels % slice_ == 0:
        n = at_least(n_channels, 32, 64 if width == 4 or small else 128)
        m = 64 if small else 128
        return TilePlan(m, n, slice_, (m // 32, 1), stages=4, streamed=True)
    n = at_least(n_channels, 16, {2: 128, 4: 64, 8: 32}[width])
    # What makes a column of B, often element by element, is shared by more pixels.
    m = 128 if width == 2 and n == 64 and streams(config, target) and not small else 64
    if width == 8 and n == 32:
        m = 32  # each row's address takes registers, beside sums of two registers
    return TilePlan(m, n, slice_, (4, 1) if n == 16 else (2, 2))
