"""Types and precisions of JAX and of kernels, and how they correspond."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import ptx
from oxijax._core.arguments.checks import shown

__all__ = [
    "PTX_DTYPES",
    "accumulator",
    "is_exact",
    "numpy_dtype",
    "parse_precision",
    "parse_precisions",
    "ptx_dtype",
    "usual_promotion",
]

# What operands may have, by the name that JAX gives it.
PTX_DTYPES = {"float16": ptx.f16, "bfloat16": ptx.bf16, "float32": ptx.f32, "float64": ptx.f64}
_NUMPY_NAMES = {dtype: name for name, dtype in PTX_DTYPES.items()}
_NUMPY_NAMES |= {ptx.u32: "int32", ptx.s32: "int32"}  # JAX counts in int32; the bits are the same


def ptx_dtype(dtype: jax.typing.DTypeLike) -> ptx.DType:
    """The type of an operand as kernels name it."""
    return PTX_DTYPES[jnp.dtype(dtype).name]


def numpy_dtype(dtype: ptx.DType) -> np.dtype:
    """The type of a kernel's array as JAX names it."""
    return jnp.dtype(_NUMPY_NAMES[dtype])


def is_exact(precision: lax.Precision, dtype: jax.typing.DTypeLike) -> bool:
    """Whether products are of float32: HIGHEST asks for it, HIGH means TF32 on a GPU, as in XLA."""
    return precision == lax.Precision.HIGHEST and jnp.dtype(dtype) == jnp.float32


def accumulator(array: jax.Array) -> np.dtype:
    """The dtype in which values of an array are summed: float32, or float64 for float64."""
    return jnp.dtype(jnp.float64 if array.dtype == jnp.float64 else jnp.float32)


@contextlib.contextmanager
def usual_promotion() -> Iterator[None]:
    """JAX's usual promotion of dtypes and ranks, whatever a program has set for its own code.

    `jax_numpy_dtype_promotion` and `jax_numpy_rank_promotion` are for finding mistakes in the code
    that is traced under them, and a library's own code is not what their user looks for them in.
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


# The precision whose products are as precise as a preset's at least; of others it is the default.
_AT_LEAST = {
    **dict.fromkeys(("F16_F16_F16", "F16_F16_F32", "TF32_TF32_F32"), lax.Precision.HIGH),
    **dict.fromkeys(
        (
            *("BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "BF16_BF16_F32_X9"),
            *("TF32_TF32_F32_X3", "F32_F32_F32", "F64_F64_F64"),
        ),
        lax.Precision.HIGHEST,
    ),
}


def parse_precision(value: Any) -> lax.Precision:
    """`precision` as one value; None is JAX's `default_matmul_precision`.

    A `jax.lax.DotAlgorithmPreset` is the precision whose products are as precise at least: it names
    what one platform's matrix product does, which these operators are not.
    """
    first, second = parse_precisions(value)
    if first != second:
        raise ValueError(f"precision must be the same for both operands, got {shown(value)}")
    return first


def parse_precisions(value: Any) -> tuple[lax.Precision, lax.Precision]:
    """`precision` of each operand, which may be given as a pair."""
    pair = value if isinstance(value, tuple | list) and len(value) == 2 else (value, value)
    if value is None:
        default = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
        pair = (default or lax.Precision.DEFAULT,) * 2
    with contextlib.suppress(ValueError):
        return _as_precision(pair[0]), _as_precision(pair[1])
    names = ", ".join(repr(p.name.lower()) for p in lax.Precision)
    got = f"jax_default_matmul_precision {pair[0]!r}" if value is None else shown(value)
    raise ValueError(
        "precision must be None, a jax.lax.Precision, a jax.lax.DotAlgorithmPreset or one of "
        f"{names}, got {got}"
    )


def _as_precision(value: Any) -> lax.Precision:
    """One operand's precision; ValueError if it is none."""
    name = value.name if isinstance(value, lax.DotAlgorithmPreset) else value
    if isinstance(name, str) and name in lax.DotAlgorithmPreset.__members__:
        return _AT_LEAST.get(name, lax.Precision.DEFAULT)
    # The enumeration's values are ints, which it would take too.
    if not isinstance(value, str | lax.Precision):
        raise ValueError(f"no precision: {value!r}")
    return lax.Precision(value)
