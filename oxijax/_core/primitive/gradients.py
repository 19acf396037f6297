"""Derivatives of primitives: of products, by kernels for each gradient, and in both modes.

A `jax.custom_vjp` alone raises in forward mode. Here the tangent of a primitive that has one is one
linear operation: forward mode evaluates it, through the primitive's reference; reverse mode
transposes it, and its transpose is the rule of the `custom_vjp`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from oxijax._core import compat as _compat
from oxijax._core.arguments.precision import accumulator
from oxijax._core.primitive.explicit import reshard_like
from oxijax._core.primitive.fold import broadcast

if TYPE_CHECKING:
    from oxijax._core.primitive.kernel_primitive import KernelPrimitive

__all__ = ["Differentiated", "Product", "define_gradients", "define_parts", "tangent"]

Gradients = tuple[jax.Array | None, ...]


@dataclasses.dataclass(frozen=True)
class Product:
    """What makes a kernel's one result a product of its operands, plus perhaps one of them.

    Such a kernel needs no reference to be differentiated through: its tangents are its own
    products with tangents in a factor's place, and its gradients are those products' transposes.

    Attributes:
      transposes: for each factor a function that is called with the configuration, the
        operands (in the factor's place its shape and dtype) and the gradient of the result, and
        returns the factor's, as a tuple of one. Along dimensions that the factor is shared along
        it may be left to be summed.
      term: the operand that is added to the product, along the dimensions that it has.
      scale: the operand that the term is multiplied with, if present.
    """

    transposes: Mapping[str, Callable[..., tuple[jax.Array | None, ...]]]
    term: str | None = None
    scale: str | None = None

    def define(self, primitive: "KernelPrimitive") -> None:
        """Defines how a primitive is differentiated that is such a product."""
        ad.primitive_jvps[primitive.primitive] = functools.partial(self._jvp, primitive)
        primitive.define_transpose(self._gradient, self._linear)

    def _jvp(self, primitive, primals, tangents, *, config: Any, present: Sequence[bool]):
        names = primitive.present_operands(present)
        (out,) = primitive.bind(*primals, config=config, present=present)
        added = [name for name in (self.term, self.scale) if name is not None]
        values: dict[str, Any] = dict.fromkeys(primitive.operands)
        values.update(zip(names, primals, strict=True))
        factors = {name: None if name in added else value for name, value in values.items()}
        terms = []
        for name, tangent in zip(names, tangents, strict=True):
            if type(tangent) is ad.Zero:
                continue
            if name in added:
                terms.append(self._scaled_term(primitive, {**values, name: tangent}, out))
                continue
            (product,) = primitive(config, *{**factors, name: tangent}.values())
            assert product is not None
            # Without the term, all that is left may be shared.
            terms.append(broadcast(product, out.shape))
        return [out], [functools.reduce(ad.add_tangents, terms)]

    def _scaled_term(
        self, primitive: "KernelPrimitive", values: Mapping[str, Any], out: jax.Array
    ) -> jax.Array:
        """The term times its scale, in the shape and dtype of `out`."""
        (result,) = primitive.results.values()
        dims = result.dims.split()
        # The transpose of a broadcast is a sum, for which half precision is too narrow.
        wide = accumulator(out)
        factors = []
        for name in (self.term, self.scale):
            if name is not None and values[name] is not None:
                axes = [dims.index(dim) for dim in primitive.operands[name].names]
                factors.append(jax.lax.broadcast_in_dim(values[name].astype(wide), out.shape, axes))
        return functools.reduce(jnp.multiply, factors).astype(out.dtype)

    def _gradient(
        self, config: Any, values: dict[str, Any], factor: str, cotangent: jax.Array
    ) -> jax.Array:
        shape = values[factor].shape
        (gradient,) = self.transposes[factor](config, *values.values(), cotangent)
        assert gradient is not None
        shared = [i for i, size in enumerate(gradient.shape) if size != shape[i]]
        return jnp.sum(gradient, shared, keepdims=True) if shared else gradient

    def _linear(self, config: Any, names: Sequence[str]) -> Sequence[str]:
        return () if self.term in names else [*self.transposes]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Wanted:
    """Whether each operand's gradient is wanted."""

    operands: tuple[bool, ...]


def define_gradients(
    forward: "KernelPrimitive",
    gradients: Callable[[Any, Sequence[Any], Sequence[bool], jax.Array], Gradients],
    linear: Callable[[Any, Sequence[str]], Sequence[str]],
) -> None:
    """Registers the kernels of gradients for reverse mode of a primitive with one result.

    Args:
      forward: the primitive.
      gradients: called with the configuration, the operands, for each of them whether its gradient
        is wanted, and the gradient of the result. Returns a gradient for each operand: None for
        those that are not wanted.
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

    def transposed(config: Any, values: dict[str, Any], name: str, grad_y: jax.Array) -> jax.Array:
        # As the result is linear in it, the gradient does not depend on what an operand holds.
        values[name] = jnp.zeros(values[name].shape, values[name].dtype)
        wanted = [other == name for other in values]
        found = gradients(config, [*values.values()], wanted, grad_y)[wanted.index(True)]
        assert found is not None
        return found

    forward.define_transpose(transposed, linear)
    reverse = jax.custom_vjp(call, nondiff_argnums=(0,))
    reverse.defvjp(call_and_keep, pull_back, symbolic_zeros=True)
    forward.defvjp(reverse)


def define_parts(whole: "KernelPrimitive", parts: Sequence["KernelPrimitive"]) -> None:
    """Registers primitives that find some of the results of another, which finds them together.

    A program that drops the other results calls such a part in place of the whole.

    Args:
      whole: the primitive of all results.
      parts: primitives that have some of its operands and results, by the same names.
    """

    def drop_unused(used: Sequence[bool], equation: Any) -> tuple[list[bool], Any]:
        config, present = equation.params["config"], equation.params["present"]
        names = whole.present_operands(present)
        results = whole.present_results(present)
        wanted = {name for name, is_used in zip(results, used, strict=True) if is_used}
        if not wanted:
            return [False] * len(names), None
        part = next((part for part in parts if wanted <= part.results.keys()), None)
        if part is None:
            return [True] * len(names), equation
        operands = dict(zip(names, equation.invars, strict=True))
        values = {name: operands[name] for name in part.operands if name in operands}
        part_present = tuple(name in values for name in part.operands)
        outvars = dict(zip(results, equation.outvars, strict=True))
        call = equation.replace(
            primitive=part.primitive,
            invars=[*values.values()],
            outvars=[outvars[name] for name in part.present_results(part_present)],
            params={
                "config": part.describe(config, [*values], [v.aval for v in values.values()]),
                "present": part_present,
            },
        )
        return [name in values for name in names], call

    whole.parts = parts
    _compat.define_dce_rule(whole.primitive, drop_unused)


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
        return operation.reverse(
            config, *(next(merged) if is_present else None for is_present in present)
        )

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
