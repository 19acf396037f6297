"""The parameters of a layer or model, found in the state of a PyTorch module.

A parameter has the name that it has in the module, but for the names of `_PARTS` and what libraries
call weights. Layouts follow from the kind of the layer that has it.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["CONVENTIONS", "LAYERS", "Convention", "Model", "Weight"]


@dataclasses.dataclass(frozen=True)
class Convention:
    """What a library calls the parts of a deformable convolution, and what its masks are.

    Attributes:
      weights: before "weight" and "bias".
      predictor: before those of the predictor.
      logits: before those of what predicts logits, if it isn't the predictor.
      mask_scale: masks are so many times a sigmoid.
    """

    weights: str
    predictor: str
    logits: str | None
    mask_scale: int


CONVENTIONS = {
    "mmcv": Convention("", "conv_offset.", None, 1),
    "dcnv2": Convention("", "conv_offset_mask.", None, 1),
    "birefnet": Convention("regular_conv.", "offset_conv.", "modulator_conv.", 2),
}
# What stands before "weight" or "bias" in a module's state, where it isn't the part's name.
_PARTS: dict[str, dict[str, str]] = {
    "DeformConv": {},  # by its convention
    "MSDeformAttn": {},
    "DCNv3": {
        "dw_conv": "dw_conv.0.",
        "dw_norm": "dw_conv.1.1.",  # after a transposition
        "center_scale": "center_feature_scale_proj_",
    },
    "DCNv4": {"center_scale": "center_feature_scale_proj_"},
}
LAYERS = tuple(_PARTS)

# What Keras calls layers that the other libraries have.
_OF_KERAS = {
    "BatchNormalization": "BatchNorm",
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D"), "Conv"),
    "DeformConv2D": "DeformConv",
    "Dense": "Linear",
    "GroupNormalization": "GroupNorm",
    "LayerNormalization": "LayerNorm",
}
# The layers of libraries whose parameters PyTorch has too, in these layouts.
_KNOWN = {
    *("Conv", "Linear", "BatchNorm", "LayerNorm", "GroupNorm", "Embed", "Embedding"),
    "DeformConv",
}
_CONTAINERS = {"Sequential", "List", "Dict"}
_PREDICTORS = ("offset_conv", "predictor")
_LEAVES = {
    "kernel": "weight",
    "scale": "weight",
    "embedding": "weight",
    "mean": "running_mean",
    "var": "running_var",
}
_LEAVES_OF_KERAS = {
    "gamma": "weight",
    "beta": "bias",
    "embeddings": "weight",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


@dataclasses.dataclass(frozen=True)
class Weight:
    """A parameter, and the arrays of a state that it is made of.

    Attributes:
      shape: the shape of the parameter.
      keys: the keys of the arrays, which follow each other in their first dimension.
      shapes: the shapes of the arrays.
      is_kernel: whether the parameter is [..., in, out] where the arrays are [out, in, ...].
      factor: the arrays are so many times the parameter; a power of two.
    """

    shape: tuple[int, ...]
    keys: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    is_kernel: bool
    factor: float = 1.0

    def to_torch(self, parameter: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays by their keys."""
        if self.is_kernel:
            parameter = np.moveaxis(parameter, (-1, -2), (0, 1))
        array = self._times(parameter, self.factor)
        if len(self.keys) == 1:
            return {self.keys[0]: np.ascontiguousarray(array.reshape(self.shapes[0]))}
        ends = np.cumsum([shape[0] for shape in self.shapes])[:-1]
        parts = np.split(array.reshape(-1, *self.shapes[0][1:]), ends)
        return {k: np.ascontiguousarray(v) for k, v in zip(self.keys, parts, strict=True)}

    def from_torch(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The parameter, of arrays of these shapes."""
        first, *more = (arrays[key] for key in self.keys)
        array = np.concatenate([first, *more]) if more else first
        if self.is_kernel:
            array = np.moveaxis(array, (0, 1), (-1, -2))
        return self._times(array.reshape(self.shape), 1 / self.factor)

    @staticmethod
    def _times(array: np.ndarray, factor: float) -> np.ndarray:
        return array if factor == 1 else array * np.asarray(factor, array.dtype)


@dataclasses.dataclass(frozen=True)
class Model:
    """A layer or model, as far as the names of its parameters need it.

    Attributes:
      modules: its parts and itself, by paths such as "blocks.0.conv"; its own is empty.
      nested: whether `modules` has all parts; else they are known by their parameters.
      names: what paths are called in the state, where it isn't as `_PARTS` says.
      prefix: the prefix of all keys.
      tied: further paths of parts that are at several, each with the first one.
    """

    modules: Mapping[str, Any]
    nested: bool
    names: Mapping[str, str]
    prefix: str
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def other_paths(self, path: str) -> Iterator[str]:
        """The further paths of a parameter, where it, or what it is in, is at several."""
        for other, first in self.tied.items():
            if f"{path}.".startswith(f"{first}."):
                yield other + path[len(first) :]

    def deform_convs(self) -> Iterator[str]:
        """The paths of deformable convolutions, each before what is in its predictor."""
        return iter(sorted(path for path in self.modules if self._kind(path) == "DeformConv"))

    def points(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The paths of attention layers, each with its number of points in each level."""
        for path, module in self.modules.items():
            if self._kind(path) == "MSDeformAttn":
                yield path, module.attention.points

    def start(self, path: str, conventions: Mapping[str, Convention]) -> str:
        """What stands before the names of a part's parameters in the state."""
        if path in self.names:
            return self.prefix + self.names[path] + "." * bool(self.names[path])
        if not path:
            return self.prefix
        parent, _, part = path.rpartition(".")
        start, kind = self.start(parent, conventions), self._kind(parent)
        if kind == "Sequential" and part == "layers":
            return start
        if kind == "DeformConv" and part in _PREDICTORS:
            return start + conventions[parent].predictor
        if not self.nested:  # Linen's name of the parts of a Sequential
            part = re.sub(r"^layers_(?=\d+$)", "", part)
        return start + _PARTS.get(kind, {}).get(part, f"{part}.")

    def weight(
        self, path: str, shape: tuple[int, ...], conventions: Mapping[str, Convention]
    ) -> Weight:
        """Where a parameter of a shape is in the state."""
        owner, _, leaf = path.rpartition(".")
        if path in self.names:
            return Weight(shape, (self.prefix + self.names[path],), (shape,), False)
        if owner in self.modules and self._is_own(owner):  # a part of somebody's own making
            return Weight(shape, (self.start(owner, conventions) + leaf,), (shape,), False)
        is_kernel = leaf == "kernel"
        self._check_rank(path, shape)
        torch_shape = (*shape[:-3:-1], *shape[:-2]) if is_kernel else shape
        if leaf == "bias":
            torch_shape = (math.prod(shape),)  # Equinox has [out, 1, 1] for a convolution
        name, start = self._leaf(owner, leaf), self.start(owner, conventions)
        if self._kind(owner) == "DeformConv":
            convention, layer = conventions[owner], self.modules[owner]
            factor = 1.0
            if name == "weight" and layer.use_mask and self._has_predictor(layer):
                factor = layer.mask_scale / convention.mask_scale
            key = start + convention.weights + name
            return Weight(shape, (key,), (torch_shape,), is_kernel, factor)
        parent, _, part = owner.rpartition(".")
        if owner and self._kind(parent) == "DeformConv" and part in _PREDICTORS:
            convention, layer = conventions[parent], self.modules[parent]
            if convention.logits is not None and layer.use_mask:
                rows = torch_shape[0] // 3  # offsets have two thirds
                keys = start + name, self.start(parent, conventions) + convention.logits + name
                shapes = (2 * rows, *torch_shape[1:]), (rows, *torch_shape[1:])
                return Weight(shape, keys, shapes, is_kernel)
        return Weight(shape, (start + name,), (torch_shape,), is_kernel)

    def _leaf(self, owner: str, leaf: str) -> str:
        """PyTorch's name of a parameter of a library's layer."""
        if owner in self.modules:
            return (_LEAVES | _LEAVES_OF_KERAS).get(leaf, leaf)
        return leaf if self.nested else _LEAVES.get(leaf, leaf)

    def _check_rank(self, path: str, shape: tuple[int, ...]) -> None:
        """Raises ValueError for weights of layers that are stacked."""
        owner, _, leaf = path.rpartition(".")
        if leaf not in ("kernel", "weight", "embedding", "embeddings"):
            return
        parent, _, part = owner.rpartition(".")
        kind = self._kind(owner)
        if kind == "Conv":
            module = self.modules[owner]
            rank = 2 + getattr(module, "num_spatial_dims", len(np.atleast_1d(module.kernel_size)))
        elif kind == "DeformConv" or part in ("dw_conv", "offset_mask_dw", *_PREDICTORS):
            rank = 4
        elif kind in ("Linear", "Embed", "Embedding") or self._kind(parent) in _PARTS:
            rank = 2
        else:
            return
        if len(shape) > rank:
            raise ValueError(
                f"layer must not be stacked, as by nnx.vmap or Linen's scan: {path!r} has {rank} "
                f"dimensions in one layer, got shape {shape}; convert the layers one by one"
            )

    def _kind(self, path: str) -> str:
        """Which layer of a library a part is; empty if it is none."""
        if path not in self.modules:
            return ""
        for cls in type(self.modules[path]).__mro__:
            name = _OF_KERAS.get(cls.__name__, cls.__name__)
            if name in _KNOWN | _CONTAINERS | _PARTS.keys() and _library(cls):
                return name
        return ""

    def _is_own(self, path: str) -> bool:
        """Whether a part is the user's own, whose parameters have the names that they have there.

        Raises:
          TypeError: it is a layer of a library that there is no rule for.
        """
        kind, module = self._kind(path), self.modules[path]
        if kind in _KNOWN:
            return False
        if kind in _CONTAINERS or not _library(type(module)):
            return True
        place = repr(path) if path else "the top"
        raise TypeError(
            f"layer must have parts of {', '.join(sorted(_KNOWN))}, or parts of your own making, "
            f"got a {type(module).__name__} at {place}"
        )

    @staticmethod
    def _has_predictor(layer: Any) -> bool:
        return any(getattr(layer, name, None) is not None for name in _PREDICTORS)


def _library(cls: type) -> str:
    """The library that a class is of, if it is one of those whose layers are known."""
    top = cls.__module__.partition(".")[0]
    return top if top in ("flax", "equinox", "keras", "oxijax") else ""
