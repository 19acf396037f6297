"""Deformable convolution (DCNv1, DCNv2): forward, and backward to each of its operands.

- `config`, `operations`: a convolution's description, its operations and their arrays.
- `catalog`, `model`: named configurations, and layers whose launches are modelled.
- `definitions`: the kernels' parameters and grids; `plan`: the shares of their blocks.
- `direct`: kernels without tiles, for tiny groups. A thread has a pixel and a few channels.
- `tiled`: kernels whose blocks multiply tiles, of all other configurations.
- `samples`: positions, corners and samples, in memory and in registers, which both are made of.
- `backward_input_gather`: the kernel backward to input that gathers from sorted lists of samples.
"""

from ptx.kernels.deform_conv.backward_input_gather import BACKWARD_INPUT_GATHER, gathers
from ptx.kernels.deform_conv.catalog import CONFIGS
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.definitions import (
    BACKWARD_INPUT,
    BACKWARD_OFFSET,
    BACKWARD_WEIGHT,
    FORWARD,
    backward_weight_parts,
)
from ptx.registry import register

__all__ = [
    "BACKWARD_INPUT",
    "BACKWARD_INPUT_GATHER",
    "BACKWARD_OFFSET",
    "BACKWARD_WEIGHT",
    "CONFIGS",
    "FORWARD",
    "DeformConvConfig",
    "backward_weight_parts",
    "gathers",
]

for _kernel in (FORWARD, BACKWARD_INPUT, BACKWARD_INPUT_GATHER, BACKWARD_OFFSET, BACKWARD_WEIGHT):
    register(_kernel)
