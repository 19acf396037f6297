"""Weights of PyTorch's modules in the layers of Flax and Equinox, and back.

Parts of a layer have the names that the module's parts have, but for those of `_KEYS`; layouts
follow from what a parameter is.
"""

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from oxijax._core import arguments as arguments

__all__ = ["from_torch", "to_torch"]

Layer = TypeVar("Layer")

# What stands before "weight" or "bias" in a module's state, where it isn't the part's name.
_KEYS = {
    "MSDeformAttn": {},
    "DCNv3": {
        "dw_conv": "dw_conv.0.",
        "dw_norm": "dw_conv.1.1.",  # after a transposition
        "center_scale": "center_feature_scale_proj_",
    },
    "DCNv4": {"center_scale": "center_feature_scale_proj_"},
}


def from_torch(layer: Layer, state_dict: Mapping[str, Any], *, prefix: str = "") -> Layer:
    """Makes a layer like the given one with the weights of a PyTorch module.

    The modules are Deformable DETR's `MSDeformAttn` (mmcv's and Hugging Face's have its names),
    InternImage's `DCNv3` and DCNv4's `DCNv4`; `oxijax.nnx`, `oxijax.linen` and `oxijax.equinox`
    have layers of the same names.

    Example:
      >>> import numpy as np
      >>> import oxijax.nnx
      >>> from flax import nnx
      >>> layer = oxijax.nnx.DCNv4(32, groups=2, without_pointwise=True, rngs=nnx.Rngs(0))
      >>> state_dict = {
      ...     "layers.0.dcn.offset_mask.weight": np.zeros((56, 32), np.float32),
      ...     "layers.0.dcn.offset_mask.bias": np.ones(56, np.float32),
      ... }
      >>> layer = oxijax.convert.from_torch(layer, state_dict, prefix="layers.0.dcn.")
      >>> float(layer.offset_mask.bias[0])
      1.0

    Args:
      layer: it says what is expected and remains as it is. One of Linen has to be bound to its
        variables; `unbind` separates the result. Parameters may be `jax.ShapeDtypeStruct`, as of
        `nnx.eval_shape` or `equinox.filter_eval_shape`.
      state_dict: NumPy arrays, or what NumPy can read, by the names that PyTorch has for them.
      prefix: of the names of this module in a larger state_dict; others are left alone.

    Returns:
      A layer of the same type, whose parameters have the dtypes that the given layer's have.

    Raises:
      ValueError: a key that is missing or that the layer has nothing for, or an array of another
        shape, by name.
      TypeError: an argument of another type, or an array that is not of real numbers, by name.
    """
    parameters, rebuild, keys = _open(layer)
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"state_dict must be a mapping, got {arguments.shown(state_dict)}")
    prefix = _read_prefix(prefix)
    wanted = {_key(keys, prefix, path) for path in _named(parameters)}
    found = {key for key in state_dict if isinstance(key, str) and key.startswith(prefix)}
    for word, names in (("lacks", wanted - found), ("has what the layer lacks:", found - wanted)):
        if names:
            shown = ", ".join(repr(name) for name in sorted(names)[:8])
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            raise ValueError(f"state_dict {word} {shown}{more}")

    def convert(path: Any, parameter: jax.Array) -> jax.Array:
        path = _name(path)
        key = _key(keys, prefix, path)
        array = _read_array(key, state_dict[key])
        expected = _to_torch(path, np.broadcast_to(np.float32(0), parameter.shape)).shape
        if array.shape != expected:
            raise ValueError(f"state_dict[{key!r}] must have shape {expected}, got {array.shape}")
        array = _from_torch(path, array).reshape(parameter.shape)
        return jnp.asarray(array, parameter.dtype)

    return rebuild(jax.tree_util.tree_map_with_path(convert, parameters))


def to_torch(layer: Any, *, prefix: str = "") -> dict[str, np.ndarray]:
    """The weights of a layer as the state of the PyTorch module that `from_torch` names.

    Args:
      layer: one of Linen has to be bound to its variables.
      prefix: of all names.

    Returns:
      Arrays in the dtypes of the layer's parameters, by the module's names; `torch.from_numpy`
      reads them, but for bfloat16.

    Raises:
      TypeError: an argument of another type, by name.
    """
    parameters, _, keys = _open(layer)
    prefix = _read_prefix(prefix)
    return {
        _key(keys, prefix, path): np.ascontiguousarray(_to_torch(path, np.asarray(parameter)))
        for path, parameter in _named(parameters).items()
    }


def _open(layer: Any) -> tuple[Any, Callable[[Any], Any], Mapping[str, str]]:
    """A layer's parameters, what makes a layer of such, and its entry in `_KEYS`."""
    for cls in type(layer).__mro__:
        library = re.match(r"oxijax\.(nnx|linen|equinox)\b", cls.__module__)
        if library and cls.__name__ in _KEYS:
            module = importlib.import_module(f"{library[0]}._parameters")
            return *module.split(layer), _KEYS[cls.__name__]
    raise TypeError(f"layer must be a layer of {', '.join(_KEYS)}, got {arguments.shown(layer)}")


def _name(path: Any) -> str:
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    return name.removesuffix(".value")  # in a state of NNX


def _named(parameters: Any) -> dict[str, jax.Array]:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(parameters)}


def _key(keys: Mapping[str, str], prefix: str, path: str) -> str:
    part, leaf = path.rsplit(".", 1)
    return prefix + keys.get(part, f"{part}.") + ("bias" if leaf == "bias" else "weight")


def _to_torch(path: str, array: np.ndarray) -> np.ndarray:
    if path.endswith(".kernel"):  # of Flax: [..., in, out] in place of [out, in, ...]
        return np.moveaxis(array, (-1, -2), (0, 1))
    if path.endswith(".bias"):  # of a convolution of Equinox: [out, 1, 1]
        return array.reshape(-1)
    return array


def _from_torch(path: str, array: np.ndarray) -> np.ndarray:
    return np.moveaxis(array, (0, 1), (-1, -2)) if path.endswith(".kernel") else array


def _read_prefix(prefix: Any) -> str:
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a string, got {arguments.shown(prefix)}")
    return prefix


def _read_array(key: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"state_dict[{key!r}] must be an array: {error}") from error
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"state_dict[{key!r}] must be an array of real numbers, got dtype {array.dtype}"
        )
    return array
