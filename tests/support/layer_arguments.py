"""The arguments of the layers of deformable convolution, with right and wrong values."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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
    "implementation": wrong.implementation(),
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
    "predictor": Argument(
        ["conv"], [v for v in wrong.JUNK if not (v is None or callable(v))] + ["CONV", "conv "]
    ),
    "mask_scale": Argument(
        [1, 2, np.int64(1), 2.0], [*wrong.number(1.0).wrong, 0, 3, 1.5, -1, np.float32(0.5)]
    ),
    "max_residue": wrong.bound(),
    "max_offset": wrong.bound(),
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


def other(*right: int, wrong_shapes: Sequence[tuple[int, ...]] = ()) -> Argument:
    """An optional array of any real dtype, with one shape or dtype that is right."""
    return Argument(
        [None, spec(*right), spec(*right, dtype=jnp.float16)],
        [*(v for v in wrong.JUNK if v is not None), *(spec(*shape) for shape in wrong_shapes)],
    )


def given(channels_last: bool) -> dict[str, Argument]:
    """The other arguments of a call, for an image of 4 channels; alone they have to be None."""
    size = (8, 8)

    def shape(channels: int, size: tuple[int, int] = size) -> tuple[int, ...]:
        return (*size, channels) if channels_last else (channels, *size)

    more = (*shape(4), 1) if not channels_last else (8, 4)
    no_array = [v for v in wrong.JUNK if v is not None]
    return {
        "offset_inputs": other(*shape(4), wrong_shapes=[shape(5), more]),
        "flow": other(*shape(2), wrong_shapes=[shape(1), shape(0), shape(2, (8, 7)), (8, 2)]),
        "offset": Argument([None], [*no_array, spec(*shape(17)), spec(*shape(18, (7, 8)))]),
        "mask": Argument([None], [*no_array, spec(*shape(9))]),
    }


def calls(name: str, layer: Any, inputs: dict[str, Argument], **ignored: Argument) -> dict:
    """The methods of a layer."""
    channels_last = "inputs" in inputs
    arguments = inputs | given(channels_last)
    right = {name: argument.right[0] for name, argument in inputs.items()}
    told = {"offset_inputs", "flow"}
    return {
        f"{name}()": Entry(layer, right, arguments | ignored, type(layer).__call__),
        f"{name}.offsets": Entry(
            layer.offsets,
            right,
            {n: a for n, a in arguments.items() if n in told or n in inputs},
        ),
    }


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
    **calls("nnx.DeformConv", NNX_LAYER, {"inputs": images(8, 8, 4)}),
    "linen.DeformConv": Entry(
        linen_call,
        operands(LINEN, "features", "kernel_size"),
        LINEN,
        oxijax.linen.DeformConv.__init__,
        traced=False,
    ),
    **calls("linen.DeformConv", LINEN_LAYER, {"inputs": images(8, 8, 4)}),
    "equinox.DeformConv": Entry(
        oxijax.equinox.DeformConv,
        operands(EQUINOX, "in_channels", "out_channels", "kernel_size", "key"),
        EQUINOX,
        oxijax.equinox.DeformConv.__init__,
        traced=False,
    ),
    **calls(
        "equinox.DeformConv",
        EQUINOX_LAYER,
        {"x": images(4, 8, 8, whole=True)},
        key=wrong.anything(),
    ),
}
