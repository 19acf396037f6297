"""Deformable layers for Equinox."""

try:
    import equinox as equinox
except ImportError as _error:
    from oxijax._core.install import install_command

    raise ImportError(
        f"oxijax.equinox needs Equinox: {install_command('test', 'equinox')}"
    ) from _error

from oxijax.equinox._deform_conv import DeformConv
from oxijax.equinox._sampling import DCNv3, DCNv4, MSDeformAttn

__all__ = ["DCNv3", "DCNv4", "DeformConv", "MSDeformAttn"]
