"""Matrix products as nodes of ONNX."""

import jax
import jax.numpy as jnp
import numpy as np

from oxijax._core.arguments.precision import accumulator
from oxijax._gemm.reference import GemmParams, epilogue
from oxijax.onnx._node import node

__all__ = ["gemm"]

Factor = jax.Array | np.ndarray | None


def gemm(
    opset: int,
    params: GemmParams,
    a: jax.Array,
    b: jax.Array,
    c: jax.Array | None,
    alpha: Factor,
    beta: Factor,
) -> jax.Array:
    """`gemm` as Gemm if it is one product whose factors are numbers, else as MatMul.

    Factors that the model has as constants are numpy's.
    """
    single = a.shape[0] == 1 and b.shape[0] == 1
    if single and not any(isinstance(v, jax.Array) for v in (alpha, beta)):
        a, b = a.squeeze(0), b.squeeze(0)
        y = node(
            "Gemm",
            (a, b) if c is None else (a, b, c.squeeze(0)),
            (a.shape[params.op.transpose_a], b.shape[not params.op.transpose_b]),
            alpha=_as_number(alpha),
            beta=_as_number(beta),
            transA=int(params.op.transpose_a),
            transB=int(params.op.transpose_b),
        )
        return jnp.expand_dims(y, 0)
    # Sums, and what is done to them, are wide; the result is rounded once.
    dtype, wide = a.dtype, accumulator(a)
    a, b = a.astype(wide), b.astype(wide)
    a, b = a.mT if params.op.transpose_a else a, b.mT if params.op.transpose_b else b
    products = b.shape[0] if a.shape[0] == 1 else a.shape[0]
    y = node("MatMul", (a, b), (products, a.shape[1], b.shape[2]))
    alpha, beta = (None if v is None else jnp.asarray(v) for v in (alpha, beta))
    return epilogue(y, c, alpha, beta, dtype)


def _as_number(factor: Factor) -> float:
    return 1.0 if factor is None else float(np.asarray(factor).item())
