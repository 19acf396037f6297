"""The layers that the layers here are made of, and how these run on many vectors."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from oxijax._core import arguments as arguments
from oxijax._layers.convolution import conv_general_dilated

__all__ = ["Parts", "check_key", "convolve", "over_images", "over_vectors"]

Layer = TypeVar("Layer", bound=eqx.Module)


def check_key(value: Any) -> None:
    key = arguments.to_array("key", value)
    try:
        jax.eval_shape(jax.random.split, key)
    except (TypeError, ValueError) as error:
        raise TypeError(f"key must be one random key, got {arguments.shown(value)}") from error


def over_vectors(
    layer: eqx.nn.Linear | eqx.nn.LayerNorm, dtype: Any = None
) -> Callable[[jax.Array], jax.Array]:
    """The layer as a function of the last dimension, in `dtype` if it is given."""
    if dtype is None:
        return jnp.vectorize(layer, signature="(i)->(o)")
    # Equinox users cast whole models to half precision; this must not reach the offsets.
    layer = _in_dtype(layer, dtype)
    return lambda x: jnp.vectorize(layer, signature="(i)->(o)")(x.astype(dtype))


def over_images(layer: eqx.nn.Conv2d, dtype: Any) -> Callable[[jax.Array], jax.Array]:
    """The layer in `dtype` as a function of an image [H, W, C]."""
    layer = _in_dtype(layer, dtype)
    return lambda x: convolve(layer, x.astype(dtype).transpose(2, 0, 1)).transpose(1, 2, 0)


def convolve(layer: eqx.nn.Conv2d, x: jax.Array) -> jax.Array:
    """A layer that pads with zeros, of an image [C, H, W]."""
    y = conv_general_dilated(
        jnp.expand_dims(x, 0),
        layer.weight,
        layer.stride,
        layer.padding,
        rhs_dilation=layer.dilation,
        feature_group_count=layer.groups,
    ).squeeze(0)
    return y if layer.bias is None else y + layer.bias


def _in_dtype(layer: Layer, dtype: Any) -> Layer:
    return jax.tree.map(lambda parameter: parameter.astype(dtype), layer)


@dataclasses.dataclass(frozen=True)
class Parts:
    """Makes parts that take `features`, in `dtype`."""

    features: int
    dtype: Any

    @classmethod
    def read(cls, features: int, dtype: Any, key: Any) -> "Parts":
        """Checks the arguments, but features."""
        if dtype is not None:
            dtype = arguments.read_float_dtype("dtype", dtype)
        check_key(key)
        return cls(features, dtype)

    def projection(self, key: jax.Array, use_bias: bool = True) -> eqx.nn.Linear:
        """To as many features; Xavier's weights, which are uniform, and no bias at first."""
        linear = eqx.nn.Linear(
            self.features, self.features, use_bias=use_bias, dtype=self.dtype, key=key
        )
        initializer = jax.nn.initializers.xavier_uniform(in_axis=1, out_axis=0)
        weight = initializer(key, linear.weight.shape, linear.weight.dtype)
        linear = jax.tree.map(jnp.zeros_like, linear)
        return eqx.tree_at(lambda linear: linear.weight, linear, weight)

    def predictor(self, features: int, key: jax.Array, bias: Any = 0) -> eqx.nn.Linear:
        """Of offsets or weights: at first the same for all inputs."""
        linear = eqx.nn.Linear(self.features, features, dtype=self.dtype, key=key)
        linear = jax.tree.map(jnp.zeros_like, linear)
        assert linear.bias is not None
        bias = jnp.broadcast_to(jnp.asarray(bias, linear.bias.dtype), linear.bias.shape)
        return eqx.tree_at(lambda linear: linear.bias, linear, bias)

    def depthwise(self, kernel_size: tuple[int, int], key: jax.Array) -> eqx.nn.Conv2d:
        """Before a predictor."""
        return eqx.nn.Conv2d(
            self.features,
            self.features,
            kernel_size,
            padding="SAME",
            groups=self.features,
            dtype=self.dtype,
            key=key,
        )

    def norm(self) -> eqx.nn.LayerNorm:
        """Before a predictor."""
        return eqx.nn.LayerNorm(self.features, eps=1e-6, dtype=self.dtype)
