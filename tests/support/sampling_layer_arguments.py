"""The arguments of layers of sampling operators and of conversions, with right and wrong values."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import oxijax
import oxijax.equinox
import oxijax.linen
import oxijax.nnx
from support import wrong_arguments as wrong
from support.conv_arguments import spec
from support.layer_arguments import ANY, ANY_FLAX, KEY, ONE_KEY, RNGS, images
from support.sampling_layers import KINDS, LIBRARIES, SHAPES, filled, layer_of
from support.wrong_arguments import JUNK, Argument, Entry, operands

__all__ = ["CONVERSIONS", "SAMPLING_LAYERS"]

ATTENTION = {
    "num_heads": wrong.count(2, 5),
    "num_levels": wrong.count(2),
    "num_points": Argument(
        [3, (3, 2), [3, np.int64(2)], np.array([2, 3])],
        [*JUNK, (3,), (3, 2, 1), (3, 0), (3, 2.0), "32"],
    ),
    "offset_scale": wrong.number(1.0, 2),
    "project": wrong.boolean(True),
    "method": wrong.choice("bilinear", "nearest", wrong=["cubic"]),
    "dims": wrong.count(2, 4),
}
WINDOW = {
    "kernel_size": wrong.pair(3),
    "groups": wrong.count(2, 5),
    "dw_kernel_size": wrong.pair(3, optional=True),
    "offset_scale": wrong.number(1.0, 2),
    "center_feature_scale": wrong.boolean(False),
    "remove_center": wrong.boolean(False),
}
KIND = {
    "MSDeformAttn": ATTENTION,
    "DCNv3": WINDOW | {"activation": wrong.function(jax.nn.relu)},
    "DCNv4": WINDOW
    | {"output_bias": wrong.boolean(True), "without_pointwise": wrong.boolean(False)},
}
FEATURES = 12
PIXELS = sum(height * width for height, width in SHAPES)


def features(library: str, kind: str) -> str:
    """What a layer calls its number of channels."""
    if library == "equinox":
        return "query_size" if kind == "MSDeformAttn" else "channels"
    return "in_features" if library == "nnx" else "features"


def constructor(library: str, kind: str) -> Entry:
    """How a layer is made; one of Linen checks its arguments when it is called."""
    cls = getattr(getattr(oxijax, library), kind)
    arguments = KIND[kind] | (ANY if library == "equinox" else ANY_FLAX)
    arguments |= {features(library, kind): wrong.count(FEATURES)}
    if kind != "MSDeformAttn":
        arguments |= {"dilation" if library == "equinox" else "kernel_dilation": wrong.pair(1)}
    arguments |= {"nnx": {"rngs": RNGS}, "equinox": {"key": ONE_KEY}, "linen": {}}[library]
    needed = [features(library, kind), "num_levels", "num_heads", "rngs", "key", "groups"]
    right = operands(arguments, *(name for name in needed if name in arguments))

    def linen(**options: Any) -> Any:
        arrays = {name: jnp.zeros(each.right[0].shape) for name, each in inputs("linen", kind)}
        return jax.eval_shape(lambda key: cls(**options).init(key, **arrays, **shapes(kind)), KEY)

    return Entry(linen if library == "linen" else cls, right, arguments, cls.__init__, traced=False)


def shapes(kind: str) -> dict[str, Any]:
    return {"spatial_shapes": SHAPES} if kind == "MSDeformAttn" else {}


def inputs(library: str, kind: str) -> list[tuple[str, Argument]]:
    """The arrays that a call needs."""
    batch, whole = ((), True) if library == "equinox" else ((2,), False)
    if kind != "MSDeformAttn":
        if whole:
            return [("x", images(FEATURES, 6, 5, whole=True))]
        return [("inputs", images(6, 5, FEATURES))]
    query, value = ("query", "value") if whole else ("inputs_q", "inputs_v")

    def array(*shape: int) -> Argument:
        argument = wrong.array(*batch, *shape, alone=not whole)
        if whole:
            return argument
        # Of any real dtype.
        kept = [
            w
            for w in argument.wrong
            if not (isinstance(w, jax.ShapeDtypeStruct) and w.shape == (*batch, *shape))
            or jnp.issubdtype(w.dtype, complex)
        ]
        return Argument(argument.right, kept)

    return [
        (query, array(5, FEATURES)),
        ("reference_points", wrong.array(*batch, 5, len(SHAPES), 2, alone=True)),
        (value, array(PIXELS, FEATURES)),
    ]


def example(library: str, kind: str) -> Any:
    """A layer whose parameters are ones."""
    options = {"num_levels": 2, "num_heads": 3} if kind == "MSDeformAttn" else {"groups": 3}
    layer = layer_of(library, kind, abstract=True, features=FEATURES, **options)
    return filled(library, layer, lambda parameter: np.ones(parameter.shape, np.float32))


def calls(library: str, kind: str) -> dict[str, Entry]:
    """A layer's methods."""
    layer = example(library, kind)
    name, arguments = f"{library}.{kind}", dict(inputs(library, kind))
    right = {name: argument.right[0] for name, argument in arguments.items()}
    ignored = {"key": wrong.anything()} if library == "equinox" else {}
    if kind != "MSDeformAttn":
        return {f"{name}()": Entry(layer, right, arguments | ignored, type(layer).__call__)}
    batch = () if library == "equinox" else (2,)
    mask = Argument(
        [None, spec(*batch, PIXELS, dtype=bool)],
        [*JUNK[1:], spec(*batch, PIXELS), spec(*batch, 5, dtype=bool)],
    )
    levels = {"spatial_shapes": wrong.pairs(*SHAPES)}
    arguments |= levels
    right |= shapes(kind)
    value = "value" if library == "equinox" else "inputs_v"
    more = ignored or {"out_sharding": wrong.out_sharding()}
    return {
        f"{name}()": Entry(
            layer, right, {**arguments, **more, "padding_mask": mask}, type(layer).__call__
        ),
        f"{name}.sampling_points": Entry(
            layer.sampling_points,
            {name: array for name, array in right.items() if name != value},
            {name: argument for name, argument in arguments.items() if name != value},
        ),
    }


SAMPLING_LAYERS: dict[str, Entry] = {}
for _library in LIBRARIES:
    for _kind in KINDS:
        SAMPLING_LAYERS[f"{_library}.{_kind}"] = constructor(_library, _kind)
        SAMPLING_LAYERS |= calls(_library, _kind)

_LAYER = example("nnx", "DCNv3")
_STATE = oxijax.convert.to_torch(_LAYER)
_LAYERS = wrong.instance(
    *(_LAYER, example("linen", "DCNv3"), example("equinox", "DCNv3")),
    wrong=[oxijax.linen.DCNv3(12), oxijax.nnx.DCNv3, [_LAYER]],
)
_PREFIX = Argument(["", np.str_("")], [value for value in JUNK if not isinstance(value, str)])
_NAMES = Argument(
    [None, {}], [v for v in JUNK if not (v is None or (isinstance(v, dict) and not v))]
)


def is_patterns(value: Any) -> bool:
    """Whether keys can be ignored by a value."""
    listed = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    return listed or isinstance(value, str)


_IGNORE = wrong.instance((), "*.anchors", ["backbone.*"], legal=is_patterns, wrong=[[1]])
_STATES = Argument(
    [_STATE],
    [
        *JUNK,
        _STATE | {"more": np.ones(1)},
        {name: _STATE[name] for name in [*_STATE][1:]},
        _STATE | {"mask.bias": np.ones(3)},
        *(_STATE | {"mask.bias": value} for value in JUNK),
    ],
)
CONVERSIONS = {
    "convert.from_torch": Entry(
        oxijax.convert.from_torch,
        {"layer": _LAYER, "state_dict": _STATE},
        {
            "layer": _LAYERS,
            "state_dict": _STATES,
            "prefix": _PREFIX,
            "names": _NAMES,
            "ignore": _IGNORE,
        },
        traced=False,
    ),
    "convert.to_torch": Entry(
        oxijax.convert.to_torch,
        {"layer": _LAYER},
        {
            "layer": _LAYERS,
            "prefix": _PREFIX,
            "names": _NAMES,
            "deform_conv": wrong.choice("mmcv", "dcnv2", "birefnet", wrong=["torchvision"]),
        },
        traced=False,
    ),
}
