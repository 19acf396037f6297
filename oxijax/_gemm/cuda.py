"""Matrix products on a GPU: the CUDA lowering of the primitives."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

import ptx
from oxijax._core.launch import emulation, launch
from oxijax._gemm import reference as kernels
from oxijax._gemm.reference import GemmParams
from oxijax._gemm.roofline import DOT_GENERAL, auto_strategy, default_data_sheet
from ptx.devices import find_data_sheet
from ptx.kernels.gemm import STRATEGIES, GemmConfig, choose

__all__ = ["STRATEGIES", "check_strategy", "gemm"]

_DTYPES = {"float16": ptx.f16, "bfloat16": ptx.bf16, "float32": ptx.f32, "float64": ptx.f64}


def check_strategy(strategy: str, depth: int, dtype: Any) -> None:
    """Raises ValueError for a strategy that cannot have a K of this size."""
    choose(1, 1, max(1, depth), float_type=_DTYPES[dtype.name], strategy=strategy)


def gemm(config: GemmParams, a, b, c, alpha, beta):
    """The result [G, M, N]; operands as for `oxijax._gemm.reference.gemm`."""
    m, n, k = _extents(config, a, b)
    here = [value for value in (a, b, c, alpha, beta) if value is not None]
    batch = next((value.shape[0] for value in here if value.shape[0] != 1), 1)
    sizes = (m, n, k, batch)
    strategy = DOT_GENERAL if 0 in sizes else _strategy(config, sizes, a.dtype, c is not None)
    if strategy == DOT_GENERAL:
        return kernels.gemm(config, a, b, c, alpha, beta)
    kernel = _kernel(config, sizes, a.dtype, strategy, c=c, alpha=alpha, beta=beta)
    if kernel.parts is not None:
        product = _split_product(config, kernel, a, b)
        return (kernels.epilogue(product, c, alpha, beta, a.dtype),)

    operands = [b, a, *here[2:]] if kernel.swapped else here
    aliases = {} if c is None else {2: 0}
    shape, batch_dims = (batch, m, n), min(batch - 1, 1)
    shared = [i for i, operand in enumerate(operands) if operand.shape[0] == 1]
    if batch == 1 and not kernel.swapped and not config.transpose_a:
        # The rows of a product are independent too: of one they are what XLA may split.
        operands = [v.reshape(v.shape[1:]) if v.ndim == 3 else v for v in operands]
        shape, batch_dims = (m, n), 1
        shared = [i for i in shared if i != 0 and i not in aliases]
    y = jax.ShapeDtypeStruct(shape, a.dtype)
    (y,) = launch(
        "gemm",
        kernel,
        operands,
        [y],
        aliases=aliases,
        batch_dims=batch_dims,
        shared=shared if batch_dims else (),
    )
    return (y.reshape(batch, m, n),)


def _split_product(config: GemmParams, kernel: GemmConfig, a, b) -> jax.Array:
    """The product [G, M, N] in the dtype of the sums, which are split along K; G may be 1.

    The parts are summed here, always in the same order. Where K leads both operands, as rows do
    in the gradient with respect to b, parts are made products of their own, so that XLA may split
    them over devices.
    """
    assert kernel.parts is not None
    m, n, k = _extents(config, a, b)
    batch = b.shape[0] if a.shape[0] == 1 else a.shape[0]
    pieces = 1
    if batch == 1 and config.transpose_a and not config.transpose_b:
        pieces = math.gcd(k, 1 << (kernel.parts.bit_length() - 1))
    if pieces > 1:
        a, b = (v.reshape(pieces, k // pieces, v.shape[2]) for v in (a, b))
        kernel = _kernel(config, (m, n, k // pieces, pieces), a.dtype, kernel.strategy)
        return _split_product(config, kernel, a, b).sum(axis=0, keepdims=True)
    rows, columns = (n, m) if kernel.swapped else (m, n)
    operands = [b, a] if kernel.swapped else [a, b]
    wide = jnp.promote_types(a.dtype, jnp.float32)
    parts = jax.ShapeDtypeStruct((batch, kernel.parts, rows, columns), wide)
    shared = [i for i, operand in enumerate(operands) if operand.shape[0] == 1]
    split = {"batch_dims": 1, "shared": shared} if batch > 1 else {}
    (parts,) = launch("gemm", kernel, operands, [parts], **split)
    product = parts.sum(axis=1)
    return product.mT if kernel.swapped else product


def _extents(config: GemmParams, a, b) -> tuple[int, int, int]:
    """M, N and K."""
    k, m = a.shape[1:] if config.transpose_a else a.shape[:0:-1]
    return m, b.shape[1 if config.transpose_b else 2], k


def _kernel(
    config: GemmParams, sizes: Sequence[int], dtype, strategy: str, c=None, alpha=None, beta=None
) -> GemmConfig:
    m, n, k, batch = sizes
    return choose(
        m,
        n,
        k,
        batch=batch,
        transpose_a=config.transpose_a,
        transpose_b=config.transpose_b,
        float_type=_DTYPES[dtype.name],
        exact=_is_exact(config, dtype),
        strategy=strategy,
        use_alpha=alpha is not None,
        use_c=c is not None,
        use_beta=beta is not None,
    )


def _strategy(config: GemmParams, sizes: Sequence[int], dtype, reads_c: bool) -> str:
    if config.strategy != "auto":
        return config.strategy
    emulated = emulation.value
    sheet = default_data_sheet() if emulated is None else find_data_sheet(emulated.target)
    m, n, k, batch = sizes
    return auto_strategy(
        m,
        n,
        k,
        dtype=dtype.name,
        sheet=sheet,
        batch=batch,
        exact=_is_exact(config, dtype),
        reads_c=reads_c,
    )


def _is_exact(config: GemmParams, dtype) -> bool:
    # HIGH means TF32 on a GPU, as in XLA.
    return config.precision == jax.lax.Precision.HIGHEST and dtype == jnp.float32
