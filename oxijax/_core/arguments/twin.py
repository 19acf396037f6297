"""The twin of a public function in `oxijax.reference`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from oxijax._core.arguments.checks import parse_implementation, requires_ptx
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.precision import usual_promotion

__all__ = ["reference_twin"]

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def reference_twin(
    function: Callable[Arguments, Returned],
    compute: Callable[..., Returned],
    doc: str = """`oxijax.{}` in pure JAX: for any order and mode of differentiation.

    Same arguments, meaning, result and errors.
    """,
) -> Callable[Arguments, Returned]:
    """A function with another's name and signature, in pure JAX.

    Args:
      function: the public function.
      compute: called with the values of all of its parameters, in their order.
      doc: the docstring, with {} for the function's name.
    """
    signature = inspect.signature(function)

    @explain_keywords
    @functools.wraps(function)
    def twin(*args: Any, **kwargs: Any) -> Returned:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if requires_ptx(parse_implementation(bound.arguments["implementation"])):
            raise ValueError(
                f"implementation of oxijax.reference.{function.__name__} must be None or 'xla': it "
                "has no kernel"
            )
        with usual_promotion():
            return compute(*bound.arguments.values())

    twin.__doc__ = inspect.cleandoc(doc.format(function.__name__))
    return twin  # pyright: ignore[reportReturnType]
