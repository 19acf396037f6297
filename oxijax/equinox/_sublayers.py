"""Factories of the Equinox layers that the layers here are made of, and these as functions."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn import initializers

from oxijax._core.arguments import checks
from oxijax._layers.arguments import as_real_array
from oxijax._layers.convolution import conv_general_dilated

__all__ = ["Sublayers", "as_image", "channels_last", "check_key", "convolve", "in_dtype"]


def check_key(value: Any) -> None:
    key = checks.to_array("key", value)
    try:
        jax.eval_shape(jax.random.split, key)
    except (TypeError, ValueError) as error:
        raise TypeError(f"key must be one random key, got {checks.shown(value)}") from error


def as_image(name: str, value: Any, channels: int | None, channels_name: str) -> jax.Array:
    """`value` as a real image [channels, height, width]."""
    image = as_real_array(name, value)
    if image.ndim != 3 or channels not in (None, image.shape[0]):
        first = channels_name if channels is None else f"{channels_name} = {channels}"
        raise ValueError(
            f"{name} must have shape ({first}, height, width), got {image.shape}: a layer takes "
            "one image, and jax.vmap(layer) a batch"
        )
    return image


def in_dtype(layer: Any, dtype: Any) -> Any:
    """A layer whose floating parameters have another dtype."""

    def cast(leaf: Any) -> Any:
        return leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf

    return jax.tree.map(cast, layer)


def convolve(layer: eqx.nn.Conv2d, x: jax.Array) -> jax.Array:
    """The result of a layer that pads with zeros, for images [N, C, H, W]."""
    y = conv_general_dilated(
        x,
        layer.weight,
        layer.stride,
        layer.padding,
        rhs_dilation=layer.dilation,
        feature_group_count=layer.groups,
    )
    return y if layer.bias is None else y + layer.bias[None]


def channels_last(layer: eqx.Module, offset_dtype: Any, **others: Any) -> SimpleNamespace:
    """The attributes of a layer, of which sublayers are functions of arrays with channels last.

    What predicts, all but projections, does so in `offset_dtype`.
    """

    def function(name: str, value: Any) -> Any:
        if not isinstance(value, eqx.nn.Linear | eqx.nn.LayerNorm | eqx.nn.Conv2d):
            return value
        if name.endswith("_proj"):
            return jnp.vectorize(value, signature="(i)->(o)")
        # Equinox users cast whole models to half precision; this must not reach the offsets.
        value = in_dtype(value, offset_dtype)
        if isinstance(value, eqx.nn.Conv2d):
            return lambda x: jnp.moveaxis(
                convolve(value, jnp.moveaxis(x.astype(offset_dtype), -1, 1)), 1, -1
            )
        vectorized = jnp.vectorize(value, signature="(i)->(o)")
        return lambda x: vectorized(x.astype(offset_dtype))

    return SimpleNamespace(**{k: function(k, v) for k, v in vars(layer).items()}, **others)


@dataclasses.dataclass(frozen=True)
class Sublayers:
    """Factories of the sublayers of a layer.

    Attributes:
      features: the number of features of the layer's inputs and results.
      dtype: the dtype of parameters.
      key: the layer's random key.
    """

    features: int
    dtype: Any
    key: jax.Array

    @classmethod
    def parse(cls, features: int, dtype: Any, key: Any) -> Self:
        """The factories of a layer with these arguments, which are checked."""
        if dtype is not None:
            dtype = checks.parse_float_dtype("dtype", dtype)
        check_key(key)
        return cls(features, dtype, key)

    def projection(self, key: jax.Array, use_bias: bool = True) -> eqx.nn.Linear:
        """Square linear projection with Xavier's uniform weights and a bias of zeros."""
        initializer = initializers.xavier_uniform(in_axis=1, out_axis=0)
        return self._linear(self.features, initializer, use_bias=use_bias, key=key)

    def predictor(
        self, features: int, bias_init: Callable[..., jax.Array] = initializers.zeros
    ) -> eqx.nn.Linear:
        """Linear predictor of offsets or weights, which starts with the same for all inputs."""
        linear = self._linear(features, initializers.zeros, key=self.key)
        bias = linear.bias
        assert bias is not None
        bias = bias_init(self.key, bias.shape, bias.dtype)
        return eqx.tree_at(lambda linear: linear.bias, linear, bias)

    def depthwise(self, kernel_size: tuple[int, int], key: jax.Array) -> eqx.nn.Conv2d:
        """Depthwise convolution before a predictor."""
        return eqx.nn.Conv2d(
            self.features,
            self.features,
            kernel_size,
            padding="SAME",
            groups=self.features,
            dtype=self.dtype,
            key=key,
        )

    def normalization(self) -> eqx.nn.LayerNorm:
        """Layer normalization before a predictor."""
        return eqx.nn.LayerNorm(self.features, eps=1e-6, dtype=self.dtype)

    def _linear(
        self, features: int, initializer: Callable[..., jax.Array], *, key: Any, **options: Any
    ) -> eqx.nn.Linear:
        """Linear layer with a bias of zeros."""
        linear = eqx.nn.Linear(self.features, features, dtype=self.dtype, key=key, **options)
        weight = initializer(key, linear.weight.shape, linear.weight.dtype)
        linear = jax.tree.map(jnp.zeros_like, linear)
        return eqx.tree_at(lambda linear: linear.weight, linear, weight)
