"""Convolution as an implicit matrix product: forward, and backward to each of its operands.

- `config`, `operations`: a convolution's description, its operations and their arrays.
- `catalog`, `model`: named configurations, and layers whose launches are modelled.
- `definitions`: the kernels' parameters and grids; `plan`: the shares of their blocks.
- `direct`: kernels without tiles, for tiny groups. A thread has a strip of pixels.
- `tiled`: kernels whose blocks multiply tiles, of all other configurations.
"""

from ptx import registry
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.definitions import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    backward_weight_parts,
)

__all__ = ["BACKWARD_INPUT", "BACKWARD_WEIGHT", "FORWARD", "ConvConfig", "backward_weight_parts"]

for _kernel in (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT):
    registry.register(_kernel)
