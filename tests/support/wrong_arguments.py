"""Values that arguments may not have, by the kind of the argument, and some that they may."""

import dataclasses
import fractions
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from support.conv_arguments import spec

__all__ = [
    "Argument",
    "Entry",
    "anything",
    "array",
    "boolean",
    "bound",
    "choice",
    "count",
    "counts",
    "dtype",
    "factor",
    "function",
    "implementation",
    "instance",
    "is_big",
    "is_zero",
    "mapping",
    "number",
    "operands",
    "pads",
    "pair",
    "pairs",
    "precision",
    "trees",
]


@dataclasses.dataclass(frozen=True)
class Argument:
    """What an argument may be replaced by, in a call whose other arguments are right.

    Attributes:
      right: values that are accepted.
      wrong: values that a ValueError or TypeError refuses, by the argument's name.
      uncovered: values that a NotImplementedError refuses, by the argument's name.
    """

    right: Sequence[Any]
    wrong: Sequence[Any]
    uncovered: Sequence[Any] = ()


@dataclasses.dataclass(frozen=True)
class Entry:
    """A public function.

    Attributes:
      call: the function, by the names of its arguments.
      right: the arguments that it is called with.
      arguments: the values by which these, and its other arguments, may be replaced.
      signature: the callable whose parameters are those of `arguments`; None is `call`.
      traced: whether its arrays may be abstract.
    """

    call: Callable[..., Any]
    right: Mapping[str, Any]
    arguments: Mapping[str, Argument]
    signature: Callable[..., Any] | None = None
    traced: bool = True


BIG_ENDIAN = np.ones((2, 2), ">f4")
OBJECTS = np.array([1.0, None])
STRINGS = np.array(["1", "2"])

# What is wrong nearly everywhere. Kinds leave out what is right for them.
JUNK: list[Any] = [
    None, True, False, np.bool_(True), 0, -1, np.int64(-1), 1.5, np.float32(1.5), float("nan"),
    float("inf"), 1j, 2**63, 2**64, 10**30, -(10**30), 10**400, 10**5000, "", "no", "1", b"\1\1",
    bytearray(b"\1\1"), memoryview(b"\1\1"), [], (), {}, set(), [[]], [None], (1, None), ("q", 1),
    {"a": 1}, {1: 2}, object(), int, str, len, Ellipsis, NotImplemented, slice(1), range(0),
    fractions.Fraction(1, 2), ValueError("no"), np.datetime64(1, "s"),
    np.void(b"1"), np.str_("no"), BIG_ENDIAN, OBJECTS, STRINGS, np.array([1, 2], "m8[s]"),
    np.zeros(0), np.zeros(3), np.zeros((3, 3), bool), np.zeros(3, [("a", int)]), jax.random.key(0),
    jax.ShapeDtypeStruct((1,), jnp.float32), jax.Array, np.ndarray,
]  # fmt: skip


def _junk(legal: Callable[[Any], bool], *more: Any) -> list[Any]:
    return [*(value for value in JUNK if not legal(value)), *more]


def _never(value: Any) -> bool:
    return False


def is_zero(value: Any) -> bool:
    """Whether it is an int that may be 0, or the last one of several by -1."""
    return (
        isinstance(value, int | np.integer) and not _refused_number(value) and int(value) in (0, -1)
    )


def is_big(value: Any) -> bool:
    """Whether it is a positive int that a float may be."""
    return isinstance(value, int | np.integer) and not _refused_number(value) and int(value) > 0


def array(*shape: int, optional: bool = False, alone: bool = False, more: bool = False) -> Argument:
    """An operand of a floating dtype and of a rank.

    Args:
      shape: the right one.
      optional: whether it may be None.
      alone: whether it need not have another operand's dtype.
      more: whether it may have more dimensions.
    """
    wrong = [
        spec(*shape[:-1]),
        spec(),
        *([] if more else [spec(*shape, 1, 1, 1)]),
        *(spec(*shape, dtype=wrong) for wrong in (jnp.int32, bool, jnp.complex64, jnp.uint8)),
        spec(*shape, dtype=ml_dtypes.float8_e4m3fn),
        *(np.ones(shape).astype(wrong) for wrong in (">f4", object, str, "m8[s]", "M8[s]")),
        np.ones(shape).tolist(),
    ]
    if not alone:
        wrong.append(spec(*shape, dtype=jnp.float16))
    right = [spec(*shape), np.ones(shape, np.float32), *([None] if optional else [])]
    if alone:
        right.append(spec(*shape, dtype=jnp.float16))
    return Argument(right, _junk(lambda v: v is None and optional, *wrong))


def count(right: int, *wrong: int) -> Argument:
    """A number of something, of which `wrong` do not fit the rest of the call."""
    return Argument(
        [right, np.int64(right), np.uint8(right)],
        _junk(_never, float(right), str(right), [right], np.int64(0), np.array([right]), *wrong),
    )


def pair(right: int, *, optional: bool = False) -> Argument:
    """An int, or one each for height and width."""
    both = (right, right)
    return Argument(
        [right, both, [*both], np.int32(right), np.array(both), (np.int64(right), right)],
        _junk(
            lambda v: v is None and optional,
            *((right,), (*both, right), (right, 0), (right, True), (right, 2**63), (1.0, right)),
            *((right, 10**5000), np.array([1.0, 1.0]), np.timedelta64(right, "s"), both * 2),
            *({1: right, 2: right}, {1, 2}, (both, both), 2**31, np.array([both, both]), str(both)),
        ),
    )


def pairs(*right: tuple[int, int]) -> Argument:
    """A sequence of pairs of ints."""
    lists = [[*pair] for pair in right]
    return Argument(
        [right, lists, np.array(right)],
        _junk(
            _never,
            *(right[:1], (*right, (1, 1)), [(1, 1), (1, 0)], [(1, 1), (1, True)], [(1,), (1,)]),
            *([(1, 2, 3)] * 2, [(1.0, 2), (3, 4)], [3, 4], "ab", np.ones((2, 2)), {(1, 2): 3}),
        ),
    )


def counts(length: int) -> Argument:
    """A sequence of so many numbers of something, where None is right."""
    return Argument(
        [None],
        _junk(
            lambda v: v is None,
            *([0] * length, [1] * (length + 1), [1.0] * length, [True] * length, "1" * length),
        ),
    )


def number(*right: Any) -> Argument:
    """A finite number."""
    return Argument(
        [*right, np.float32(2), np.int64(3)],
        _junk(
            lambda v: (
                (isinstance(v, float | np.floating) and np.isfinite(v))
                or (isinstance(v, int | np.integer) and not _refused_number(v))
            ),
            *(spec(), spec(1), np.array(2.0), jnp.int32(2), "1", -float("inf")),
        ),
    )


def bound() -> Argument:
    """A positive number, or None."""
    argument = number(1.5)
    return Argument(
        [None, *argument.right],
        [*(v for v in argument.wrong if v is not None), 0, -1, np.int64(-1), -0.5],
    )


def pads(*right: Any, wrong: Sequence = (), legal: Callable[[Any], bool] = _never) -> Argument:
    """A rule's name, an int, or pairs."""
    return Argument(
        right,
        _junk(
            lambda v: (isinstance(v, int) and not isinstance(v, bool) and v == 0) or legal(v),
            *("FULL", "CIRCULAR", ((1, 1),), ((1, 1), (1,)), ((1, 1), (1, 2**63)), (True, 1)),
            *((1, 1, 1), ((1, 1), (1, None)), ((1.0, 1), (1, 1)), np.ones((2, 2)), 2**31, (1, "1")),
            *(((1, 1), (1, 10**5000)), np.timedelta64(1, "s"), ["SAME", "SAME"], *wrong),
        ),
    )


def boolean(right: bool) -> Argument:
    return Argument(
        [right, np.bool_(right)],
        _junk(lambda v: isinstance(v, bool | np.bool_), 1, int(right), str(right), 1.0, [right]),
    )


def choice(*right: str, wrong: Sequence = ()) -> Argument:
    """One of several names."""
    return Argument(right, _junk(_never, [*right], f"{right[0]} ", right[0].encode(), *wrong))


def implementation() -> Argument:
    return Argument(
        [None, "xla", ("xla",), ["xla", "ptx"], ("ptx", "xla")],
        _junk(
            lambda v: v is None, "XLA", "cuda", ("xla", "xla"), ("xla", None), ["xla", 1], {"xla"}
        ),
    )


def precision(*, lax_only: Sequence = ()) -> Argument:
    names: list[Any] = ["highest", "default", "float32", lax.Precision.HIGH]
    different = ("highest", "default")
    return Argument(
        [None, *names, ("high", "high"), [lax.Precision.HIGH] * 2],
        _junk(
            lambda v: v is None,
            *(1, 2, 1.0, 0j, "exact", ("high",), ["high"] * 3, [0, 0], ("no", "no"), (1, "high")),
            *((None, None), [[], []], ({}, {}), (np.zeros(2), np.ones(2)), {"high", "highest"}),
            *([] if lax_only else [different]),
        ),
        lax_only,
    )


def factor(*right: Any) -> Argument:
    """A real number, or an array without dimensions."""
    return Argument(
        [*right, np.float32(2), np.int64(3), np.array(2.0), jnp.int32(2), spec(), float("inf")],
        _junk(
            lambda v: (
                isinstance(v, float | np.floating)
                or (isinstance(v, int | np.integer) and not _refused_number(v))
            ),
            *(spec(1), spec(dtype=bool), spec(dtype=jnp.complex64), np.array(1j), np.array("1")),
            *(np.array(None), np.array(1, "m8[s]"), -(10**400)),
        ),
    )


def _refused_number(value: Any) -> bool:
    return isinstance(value, bool | np.timedelta64) or abs(int(value)) > 1e308


def dtype(*, optional: bool = False) -> Argument:
    """A floating dtype."""
    return Argument(
        ["float32", jnp.float32, np.float32, np.dtype("float32"), *([None] if optional else [])],
        _junk(
            lambda v: v is None and optional,
            *("int32", jnp.int32, ">f4", "half a float", "f4,f4", "(", "f999", jnp.complex64, "O"),
            *(ml_dtypes.float8_e4m3fn, bool, [("a", "f4")], jnp.float32(1), np.ones(3, np.float32)),
        ),
    )


def function(right: Callable) -> Argument:
    return Argument([right], _junk(callable))


def trees(*right: Any) -> Argument:
    """Further arguments of a function of somebody else's: one, a pytree of arrays and numbers."""

    def legal(value: Any) -> bool:
        return all(map(_is_held, jax.tree.leaves(value)))

    return Argument([(value,) for value in right], [(value,) for value in _junk(legal)])


def _is_held(leaf: Any) -> bool:
    """Whether JAX has a place for a leaf: numbers of 64 bits, in this machine's order of bytes."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return True
    array = isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex)
    dtype = np.asarray(leaf).dtype if array else np.dtype(object)
    return dtype.kind in "biufc" and dtype.isnative


def mapping() -> Argument:
    """Keyword arguments for somebody else."""
    return Argument([{}, {"a": 1}], _junk(lambda v: isinstance(v, dict) and 1 not in v))


def instance(*right: Any, wrong: Sequence = (), legal: Callable[[Any], bool] = _never) -> Argument:
    """An object of a library's own."""
    return Argument(right, _junk(legal, *wrong))


def out_sharding() -> Argument:
    """How a result is sharded, of which None is right without a mesh."""
    return instance(None, legal=lambda v: v is None, wrong=["x", ("x",), [None]])


def operands(arguments: Mapping[str, Argument], *names: str) -> dict[str, Any]:
    """What is right for some arguments."""
    return {name: arguments[name].right[0] for name in names}


def anything() -> Argument:
    """What is not used."""
    return Argument(JUNK, ())
