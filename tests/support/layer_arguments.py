"""The arguments of the layers of deformable convolution, with right and wrong values."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.linen import dtypes as linen_dtypes
from flax.nnx.nn import dtypes as nnx_dtypes

import oxijax.equinox
import oxijax.linen
import oxijax.nnx
from support import wrong_arguments as wrong
from support.conv_arguments import spec
from support.wrong_arguments import Argument, Entry, operands

__all__ = ["ANY", "ANY_FLAX", "KEY", "LAYERS", "ONE_KEY", "RNGS", "images"]

KEY = jax.random.key(0)
ANY = {  # of a layer of any kind
    "dtype": wrong.dtype(optional=True),
    "offset_dtype": wrong.dtype(),
}
ANY_FLAX = ANY | {
    "param_dtype": wrong.dtype(),
    "precision": wrong.precision(),
    "kernel_init": wrong.function(nnx.initializers.ones),
}
RNGS = wrong.instance(nnx.Rngs(0), nnx.Rngs(params=0), wrong=[nnx.Rngs(), 1, nnx.Rngs])
ONE_KEY = wrong.instance(
    KEY, jax.random.PRNGKey(0), wrong=[jax.random.split(KEY), 1],
    legal=lambda v: isinstance(v, jax.Array) and v is not None and v.ndim == 0,
)  # fmt: skip
LAYER = ANY | {
    "kernel_size": wrong.pair(3),
    "padding": wrong.pads("SAME", "valid", 1, (1, 1), [[1, 1], (1, 1)]),
    "use_bias": wrong.boolean(True),
    "offset_groups": wrong.count(2, 3),
    "use_mask": wrong.boolean(True),
}
FLAX = (
    LAYER
    | ANY_FLAX
    | {
        "strides": wrong.pair(1, optional=True),
        "kernel_dilation": wrong.pair(1, optional=True),
        "feature_group_count": wrong.count(2, 3, 4),
        "bias_init": wrong.function(nnx.initializers.ones),
        "promote_dtype": wrong.function(nnx_dtypes.promote_dtype),
    }
)
NNX = FLAX | {
    "in_features": wrong.count(4),
    "out_features": wrong.count(6),
    "rngs": RNGS,
    "kernel_metadata": wrong.mapping(),
    "bias_metadata": wrong.mapping(),
}
LINEN = FLAX | {
    "features": wrong.count(6),
    "promote_dtype": wrong.function(linen_dtypes.promote_dtype),
}
EQUINOX = LAYER | {
    "in_channels": wrong.count(4),
    "out_channels": wrong.count(6),
    "stride": wrong.pair(1),
    "dilation": wrong.pair(1),
    "groups": wrong.count(2, 3, 4),
    "padding_mode": wrong.choice("ZEROS", "zeros", wrong=["REFLECT"]),
    "key": ONE_KEY,
}


def images(*shape: int, whole: bool = False) -> Argument:
    """What layers take: of a rank and a number of channels, and in Flax of any real dtype.

    Equinox has it `whole`: one rank, and one dtype.
    """
    argument = wrong.array(*shape, alone=not whole)
    kept = [
        w for w in argument.wrong
        if not (
            isinstance(w, jax.ShapeDtypeStruct)
            and (w.ndim > len(shape) or (w.shape == shape and not jnp.issubdtype(w.dtype, complex)))
            and not whole
        )
    ]  # fmt: skip
    return dataclasses.replace(argument, wrong=kept)


def linen_call(**arguments: Any) -> Any:
    layer = oxijax.linen.DeformConv(**arguments)
    return jax.eval_shape(layer.init, KEY, jnp.ones((8, 8, 4)))


NNX_LAYER = oxijax.nnx.DeformConv(4, 6, 3, rngs=nnx.Rngs(0))
LINEN_LAYER = oxijax.linen.DeformConv(6, 3)
with jax.default_device(jax.devices("cpu")[0]):  # a GPU needs cuDNN for its convolution
    LINEN_LAYER = LINEN_LAYER.bind(LINEN_LAYER.init(KEY, jnp.ones((8, 8, 4))))
EQUINOX_LAYER = oxijax.equinox.DeformConv(4, 6, 3, padding=1, dtype=jnp.float32, key=KEY)

LAYERS = {
    "nnx.DeformConv": Entry(
        oxijax.nnx.DeformConv,
        operands(NNX, "in_features", "out_features", "kernel_size", "rngs"),
        NNX,
        oxijax.nnx.DeformConv.__init__,
        traced=False,
    ),
    "nnx.DeformConv()": Entry(
        NNX_LAYER,
        {"inputs": spec(8, 8, 4)},
        {"inputs": images(8, 8, 4)},
        oxijax.nnx.DeformConv.__call__,
    ),
    "linen.DeformConv": Entry(
        linen_call,
        operands(LINEN, "features", "kernel_size"),
        LINEN,
        oxijax.linen.DeformConv.__init__,
        traced=False,
    ),
    "linen.DeformConv()": Entry(
        LINEN_LAYER,
        {"inputs": spec(8, 8, 4)},
        {"inputs": images(8, 8, 4)},
        oxijax.linen.DeformConv.__call__,
    ),
    "equinox.DeformConv": Entry(
        oxijax.equinox.DeformConv,
        operands(EQUINOX, "in_channels", "out_channels", "kernel_size", "key"),
        EQUINOX,
        oxijax.equinox.DeformConv.__init__,
        traced=False,
    ),
    "equinox.DeformConv()": Entry(
        EQUINOX_LAYER,
        {"x": spec(4, 8, 8)},
        {"x": images(4, 8, 8, whole=True), "key": wrong.anything()},
        oxijax.equinox.DeformConv.__call__,
    ),
}
