"""The layers whose kernels are modelled; see `ptx.model`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ptx.definition import KernelDefinition, Sizes
from ptx.kernels.deform_conv.backward_input_gather import (
    BACKWARD_INPUT_GATHER,
    CELL_BORDER,
    list_sizes,
)
from ptx.kernels.deform_conv.catalog import NETWORKS
from ptx.kernels.deform_conv.definitions import (
    BACKWARD_INPUT,
    BACKWARD_OFFSET,
    BACKWARD_WEIGHT,
    FORWARD,
    backward_weight_parts,
)
from ptx.kernels.layer_model import OFFSET_DEVIATION, ConvLayerModel, Operands
from ptx.model import Image
from ptx.testing.call import numpy_dtype

__all__ = ["MODEL"]


class _DeformConvModel(ConvLayerModel):
    deviations: ClassVar = {"offset": OFFSET_DEVIATION}

    def sizes(self, kernel: KernelDefinition, config: Any, extent: Image) -> Sizes:
        sizes = super().sizes(kernel, config, extent)
        return {**sizes, **list_sizes(sizes)} if kernel is BACKWARD_INPUT_GATHER else sizes

    def operands(self, kernel: KernelDefinition, config: Any, extent: Image) -> Operands:
        operands = super().operands(kernel, config, extent)
        return operands | _lists(config, extent) if kernel is BACKWARD_INPUT_GATHER else operands


def _lists(config: Any, images: Image) -> Operands:
    """Lists of samples with random offsets, the same ones for each offset group."""
    random, (count, height, width) = np.random.default_rng(0), images
    pixels = (count, *config.output_size(height, width))
    image, p, q = np.ogrid[: pixels[0], : pixels[1], : pixels[2]]
    rows, columns = height + 2 * CELL_BORDER, width + 2 * CELL_BORDER
    starts, order = [], []
    for tap in range(config.taps):
        i, j = divmod(tap, config.kernel_w)
        floor = np.floor(OFFSET_DEVIATION * random.standard_normal((2, *pixels), np.float32))
        floor = floor.astype(int)
        y = floor[0] + (p * config.stride_h - config.pad_h + i * config.dilation_h)
        x = floor[1] + (q * config.stride_w - config.pad_w + j * config.dilation_w)
        y, x = y.clip(-CELL_BORDER, height) + CELL_BORDER, x.clip(-CELL_BORDER, width) + CELL_BORDER
        cell = ((image * rows + y) * columns + x).ravel()
        order.append(np.argsort(cell, kind="stable").astype(np.uint32))
        ends = np.cumsum(np.bincount(cell, minlength=count * rows * columns), dtype=np.uint32)
        starts.append(np.concatenate([np.zeros(1, np.uint32), ends]))
    lists = (config.offset_groups, config.taps)
    weight = np.ones((), numpy_dtype(config.sum_type))
    return {
        "starts": np.broadcast_to(starts, (*lists, len(starts[0]))),
        "order": np.broadcast_to(order, (*lists, len(order[0]))),
        "corner_weights": np.broadcast_to(weight, (*lists, len(order[0]), 4)),
    }


MODEL = _DeformConvModel(
    kernels={
        "forward": FORWARD,
        "backward_offset": BACKWARD_OFFSET,
        "backward_input": BACKWARD_INPUT,
        "backward_input_gather": BACKWARD_INPUT_GATHER,
        "backward_weight": BACKWARD_WEIGHT,
    },
    layers=NETWORKS,
    parts=backward_weight_parts,
)
