"""Reverse mode of a primitive that has a kernel for each gradient."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from oxijax._core.explicit import reshard_like
from oxijax._core.precision import usual_promotion
from oxijax._core.primitive import KernelPrimitive

__all__ = ["define_gradients"]

Gradients = tuple[jax.Array | None, ...]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Wanted:
    """Of each operand, whether its gradient is wanted."""

    operands: tuple[bool, ...]


def define_gradients(
    forward: KernelPrimitive,
    gradients: Callable[[Any, Sequence[Any], Sequence[bool], jax.Array], Gradients],
) -> None:
    """Has reverse mode of a primitive with one result call the kernels of its gradients.

    Args:
      forward: the primitive.
      gradients: called with the configuration, the operands, for each of them whether its gradient
        is wanted, and the gradient of the result. Returns a gradient for each operand: None where
        none is wanted, so that none is made that nobody asks for.
    """

    def call(config: Any, *operands: jax.Array | None) -> jax.Array:
        (y,) = forward(config, *operands)
        assert y is not None
        return y

    def call_and_keep(config: Any, *inputs: Any):
        operands = tuple(None if i is None else i.value for i in inputs)
        wanted = _Wanted(tuple(i is not None and i.perturbed for i in inputs))
        return call(config, *operands), (operands, wanted)

    @usual_promotion()
    def pull_back(config: Any, kept: Any, grad_y: jax.Array) -> Gradients:
        operands, wanted = kept
        found = gradients(config, operands, wanted.operands, grad_y)
        return tuple(
            None if gradient is None else reshard_like(gradient, operand)
            for gradient, operand in zip(found, operands, strict=True)
        )

    reverse = jax.custom_vjp(call, nondiff_argnums=(0,))
    reverse.defvjp(call_and_keep, pull_back, symbolic_zeros=True)
    forward.defvjp(reverse)
