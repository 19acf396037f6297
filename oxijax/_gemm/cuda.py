"""Lowerings of the gemm primitives on a GPU."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax

from oxijax._core.arguments.checks import is_known, likely, requires_ptx
from oxijax._core.arguments.precision import ptx_dtype
from oxijax._core.calls.decisions import note_reason
from oxijax._core.gpu.data_sheets import default_data_sheet
from oxijax._core.launch import call, emulation
from oxijax._gemm import reference as kernels
from oxijax._gemm.reference import GemmParams
from oxijax._gemm.roofline import DOT_GENERAL, auto_strategy
from ptx.devices import find_data_sheet
from ptx.kernels.gemm import GEMM, STRATEGIES, GemmConfig, choose

__all__ = ["STRATEGIES", "check_strategy", "gemm"]


def check_strategy(strategy: str, depth: int, dtype: Any) -> None:
    """Raises ValueError for a strategy that cannot have a K of this size."""
    choose(1, 1, max(1, depth), float_type=ptx_dtype(dtype), strategy=strategy)


def gemm(params: GemmParams, a, b, c, alpha, beta):
    """The result [G, M, N]; operands as for `oxijax._gemm.reference.gemm`."""
    m, n, k = _extents(params, a, b)
    present = [value for value in (a, b, c, alpha, beta) if value is not None]
    batch = next((value.shape[0] for value in present if value.shape[0] != 1), 1)
    strategy, sizes = DOT_GENERAL, _assumed(m, n, k, batch)
    if sizes is not None and 0 not in sizes:
        strategy = _strategy(params, sizes, a.dtype, c is not None)
    if sizes is None and requires_ptx(params.implementation):
        raise ValueError(
            "implementation 'ptx' of gemm cannot run here: its kernels have to know K, and M or N, "
            f"of M, N, K = {m}, {n}, {k}"
        )
    if sizes is None or strategy == DOT_GENERAL:
        note_reason(
            "kernels have to know K, and M or N"
            if sizes is None
            else "arithmetic bounds a product of these sizes, or there is nothing to multiply"
        )
        return kernels.gemm(params, a, b, c, alpha, beta)
    kernel = _kernel(params, sizes, strategy, c=c, alpha=alpha, beta=beta)
    if kernel.parts is not None:
        product = _split_product(params, kernel, a, b)
        return (kernels.epilogue(product, c, alpha, beta, a.dtype),)

    split = "g" if batch != 1 else ""
    if batch == 1 and not kernel.swapped and not params.op.transpose_a:
        # The rows of a product are independent too: of one they are what XLA may split.
        split = "r"
        a, b = a.squeeze(0), b.squeeze(0)
        c = None if c is None else c.squeeze(0)
    large, small = (b, a) if kernel.swapped else (a, b)
    (y,) = call(
        GEMM, kernel, batch=split, products=batch * m * n * k,
        large=large, small=small, alpha=alpha, beta=beta, c=c,
    )  # fmt: skip
    assert y is not None
    return (y.reshape(batch, m, n),)


def _split_product(params: GemmParams, kernel: GemmConfig, a, b) -> jax.Array:
    """The product [G, M, N] in the dtype of the sums, which are split along K; G may be 1.

    The parts are summed here, always in the same order. Where K leads both operands, as rows do
    in the gradient with respect to b, parts are made products of their own, so that XLA may split
    them over devices.
    """
    assert kernel.parts is not None
    m, n, k = _extents(params, a, b)
    batch = b.shape[0] if a.shape[0] == 1 else a.shape[0]
    pieces = 1
    if batch == 1 and is_known(k) and params.op.transpose_a and not params.op.transpose_b:
        pieces = math.gcd(k, 1 << (kernel.parts.bit_length() - 1))
    if pieces > 1:
        a, b = (v.reshape(pieces, k // pieces, v.shape[2]) for v in (a, b))
        kernel = _kernel(params, (m, n, k // pieces, pieces), kernel.strategy)
        return _split_product(params, kernel, a, b).sum(axis=0, keepdims=True)
    large, small = (b, a) if kernel.swapped else (a, b)
    (parts,) = call(
        GEMM, kernel, batch="g" if batch != 1 else "", products=batch * m * n * k,
        large=large, small=small,
    )  # fmt: skip
    assert parts is not None
    product = parts.sum(axis=1)
    return product.mT if kernel.swapped else product


def _assumed(m: int, n: int, k: int, batch: int) -> tuple[int, int, int, int] | None:
    """Sizes by which a kernel is chosen, of which some may not be known yet.

    A kernel need not know the longer side of a product, nor how many products there are. None
    where other sizes are not known: there XLA has the product.
    """
    if not is_known(k) or not (is_known(m) or is_known(n)):
        return None
    if not is_known(m):
        m = max(likely(m), n)
    elif not is_known(n):
        n = max(likely(n), m + 1)
    return m, n, k, likely(batch)


def _extents(params: GemmParams, a, b) -> tuple[int, int, int]:
    """M, N and K."""
    k, m = a.shape[1:] if params.op.transpose_a else a.shape[:0:-1]
    return m, b.shape[1 if params.op.transpose_b else 2], k


def _kernel(
    params: GemmParams, sizes: Sequence[int], strategy: str, c=None, alpha=None, beta=None
) -> GemmConfig:
    m, n, k, batch = sizes
    product = dataclasses.replace(
        params.op,
        strategy=strategy,
        use_alpha=alpha is not None,
        use_c=c is not None,
        use_beta=beta is not None,
    )
    return choose(m, n, k, batch=batch, **vars(product))


def _strategy(params: GemmParams, sizes: Sequence[int], dtype, reads_c: bool) -> str:
    if params.op.strategy != "auto":
        return params.op.strategy
    m, n, k, batch = sizes
    exact, float_type = params.op.exact, params.op.float_type
    if params.implementation is not None:  # a kernel was asked for, whatever bounds the product
        return choose(m, n, k, batch=batch, float_type=float_type, exact=exact).strategy
    emulated = emulation.value
    sheet = default_data_sheet() if emulated is None else find_data_sheet(emulated.target)
    return auto_strategy(
        m, n, k, dtype=dtype.name, sheet=sheet, batch=batch, exact=exact, reads_c=reads_c
    )
