"""Detectors of Keras libraries with oxijax in the place of their sampling."""

import dataclasses
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self

import jax
import numpy as np

from oxijax._core.arguments import checks
from oxijax._core.config import stand_ins
from oxijax.keras._cores import CORES, Core
from oxijax.keras._probes import Sizes

__all__ = ["Accelerated", "accelerate"]

_LIBRARIES = ("zeromodels", "keras_hub")
_TOLERANCE = 1e-5

# Where a stand-in is now, with the original and the stand-in.
_placed: dict[tuple[Any, str], tuple[Any, Any]] = {}


@dataclasses.dataclass(frozen=True)
class Accelerated:
    """What `accelerate` has replaced; also a context manager, which undoes it at its end.

    Attributes:
      replaced: the names of functions and methods that are replaced.
      left: those that are not, and libraries, each with the reason.
    """

    replaced: tuple[str, ...]
    left: Mapping[str, str]
    _places: tuple[tuple[Any, str], ...] = dataclasses.field(repr=False)

    def undo(self) -> None:
        """Puts back what was there before; a second time does nothing."""
        for place in self._places:
            found = _placed.pop(place, None)
            if found is not None:
                setattr(*place, found[0])
        _retrace()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def __str__(self) -> str:
        lines = [f"{name}: replaced" for name in self.replaced]
        return "\n".join([*lines, *(f"{name}: left, {why}" for name, why in self.left.items())])


def accelerate(*libraries: str) -> Accelerated:
    """Replaces the sampling in the detectors of Keras libraries by oxijax's.

    It holds for models that exist and for those that are made later; functions that JAX has
    compiled, as those of `model.fit` and `model.predict`, are traced again. These are replaced:

    | library        | of                                                                        |
    |----------------|---------------------------------------------------------------------------|
    | `zeromodels`   | RF-DETR, RT-DETR, RT-DETRv2, D-FINE, Grounding DINO, Mask2Former,         |
    |                | OneFormer                                                                 |
    | `keras_hub`    | D-FINE: its attention, and `grid_sample`                                  |

    A function whose arguments have other names than those that oxijax knows, or whose results for
    a small drawn input differ from oxijax's by more than 1e-5, is left as it is.

    Example:
      >>> import oxijax.keras
      >>> with oxijax.keras.accelerate() as accelerated:
      ...     model.fit(images, targets)
      >>> print(accelerated)

    Args:
      *libraries: "zeromodels" or "keras_hub", which are imported; none for all that are installed.

    Returns:
      What was replaced and what was left, which can be undone: `undo()`, or as a context manager.

    Raises:
      ValueError: a library that is none of these.
    """
    for library in libraries:
        checks.check_choice("libraries", library, _LIBRARIES)
    replaced, left, places = [], {}, []
    for library in libraries or _LIBRARIES:
        if importlib.util.find_spec(library) is None:
            left[library] = "it is not installed"
            continue
        for core in CORES:
            if core.module.partition(".")[0] != library:
                continue
            name = f"{core.module}.{core.name}"
            try:
                places.append(_replace(core))
                replaced.append(name)
            except _UnknownError as error:
                left[name] = str(error)
    _retrace()
    return Accelerated(tuple(replaced), MappingProxyType(left), tuple(places))


class _UnknownError(Exception):
    """The reason for which a function is left as it is."""


def _replace(core: Core) -> tuple[Any, str]:
    """Puts a stand-in in the place of a function, and returns the place."""
    *owners, name = core.name.split(".")
    try:
        owner = functools.reduce(getattr, owners, importlib.import_module(core.module))
        original = getattr(owner, name)
    except (ImportError, AttributeError) as error:
        raise _UnknownError(f"this version has no such function: {error}") from error
    if (owner, name) in _placed:
        raise _UnknownError("it is replaced already")
    stand_in = core.stand_in(original)
    expected, found = (str(_without_types(each)) for each in (stand_in, original))
    if expected != found:
        raise _UnknownError(
            f"oxijax knows it with the arguments {expected}, this version has {found}"
        )
    _compare(original, stand_in, core.probe, owner)
    functools.update_wrapper(stand_in, original)
    _placed[owner, name] = original, stand_in
    setattr(owner, name, stand_in)
    return owner, name


def _without_types(function: Callable[..., Any]) -> inspect.Signature:
    parameters = inspect.signature(function).parameters.values()
    empty = inspect.Parameter.empty
    return inspect.Signature([each.replace(annotation=empty) for each in parameters])


def _compare(original: Any, stand_in: Any, probe: Any, owner: Any) -> None:
    """Raises `_UnknownError` if a stand-in's results for drawn inputs are not the original's."""
    try:
        for arguments in probe(owner, Sizes()):
            both = jax.jit(lambda: [f(*arguments) for f in (original, stand_in)])  # noqa: B023
            theirs, ours = (map(np.asarray, jax.tree.leaves(found)) for found in both())
            for a, b in zip(theirs, ours, strict=True):
                if a.shape != b.shape or a.dtype != b.dtype:
                    raise _UnknownError(f"it returns {a.dtype}{a.shape}, oxijax {b.dtype}{b.shape}")
                if not (error := np.abs(a - b).max()) <= _TOLERANCE:
                    raise _UnknownError(f"its results differ from oxijax's by {error:.1e}")
    except _UnknownError:
        raise
    except Exception as error:  # whatever another version does with these arguments
        raise _UnknownError(f"it could not be compared: {type(error).__name__}: {error}") from error


def _retrace() -> None:
    names = frozenset(f"{owner.__name__}.{name}" for owner, name in _placed)
    stand_ins.set_global(names or None)
