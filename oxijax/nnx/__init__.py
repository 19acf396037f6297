"""Deformable layers for Flax NNX."""

try:
    import flax as flax
except ImportError as _error:
    from oxijax._core.install import install_command

    raise ImportError(f"oxijax.nnx needs Flax: {install_command('demo', 'flax')}") from _error

from oxijax.nnx._deform_conv import DeformConv
from oxijax.nnx._sampling import DCNv3, DCNv4, MSDeformAttn

__all__ = ["DCNv3", "DCNv4", "DeformConv", "MSDeformAttn"]
