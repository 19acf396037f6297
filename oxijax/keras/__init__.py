"""Deformable layers for Keras 3 on JAX, and detectors of other libraries made faster."""

try:
    import keras as keras
except ImportError as _error:
    from oxijax._core.install import install_command

    raise ImportError(
        "oxijax.keras needs Keras 3 on JAX: set the environment variable KERAS_BACKEND=jax; "
        f"{install_command('keras', 'keras')} ({_error})"
    ) from _error

if keras.backend.backend() != "jax":
    _message = (
        "oxijax.keras needs Keras's JAX backend: set the environment variable KERAS_BACKEND=jax "
        f"before Keras is imported, got {keras.backend.backend()!r}"
    )
    raise ImportError(_message)

from oxijax.keras._accelerate import Accelerated, accelerate
from oxijax.keras._deform_conv import DeformConv2D
from oxijax.keras._sampling import DCNv3, DCNv4, MSDeformAttn

__all__ = ["Accelerated", "DCNv3", "DCNv4", "DeformConv2D", "MSDeformAttn", "accelerate"]
