"""Deformable convolution for JAX, as primitives."""

from oxijax import reference
from oxijax._deform_conv import deform_conv
from oxijax._version import __version__

__all__ = ["__version__", "deform_conv", "reference"]
