"""Deformable operators, convolution and memory-bound matrix products for JAX, as primitives."""

import importlib
from typing import TYPE_CHECKING

from oxijax import convert, reference
from oxijax._conv import conv
from oxijax._conv.general_dilated import conv_general_dilated
from oxijax._core.config import config
from oxijax._core.launch import clear_caches
from oxijax._core.sizes import EXPORT_CHECKS
from oxijax._core.tuning.tune import tune
from oxijax._deform_conv import deform_conv
from oxijax._drawing import draw_samples
from oxijax._gemm import gemm
from oxijax._gemm.roofline import roofline
from oxijax._samples import Samples, offset_statistics, sampling_locations
from oxijax._sampling.dcn import dcnv3, dcnv4
from oxijax._sampling.grid_sample import grid_sample
from oxijax._sampling.ms_deform_attn import ms_deform_attn
from oxijax._version import __version__

__all__ = [
    "EXPORT_CHECKS",
    "Samples",
    "__version__",
    "clear_caches",
    "config",
    "conv",
    "conv_general_dilated",
    "convert",
    "dcnv3",
    "dcnv4",
    "deform_conv",
    "draw_samples",
    "gemm",
    "grid_sample",
    "ms_deform_attn",
    "offset_statistics",
    "reference",
    "roofline",
    "sampling_locations",
    "tune",
]

_OPTIONAL = ("equinox", "extend", "linen", "nnx", "onnx")

if TYPE_CHECKING:
    from oxijax import equinox as equinox
    from oxijax import linen as linen
    from oxijax import nnx as nnx
    from oxijax import onnx as onnx
else:

    def __getattr__(name):
        # What they need is optional, and slow to import: whoever asks for one of them pays.
        if name in _OPTIONAL:
            return importlib.import_module(f"oxijax.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_OPTIONAL})
