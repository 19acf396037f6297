"""A small call of each public function of arrays and of each layer, by the names of its dimensions.

Tests of what holds for all of them take their cases from here, and one of them fails where a public
function or a layer has none.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import oxijax
import oxijax.equinox
import oxijax.linen
import oxijax.nnx

__all__ = [
    "CALLS",
    "LAYER_KINDS",
    "LAYER_LIBRARIES",
    "SIZES",
    "PublicCall",
    "find_call",
    "operator_calls",
    "values_and_gradients",
]

LAYER_LIBRARIES = ("nnx", "linen", "equinox")
LAYER_KINDS = ("DeformConv", "MSDeformAttn", "DCNv3", "DCNv4")
KEY = jax.random.key(0, impl="unsafe_rbg")  # the default generator takes long to compile
LEVELS = ((4, 3), (2, 2))
# By letters: images, height, width, channels; taps, channels of a group, outputs; offsets, masks;
# heads, channels of a head, pixels of all levels, queries, levels, points, coordinates; offsets of
# a volume.
SIZES = {
    "t": 2, "n": 4, "h": 4, "w": 6, "c": 4, "i": 3, "j": 3, "e": 2, "o": 4, "d": 36, "k": 18,
    "f": 18, "g": 9, "M": 2, "D": 4, "S": 16, "q": 4, "r": 2, "l": 2, "p": 2, "x": 2,
    "a": 32, "b": 56, "y": 8, "u": 24, "1": 1,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PublicCall:
    """A call.

    Attributes:
      name: the name of what is called, as users write it after "oxijax.".
      function: the function of arrays: the operands, and parameters behind them.
      dims: the names of the dimensions of each operand; empty for a parameter.
      splits: the dimensions along which arrays may be sharded, several letters together.
      parameters: a layer's parameters.
      uniform: the numbers of the operands that are positions from 0 to 1.
      differentiable: whether it has gradients.
    """

    name: str
    function: Callable[..., Any]
    dims: tuple[str, ...]
    splits: tuple[str, ...]
    parameters: tuple[jax.Array, ...] = ()
    uniform: tuple[int, ...] = ()
    differentiable: bool = True

    def operands(self, dtype: Any = np.float32, seed: int = 0) -> list[np.ndarray]:
        """The operands and parameters, the same for the same seed."""
        random = np.random.default_rng(seed)
        arrays = []
        for index, dims in enumerate(self.dims):
            draw = random.random if index in self.uniform else random.standard_normal
            arrays.append(np.asarray(draw([SIZES[letter] for letter in dims.replace(" ", "")])))
        arrays += [random.standard_normal(p.shape) / 4 for p in self.parameters]
        return [array.astype(dtype) for array in arrays]

    def specs(self, split: str, axis: str) -> list[jax.sharding.PartitionSpec]:
        """How operands and parameters are sharded along these dimensions, over one axis."""
        specs = [
            jax.sharding.PartitionSpec(*(axis if d in split else None for d in dims.split()))
            for dims in self.dims
        ]
        return specs + [jax.sharding.PartitionSpec()] * len(self.parameters)


def _call(
    name: str,
    options: Mapping[str, Any],
    *dims: str,
    splits: str,
    keywords: Sequence[str] = (),
    **more: Any,
) -> PublicCall:
    """A call of a function that takes the last operands by keyword."""
    path = name.partition(" ")[0].split(".")
    public: Any = functools.reduce(getattr, path, oxijax)  # pyright: ignore[reportArgumentType]
    positional = len(dims) - len(keywords)

    def function(*arrays: Any) -> Any:
        named = dict(zip(keywords, arrays[positional:], strict=True))
        return public(*arrays[:positional], **named, **options)

    return PublicCall(name, function, dims, tuple(splits.split()), **more)


_DILATED = {
    "window_strides": (1, 1), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
    "precision": "highest",
}  # fmt: skip
_HIGHEST = {"precision": "highest"}
_WINDOW = {"kernel_size": 3, "groups": 2}
_SCALED_WINDOW = {**_WINDOW, "offset_scale": 1.3}
_ATTENTION = {"spatial_shapes": LEVELS}
_OPERATORS = (
    ("conv", _HIGHEST, "n h w c", "i j c o", "o", {"splits": "n o c h w"}),
    ("conv (groups)", _HIGHEST, "n h w c", "i j e o", {"splits": "n co h"}),
    (
        *("conv (strides)", {**_HIGHEST, "strides": (2, 1), "data_format": "NCHW"}),
        *("n c h w", "o e i j", {"splits": "n co"}),
    ),
    ("conv_general_dilated", _DILATED, "n h w c", "i j c o", {"splits": "n o c h"}),
    (
        *("deform_conv", _HIGHEST, "n h w c", "n h w f", "i j c o", "n h w g", "o"),
        {"splits": "n o h w c f"},
    ),
    (
        *("deform_conv (groups)", _HIGHEST, "n h w c", "n h w d", "i j e o", "n h w k"),
        {"splits": "n codk h"},
    ),
    (
        *("deform_conv (line)", {**_HIGHEST, "data_format": "NWC"}),
        *("n w c", "n w i", "i c o", "n w i", "o", {"splits": "n o w c"}),
    ),
    (
        *("deform_conv (volume)", {**_HIGHEST, "data_format": "NDHWC"}),
        *("n i h w c", "n i h w u", "t r x c o", "n i h w y", "o", {"splits": "n o h c u"}),
    ),
    ("deform_conv (v1)", _HIGHEST, "n h w c", "n h w f", "i j c o", {"splits": "n o c"}),
    (
        *("gemm", _HIGHEST, "n a", "a o", "n o", "", ""),
        {"splits": "n a o", "keywords": ("alpha", "beta")},
    ),
    (
        *("ms_deform_attn", _ATTENTION, "n S M D", "n q M l p x", "n q M l p"),
        {"splits": "n q M D S l p", "uniform": (1,)},
    ),
    ("dcnv3", _SCALED_WINDOW, "n h w c", "n h w d", "n h w k", {"splits": "n h w c d k"}),
    ("dcnv4", {**_WINDOW, "softmax": True}, "n h w c", "n h w b", {"splits": "n h w c b"}),
    (
        *("grid_sample", {"padding_mode": "border"}, "n h w c", "n q r x"),
        {"splits": "n h w c q r"},
    ),
    (
        *("grid_sample (bicubic)", {"method": "bicubic"}, "n h w c", "n q r x"),
        {"splits": "n h w c q r"},
    ),
    (
        *("grid_sample (volume)", {"coordinates": "unit"}, "n i h w c", "n q r j"),
        {"splits": "n h w c q r", "uniform": (1,)},
    ),
    (
        *("sample_windows", {"radius": 1}, "n h w c", "n q r x"),
        {"splits": "n h w c q r"},
    ),
    (
        *("sample_windows (one channel)", {"radius": (1, 0)}, "n h w 1", "n q r x"),
        {"splits": "n h w q r"},
    ),
    ("splat", {"size": LEVELS[0]}, "n q r c", "n q r x", {"splits": "n c q r"}),
    (
        *("map_coordinates", {"order": 1, "channel_axis": -1}, "h w c", "x q r"),
        {"splits": "c q h"},
    ),
    (
        *("roi_align", {"output_size": 2, "sampling_ratio": 2}, "n h w c", "n q o"),
        {"splits": "n c q h"},
    ),
    ("roi_levels", {"count": 3}, "n q o", {"splits": "n q", "differentiable": False}),
    ("offset_statistics", {}, "n h w f", {"splits": "n h", "differentiable": False}),
)


_SAMPLED = ("deform_conv", "ms_deform_attn", "dcnv3", "dcnv4", "grid_sample", "map_coordinates")


@functools.cache
def operator_calls() -> dict[str, PublicCall]:
    """Calls of functions, their twins in `oxijax.reference`, and where operators sample."""
    found = {}
    for name, options, *dims, more in _OPERATORS:
        call = found[name] = _call(name, options, *dims, **more)
        base, _, which = name.partition(" ")
        if hasattr(oxijax.reference, base):
            twin = f"reference.{name}"
            found[twin] = _call(twin, options, *dims, **more)
        if which or base not in _SAMPLED:
            continue
        operator = functools.partial(oxijax.sampling_locations, getattr(oxijax, base))
        found[f"sampling_locations ({name})"] = dataclasses.replace(
            call,
            name="sampling_locations",
            function=lambda *arrays, operator=operator, options=options: [
                array for array in operator(*arrays, **options) if isinstance(array, jax.Array)
            ],
            differentiable=False,
        )
    return found


def find_call(name: str) -> PublicCall:
    """The call of one of the names in `CALLS`."""
    return operator_calls()[name] if name in operator_calls() else _layer_call(name)


def values_and_gradients(call: PublicCall) -> Callable[..., Any]:
    """The function (operands, parameters) -> result, and all gradients of a sum of its cosines."""

    def function(*arrays: jax.Array) -> Any:
        if not call.differentiable:
            return call.function(*arrays)
        y, pull_back = jax.vjp(call.function, *arrays)
        return y, pull_back(jnp.cos(y))

    return function


@functools.cache
def _layer_call(name: str) -> PublicCall:
    """Of a layer, with two batch dimensions."""
    library, kind = name.split(".")
    module = getattr(oxijax, library)
    dims, splits, options = ("t n h w c",), ("n", "t"), {}
    arguments: dict[str, Any] = {"groups": 2}
    size: tuple[Any, ...] = (SIZES["c"],)
    if kind == "MSDeformAttn":
        dims, splits, options = ("t n q y", "t n q l x", "t n S y"), ("n", "t", "q"), _ATTENTION
        arguments, size = {"num_heads": 2, "num_levels": 2, "num_points": 2}, (SIZES["y"],)
    elif kind == "DCNv4":
        splits = ("n", "t", "h")
    elif kind == "DeformConv":
        arguments = {"offset_groups": 2, "padding": "SAME"}
        arguments |= {"mask_scale": 1} if library == "equinox" else {}
        size = (*size, SIZES["o"], (3, 3))
    cls = getattr(module, kind)
    if library == "linen":
        features = size[1:] if kind == "DeformConv" else size
        layer = cls(*features, **arguments)
        inputs = [np.zeros([SIZES[d] for d in each.split()], np.float32) for each in dims]
        layer = layer.bind(jax.jit(functools.partial(layer.init, **options))(KEY, *inputs))
    elif library == "nnx":
        layer = cls(*size, **arguments, rngs=nnx.Rngs(KEY))
    else:
        layer = cls(*size, **arguments, key=KEY)
    split = importlib.import_module(f"oxijax.{library}._parameters").split
    parameters, rebuild = split(layer)
    leaves, tree = jax.tree.flatten(parameters)

    def function(*arrays: Any) -> jax.Array:
        made: Any = rebuild(jax.tree.unflatten(tree, arrays[len(dims) :]))
        inputs = arrays[: len(dims)]
        if library != "equinox":
            return made(*inputs, **options)
        if kind != "MSDeformAttn":
            inputs = tuple(jnp.moveaxis(array, -1, -3) for array in inputs)
        y = jax.vmap(jax.vmap(functools.partial(made, **options)))(*inputs)
        return y if kind == "MSDeformAttn" else jnp.moveaxis(y, -3, -1)

    uniform = (1,) if kind == "MSDeformAttn" else ()
    return PublicCall(name, function, dims, splits, tuple(leaves), uniform=uniform)


CALLS = (*operator_calls(), *(f"{lib}.{kind}" for lib in LAYER_LIBRARIES for kind in LAYER_KINDS))
