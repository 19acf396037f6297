"""The names that other packages build primitives from: documented, and strict about mistakes."""

import dataclasses
import re

import jax.numpy as jnp
import pytest
from support.paths import DOCS

from oxijax import extend
from oxijax.extend import Fold, KernelPrimitive, Result, call
from ptx import f32
from ptx.definition import In, KernelDefinition, Out


@dataclasses.dataclass(frozen=True)
class Config:
    factor: float = 2.0


KERNEL = KernelDefinition(
    name="doubled",
    configs={"twice": Config()},
    parameters=(In("x", "n c", dtype=f32), Out("y", "n c", dtype=f32)),
    grid=lambda instance: (1, 1, 1),
    body=lambda k, config, plan, p: None,
)
X = jnp.ones((2, 3))


def primitive(**changes):
    description = {
        "operands": {"x": "n c"},
        "results": {"y": Result("n c", like="x")},
        "sizes": lambda config, sizes: sizes,
        "folds": [Fold("n")],
        "reference": lambda config, x: (config.factor * x,),
    }
    return KernelPrimitive("doubled", **{**description, **changes})


MISTAKES = {
    "too few operands": (
        *(lambda: primitive()(Config()), TypeError),
        "doubled takes 1 operands, x (None for one that is absent), got 0",
    ),
    "an operand's dimensions": (
        *(lambda: primitive()(Config(), X[0]), ValueError),
        "doubled: x must have the dimensions ['n', 'c'], got shape (3,)",
    ),
    "a result like no operand": (
        *(lambda: primitive(results={"y": Result("n c", like="X")}), ValueError),
        "doubled: result y must be like one of the operands x, got like='X'",
    ),
    "folds that are a name": (
        *(lambda: primitive(folds="n"), TypeError),
        "doubled: folds must be a sequence of Fold, got 'n'",
    ),
    "dimensions in place of a function": (
        *(lambda: primitive(parallel="n"), TypeError),
        "doubled: parallel must be a function of the configuration and the operands' names, got "
        "'n'",
    ),
    "a size that nothing gives": (
        *(lambda: primitive(results={"y": Result("n o", like="x")})(Config(), X), ValueError),
        "doubled: result y has the dimensions ['n', 'o'], and sizes gives none for o, which no "
        "operand has",
    ),
    "a reference that returns an array": (
        *(lambda: primitive(reference=lambda config, x: x)(Config(), X), TypeError),
        "doubled: its reference must return a tuple of 1, y, got ",
    ),
    "a reference whose result has another shape": (
        *(lambda: primitive(reference=lambda config, x: (x[:1],))(Config(), X), ValueError),
        "doubled: its reference, or its function for GPUs, must return arrays of these dtypes and "
        "sizes: [('float32', 2, 3)]; got [('float32', 1, 3)]",
    ),
    "a reference with a result too many": (
        *(lambda: primitive(reference=lambda config, x: (x, x))(Config(), X), TypeError),
        "doubled: its reference must return a tuple of 1, y, got 2",
    ),
    "a kernel's name": (
        *(lambda: call("doubled", Config(), x=X), TypeError),  # pyright: ignore
        "kernel must be a KernelDefinition, got 'doubled'",
    ),
    "a configuration's fields": (
        *(lambda: call(KERNEL, {"factor": 2.0}, x=X), TypeError),
        "config must be a configuration of kernel doubled, got {'factor': 2.0}",
    ),
    "an operand's dtype": (
        *(lambda: call(KERNEL, Config(), x=X.astype(jnp.bfloat16)), TypeError),
        "doubled: x must be float32, got bfloat16",
    ),
    "an operand that is missing": (
        *(lambda: call(KERNEL, Config(), z=X), TypeError),
        "kernel doubled takes x, and was given z",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_raise(mistake):
    function, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        function()


def test_a_primitive_without_a_mistake():
    (y,) = primitive()(Config(), X)
    assert jnp.array_equal(jnp.asarray(y), 2 * X)


def test_every_name_is_documented():
    assert {"KernelPrimitive", "call"} <= set(extend.__all__)
    documented = (DOCS / "write_a_kernel.md").read_text() + (extend.__doc__ or "")
    assert [name for name in extend.__all__ if name not in documented] == []
    assert all(getattr(extend, name).__doc__ for name in extend.__all__)
