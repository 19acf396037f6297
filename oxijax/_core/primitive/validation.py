"""Checks of how a primitive is described and called, where mistakes would be silent or far away."""

from collections.abc import Mapping, Sequence
from typing import Any

from oxijax._core.arguments.checks import shown
from oxijax._core.arguments.sizes import is_known
from oxijax._core.primitive.fold import Dims, Fold

__all__ = [
    "check_description",
    "check_linear",
    "check_operands",
    "check_results",
    "check_shapes",
    "check_sizes",
]


def check_description(
    name: str, operands: Mapping[str, Dims], likes: Mapping[str, str], folds: Sequence[Fold]
) -> None:
    """Checks what a primitive is made of.

    Args:
      name: of the primitive.
      operands: the dimensions of each, by its name.
      likes: for each result, by its name, the operand that it is like.
      folds: the ways to absorb a vmapped axis.

    Raises:
      TypeError: folds that are no sequence of `Fold`.
      ValueError: a result that is like no operand: it would always be absent.
    """
    for result, like in likes.items():
        if like not in operands:
            raise ValueError(
                f"{name}: result {result} must be like one of the operands {', '.join(operands)}, "
                f"got like={shown(like)}"
            )
    if isinstance(folds, str) or not all(isinstance(fold, Fold) for fold in folds):
        raise TypeError(f"{name}: folds must be a sequence of Fold, got {shown(folds)}")


def check_operands(name: str, dims: Mapping[str, Dims], operands: Sequence[Any]) -> None:
    """Checks what a primitive is called with.

    Raises:
      TypeError: more or fewer operands than it has.
      ValueError: an operand with another number of dimensions.
    """
    if len(operands) != len(dims):
        raise TypeError(
            f"{name} takes {len(dims)} operands, {', '.join(dims)} (None for one that is absent), "
            f"got {len(operands)}"
        )
    for (key, each), operand in zip(dims.items(), operands, strict=True):
        shape = getattr(operand, "shape", None)
        if shape is not None and len(shape) != len(each.names):
            raise ValueError(
                f"{name}: {key} must have the dimensions {list(each.names)}, got shape {shape}"
            )


def check_sizes(name: str, results: Mapping[str, str], sizes: Mapping[str, Any]) -> None:
    """Checks the sizes of a call: ValueError for a dimension of a result that has none."""
    for result, dims in results.items():
        if missing := [dim for dim in dims.split() if dim not in sizes]:
            raise ValueError(
                f"{name}: result {result} has the dimensions {dims.split()}, and sizes gives none "
                f"for {', '.join(missing)}, which no operand has"
            )


def check_shapes(name: str, results: Sequence[Any], expected: Sequence[Any]) -> None:
    """Checks what a primitive's reference, or its function for GPUs, has computed.

    Raises:
      ValueError: results of another number, shape or dtype than abstract evaluation says.
    """
    found, wanted = ([(r.dtype.name, *r.shape) for r in each] for each in (results, expected))
    if [*map(len, found)] != [*map(len, wanted)] or any(
        # What is not known yet, in a program with symbolic sizes, may be written in several ways.
        one != other and (isinstance(one, str) or is_known(one, other))
        for ours, theirs in zip(found, wanted, strict=True)
        for one, other in zip(ours, theirs, strict=True)
    ):
        raise ValueError(
            f"{name}: its reference, or its function for GPUs, must return arrays of these dtypes "
            f"and sizes: {wanted}; got {found}"
        )


def check_results(name: str, of: str, results: Any, expected: Sequence[str]) -> None:
    """Checks what a primitive's reference, or its function for GPUs, returns.

    Raises:
      TypeError: anything but a tuple or list with each result, or None for one that is absent.
    """
    if not isinstance(results, tuple | list) or len(results) != len(expected):
        got = f"{len(results)}" if isinstance(results, tuple | list) else type(results).__name__
        raise TypeError(
            f"{name}: its {of} must return a tuple of {len(expected)}, {', '.join(expected)}, "
            f"got {got}"
        )


def check_linear(
    name: str, transposed: Sequence[str], operands: Sequence[str], linear: Sequence[str]
) -> None:
    """Checks what a primitive is transposed with respect to.

    Args:
      name: of the primitive.
      transposed: operands.
      operands: all that are present.
      linear: those in each of which the result is linear.

    Raises:
      TypeError: several operands, or one in which the result is not linear.
    """
    if len(transposed) != 1 or transposed[0] not in linear:
        raise TypeError(
            f"{name} is linear in one factor at a time and without a term, not in "
            f"{' and '.join(transposed)} of {', '.join(operands)}"
        )
