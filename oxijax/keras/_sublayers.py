"""The parts of the layers here: other Keras layers, and configurations."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax
from keras import ops

from oxijax._core.arguments.keywords import unknown_keywords

__all__ = ["ExplainedKeywords", "Layer", "Sublayers", "offset_policy"]

_OF_EVERY_LAYER = [*inspect.signature(keras.layers.Layer.__init__).parameters, "input_shape"]


def offset_policy(layer: keras.layers.Layer) -> keras.DTypePolicy:
    """The dtype policy of what predicts offsets and weights: at least float32."""
    return keras.DTypePolicy("float64" if layer.variable_dtype == "float64" else "float32")


class ExplainedKeywords(keras.layers.Layer):
    """A layer whose errors for unknown keyword arguments explain them."""

    def __init__(self, *args: Any, **kwargs: Any):
        known = [*inspect.signature(type(self)).parameters]
        known.remove("kwargs")
        given = kwargs.keys() - _OF_EVERY_LAYER
        if error := unknown_keywords(type(self).__name__, known, sorted(given)):
            raise error
        # What predicts offsets reads what the layer is given, whatever the dtype policy is.
        super().__init__(*args, **{"autocast": False, **kwargs})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        known = [*inspect.signature(self.call).parameters]
        given = kwargs.keys() - {"training", "mask"}  # which Keras sees to
        if error := unknown_keywords(type(self).__name__, known, sorted(given)):
            raise error
        return super().__call__(*args, **kwargs)


class Layer(ExplainedKeywords):
    """A layer that has its arguments as attributes."""

    kernel_initializer: Any

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        for name in inspect.signature(type(self)).parameters:
            if name != "kwargs":
                config[name] = getattr(self, name)
        config["kernel_initializer"] = keras.initializers.serialize(self.kernel_initializer)
        if "activation" in config:
            config["activation"] = keras.activations.serialize(config["activation"])
        return config


class _Normalization(keras.layers.LayerNormalization):
    """Layer normalization that differences come first in, and that stays in float64."""

    def call(self, inputs: Any) -> jax.Array:
        inputs, gamma, beta = map(ops.convert_to_tensor, (inputs, self.gamma, self.beta))
        inputs = inputs - jnp.mean(inputs, -1, keepdims=True)
        variance = jnp.mean(inputs**2, -1, keepdims=True)
        return inputs * lax.rsqrt(variance + self.epsilon) * gamma + beta


class Sublayers:
    """Factories of the sublayers of a layer, which are built as they are made.

    Args:
      layer: the layer.
      features: the number of features of its inputs and results.
    """

    def __init__(self, layer: Layer, features: int):
        self._layer, self._features = layer, features

    def projection(self, name: str, use_bias: bool = True) -> keras.layers.Layer:
        """Square linear projection in the layer's dtype."""
        return self._built(
            keras.layers.Dense(
                self._features,
                use_bias=use_bias,
                kernel_initializer=self._layer.kernel_initializer,
                dtype=self._layer.dtype_policy,
                name=name,
            )
        )

    def predictor(self, name: str, features: int, bias: Any = "zeros") -> keras.layers.Layer:
        """Linear predictor of offsets or weights, which starts with the same for all inputs."""
        return self._built(
            keras.layers.Dense(
                features,
                kernel_initializer="zeros",
                bias_initializer=bias,
                dtype=offset_policy(self._layer),
                name=name,
            )
        )

    def depthwise(self, name: str, kernel_size: tuple[int, int]) -> keras.layers.Layer:
        """Depthwise convolution before a predictor, in the predictor's dtype."""
        return self._built(
            keras.layers.Conv2D(
                self._features,
                kernel_size,
                padding="same",
                data_format="channels_last",
                groups=self._features,
                dtype=offset_policy(self._layer),
                name=name,
            ),
            4,
        )

    def normalization(self, name: str) -> keras.layers.Layer:
        """Layer normalization before a predictor, in the predictor's dtype."""
        return self._built(
            _Normalization(epsilon=1e-6, dtype=offset_policy(self._layer), name=name), 4
        )

    def _built(self, sublayer: keras.layers.Layer, ndim: int = 2) -> keras.layers.Layer:
        sublayer.build((None,) * (ndim - 1) + (self._features,))
        return sublayer
