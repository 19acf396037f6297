"""Deformable convolutions as layers of each library, by the arguments of PyTorch's modules.

`tests/data/deform_conv_layers.npz` has what the modules of `tests/recording/deform_conv_modules.py`
gave, and torchvision's own.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

import oxijax.equinox
import oxijax.linen
import oxijax.nnx
from support.recorded import Recorded, read_recorded

__all__ = ["KEY", "LIBRARIES", "ASPPDeformable", "apply", "layer_of", "recorded"]

LIBRARIES = ("nnx", "linen", "equinox")
KEY = jax.random.key(0, impl="unsafe_rbg")  # the default generator takes long to compile
_RELU = functools.partial(jax.nn.leaky_relu, negative_slope=0.1)

recorded = read_recorded("deform_conv_layers.npz")


class ASPPDeformable(nnx.Module):
    """BiRefNet's pyramid pooling, with the names that its parts have there."""

    def __init__(
        self, in_channels: int, out_channels: int, planes: int, dtype: Any,
        parallel_block_sizes: Sequence[int] = (1, 3, 7),
    ):  # fmt: skip
        options: dict[str, Any] = {"param_dtype": dtype, "rngs": nnx.Rngs(KEY)}

        def norm(features: int) -> nnx.BatchNorm:
            return nnx.BatchNorm(
                features, use_running_average=True, epsilon=1e-5, dtype=dtype, **options
            )

        def conv(features: int, out_features: int) -> nnx.Conv:
            return nnx.Conv(features, out_features, (1, 1), use_bias=False, **options)

        def branch(size: int) -> nnx.Dict:
            deform_conv = oxijax.nnx.DeformConv(
                in_channels, planes, size, use_bias=False, offset_dtype=dtype, **options
            )
            return nnx.Dict(atrous_conv=deform_conv, bn=norm(planes))

        self.aspp1 = branch(1)
        self.aspp_deforms = nnx.List([branch(size) for size in parallel_block_sizes])
        mean = functools.partial(jnp.mean, axis=(1, 2), keepdims=True)
        self.global_avg_pool = nnx.Sequential(mean, conv(in_channels, planes), norm(planes))
        self.conv1 = conv((2 + len(parallel_block_sizes)) * planes, out_channels)
        self.bn1 = norm(out_channels)

    def __call__(self, x: jax.Array) -> jax.Array:
        branches = [nnx.relu(b.bn(b.atrous_conv(x))) for b in (self.aspp1, *self.aspp_deforms)]
        mean = jnp.broadcast_to(nnx.relu(self.global_avg_pool(x)), branches[0].shape)
        return nnx.relu(self.bn1(self.conv1(jnp.concatenate([*branches, mean], axis=-1))))


def layer_of(library: str, module: Recorded, dtype: Any, **changed: Any) -> Any:
    """A layer like a module, with parameters and positions in a dtype; it is abstract.

    Args:
      library: "nnx", "linen" or "equinox".
      module: its kind, its arguments and its inputs say which layer.
      dtype: the dtype of parameters, offsets and masks.
      changed: arguments of the layer, by Linen's names.
    """
    config, kind = module.config, module.kind
    if kind == "ASPPDeformable":
        assert library == "nnx"
        return nnx.eval_shape(lambda: ASPPDeformable(**config, dtype=dtype))
    kernel = np.broadcast_to(config.get("kernel_size", 3), 2)
    out_channels, in_channels = config["out_channels"], config["in_channels"]
    groups = config.get("deform_groups", 1)
    if "offset" in module.inputs:
        groups = module.inputs["offset"].shape[1] // (2 * kernel.prod())
    options: dict[str, Any] = {
        "kernel_size": tuple(map(int, kernel)),
        "strides": config.get("stride", 1),
        "padding": config.get("padding", 1 if kind == "DeformableConv2d" else 0),
        "kernel_dilation": config.get("dilation", 1),
        "feature_group_count": config.get("groups", 1),
        "use_bias": any(name in module.state for name in ("bias", "regular_conv.bias")),
        "offset_groups": int(groups),
        "offset_dtype": dtype,
        "mask_scale": 2 if kind == "DeformableConv2d" else 1,
    }
    if kind == "DeformConv2d":
        options |= {"predictor": None, "use_mask": "mask" in module.inputs}
    elif kind == "DeformConv2dPack":
        options["use_mask"] = False
    elif kind == "SecondOrderDeformableAlignment":
        options["max_residue"] = config.get("max_residue_magnitude", 10)
        channels = [3 * out_channels + 4, *[out_channels] * 3, int(3 * groups * kernel.prod())]
        options["predictor"] = _predictor(library, channels, dtype)
    options |= changed
    if library == "nnx":
        return nnx.eval_shape(
            lambda: oxijax.nnx.DeformConv(
                in_channels, out_channels, **options, param_dtype=dtype, rngs=nnx.Rngs(KEY)
            )
        )
    if library == "linen":
        layer = oxijax.linen.DeformConv(out_channels, **options, param_dtype=dtype)
        arguments = _arguments(module, dtype, channels_last=True)
        return layer.bind(jax.eval_shape(lambda: layer.init(KEY, **arguments)))
    names = {"strides": "stride", "kernel_dilation": "dilation", "feature_group_count": "groups"}
    options = {names.get(name, name): value for name, value in options.items()}

    def make(key: jax.Array) -> Any:
        return oxijax.equinox.DeformConv(in_channels, out_channels, **options, dtype=dtype, key=key)

    return eqx.filter_eval_shape(make, KEY)


def _predictor(library: str, channels: Sequence[int], dtype: Any) -> Any:
    """Four convolutions, with activations between them."""
    parts: list[Any] = []
    for features, out_features in itertools.pairwise(channels):
        if library == "nnx":
            options = {"dtype": dtype, "param_dtype": dtype, "rngs": nnx.Rngs(KEY)}
            conv: Any = nnx.Conv(features, out_features, (3, 3), **options)
        elif library == "linen":
            conv = nn.Conv(out_features, (3, 3), dtype=dtype, param_dtype=dtype)
        else:
            conv = eqx.nn.Conv2d(features, out_features, 3, padding=1, dtype=dtype, key=KEY)
        parts += [conv, _RELU]
    parts = parts[:-1]
    if library == "nnx":
        return nnx.Sequential(*parts)
    if library == "linen":
        return nn.Sequential(parts)
    modules: list[Any] = [p if isinstance(p, eqx.Module) else eqx.nn.Lambda(p) for p in parts]
    return eqx.nn.Sequential(modules)


def _arguments(
    module: Recorded, dtype: Any, channels_last: bool, inputs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A layer's arguments, of a module's inputs."""
    given = {
        name: jnp.asarray(value, dtype)
        for name, value in (module.inputs if inputs is None else inputs).items()
    }
    found = {"offset": given.get("offset"), "mask": given.get("mask")}
    x = given["input"] if "input" in given else given["x"]
    if "flow_1" in given:
        found["flow"] = jnp.concatenate([given["flow_1"], given["flow_2"]], axis=1)
        features = [given["extra_feat"], given["flow_1"], given["flow_2"]]
        found["offset_inputs"] = jnp.concatenate(features, axis=1)
    found = {name: value for name, value in found.items() if value is not None}
    if not channels_last:
        return {"x": x, **found}
    found = {"inputs": x, **found}
    return {name: jnp.moveaxis(value, 1, -1) for name, value in found.items()}


def apply(layer: Any, module: Recorded, dtype: Any, inputs: Mapping[str, Any]) -> jax.Array:
    """A layer's result for inputs by the module's names, in NCHW, whatever its library."""
    if not isinstance(layer, eqx.Module):
        arguments = _arguments(module, dtype, True, inputs)
        return jnp.moveaxis(layer(arguments.pop("inputs"), **arguments), -1, 1)
    arguments = _arguments(module, dtype, False, inputs)

    def run(arguments: dict[str, jax.Array]) -> jax.Array:
        function: Any = layer
        return function(**arguments)

    return jax.vmap(run)(arguments)
