"""What a launch of each kernel does, for `ptx.model`: from its plan, its grid and its SASS."""

from __future__ import annotations

import math

from ptx.isa.targets import Target
from ptx.kernel import Instance
from ptx.kernels.conv.backward_weight import PIXELS_TOGETHER, backward_weight_parts
from ptx.kernels.conv.catalog import RESNET50
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.forward import FORWARD
from ptx.kernels.layer_model import LayerModel
from ptx.launch import BufferAddress, Launch
from ptx.model import L1_BYTES, BlockWork, Image
from ptx.tile.direct import DirectPlan
from ptx.tile.plan import TilePlan
from ptx.tile.vectors import vector_width

__all__ = ["LAYERS", "MODELLED", "floor_us", "launch", "work"]

MODELLED = ("forward", "backward_input", "backward_weight")

# Layers of networks, and the images [N, H, W] that times are modelled for.
LAYERS: dict[str, tuple[ConvConfig, Image]] = {
    name: (config, (32, size, size)) for name, (config, size) in RESNET50.items()
}


def _block(name: str, instance: Instance, launch: Launch) -> BlockWork:
    if isinstance(instance.plan, DirectPlan):
        raise ValueError(f"modelled are tiles, {instance.config} has direct kernels")
    if name == "backward_weight":
        return _backward_weight(instance, launch)
    return _window_product(name, instance, launch)


def _window_product(name: str, instance: Instance, launch: Launch) -> BlockWork:
    """A block of the forward kernel, or of the one backward to input."""
    config, target, plan = instance.config, instance.target, instance.plan
    channels, pitch, columns = (
        (config.in_channels, config.taps * config.in_channels_per_group, config.out_channels)
        if name == "forward"
        else (config.out_channels, config.out_channels, config.in_channels)
    )
    dtype = config.float_type
    group = channels // config.groups
    taps = config.taps / launch.grid[2]  # of a class of the stride, in the mean
    a, b, rows, across = *_tile_bytes(config, plan), *plan.warps
    if plan.streamed:
        steps = taps * group / plan.k
        l1 = steps * (a + b + rows * b)
    else:
        joined = group % plan.k != 0 and launch.grid[2] == 1
        steps = math.ceil(taps * group / plan.k) if joined else taps * math.ceil(group / plan.k)
        image = vector_width(dtype, group, channels, plan.k)
        weight = vector_width(dtype, group, pitch, plan.k)
        # A row's first tap and whether a tap is inside: bits, or its row and column.
        lookups = 2 if config.taps <= 32 else 3
        l1 = steps * (
            _copied(config, target, plan.m * plan.k, image, lookups)
            + _copied(config, target, plan.n * plan.k, weight)
            + across * a
            + rows * b
        )
    neighbours = vector_width(dtype, columns // config.groups, 8 if plan.streamed else 2)
    l1 += _accesses(plan.m * plan.n, neighbours, dtype.bytes)
    return BlockWork(nest=[steps], products=plan.m * plan.n * plan.k * steps, l1_bytes=l1)


def _backward_weight(instance: Instance, launch: Launch) -> BlockWork:
    config, target, plan = instance.config, instance.target, instance.plan
    dtype = config.float_type
    last = launch.arguments[-1]
    assert not isinstance(last, BufferAddress)
    pixels = last.item()  # of a part
    steps, lots = pixels / plan.k, math.ceil(pixels / PIXELS_TOGETHER)
    a, b, rows, across = *_tile_bytes(config, plan), *plan.warps
    image = vector_width(dtype, config.in_channels_per_group, plan.m)
    gradient = vector_width(dtype, config.out_channels_per_group, plan.n)
    l1 = steps * (
        _copied(config, target, plan.m * plan.k, image, lookups=1)
        + _copied(config, target, plan.n * plan.k, gradient)
        + across * a
        + rows * b
    )
    l1 += 16 * pixels  # where windows begin
    l1 += _accesses(plan.m * plan.n, 2, max(4, dtype.bytes))
    return BlockWork(
        nest=[lots, steps / lots],
        fills=pixels / plan.threads,
        products=plan.m * plan.n * pixels,
        l1_bytes=l1,
    )


def _tile_bytes(config: ConvConfig, plan: TilePlan) -> tuple[int, int]:
    """Bytes of a tile of A and of one of B."""
    width = config.float_type.bytes
    return plan.m * plan.k * width, plan.n * plan.k * width


def _copied(
    config: ConvConfig, target: Target, elements: int, together: int, lookups: int = 0
) -> float:
    """Bytes of a tile that is copied to shared memory.

    Args:
      config: the convolution.
      target: the GPU.
      elements: of the tile.
      together: elements of one copy.
      lookups: in shared memory for each copy, the same for all lanes that copy a row.
    """
    width = config.float_type.bytes
    asynchronous = target.supports("sm_80") and together * width >= 4  # past L1
    copied = _accesses(elements, together, width) * (1 if asynchronous else 2)
    return copied + lookups * L1_BYTES * elements / (32 * together)


def _accesses(elements: int, together: int, width: int) -> float:
    """Bytes of loads or stores, each of a warp's a cycle at least.

    Args:
      elements: in all.
      together: of one lane.
      width: bytes of an element.
    """
    return elements / (32 * together) * max(L1_BYTES, 32 * together * width)


_MODEL = LayerModel(
    prefix="conv_", kernels=MODELLED, forward=FORWARD, parts=backward_weight_parts, block=_block
)
launch, work, floor_us = _MODEL.launch, _MODEL.work, _MODEL.floor_us
