"""Deformable operators, convolution and memory-bound matrix products for JAX, as primitives.

Operators: `deform_conv`, `ms_deform_attn`, `dcnv3`, `dcnv4`, `grid_sample`, `map_coordinates`,
`sample_windows`, `splat`, `roi_align`, `conv`, `conv_general_dilated`, `gemm`; `reference` has
them in pure JAX.

Layers: `nnx`, `linen`, `equinox` and `keras` each have `DeformConv` (in Keras `DeformConv2D`),
`MSDeformAttn`, `DCNv3` and `DCNv4`; `keras.accelerate` is for others' detectors.
`convert` has PyTorch's weights for them, and `onnx` exports models.

Where operators sample: `sampling_locations`, `draw_samples`, `offset_statistics`.

Settings and tools: `config`, `resolve`, `tune`, `roofline`, `testing.emulate_gpu`, and `extend` for
kernels of your own; `python -m oxijax` has commands.
"""

import difflib
import importlib.util
import sys
from typing import TYPE_CHECKING

try:
    import jax as _jax  # noqa: F401, without which nothing here works
except ImportError as _error:
    from oxijax._core.install import install_command

    _message = (
        f"oxijax needs JAX, which {sys.executable} cannot import ({_error}): {install_command('')}"
    )
    # Python imports this before the commands, which have no traceback where something is missing.
    if sys.argv[0] == "-m" and "oxijax" in sys.orig_argv:
        sys.exit(_message)
    raise ImportError(_message) from _error

from oxijax._core import launch as _launch  # noqa: F401, registers what compiled programs call
from oxijax._core.config import config
from oxijax._core.lazy import lazy_names
from oxijax._version import __version__

if TYPE_CHECKING:
    from oxijax import convert as convert
    from oxijax import equinox as equinox
    from oxijax import extend as extend
    from oxijax import keras as keras
    from oxijax import linen as linen
    from oxijax import nnx as nnx
    from oxijax import onnx as onnx
    from oxijax import reference as reference
    from oxijax import testing as testing
    from oxijax._conv import conv
    from oxijax._conv.general_dilated import conv_general_dilated
    from oxijax._core.launch import EXPORT_CHECKS
    from oxijax._core.launch._resolve import clear_caches
    from oxijax._core.resolve import resolve
    from oxijax._core.tuning.tune import tune
    from oxijax._deform_conv import deform_conv
    from oxijax._drawing import draw_samples
    from oxijax._gemm import gemm
    from oxijax._gemm.roofline import roofline
    from oxijax._samples import Samples, offset_statistics, sampling_locations
    from oxijax._sampling.dcn import dcnv3, dcnv4
    from oxijax._sampling.grid_sample import grid_sample
    from oxijax._sampling.map_coordinates import map_coordinates
    from oxijax._sampling.ms_deform_attn import ms_deform_attn
    from oxijax._sampling.roi_align import roi_align, roi_levels
    from oxijax._sampling.sample_windows import sample_windows
    from oxijax._sampling.splat import splat

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
    "map_coordinates",
    "ms_deform_attn",
    "offset_statistics",
    "reference",
    "resolve",
    "roi_align",
    "roi_levels",
    "roofline",
    "sample_windows",
    "sampling_locations",
    "splat",
    "tune",
]

# Modules that `*` does not import, each with the package that it needs.
_NEEDS = {
    "equinox": "equinox", "extend": "jax", "keras": "keras", "linen": "flax", "nnx": "flax",
    "onnx": "jax", "testing": "jax",
}  # fmt: skip
_LAYERS = ("DCNv3", "DCNv4", "DeformConv", "MSDeformAttn")

# What others call it, where that is not close to our name.
_ELSEWHERE = {
    "DeformConv2dPack": "DeformConv",
    "DeformableConv2d": "DeformConv",
    "ModulatedDeformConv2d": "DeformConv",
    "ModulatedDeformConv2dPack": "DeformConv",
    "MultiScaleDeformableAttention": "MSDeformAttn",
    "MultiscaleDeformableAttention": "MSDeformAttn",
    "conv2d": "conv",
    "modulated_deform_conv": "deform_conv",
    "modulated_deform_conv2d": "deform_conv",
    "multi_scale_deformable_attention": "ms_deform_attn",
    "multi_scale_deformable_attn": "ms_deform_attn",
}

# Names that are imported on first use, so that `import oxijax` stays fast.
_PLACES = {
    **{module: f"oxijax.{module}" for module in ("convert", "reference", *_NEEDS)},
    "EXPORT_CHECKS": "oxijax._core.launch",
    "Samples": "oxijax._samples",
    "clear_caches": "oxijax._core.launch._resolve",
    "conv": "oxijax._conv",
    "conv_general_dilated": "oxijax._conv.general_dilated",
    "dcnv3": "oxijax._sampling.dcn",
    "dcnv4": "oxijax._sampling.dcn",
    "deform_conv": "oxijax._deform_conv",
    "draw_samples": "oxijax._drawing",
    "gemm": "oxijax._gemm",
    "grid_sample": "oxijax._sampling.grid_sample",
    "map_coordinates": "oxijax._sampling.map_coordinates",
    "ms_deform_attn": "oxijax._sampling.ms_deform_attn",
    "offset_statistics": "oxijax._samples",
    "resolve": "oxijax._core.resolve",
    "roi_align": "oxijax._sampling.roi_align",
    "roi_levels": "oxijax._sampling.roi_align",
    "roofline": "oxijax._gemm.roofline",
    "sampling_locations": "oxijax._samples",
    "sample_windows": "oxijax._sampling.sample_windows",
    "splat": "oxijax._sampling.splat",
    "tune": "oxijax._core.tuning.tune",
}

if not TYPE_CHECKING:
    _find = lazy_names(__name__, _PLACES)

    def __getattr__(name):
        if name not in _PLACES:
            ours = _ELSEWHERE.get(name, name)
            for close in difflib.get_close_matches(ours, [*_LAYERS, *_PLACES], 1, 0.8):
                where = f"oxijax.{close}"
                if close in _LAYERS:
                    where = f"oxijax.nnx.{close}, oxijax.linen.{close} or oxijax.equinox.{close}"
                message = f"module 'oxijax' has no attribute {name!r}; did you mean {where}?"
                raise AttributeError(message)
        return _find(name)


def __dir__() -> list[str]:
    # Without those that would raise: pydoc and inspect look at whatever is listed here.
    there = (name for name, needed in _NEEDS.items() if importlib.util.find_spec(needed))
    return sorted({*globals(), *__all__, *there})
