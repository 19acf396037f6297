"""Matrix products: the public function and its primitives."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from oxijax._core import compat as _compat
from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import (
    ImplementationLike,
    is_known,
    parse_implementation,
    requires_ptx,
)
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.precision import accumulator, is_exact, parse_precision, ptx_dtype
from oxijax._core.arguments.twin import reference_twin
from oxijax._core.primitive.fold import broadcast
from oxijax._core.primitive.kernel_primitive import Fold, Product, map_present
from oxijax._core.primitive.operation import OperationPrimitive, OpParams
from oxijax._gemm import cuda as cuda_kernels
from oxijax._gemm import reference as kernels
from oxijax._gemm.reference import GemmParams
from ptx.kernels.gemm import MatrixProduct
from ptx.kernels.gemm.operations import PRODUCT

__all__ = ["gemm", "gemm_reference"]


@explain_keywords
def gemm(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    alpha: ArrayLike = 1.0,
    beta: ArrayLike = 0.0,
    transpose_a: bool = False,
    transpose_b: bool = False,
    strategy: str = "auto",
    precision: lax.PrecisionLike = None,
    implementation: ImplementationLike = None,
) -> jax.Array:
    """Matrix products, scaled and added to others: alpha * op(a) @ op(b) + beta * c.

    On a GPU this is for memory-bound products, of a large matrix and a narrow one. The large one is
    read once, and alpha, beta and c cost no pass of their own.

    Args:
      a: [..., M, K], or [..., K, M] with `transpose_a`; float16, bfloat16, float32 or float64.
      b: [..., K, N], or [..., N, K] with `transpose_b`, in a's dtype. Leading dimensions of a, b
        and c broadcast against each other, as those of `jnp.matmul` do.
      c: [..., M, N], in a's dtype. May be left out where beta is 0.
      alpha: factor of the product: a number, or an array without dimensions, which is read where
        it is and may be differentiated.
      beta: factor of c, likewise. Where it is 0, c is not used: NaN in c does not spread.
      transpose_a: op(a) is a's transpose.
      transpose_b: op(b) is b's transpose.
      strategy: the strategy of the kernel on a GPU: "shallow_k" keeps all of K in registers,
        "cache_persistent" keeps the smaller matrix in shared memory, "warp_parallel" splits K over
        blocks. "auto" is the one for the shape or, where arithmetic bounds the product, XLA's own
        matrix product.
      precision: the precision of the products, as in `jax.lax`; None is JAX's
        `default_matmul_precision`.
      implementation: "ptx" for kernels, which raises where none can run, "xla" for XLA's program,
        or a sequence of them, the preferred first. None is "ptx" on NVIDIA GPUs, else "xla".
        A kernel that is asked for runs whatever bounds the product.

    Returns:
      [..., M, N], in a's dtype. Products are summed in float32, for float64 in float64, and the
      result is rounded once.

    Differentiable in forward and reverse mode, any number of times.

    Raises:
      ValueError: a shape or another argument that does not fit, by name.
      TypeError: an argument of the wrong type or dtype, by name.
    """
    params, batch, operands = _parse_arguments(
        *(a, b, c, alpha, beta),
        *(transpose_a, transpose_b, strategy, precision, implementation),
    )
    operands = _Operands(*map_present(_compat.match_varying, *operands))
    return _over_batch(functools.partial(gemm_matrices, params), batch, operands)


def _reference(*values) -> jax.Array:
    params, batch, operands = _parse_arguments(*values)
    primitive = _PRIMITIVES[params.op.transpose_a, params.op.transpose_b]
    return _over_batch(functools.partial(primitive.call_reference, params), batch, operands)


gemm_reference = reference_twin(
    gemm,
    _reference,
    """`oxijax.gemm` in pure JAX: XLA's own matrix product, and what is added to it.

    Same arguments, meaning, result and errors. It knows no kernels, and does not use `strategy`.
    """,
)


class _Operands(NamedTuple):
    """The operands; alpha and beta have shape [1] and the dtype of the sums.

    Alpha and beta are None where they are 1, c is where beta is 0.
    """

    a: Any
    b: Any
    c: Any
    alpha: Any
    beta: Any


def _parse_arguments(
    a, b, c, alpha, beta, transpose_a, transpose_b, strategy, precision, implementation
) -> tuple[GemmParams, tuple[int, ...], _Operands]:
    """Checks all arguments, and makes them a configuration, the batch's shape and operands."""
    transpose_a = checks.parse_bool("transpose_a", transpose_a)
    transpose_b = checks.parse_bool("transpose_b", transpose_b)
    checks.check_choice("strategy", strategy, ("auto", *cuda_kernels.STRATEGIES))
    a, b = _parse_matrix("a", a), _parse_matrix("b", b)
    checks.check_same_dtype("b", b, "a", a)
    m, depth = a.shape[:-3:-1] if transpose_a else a.shape[-2:]
    depth_of_b, n = b.shape[:-3:-1] if transpose_b else b.shape[-2:]
    if depth_of_b != depth:
        names = "[..., N, K]" if transpose_b else "[..., K, N]"
        raise ValueError(f"b must be {names} with K = {depth} as in a, got shape {b.shape}")
    leading = {"a": a.shape[:-2], "b": b.shape[:-2]}
    if c is not None:
        c = _parse_matrix("c", c)
        checks.check_same_dtype("c", c, "a", a)
        if c.shape[-2:] != (m, n):
            raise ValueError(f"c must be [..., M, N] with M, N = {m}, {n}, got shape {c.shape}")
        leading["c"] = c.shape[:-2]
    try:
        batch = jnp.broadcast_shapes(*leading.values())
    except ValueError:
        raise ValueError(
            f"leading dimensions of {', '.join(leading)} must broadcast against each other, got "
            f"{', '.join(map(str, leading.values()))}"
        ) from None
    wide = accumulator(a)
    alpha, beta = checks.parse_factor("alpha", alpha), checks.parse_factor("beta", beta)
    if isinstance(beta, float) and beta == 0:
        c = None
    elif c is None:
        raise ValueError("c must be an array unless beta is the number 0, got None")
    if is_known(depth):
        cuda_kernels.check_strategy(strategy, depth, a.dtype)
    implementation = parse_implementation(implementation)
    if not (is_known(depth) and (is_known(m) or is_known(n))):
        if strategy != "auto":
            raise ValueError(
                f"strategy must be 'auto' where K, or both M and N, are not known, got "
                f"{strategy!r} with M, N, K = {m}, {n}, {depth}"
            )
        if requires_ptx(implementation):
            raise ValueError(
                "implementation must not be 'ptx' where K, or both M and N, are not known, with "
                f"M, N, K = {m}, {n}, {depth}"
            )
    precision = parse_precision(precision)
    exact = is_exact(precision, a.dtype)
    op = MatrixProduct(transpose_a, transpose_b, strategy, ptx_dtype(a.dtype), exact)
    params = OpParams(op, precision, implementation=implementation)
    factors = _as_factor(alpha, wide), None if c is None else _as_factor(beta, wide)
    c = None if c is None else broadcast(c, (*batch, m, n))
    return params, batch, _Operands(a, b, c, *factors)


def _parse_matrix(name: str, value: Any) -> jax.Array:
    array = checks.to_array(name, value)
    return checks.as_array(name, array, max(2, array.ndim), " or more")


def _as_factor(value: float | jax.Array, dtype: Any) -> jax.Array | None:
    """As an operand, which 1 does without."""
    if isinstance(value, jax.Array):
        return value.astype(dtype).reshape(1)
    return None if value == 1 else lax.full((1,), value, dtype)


def _over_batch(
    function: Callable[..., tuple[jax.Array | None, ...]],
    batch: tuple[int, ...],
    operands: _Operands,
) -> jax.Array:
    """Maps a primitive over leading dimensions, each over those operands that have it.

    What is not mapped is shared, and not copied: `KernelPrimitive` sees to that.
    """
    a, b, c, alpha, beta = operands
    matrices = [matrix for matrix in (a, b, c) if matrix is not None]

    def product(*matrices):
        a, b, *rest = (jnp.expand_dims(matrix, 0) for matrix in matrices)
        (y,) = function(a, b, rest[0] if rest else None, alpha, beta)
        assert y is not None
        return y.squeeze(0)

    leading = [(1,) * (len(batch) + 2 - v.ndim) + v.shape[:-2] for v in matrices]
    own = jnp.broadcast_shapes(*leading)  # c, which may have more, may be unused
    for sizes in reversed([*zip(*leading, strict=True)]):
        if any(size != 1 for size in sizes):
            product = jax.vmap(product, [None if size == 1 else 0 for size in sizes])
    y = product(
        *(
            v.reshape(*(size for size in sizes if size != 1), *v.shape[-2:])
            for v, sizes in zip(matrices, leading, strict=True)
        )
    )
    matrix = y.shape[-2:]
    return broadcast(y.reshape(*own, *matrix), (*batch, *matrix))


# The primitives, one for each layout of the operands.
#
# They are linear in a, in b and in alpha, and the transposes in a and b are products again. That
# makes every derivative, in either mode and of any order, a few calls of them.


def gemm_matrices(
    params: GemmParams,
    a: jax.Array,
    b: jax.Array,
    c: jax.Array | None = None,
    alpha: jax.Array | None = None,
    beta: jax.Array | None = None,
) -> tuple[jax.Array]:
    """The product by its primitive; operands as for `oxijax._gemm.reference.gemm`."""
    primitive = _PRIMITIVES[params.op.transpose_a, params.op.transpose_b]
    (y,) = primitive(params, a, b, c, alpha, beta)
    assert y is not None
    return (y,)


def _grad_a(params: GemmParams, a, b, c, alpha, beta, grad_y) -> tuple[jax.Array]:
    if params.op.transpose_a:
        return gemm_matrices(_layout(params, params.op.transpose_b, True), b, grad_y, alpha=alpha)
    return gemm_matrices(_layout(params, False, not params.op.transpose_b), grad_y, b, alpha=alpha)


def _grad_b(params: GemmParams, a, b, c, alpha, beta, grad_y) -> tuple[jax.Array]:
    if b.shape[0] == 1 and _rows_are_one(params, a, alpha, grad_y):
        # The sum over products that share b is one over the rows of them all.
        a, grad_y = (v.reshape(1, v.shape[0] * v.shape[1], v.shape[2]) for v in (a, grad_y))
    if params.op.transpose_b:
        return gemm_matrices(_layout(params, True, params.op.transpose_a), grad_y, a, alpha=alpha)
    return gemm_matrices(_layout(params, not params.op.transpose_a, False), a, grad_y, alpha=alpha)


def _rows_are_one(params: GemmParams, a, alpha, grad_y) -> bool:
    """Whether the rows of all products lie behind each other, and have the same factor."""
    one_factor = alpha is None or alpha.shape[0] == 1
    return one_factor and not params.op.transpose_a and a.shape[0] == grad_y.shape[0]


def _grad_alpha(params: GemmParams, a, b, c, alpha, beta, grad_y) -> tuple[jax.Array]:
    (product,) = gemm_matrices(params, a, b)
    return (jnp.sum(product.astype(alpha.dtype) * grad_y.astype(alpha.dtype), (1, 2)),)


def _layout(params: GemmParams, transpose_a: bool, transpose_b: bool) -> GemmParams:
    """The parameters of a gradient's product, whose strategy is chosen for its own shape."""
    return params.with_op(transpose_a=transpose_a, transpose_b=transpose_b, strategy="auto")


_FOLDS = (
    # b is shared: more rows.
    Fold("m", fits=lambda params: not params.op.transpose_a),
    Fold("g"),
    # Where b is not mapped, but is one of many already: more rows even of a transposed a.
    Fold("m"),
    # The same of a: more columns.
    Fold("n"),
)

_PRIMITIVES = {
    (transpose_a, transpose_b): OperationPrimitive(
        PRODUCT,
        kernels.gemm,
        cuda_kernels.gemm,
        op=MatrixProduct(transpose_a, transpose_b),
        folds=_FOLDS,
        # A sum that c is added to has to be whole.
        parallel=lambda params, operands: "g m n" if "c" in operands else "g m n k",
        product=Product({"a": _grad_a, "b": _grad_b, "alpha": _grad_alpha}, term="c", scale="beta"),
    )
    for transpose_a, transpose_b in itertools.product((False, True), repeat=2)
}
