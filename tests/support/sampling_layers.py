"""The layers of sampling operators, in each library, and what PyTorch's modules gave for them.

`tests/data/sampling_layers.npz` has, for each case, the arguments of a module of Deformable DETR,
InternImage or DCNv4, its state, inputs, its result and the gradients to the inputs. They are of the
modules' own code in float64 on PyTorch 2.13, with its pure PyTorch functions in place of CUDA ones.
`transformers_attention.npz` has the same of modules of transformers 5.24, on PyTorch 2.14.
"""

import dataclasses
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import nnx

import oxijax.equinox
import oxijax.linen
import oxijax.nnx
from support.recorded import Recorded, read_recorded

__all__ = [
    "KEY",
    "KINDS",
    "LIBRARIES",
    "SHAPES",
    "SHAPES_OF",
    "apply",
    "filled",
    "layer_of",
    "of_transformers",
    "recorded",
    "split",
]

LIBRARIES = ("nnx", "linen", "equinox")
KINDS = ("MSDeformAttn", "DCNv3", "DCNv4")
SHAPES = ((5, 7), (3, 4))  # of the levels
SHAPES_OF = {1: ((9,), (4,)), 2: SHAPES, 3: ((2, 5, 3), (3, 2, 4))}  # by their dimensions
KEY = jax.random.key(0, impl="unsafe_rbg")  # the default generator takes long to compile

# What Linen's layers call an argument of a module. They have no padding: they keep the size.
_ARGUMENTS: dict[str, str] = {
    "d_model": "features", "n_levels": "num_levels", "n_heads": "num_heads",
    "n_points": "num_points", "channels": "features", "group": "groups",
    "dilation": "kernel_dilation", "pad": "",
}  # fmt: skip


def _read() -> dict[str, Recorded]:
    found = read_recorded("sampling_layers.npz")
    for case, module in found.items():
        config = {_ARGUMENTS.get(name, name): value for name, value in module.config.items()}
        config.pop("", None)
        found[case] = dataclasses.replace(module, config=config)
    return found


recorded = _read()
of_transformers = read_recorded("transformers_attention.npz")  # with arguments of Linen's layers


def layer_of(library: str, kind: str, *, abstract: bool = False, **config: Any) -> Any:
    """A layer by Linen's arguments; parameters have no values if it is abstract."""
    if library == "linen":
        layer = getattr(oxijax.linen, kind)(**config)
        inputs = _example(kind, config)

        def init(key: jax.Array) -> Any:
            return layer.init(key, *inputs.values(), **_options(kind, config))

        return layer.bind(jax.eval_shape(init, KEY) if abstract else jax.jit(init)(KEY))
    if library == "nnx":
        config["in_features"] = config.pop("features")
        cls = getattr(oxijax.nnx, kind)

        def make() -> Any:
            return cls(**config, rngs=nnx.Rngs(KEY))

        return nnx.eval_shape(make) if abstract else make()
    names = {"features": "query_size" if kind == "MSDeformAttn" else "channels"}
    names |= {"kernel_dilation": "dilation", "param_dtype": "dtype"}
    config = {names.get(name, name): value for name, value in config.items()}
    cls = getattr(oxijax.equinox, kind)
    if abstract:
        return eqx.filter_eval_shape(lambda key: cls(**config, key=key), KEY)
    return cls(**config, key=KEY)


def filled(library: str, layer: Any, value: Callable[[Any], Any]) -> Any:
    """A layer with a value in place of each of its parameters."""
    parameters, rebuild = split(library, layer)
    return rebuild(jax.tree.map(value, parameters))


def split(library: str, layer: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A layer's parameters, and what makes a layer of other ones."""
    return importlib.import_module(f"oxijax.{library}._parameters").split(layer)


def _options(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"spatial_shapes": SHAPES_OF[config.get("dims", 2)]} if kind == "MSDeformAttn" else {}


def _example(kind: str, config: Mapping[str, Any]) -> dict[str, jax.Array]:
    features, dtype = config["features"], config.get("param_dtype")
    if kind != "MSDeformAttn":
        return {"input": jnp.zeros((1, 3, 3, features), dtype)}
    dims = config.get("dims", 2)
    pixels = sum(map(math.prod, SHAPES_OF[dims]))
    return {
        "query": jnp.zeros((1, 2, features), dtype),
        "reference_points": jnp.zeros((1, 2, len(SHAPES), dims), dtype),
        "value": jnp.zeros((1, pixels, features), dtype),
    }


def apply(layer: Any, inputs: Mapping[str, Any], shapes: Any = SHAPES) -> jax.Array:
    """A layer's result for a batch, channels last, whatever its library."""
    if "input" in inputs:
        x = inputs["input"]
        if isinstance(layer, eqx.Module):
            function: Any = layer
            return jnp.moveaxis(jax.vmap(function)(jnp.moveaxis(x, -1, -3)), -3, -1)
        return layer(x)
    names = ("query", "reference_points", "value", "padding_mask")
    query, references, value, mask = (inputs.get(name) for name in names)

    def run(query: Any, references: Any, value: Any, mask: Any) -> jax.Array:
        return layer(query, references, value, spatial_shapes=shapes, padding_mask=mask)

    if isinstance(layer, eqx.Module):
        run = jax.vmap(run, in_axes=(0, 0, 0, None if mask is None else 0))
    return run(query, references, value, mask)
