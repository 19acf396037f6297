"""Weighted sums of samples: multi-scale deformable attention, DCNv3 and DCNv4, grid_sample."""

from ptx.kernels.sampling.backward_points import BACKWARD_POINTS, require_room
from ptx.kernels.sampling.backward_value import BACKWARD_VALUE
from ptx.kernels.sampling.backward_value_gather import BACKWARD_VALUE_GATHER
from ptx.kernels.sampling.catalog import CONFIGS
from ptx.kernels.sampling.config import SamplingConfig
from ptx.kernels.sampling.forward import FORWARD
from ptx.kernels.sampling.windows import WINDOWS_BACKWARD_VALUE, WINDOWS_FORWARD
from ptx.registry import register

__all__ = [
    "BACKWARD_POINTS",
    "BACKWARD_VALUE",
    "BACKWARD_VALUE_GATHER",
    "CONFIGS",
    "FORWARD",
    "WINDOWS_BACKWARD_VALUE",
    "WINDOWS_FORWARD",
    "SamplingConfig",
    "require_room",
]

for _kernel in (
    *(FORWARD, BACKWARD_VALUE, BACKWARD_VALUE_GATHER, BACKWARD_POINTS),
    *(WINDOWS_FORWARD, WINDOWS_BACKWARD_VALUE),
):
    register(_kernel)
