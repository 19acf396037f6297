"""Weights of PyTorch's modules in the layers and models of Flax, Equinox and Keras, and back."""

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from oxijax._convert.files import open_state
from oxijax._convert.weights import CONVENTIONS, LAYERS, Convention, Model, Weight
from oxijax._core.arguments import checks

__all__ = ["from_torch", "to_torch"]

Layer = TypeVar("Layer")


def from_torch(
    layer: Layer,
    state_dict: Mapping[str, Any] | str | os.PathLike[str],
    *,
    prefix: str = "",
    names: Mapping[str, str] | None = None,
    ignore: str | Sequence[str] = (),
) -> Layer:
    """Makes a layer or a model like the given one with the weights of a PyTorch module.

    The layers of oxijax have the weights of these modules:

    | layer        | module                                                                      |
    |--------------|-----------------------------------------------------------------------------|
    | DeformConv   | torchvision's DeformConv2d, mmcv's DeformConv2dPack and                      |
    |              | ModulatedDeformConv2dPack, DCNv2's DCN, BasicVSR++'s                         |
    |              | SecondOrderDeformableAlignment, BiRefNet's DeformableConv2d                  |
    | MSDeformAttn | Deformable DETR's MSDeformAttn; mmcv's and Hugging Face's have its names     |
    | DCNv3        | InternImage's DCNv3                                                          |
    | DCNv4        | DCNv4's DCNv4                                                                |

    A model of Flax NNX, Equinox or Keras may be made of these, of convolutions, linear layers,
    embeddings and normalizations of its library, and of parts of its own making: a parameter has
    the name that the path of attributes to it gives, such as "blocks.0.conv.weight" for
    `blocks[0].conv.kernel`; the parts of a `Sequential` are numbers, those of a functional model of
    Keras have the names of its layers.

    The kernel of a `DeformConv` whose modulation is another multiple of the sigmoid than the
    module's is halved or doubled, so that its results are the module's.

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
      layer: it says what is expected and remains as it is, but for Keras, whose layers are built
        and get the weights themselves. One of Linen has to be a layer of oxijax
        that is bound to its variables; `unbind` separates the result. Parameters may be
        `jax.ShapeDtypeStruct`, as of `nnx.eval_shape` or `equinox.filter_eval_shape`.
      state_dict: NumPy arrays, or what NumPy can read, by the names that PyTorch has for them; or
        the path of a safetensors file, or of the index of several ("model.safetensors.index.json"),
        of which only what is needed is read.
      prefix: the prefix of the names of this module in a larger state_dict; others are left alone.
      names: what parts are called in the state, by their paths in the layer, where it is something
        else: `{"stem.conv": "conv1"}`; or parameters.
      ignore: patterns, as of `fnmatch`, of keys that may be there although the layer has nothing
        for them: `("backbone.*", "*.anchors")`.

    Returns:
      A layer of the same type, whose parameters have the dtypes that the given layer's have; the
      given one, of Keras.

    Raises:
      ValueError: keys that are missing or that the layer has nothing for, an array of another
        shape, a number of points that is not the layer's, tied weights that differ, two parameters
        at one path, stacked layers, or a file that is missing or something else, by name.
      TypeError: an argument of another type, a part that there is no rule for, or an array that is
        not of real numbers, by name.
      ImportError: state_dict is a file, and safetensors is not installed.
    """
    parameters, rebuild, model = _open(layer, prefix, names)
    patterns = [ignore] if isinstance(ignore, str) else ignore
    if not isinstance(patterns, list | tuple) or not all(isinstance(p, str) for p in patterns):
        raise TypeError(f"ignore must be a string or a list of strings, got {checks.shown(ignore)}")
    state_dict = open_state(state_dict)
    every = {key for key in state_dict if isinstance(key, str)}
    keys = {key for key in every if key.startswith(model.prefix)}
    if every and not keys:
        longer = {
            key.partition(model.prefix)[0] + model.prefix for key in every if model.prefix in key
        }
        found = _listed(longer or every)
        raise ValueError(f"no key of state_dict begins with prefix {prefix!r}: there are {found}")
    conventions = _found_conventions(model, keys)
    weights = _weights(model, parameters, conventions)
    wanted = {key for weight in weights.values() for key in weight.keys}
    keys -= _checked_copies(model, weights, state_dict, conventions)
    # A count of PyTorch's normalizations, which nothing here depends on.
    keys -= {key.removesuffix("running_mean") + "num_batches_tracked" for key in wanted}
    keys -= _checked_points(model, state_dict, conventions)
    keys -= {key for key in keys - wanted if any(fnmatchcase(key, each) for each in patterns)}
    faults = (("lacks ", wanted - keys), ("has what the layer lacks: ", keys - wanted))
    if said := "; and ".join(word + _listed(found) for word, found in faults if found):
        raise ValueError(f"state_dict {said}, with prefix {prefix!r} and as the layer is made")

    def convert(path: Any, parameter: jax.Array) -> jax.Array:
        weight = weights[_name(path)]
        arrays = {
            key: _parse_array(key, state_dict[key], shape)
            for key, shape in zip(weight.keys, weight.shapes, strict=True)
        }
        return jnp.asarray(weight.from_torch(arrays), parameter.dtype)

    return rebuild(jax.tree_util.tree_map_with_path(convert, parameters))


def to_torch(
    layer: Any,
    *,
    prefix: str = "",
    names: Mapping[str, str] | None = None,
    deform_conv: str = "mmcv",
) -> dict[str, np.ndarray]:
    """The weights of a layer or model as the state of the PyTorch module that `from_torch` names.

    Args:
      layer: one of Linen has to be a layer of oxijax that is bound to its variables.
      prefix: the prefix of all names.
      names: what parts are called in the state, as in `from_torch`.
      deform_conv: whose names a `DeformConv` has: "mmcv", which are torchvision's too, "dcnv2" for
        those of DCNv2's own code, or "birefnet".

    Returns:
      Arrays in the dtypes of the layer's parameters, by the module's names; `torch.from_numpy`
      reads them, but for bfloat16, and `safetensors.numpy.save_file` writes them.

    Raises:
      ValueError: an argument that does not fit, by name.
      TypeError: an argument of another type, or a part that there is no rule for, by name.
    """
    parameters, _, model = _open(layer, prefix, names)
    checks.check_choice("deform_conv", deform_conv, tuple(CONVENTIONS))
    conventions = dict.fromkeys(model.deform_convs(), CONVENTIONS[deform_conv])
    weights, named = _weights(model, parameters, conventions), _named(parameters)
    state = {}
    for path, weight in (*weights.items(), *_copies(model, weights, conventions)):
        state |= weight.to_torch(np.asarray(named[path]))
    return state


def _open(layer: Any, prefix: Any, names: Any) -> tuple[Any, Callable[[Any], Any], Model]:
    """A layer's parameters, what makes a layer of such, and what their names depend on."""
    library = _library(layer)
    module = importlib.import_module(f"oxijax.{library}._parameters")
    parameters, rebuild = module.split(layer)
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a string, got {checks.shown(prefix)}")
    names = {} if names is None else names
    if not isinstance(names, Mapping):
        raise TypeError(f"names must be a mapping, got {checks.shown(names)}")
    paths = list(_named(parameters))
    for path, name in names.items():
        if not isinstance(path, str) or not isinstance(name, str):
            raise TypeError(
                f"names must be of strings, got {checks.shown(path)}: {checks.shown(name)}"
            )
        if not any(f"{each}.".startswith(f"{path}.") for each in paths):
            raise ValueError(f"names must have parts of the layer, got {path!r}")
    tied = module.tied(layer) if library in ("nnx", "keras") else {}
    return (
        parameters,
        rebuild,
        Model(module.modules(layer), library != "linen", names, prefix, tied),
    )


# Where the base class of a library's layers is, and its name.
_BASES = {
    "nnx": ("flax.nnx", "Module"),
    "linen": ("flax.linen", "Module"),
    "equinox": ("equinox", "Module"),
    "keras": ("keras", "Layer"),
}


def _library(layer: Any) -> str:
    """Which library a layer or model is of, without importing any."""
    classes = type(layer).__mro__
    for library, (home, base) in _BASES.items():
        of_library = [cls for cls in classes if cls.__module__.startswith(home)]
        if any(cls.__name__ == base for cls in of_library) and (
            library != "linen"
            or any(c.__module__.startswith("oxijax.") and c.__name__ in LAYERS for c in classes)
        ):
            return library
    raise TypeError(
        "layer must be a module of Flax NNX or Equinox, a layer of Keras, or one of "
        f"{', '.join(LAYERS)} of oxijax.linen, got {checks.shown(layer)}"
    )


def _found_conventions(model: Model, keys: set[str]) -> dict[str, Convention]:
    """Whose names a state has for each deformable convolution."""
    found = {}
    for path in model.deform_convs():
        # What stands before a deformable convolution can depend on no other one's convention but
        # that of one whose predictor it is in, which comes first.
        start = model.start(path, found)
        found[path] = next(
            (
                convention
                for convention in CONVENTIONS.values()
                for part in (convention.weights, convention.predictor)
                if part and any(key.startswith(start + part) for key in keys)
            ),
            CONVENTIONS["mmcv"],
        )
    return found


def _weights(
    model: Model, parameters: Any, conventions: Mapping[str, Convention]
) -> dict[str, Weight]:
    found, owners = {}, {}
    for path, parameter in _named(parameters).items():
        found[path] = weight = model.weight(path, tuple(parameter.shape), conventions)
        for key in weight.keys:
            if owners.setdefault(key, path) != path:
                both = f"{owners[key]!r} and {path!r}"
                raise ValueError(f"names must keep parameters apart, got {key!r} for {both}")
    return found


def _copies(
    model: Model, weights: Mapping[str, Weight], conventions: Mapping[str, Convention]
) -> Iterator[tuple[str, Weight]]:
    """Where a state has parameters once more that a model has once: with the path of each."""
    for path, weight in weights.items():
        for other in model.other_paths(path):
            yield path, model.weight(other, weight.shape, conventions)


def _checked_copies(
    model: Model,
    weights: Mapping[str, Weight],
    state_dict: Mapping[str, Any],
    conventions: Mapping[str, Convention],
) -> set[str]:
    """The keys of a state under which it has tied weights once more, as PyTorch's have.

    Raises:
      ValueError: they are not equal.
    """
    found = set()
    for path, copy in _copies(model, weights, conventions):
        for key, other, shape in zip(weights[path].keys, copy.keys, copy.shapes, strict=True):
            if other in state_dict and key in state_dict:
                arrays = (_parse_array(each, state_dict[each], shape) for each in (key, other))
                if not np.array_equal(*arrays, equal_nan=True):
                    raise ValueError(
                        f"state_dict[{other!r}] must be equal to state_dict[{key!r}]: layer has "
                        f"one parameter for both, {path!r}"
                    )
                found.add(other)
    return found


def _checked_points(
    model: Model, state_dict: Mapping[str, Any], conventions: Mapping[str, Convention]
) -> set[str]:
    """The keys of a state under which it has how many points its attention layers have.

    Raises:
      ValueError: it is not as many as the layers here have.
    """
    found = set()
    for path, points in model.points():
        scale = np.concatenate([np.full(count, 1 / count, np.float32) for count in points])
        for name in ("n_points_scale", "num_points_scale"):  # RT-DETRv2's, and D-FINE's
            key = model.start(path, conventions) + name
            if key not in state_dict:
                continue
            theirs = np.ravel(_parse_array(key, state_dict[key]))
            if theirs.shape != scale.shape or not np.allclose(theirs, scale, 1e-3):
                raise ValueError(
                    f"layer must have the points of the state at {path or 'the top'!r}: num_points "
                    f"is {points}, and state_dict[{key!r}] is that of {_counts(theirs)}"
                )
            found.add(key)
    return found


def _counts(scale: np.ndarray) -> str:
    """The numbers of points of levels, each of which has its inverse so many times."""
    counts, at = [], 0
    while at < len(scale):
        count = round(1 / float(scale[at])) if 1e-3 < scale[at] <= 1 else 0
        if not count:
            return f"no points: {checks.shown(scale)}"
        counts.append(count)
        at += count
    return str(tuple(counts))


def _listed(keys: set[str]) -> str:
    more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
    return ", ".join(repr(name) for name in sorted(keys)[:8]) + more


def _name(path: Any) -> str:
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    return name.removesuffix(".value")  # in a state of NNX


def _named(parameters: Any) -> dict[str, jax.Array]:
    found: dict[str, jax.Array] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        name = _name(path)
        if name in found:
            raise ValueError(f"layer must have one parameter at a path, got two at {name!r}")
        found[name] = leaf
    return found


def _parse_array(key: str, value: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    # PyTorch's parameters become arrays only where they need no gradient.
    detach = getattr(value, "detach", None)
    try:
        array = np.asarray(detach() if callable(detach) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"state_dict[{key!r}] must be an array: {error}") from error
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"state_dict[{key!r}] must be an array of real numbers, got dtype {array.dtype}"
        )
    if shape not in (None, array.shape):
        raise ValueError(f"state_dict[{key!r}] must have shape {shape}, got {array.shape}")
    return array
