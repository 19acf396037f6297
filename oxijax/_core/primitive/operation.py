"""Primitives of the operations that `ptx` declares."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import jax
from jax import lax

from oxijax._core.arguments.checks import Implementation
from oxijax._core.arguments.precision import ptx_dtype
from oxijax._core.launch import call
from oxijax._core.primitive.kernel_primitive import KernelPrimitive, Result
from ptx.definition import KernelDefinition
from ptx.operator import Description, Operation

__all__ = ["OpParams", "OperationPrimitive"]

Op = TypeVar("Op", bound=Description)
Lowering = Callable[..., tuple[jax.Array | None, ...]]


@dataclasses.dataclass(frozen=True)
class OpParams(Generic[Op]):
    """What is static in a call of an operator.

    Attributes:
      op: the description, which the kernels and a compiled program have as well.
      precision: the precision of the products of XLA's program.
      sizes: the sizes of dimensions that some operation's operands lack, by name; they may be
        symbolic.
      implementation: which programs may run.
    """

    op: Op
    precision: lax.Precision = lax.Precision.DEFAULT
    sizes: tuple[tuple[str, Any], ...] = ()
    implementation: Implementation = None

    def size(self, *names: str) -> tuple[Any, ...]:
        """Those of `sizes` with these names."""
        sizes = dict(self.sizes)
        return tuple(sizes[name] for name in names)

    def with_op(self, **fields: Any) -> "OpParams[Op]":
        """The same but for fields of the description."""
        return dataclasses.replace(self, op=dataclasses.replace(self.op, **fields))


class OperationPrimitive(KernelPrimitive):
    """A declared operation as a JAX primitive, called with `OpParams` and its operands.

    Names, dimensions and dtypes of operands and results are those of the declaration. Wherever the
    primitive is bound or lowered, for an example, a batch or a part on one device, the description
    is that of the arrays there.

    Args:
      operation: the declaration.
      reference: as in `KernelPrimitive`.
      kernel: what runs on a GPU: a kernel with the operation's own arrays, or a function like
        `reference` that calls kernels.
      op: a description, where dimensions depend on it.
      **rules: further arguments of `KernelPrimitive`.
    """

    def __init__(
        self,
        operation: Operation,
        reference: Lowering,
        kernel: KernelDefinition[Any] | Lowering,
        *,
        op: Any = None,
        **rules: Any,
    ):
        self.operation = operation
        super().__init__(
            operation.name,
            operands={operand.name: operand.dims_text(op) for operand in operation.operands},
            results={
                result.name: Result(result.dims_text(op), operation.like(result))
                for result in operation.results
            },
            sizes=lambda params, sizes: params.op.complete({**dict(params.sizes), **sizes}),
            reference=reference,
            cuda=self._launch if isinstance(kernel, KernelDefinition) else kernel,
            **rules,
        )
        self._kernel = kernel

    def describe(
        self, config: OpParams[Any], names: Sequence[str], arrays: Sequence[Any]
    ) -> OpParams[Any]:
        types = tuple((n, a.shape, a.dtype) for n, a in zip(names, arrays, strict=True))
        return _described(self.operation, config, types)

    def _launch(self, params: OpParams[Any], *operands: jax.Array | None):
        """The results of the operation's kernel."""
        assert isinstance(self._kernel, KernelDefinition)
        named: dict[str, Any] = dict(zip(self.operands, operands, strict=True))
        return call(self._kernel, params.op, batch="n", sizes=dict(params.sizes), **named)


@functools.lru_cache(maxsize=4096)  # an eager call would take half as long again
def _described(
    operation: Operation, params: OpParams[Any], types: tuple[tuple[str, Any, Any], ...]
) -> OpParams[Any]:
    """The parameters of a call, of operands with these names, shapes and dtypes."""
    shapes = {name: shape for name, shape, _ in types}
    dtypes = {name: ptx_dtype(dtype) for name, _, dtype in types}
    return dataclasses.replace(params, op=operation.describe(params.op, shapes, dtypes))
