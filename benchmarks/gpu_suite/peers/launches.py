"""Launches of others' CUDA kernels as their own code makes them, for the model."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpu_suite.peers.sizes import threads_of_dcnv4, window
from gpu_suite.sampling_layers import SamplingLayer
from ptx.emulator import Buffer

__all__ = ["LAUNCHES", "Launch", "one_kernel"]

_TYPES = {"float32": "f", "float16": "4Half"}


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch.

    Attributes:
      kernel: a pattern that the kernel's name in the PTX text has, and no other's.
      grid, block: the number of blocks and of a block's threads.
      arguments: of the kernel.
      dynamic_shared: bytes.
    """

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: Sequence[Buffer | int | float]
    dynamic_shared: int = 0


def one_kernel(texts: str, pattern: str) -> str:
    """A module with the only kernel whose name a pattern fits.

    Raises:
      ValueError: The pattern fits none, or several.
    """
    head, *kernels = re.split(r"(?=^\.visible \.entry )", texts, flags=re.M)
    found = [kernel for kernel in kernels if re.search(pattern, kernel.partition("(")[0])]
    if len(found) != 1:
        raise ValueError(f"one kernel must have a name like {pattern}, {len(found)} do")
    return head + found[0]


def _deformable_detr(
    operation: str, layer: SamplingLayer, dtype: str, operands: Sequence[np.ndarray]
) -> Launch:
    value, locations, weights, grad_y = operands
    levels = np.array(layer.levels, np.int64)
    starts = np.cumsum(levels.prod(1)) - levels.prod(1)
    given = [Buffer(array) for array in (value, levels, starts, locations, weights)]
    sizes = (layer.images, layer.pixels, layer.heads, layer.channels, len(levels))
    sizes = (*sizes, layer.queries, layer.points)
    if operation == "forward":
        arguments = [grad_y.size, *given, *sizes, _zeros(grad_y)]
        kernel = "ms_deformable_im2col_gpu_kernelIfE"
        return Launch(kernel, (-(-grad_y.size // 1024),), (1024,), arguments)
    results = [_zeros(array) for array in (value, locations, weights)]
    arguments = [grad_y.size, Buffer(grad_y), *given, *sizes, *results]
    kernel = f"ms_deformable_col2im_gpu_kernel_shm_blocksize_aware_reduce_v1IfLj{layer.channels}E"
    return Launch(kernel, (grad_y.size // layer.channels,), (layer.channels,), arguments)


def _dcnv3(
    operation: str, layer: SamplingLayer, dtype: str, operands: Sequence[np.ndarray]
) -> Launch:
    *inputs, grad_y = (array.astype(dtype) for array in operands)
    given, (_, height, width, groups, channels) = map(Buffer, inputs), window(layer)
    geometry = [3, 3, 1, 1, 1, 1, 1, 1, groups, channels, height, width, height, width, 1.0, 0]
    if operation == "forward":
        arguments = [grad_y.size, *given, _zeros(grad_y), *geometry]
        kernel = f"dcnv3_im2col_gpu_kernelI{_TYPES[dtype]}E"
        return Launch(kernel, (-(-grad_y.size // 256),), (256,), arguments)
    results = [_zeros(array, np.float32) for array in inputs]
    arguments = [grad_y.size, Buffer(grad_y), *given, *geometry, *results]
    kernel = f"dcnv3_col2im.*_shm_blocksize_aware_reduce_v1I{_TYPES[dtype]}Lj{channels}E"
    return Launch(kernel, (grad_y.size // channels,), (channels,), arguments)


def _dcnv4(
    operation: str, layer: SamplingLayer, dtype: str, operands: Sequence[np.ndarray]
) -> Launch:
    x, offset, mask, grad_y = operands
    images, height, width, groups, channels = window(layer)
    pixels = images, height * width
    of_group = [offset.reshape(*pixels, groups, 18), mask.reshape(*pixels, groups, 9)]
    packed = np.concatenate(of_group, -1).reshape(*pixels, -1)
    row = -(-packed.shape[-1] // 8) * 8
    packed = np.pad(packed, ((0, 0), (0, 0), (0, row - packed.shape[-1])))
    x, packed, grad_y = (array.astype(dtype) for array in (x, packed, grad_y))
    back = operation != "forward"
    of_thread, threads = threads_of_dcnv4(layer, back=back)
    block = (channels // of_thread, groups, threads // (channels // of_thread) // groups)
    grid = (images * height * width // block[2],)
    geometry = [groups, channels, height * width, 3, 3, 1, 1, 1, 1, 1, 1]
    geometry += [height, width, height, width, 1.0, 0, block[2]]
    given = [Buffer(x), Buffer(packed)]
    if not back:
        vector = {"float32": "10ulonglong4", "float16": "5uint4"}[dtype]
        kernel = f"forward_kernel_dcn_regI{_TYPES[dtype]}Li{of_thread}E{vector}Li1ELi9ELb0E"
        return Launch(kernel, grid, block, [*given, _zeros(grad_y), *geometry, row])
    results = [_zeros(array, np.float32) for array in (x, packed)]
    scalar = {"float32": "j", "float16": "S1_"}[dtype]
    kernel = f"warp_primitiveI{_TYPES[dtype]}Li{of_thread}E{scalar}Li1ELi9ELb0E"
    shared = 4 * groups * block[2] * 9 * 2
    arguments = [*given, Buffer(grad_y), *geometry, *results, row]
    return Launch(kernel, grid, block, arguments, shared)


def _zeros(like: np.ndarray, dtype: Any = None) -> Buffer:
    return Buffer(np.zeros(like.shape, dtype or like.dtype))


# By the names of `gpu_suite.peers.calls.PEERS`: (operation, layer, dtype, operands and the
# gradient of the result) -> launch; operations are "forward" and "backward".
LAUNCHES: dict[str, Callable[[str, SamplingLayer, str, Sequence[np.ndarray]], Launch]] = {
    "Deformable DETR, CUDA": _deformable_detr,
    "DCNv3, CUDA": _dcnv3,
    "DCNv4, CUDA": _dcnv4,
}
