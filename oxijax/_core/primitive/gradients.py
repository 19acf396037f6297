"""Reverse mode of a primitive that has a kernel for each gradient."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from oxijax._core.arguments.precision import usual_promotion
from oxijax._core.primitive.explicit import reshard_like
from oxijax._core.primitive.kernel_primitive import KernelPrimitive
from oxijax._core.primitive.validation import check_linear

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
    linear: Callable[[Any, Sequence[str]], Sequence[str]],
) -> None:
    """Has reverse mode of a primitive with one result call the kernels of its gradients.

    Args:
      forward: the primitive.
      gradients: called with the configuration, the operands, for each of them whether its gradient
        is wanted, and the gradient of the result. Returns a gradient for each operand: None where
        none is wanted, so that none is made that nobody asks for.
      linear: called with the configuration and the names of the operands that are present, returns
        those in each of which the result is linear, for `jax.linear_transpose`.
    """

    def call(config: Any, *operands: jax.Array | None) -> jax.Array:
        (y,) = forward(config, *operands)
        assert y is not None
        return y

    def call_and_keep(config: Any, *inputs: Any):
        operands = tuple(None if i is None else i.value for i in inputs)
        wanted = _Wanted(tuple(i is not None and i.perturbed for i in inputs))
        return call(config, *operands), (operands, wanted)

    def pull_back(config: Any, kept: Any, grad_y: jax.Array) -> Gradients:
        operands, wanted = kept
        found = gradients(config, operands, wanted.operands, grad_y)
        return tuple(
            None if gradient is None else reshard_like(gradient, operand)
            for gradient, operand in zip(found, operands, strict=True)
        )

    @usual_promotion()
    def transpose(
        cotangents: Any, *operands: Any, config: Any, present: Sequence[bool]
    ) -> list[Any]:
        (grad_y,) = cotangents
        given = iter(operands)
        every: list[Any] = [next(given) if each else None for each in present]
        wanted = [ad.is_undefined_primal(value) for value in every]
        names = [name for name, each in zip(forward.operands, present, strict=True) if each]
        transposed = [n for n, each in zip(forward.operands, wanted, strict=True) if each]
        check_linear(forward.name, transposed, names, linear(config, names))
        # As the result is linear in it, the gradient does not depend on what an operand holds.
        filled = [
            jnp.zeros(value.aval.shape, value.aval.dtype)
            if ad.is_undefined_primal(value)
            else value
            for value in every
        ]
        found: Gradients = (None,) * len(every)
        if type(grad_y) is not ad.Zero:
            found = gradients(config, filled, wanted, grad_y)
        return [
            (ad.Zero(value.aval) if gradient is None else gradient) if each else None
            for value, each, gradient in zip(every, wanted, found, strict=True)
            if value is not None
        ]

    ad.primitive_transposes[forward.primitive] = transpose
    reverse = jax.custom_vjp(call, nondiff_argnums=(0,))
    reverse.defvjp(call_and_keep, pull_back, symbolic_zeros=True)
    forward.defvjp(reverse)
