"""Types and precisions of JAX and of kernels, and how they correspond."""

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import ptx

__all__ = ["PTX_DTYPES", "accumulator", "is_exact", "numpy_dtype", "ptx_dtype", "usual_promotion"]

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
