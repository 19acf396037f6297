"""Reading and checking of arguments and of sizes.

Everything here raises at trace time a `ValueError` or `TypeError` that names the argument,
what was expected and what came.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from oxijax._core import compat as _compat
from oxijax._core.process import forked

__all__ = [
    "FLOAT_DTYPES",
    "MOST",
    "PTX",
    "XLA",
    "Implementation",
    "ImplementationLike",
    "as_array",
    "as_float_array",
    "batch_groups",
    "check_arguments",
    "check_callable",
    "check_choice",
    "check_keywords",
    "check_not_forked",
    "check_range",
    "check_same_dtype",
    "check_shape",
    "is_int",
    "is_known",
    "is_sequence",
    "likely",
    "parse_bool",
    "parse_dtype",
    "parse_factor",
    "parse_float_dtype",
    "parse_implementation",
    "parse_int",
    "parse_number",
    "parse_sequence",
    "require_at_least",
    "require_product",
    "requires_ptx",
    "shown",
    "takes_ptx",
    "to_array",
]


FLOAT_DTYPES = tuple(jnp.dtype(t) for t in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64))
_FLOAT_NAMES = ", ".join(dtype.name for dtype in FLOAT_DTYPES)


#: Bound of strides, dilations, padding and numbers of features: sums and products of a few are far
#: from what 64 bits hold, and the place of a tap is within what 32 bits do.
MOST = 2**30

_MANY = 1 << 16  # pixels of a batch, or rows of a matrix


def shown(value: Any) -> str:
    """`value` in the text of an error, cut off where it is long."""
    if isinstance(value, Tracer):
        return f"{value}, traced by JAX where it must be static (as by functools.partial)"
    try:
        text = repr(value)
    except ValueError:  # Python writes no int of more than 4,300 digits
        return f"a {type(value).__name__} that is too long to be written"
    return text if len(text) <= 200 else f"{text[:200]}..."


def is_int(value: Any) -> bool:
    """Whether it is an integer as such: no bool, and no span of time, which NumPy counts as one."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def parse_int(name: str, value: Any, most: int = MOST) -> int:
    """A positive int."""
    if not is_int(value):
        raise TypeError(f"{name} must be an int, got {shown(value)}")
    check_range(name, [value], value, 1, most)
    return int(value)


def parse_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be a bool, got {shown(value)}")
    return bool(value)


def parse_factor(name: str, value: Any) -> float | jax.Array:
    """A number as a float; an array without dimensions as it is."""
    if isinstance(value, float | np.floating) or is_int(value):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{name} must fit in a float, got {shown(value)}") from None
    if not _is_array(value):
        raise TypeError(f"{name} must be a number or an array, got {shown(value)}")
    array = to_array(name, value)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.integer, jnp.floating)):
        raise TypeError(f"{name} must be real, got dtype {array.dtype}")
    if array.ndim:
        raise ValueError(f"{name} must have no dimensions, got shape {array.shape}")
    return array


def parse_number(name: str, value: Any) -> float:
    """A finite number, of Python or NumPy."""
    number = parse_factor(name, value)
    if not isinstance(number, float) or not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {shown(value)}")
    return number


def parse_sequence(name: str, value: Any) -> Sequence[Any]:
    """A sequence with something in it."""
    if not is_sequence(value):
        raise TypeError(f"{name} must be a sequence, got {shown(value)}")
    if not len(value):
        raise ValueError(f"{name} must not be empty, got {shown(value)}")
    return value


def parse_dtype(name: str, value: Any) -> jnp.dtype:
    # NumPy takes None for float64, and an array for the dtype that it has.
    if value is not None and (isinstance(value, type) or not hasattr(value, "dtype")):
        with contextlib.suppress(TypeError, ValueError, SyntaxError):
            return jnp.dtype(value)
    raise TypeError(f"{name} must be one of {_FLOAT_NAMES}, got {shown(value)}")


def parse_float_dtype(name: str, value: Any) -> jnp.dtype:
    dtype = parse_dtype(name, value)
    if dtype not in FLOAT_DTYPES:
        raise TypeError(f"{name} must be one of {_FLOAT_NAMES}, got {shown(value)}")
    return dtype


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray) or hasattr(value, "__jax_array__")


def to_array(name: str, value: Any) -> jax.Array:
    """`value`, which must be an array of some kind, as a JAX array."""
    if not _is_array(value):
        raise TypeError(f"{name} must be an array, got {type(value).__name__}")
    check_not_forked()  # before anything that JAX would hang in
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        of = f" of dtype {value.dtype}" if hasattr(value, "dtype") else ""
        raise TypeError(
            f"{name} must be an array that JAX can hold, got {type(value).__name__}{of}: {error}"
        ) from error


def as_float_array(name: str, value: Any) -> jax.Array:
    """`value` as a JAX array of a supported floating dtype."""
    array = to_array(name, value)
    if array.dtype not in FLOAT_DTYPES:
        raise TypeError(f"{name} must have one of the dtypes {_FLOAT_NAMES}, got {array.dtype}")
    return array


def as_array(name: str, value: Any, ndim: int, why: str = "") -> jax.Array:
    """`value` as a JAX array of a supported floating dtype and `ndim` dimensions."""
    array = as_float_array(name, value)
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions{why}, got shape {array.shape}")
    return array


def check_same_dtype(name: str, array: jax.Array, other_name: str, other: jax.Array) -> None:
    if array.dtype != other.dtype:
        raise TypeError(
            f"{name} must have the dtype of {other_name}, {other.dtype}, got {array.dtype}"
        )


def check_shape(
    name: str, array: jax.Array, names: Sequence[str], expected: Sequence[int | str]
) -> None:
    """Checks a shape against sizes; a string stands for a size that was checked elsewhere."""
    if any(isinstance(e, int) and s != e for s, e in zip(array.shape, expected, strict=True)):
        raise ValueError(
            f"{name} must have shape ({', '.join(names)}) = "
            f"({', '.join(map(str, expected))}), got {array.shape}"
        )


def check_choice(
    name: str, value: Any, choices: Sequence[str], elsewhere: Mapping[str, str] | None = None
) -> None:
    """Checks a word; `elsewhere` has what other libraries call some of the choices."""
    if not isinstance(value, str) or value not in choices:
        expected = ", ".join(map(repr, choices))
        ours = elsewhere.get(value) if elsewhere and isinstance(value, str) else None
        hint = f", which is called {ours!r} here" if ours else ""
        raise ValueError(f"{name} must be one of {expected}, got {shown(value)}{hint}")


def check_callable(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be a function, got {shown(value)}")


def check_arguments(name: str, args: Sequence[Any]) -> None:
    """Checks what a function is called with outside of any program: `args` of the tool `name`.

    Leaves of its pytrees are arrays, numbers, or a `jax.ShapeDtypeStruct` in place of an array.
    """
    for number, arg in enumerate(args):
        for path, leaf in jax.tree_util.tree_leaves_with_path(arg):
            where = f"args[{number}]{jax.tree_util.keystr(path)}"
            if isinstance(leaf, Tracer):
                raise TypeError(
                    f"{where} must be an array with values: {name} is not for use within jit"
                )
            if isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
                to_array(where, np.asarray(leaf))
            elif not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
                raise TypeError(
                    f"{where} must be an array or a jax.ShapeDtypeStruct, got {shown(leaf)}"
                )


def check_keywords(name: str, value: Any) -> None:
    """Checks a mapping that is passed on as keyword arguments."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{name} must be a mapping from strings, got {shown(value)}")


def check_out_sharding(value: Any) -> None:
    """Raises TypeError unless a value says how a result is sharded, or is None."""
    if not isinstance(value, NamedSharding | PartitionSpec | None):
        raise TypeError(
            f"out_sharding must be None, a NamedSharding or a PartitionSpec, got {shown(value)}"
        )


def check_not_forked() -> None:
    """Raises RuntimeError in a child whose parent had launched kernels."""
    if forked.value:
        raise RuntimeError(
            "this process was forked after its parent had launched kernels, and neither JAX nor "
            "CUDA works in such a child: start it with multiprocessing's 'spawn' or 'forkserver' "
            "method"
        )


def check_range(name: str, values: Sequence[int], value: Any, least: int, most: int = MOST) -> None:
    """Checks the numbers that `value` has."""
    if min(values) < least:
        kind = {0: "not be negative", 1: "be positive"}.get(least, f"be at least {least}")
        raise ValueError(f"{name} must {kind}, got {shown(value)}")
    if max(values) > most:
        raise ValueError(f"{name} must be at most {most}, got {shown(value)}")


def is_sequence(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(
        value, str | bytes | bytearray | memoryview
    )


PTX, XLA = "ptx", "xla"

Implementation = tuple[str, ...] | None
"""The programs that an operation may run, the preferred first; None leaves it to the platform."""

ImplementationLike = str | Sequence[str] | None
"""The same as an argument of public functions."""


def parse_implementation(value: Any) -> Implementation:
    """Checks the argument `implementation`.

    Raises:
      ValueError: a name of no implementation, one that is given twice, or none at all.
      TypeError: neither None, nor a string, nor a sequence of strings.
    """
    if value is None:
        return None
    many = [value] if isinstance(value, str) else parse_sequence("implementation", value)
    names = tuple(many)
    for name in names:
        check_choice("implementation", name, (PTX, XLA))
    if not names or len(set(names)) < len(names):
        raise ValueError(
            "implementation must be None, 'ptx', 'xla' or a sequence of these names, each once, "
            f"got {shown(value)}"
        )
    return names


def requires_ptx(implementation: Implementation) -> bool:
    """Whether nothing but a kernel will do."""
    return implementation is not None and XLA not in implementation


def takes_ptx(implementation: Implementation, operation: str, obstacle: str | None) -> bool:
    """Whether an operation runs its kernel.

    Args:
      implementation: what was asked for.
      operation: its name, for the message.
      obstacle: why no kernel can run here, as the end of a sentence; None where one can.

    Raises:
      ValueError: only a kernel was asked for, and none can run.
    """
    for choice in implementation or (PTX, XLA):
        if choice == XLA:
            return False
        if obstacle is None:
            return True
    raise ValueError(
        f"implementation 'ptx' of {operation} cannot run here: {obstacle}. implementation=None "
        "takes XLA's program then, as ('ptx', 'xla') does"
    )


def is_known(*sizes: Any) -> bool:
    """Whether all of them are numbers, not symbolic dimensions."""
    return not any(export.is_symbolic_dim(size) for size in sizes)


def likely(size: Any) -> int:
    """The size, or a large one where it is not known: for choices that no result depends on."""
    return size if is_known(size) else _MANY


def require_at_least(size: Any, least: int, message: str) -> None:
    """Raises ValueError where a size is too small: now, or when the program knows it."""
    try:
        fits = size >= least
    except jax.errors.InconclusiveDimensionOperation:
        _compat.require_when_known(jnp.asarray(size) >= least, message)
        return
    if not fits:
        raise ValueError(message)


def require_product(factors: tuple[Any, ...], most: int, message: str) -> None:
    """Raises ValueError where a product of sizes is too large: now, or when it is known."""
    if is_known(*factors):
        if math.prod(factors) > most:
            raise ValueError(message)
        return
    # A program knows sizes in 32 bits, in which a product might not fit.
    quotient: Any = most
    *divisors, last = factors
    for divisor in divisors:
        quotient = quotient // divisor
    _compat.require_when_known(jnp.asarray(last) <= jnp.asarray(quotient), message)


def batch_groups(ctx: Any, batch: Any) -> int:
    """Groups of a batch that XLA may give to different devices, in a lowering.

    Args:
      ctx: the context of the lowering.
      batch: a size, which may be symbolic.
    """
    devices = _compat.partitioned_devices(ctx)
    if isinstance(batch, int):
        return math.gcd(batch, devices) if batch else 1
    return devices if batch % devices == 0 else 1
