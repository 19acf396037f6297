"""Matrix products as XLA's own, over a batch.

`gemm` is the lowering of the primitives wherever no kernel is, and what every kernel is judged
by. Sums are in float32, float64 for float64; so are alpha and beta * c, before the result is
rounded.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from oxijax._core.arguments.precision import accumulator
from oxijax._core.primitive.operation import OpParams
from ptx.kernels.gemm import MatrixProduct

__all__ = ["GemmParams", "epilogue", "gemm"]


GemmParams = OpParams[MatrixProduct]


def gemm(
    params: GemmParams,
    a: jax.Array,
    b: jax.Array,
    c: jax.Array | None,
    alpha: jax.Array | None,
    beta: jax.Array | None,
) -> tuple[jax.Array]:
    """The result [G, M, N], in a's dtype.

    Args:
      params: the product.
      a: [G, M, K] or [G, K, M]. Of a, b, alpha and beta G may be 1: shared by the batch.
      b: [G, K, N] or [G, N, K].
      c: [G, M, N], added.
      alpha: [G], the product's factor; in the dtype of the sums, as beta.
      beta: [G], c's factor.
    """
    a_axis, b_axis = 1 if params.op.transpose_a else 2, 2 if params.op.transpose_b else 1
    dot = functools.partial(
        lax.dot_general,
        precision=params.precision,
        preferred_element_type=accumulator(a),
    )
    if b.shape[0] == 1:
        product = dot(a, b.squeeze(0), (((a_axis,), (b_axis - 1,)), ((), ())))
    elif a.shape[0] == 1:
        # Transposed: the batch's rows come first, which is what XLA does best. On a CPU, XLA
        # cannot do some products of bfloat16 the other way round.
        product = dot(b, a.squeeze(0), (((b_axis,), (a_axis - 1,)), ((), ()))).mT
    else:
        product = dot(a, b, (((a_axis,), (b_axis,)), ((0,), (0,))))
    return (epilogue(product, c, alpha, beta, a.dtype),)


def epilogue(
    product: jax.Array,
    c: jax.Array | None,
    alpha: jax.Array | None,
    beta: jax.Array | None,
    dtype: jnp.dtype,
) -> jax.Array:
    """The result from the product in the dtype of the sums; operands as for `gemm`."""
    y = product
    if alpha is not None:
        y = alpha[:, None, None] * y
    if c is not None:
        term = c.astype(product.dtype)
        if beta is not None:
            beta = beta[:, None, None]
            # Where beta is 0, c is not used, whatever it holds. Finite values may stay: they make
            # no difference here, and are the derivative with respect to beta.
            term = beta * jnp.where((beta == 0) & ~jnp.isfinite(term), 0, term)
        y = y + term
    return y.astype(dtype)
