"""Both modes of differentiation for a primitive whose gradients are a `jax.custom_vjp`.

A `custom_vjp` alone raises in forward mode. Here the primitive's tangent is one operation that is
linear: forward mode evaluates it, through the primitive's reference; reverse mode transposes it,
and its transpose is the rule of the `custom_vjp`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from oxijax._core import compat as _compat

__all__ = ["Differentiated", "tangent"]


class Differentiated(Protocol):
    """What is differentiated: an operation with one result.

    Attributes:
      reverse: the operation as a `jax.custom_vjp`: called with the configuration and its operands,
        None where one is absent.
    """

    reverse: Callable[..., jax.Array]

    def reference_tangents(
        self, primals: Sequence, tangents: Sequence, *, config: Any, present: Sequence[bool]
    ) -> Sequence[jax.Array]:
        """The tangent, as forward mode evaluates it; symbolic zeros are for what is constant."""
        ...


def tangent(
    operation: Differentiated,
    primals: Sequence[jax.Array],
    tangents: Sequence[Any],
    like: jax.Array,
    *,
    config: Any,
    present: Sequence[bool],
) -> jax.Array:
    """The tangent of an operation's result.

    Args:
      operation: the operation.
      primals: the operands that are present.
      tangents: theirs; symbolic zeros where one is constant.
      like: the result.
      config: the configuration.
      present: whether each operand is present.
    """
    active = tuple(type(t) is not ad.Zero for t in tangents)
    varying = (t for t, varies in zip(tangents, active, strict=True) if varies)
    return _tangent_p.bind(
        *primals, *varying, operation=operation, config=config, present=tuple(present),
        active=active, like=jax.typeof(like),
    )  # fmt: skip


def _evaluate(*values, operation: Differentiated, config, present, active, like) -> jax.Array:
    primals, varying = values[: len(active)], iter(values[len(active) :])
    tangents = [
        next(varying) if varies else ad.Zero(jax.typeof(primal).to_tangent_aval())
        for primal, varies in zip(primals, active, strict=True)
    ]
    (value,) = operation.reference_tangents(primals, tangents, config=config, present=present)
    return value


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))  # without the result, which nobody needs
def _gradients(
    operation: Differentiated, config, present, active, primals: Sequence, grad_y: jax.Array
) -> tuple[jax.Array, ...]:
    """The gradients of the operands that vary."""

    def function(*varying: jax.Array) -> jax.Array:
        values = iter(varying)
        merged = (
            next(values) if varies else primal
            for primal, varies in zip(primals, active, strict=True)
        )
        return operation.reverse(config, *(next(merged) if here else None for here in present))

    varying = [primal for primal, varies in zip(primals, active, strict=True) if varies]
    return jax.vjp(function, *varying)[1](grad_y)


def _transpose(grad_y, *values, operation, config, present, active, like):
    primals = values[: len(active)]
    if type(grad_y) is ad.Zero:
        gradients = [ad.Zero(value.aval) for value in values[len(active) :]]
    else:
        gradients = _gradients(operation, config, present, active, primals, grad_y)
    return [None] * len(primals) + [*gradients]


def _batch(values, axes, **params):
    return jax.vmap(functools.partial(_evaluate, **params), axes)(*values), 0


def _differentiate(primals, tangents, **params):
    varying = [i for i, value in enumerate(tangents) if type(value) is not ad.Zero]

    def function(*values):
        every = list(primals)
        for i, value in zip(varying, values, strict=True):
            every[i] = value
        return _evaluate(*every, **params)

    _, out = jax.jvp(function, [primals[i] for i in varying], [tangents[i] for i in varying])
    return _tangent_p.bind(*primals, **params), out


def _lower(ctx, *values, **params):
    evaluate: Callable = functools.partial(_evaluate, **params)
    return mlir.lower_fun(lambda *arrays: evaluate(*arrays), multiple_results=False)(ctx, *values)


_tangent_p = Primitive("tangent")
_tangent_p.def_impl(functools.partial(_compat.apply_primitive, _tangent_p))
_tangent_p.def_abstract_eval(lambda *avals, like, **_: like)
mlir.register_lowering(_tangent_p, _lower)
batching.primitive_batchers[_tangent_p] = _batch
ad.primitive_jvps[_tangent_p] = _differentiate
ad.primitive_transposes[_tangent_p] = _transpose
