"""Operators of other libraries that compute what oxijax's do."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torchvision  # pyright: ignore[reportMissingImports]
from openvino import opset8, opset9  # pyright: ignore[reportMissingImports]

from cpu_suite.libraries import of_onnxruntime, of_openvino, of_torch
from cpu_suite.program import Array, Program, channels_first, channels_last
from oxijax.testing import DeformConvCase

__all__ = ["attention_peers", "deform_conv_peers", "grid_sample_peers"]


def deform_conv_peers(
    case: DeformConvCase, arrays: Sequence[Array], grad_y: np.ndarray
) -> Mapping[str, Program]:
    """Of a layer's operands x, offset, weight, mask and bias, as `oxijax.deform_conv` has them."""
    x, offset, weight, mask, bias = arrays
    assert weight is not None
    x, offset, mask = map(channels_first, (x, offset, mask))
    weight = np.ascontiguousarray(weight.transpose(3, 2, 0, 1))
    pads = [d * (k - 1) // 2 for d, k in zip(case.dilation, case.kernel_size, strict=True)]

    def torchs(x: Any, offset: Any, weight: Any, mask: Any, bias: Any) -> Any:
        return torchvision.ops.deform_conv2d(
            x, offset, weight, bias, case.strides, pads, case.dilation, mask
        )

    def openvinos(x: Any, offset: Any, weight: Any, *mask: Any) -> Any:
        y = opset8.deformable_convolution(
            x, offset, weight, [*case.strides], pads, pads, [*case.dilation],
            *(mask or (None,)), group=case.groups, deformable_group=case.offset_groups,
            bilinear_interpolation_pad=True,
        )  # fmt: skip
        return y if bias is None else opset8.add(y, bias.reshape(1, -1, 1, 1))

    named = {"x": x, "weight": weight, "offset": offset, "bias": bias, "mask": mask}
    return {
        "torchvision": of_torch(
            torchs, (x, offset, weight, mask, bias), channels_last, channels_first(grad_y)
        ),
        "OpenVINO": of_openvino(openvinos, (x, offset, weight, mask), channels_last),
        "ONNX Runtime": of_onnxruntime(
            "DeformConv", named, channels_last, group=case.groups,
            offset_group=case.offset_groups, kernel_shape=[*case.kernel_size],
            strides=[*case.strides], dilations=[*case.dilation], pads=[*pads, *pads],
        ),
    }  # fmt: skip


def grid_sample_peers(
    images: np.ndarray, grid: np.ndarray, grad_y: np.ndarray
) -> Mapping[str, Program]:
    """Of images [N, H, W, C] and a grid in PyTorch's coordinates, without `align_corners`."""

    def torchs(x: Any, grid: Any) -> Any:
        return torch.nn.functional.grid_sample(x, grid, align_corners=False)

    def of_channels_last() -> Program:
        first = of_torch(torchs, (channels_first(images), grid), channels_last, grad_y)
        x, grid_of = first.operands
        x = x.detach().to(memory_format=torch.channels_last).requires_grad_()
        of_y = torch.from_numpy(channels_first(grad_y)).to(memory_format=torch.channels_last)
        return dataclasses.replace(first, operands=(x, grid_of), grad_y=of_y)

    x = channels_first(images)
    attributes = {"align_corners": False, "mode": "bilinear", "padding_mode": "zeros"}
    return {
        "PyTorch": of_torch(torchs, (x, grid), channels_last, channels_first(grad_y)),
        "PyTorch, channels last": of_channels_last(),
        "OpenVINO": of_openvino(
            lambda x, grid: opset9.grid_sample(x, grid, attributes), (x, grid), channels_last
        ),
        "ONNX Runtime": of_onnxruntime(
            "GridSample", {"x": x, "grid": grid}, channels_last, align_corners=0, mode="linear"
        ),
    }


def attention_peers(
    arrays: Sequence[np.ndarray], levels: Sequence[tuple[int, int]], grad_y: np.ndarray
) -> Mapping[str, Program]:
    """Of value, locations and weights, as `oxijax.ms_deform_attn` has them, of a single image."""
    _, count, heads = arrays[1].shape[:3]
    channels = arrays[0].shape[-1]
    pixels = [height * width for height, width in levels]

    def torchs(value: Any, locations: Any, weights: Any) -> Any:
        """A `grid_sample` for each level, as models without a CUDA kernel have it."""
        parts = []
        grids = (2 * locations - 1).transpose(1, 2).flatten(0, 1)
        for i, (of_level, size) in enumerate(zip(value.split(pixels, 1), levels, strict=True)):
            image = of_level.flatten(2).transpose(1, 2).reshape(heads, channels, *size)
            parts.append(
                torch.nn.functional.grid_sample(image, grids[:, :, i], align_corners=False)
            )
        factors = weights.transpose(1, 2).reshape(heads, 1, count, -1)
        y = (torch.stack(parts, -2).flatten(-2) * factors).sum(-1)
        return y.reshape(1, heads, channels, count).permute(0, 3, 1, 2)

    return {"PyTorch": of_torch(torchs, tuple(arrays), lambda y: y, grad_y)}
