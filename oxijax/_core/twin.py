"""The twin of a public function in `oxijax.reference`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

import jax

__all__ = ["reference_twin"]

Arguments = ParamSpec("Arguments")


def reference_twin(
    function: Callable[Arguments, jax.Array], compute: Callable[..., jax.Array], doc: str
) -> Callable[Arguments, jax.Array]:
    """A function with another's name and signature, in pure JAX.

    Args:
      function: the public function.
      compute: called with the values of all of its parameters, in their order.
      doc: the docstring.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def twin(*args: Any, **kwargs: Any) -> jax.Array:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return compute(*bound.arguments.values())

    twin.__doc__ = inspect.cleandoc(doc)
    return twin  # pyright: ignore[reportReturnType]
