"""What a launch of each kernel does, for `ptx.model`: from its plan, its grid and its SASS."""

from __future__ import annotations

import dataclasses
import math

from ptx.isa.targets import Target
from ptx.kernels.conv.backward_weight import backward_weight_parts
from ptx.kernels.conv.catalog import RESNET50
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct import is_direct
from ptx.kernels.conv.plan import (
    backward_input_plan,
    backward_weight_plan,
    forward_plan,
    is_small_grid,
)
from ptx.launch import Address, Launch
from ptx.model import L1_BYTES, BlockWork, Device, Image, Work, floor, launch_work
from ptx.registry import RegisteredKernel
from ptx.tile.plan import TilePlan
from ptx.tile.vectors import vector_width

__all__ = ["LAYERS", "MODELLED", "called", "floor_us", "launch", "work"]

MODELLED = ("forward", "backward_input", "backward_weight")

# Layers of networks, and the images [N, H, W] that times are modelled for.
LAYERS: dict[str, tuple[ConvConfig, Image]] = {
    name: (config, (32, size, size)) for name, (config, size) in RESNET50.items()
}


def launch(
    kernel: RegisteredKernel[ConvConfig], config: ConvConfig, target: Target, images: Image
) -> Launch:
    """The launch of a kernel on images; the arguments are those of `work`."""
    name = kernel.name.removeprefix("conv_")
    config = called(name, config, images)
    assert kernel.launch is not None
    launched = kernel.launch(config, target, [shape for shape, _ in _buffers(name, config, images)])
    shared = kernel.dynamic_shared(config, target)
    return dataclasses.replace(
        launched, text=kernel.generate(config, target), dynamic_shared=shared
    )


def work(
    kernel: RegisteredKernel[ConvConfig],
    config: ConvConfig,
    target: Target,
    images: Image,
) -> Work:
    """What one launch does, without a bias.

    Args:
      kernel: `conv_forward` or another of `MODELLED`.
      config: one whose products run on tensor cores, with the same padding on all sides.
      target: the GPU.
      images: number, height and width of the input.

    Raises:
      ValueError: another kernel or configuration, or SASS that does not multiply as often as the
        plan says: then this file no longer describes the kernel.
    """
    name = kernel.name.removeprefix("conv_")
    if name not in MODELLED or kernel.launch is None:
        raise ValueError(f"modelled are {', '.join(MODELLED)}, not {kernel.name}")
    if is_direct(config):
        raise ValueError(f"modelled are products on tensor cores, {config} has direct kernels")
    config = called(name, config, images)
    buffers = _buffers(name, config, images)
    launch = kernel.launch(config, target, [shape for shape, _ in buffers])
    if name == "backward_weight":
        block = _backward_weight(config, target, launch)
    else:
        block = _window_product(name, config, target, launch)
    sizes = [math.prod(shape) * width for shape, width in buffers]
    return launch_work(
        kernel,
        config,
        target,
        launch,
        block,
        memory_bytes=sum(sizes),
        later_bytes=sizes[-1] if name == "backward_weight" else 0.0,
    )


def called(name: str, config: ConvConfig, images: Image) -> ConvConfig:
    """The configuration that the lowering chooses for these images.

    Args:
      name: of the kernel, one of `MODELLED`.
      config: the convolution.
      images: number, height and width of the input.
    """
    if name == "backward_weight":
        return config
    backward = name == "backward_input"
    pixels = images[0] * math.prod(images[1:] if backward else _output_size(config, images))
    small = is_small_grid(config, pixels, backward_input=backward)
    return dataclasses.replace(config, small_grid=small)


def floor_us(config: ConvConfig, images: Image, device: Device) -> float:
    """Microseconds that no kernel of a layer can beat: see `ptx.model.floor`."""
    pixels = images[0] * math.prod(_output_size(config, images))
    products = pixels * config.taps * config.in_channels_per_group * config.out_channels
    # Backward, the same tensors are read and written, in other roles.
    memory = sum(math.prod(shape) * width for shape, width in _buffers("forward", config, images))
    return floor(products, memory, 2 / config.float_type.bytes, device)


def _window_product(name: str, config: ConvConfig, target: Target, launch: Launch) -> BlockWork:
    """A block of the forward kernel, or of the one backward to input."""
    plan_of, channels, pitch, columns = (
        (forward_plan, config.in_channels, config.taps * config.in_channels_per_group,
         config.out_channels)
        if name == "forward"
        else (backward_input_plan, config.out_channels, config.out_channels, config.in_channels)
    )  # fmt: skip
    plan, dtype = plan_of(config, target), config.float_type
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


def _backward_weight(config: ConvConfig, target: Target, launch: Launch) -> BlockWork:
    plan, dtype = backward_weight_plan(config, target), config.float_type
    last = launch.arguments[-1]
    assert not isinstance(last, Address)
    pixels = last.item()  # of a part
    steps, lots = pixels / plan.k, math.ceil(pixels / _PIXELS)
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


_PIXELS = 512  # that the backward weight kernel looks at together


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


def _output_size(config: ConvConfig, images: Image) -> tuple[int, int]:
    _, height, width = images
    reach_h = config.dilation_h * (config.kernel_h - 1) + 1
    reach_w = config.dilation_w * (config.kernel_w - 1) + 1
    return (
        (height + 2 * config.pad_h - reach_h) // config.stride_h + 1,
        (width + 2 * config.pad_w - reach_w) // config.stride_w + 1,
    )


def _buffers(name: str, config: ConvConfig, images: Image) -> list[tuple[tuple[int, ...], int]]:
    """Shape of each operand and result, as `launch` takes them, and bytes of an element."""
    out = (images[0], *_output_size(config, images))
    width, in_group = config.float_type.bytes, config.in_channels_per_group
    x = ((*images, config.in_channels), width)
    y = ((*out, config.out_channels), width)
    weight = ((config.taps, in_group, config.out_channels), width)
    if name == "forward":
        return [x, ((config.out_channels, config.taps, in_group), width), y]
    if name == "backward_input":
        return [weight, y, x]
    parts = backward_weight_parts(config, math.prod(out))
    return [x, y, ((parts, *weight[0]), max(4, width))]
