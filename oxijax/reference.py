"""The operations of oxijax in pure JAX, for any order and mode of differentiation."""

from oxijax._deform_conv import deform_conv_reference as deform_conv

__all__ = ["deform_conv"]
