"""A small call of each family that uses all of its primitives, and what it results in."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import oxijax
from oxijax._core.primitive.kernel_primitive import KernelPrimitive
from oxijax.testing import emulate_gpu

__all__ = [
    "LAYERS",
    "PATHS",
    "TOLERANCE",
    "Layer",
    "collectives",
    "equations_of",
    "expected",
    "kernel_primitives",
    "on_mesh",
    "primitives_of",
    "program_of",
    "values_of",
]

TOLERANCE = 2e-6


@dataclasses.dataclass(frozen=True)
class Layer:
    """A call of a public function.

    Attributes:
      function: the function, with "highest" precision.
      shapes: its operands' shapes.
      split: the dimension of each operand that is its batch; None for weights.
      columns: the dimension of each operand that is the output's channels, or columns; nothing
        where nobody would split them.
    """

    function: Callable[..., jax.Array]
    shapes: tuple[tuple[int, ...], ...]
    split: tuple[int | None, ...] = ()
    columns: tuple[int | None, ...] = ()

    def operands(self) -> list[np.ndarray]:
        generator = np.random.default_rng(0)
        return [generator.standard_normal(shape).astype(np.float32) for shape in self.shapes]


_conv, _deform_conv, _gemm = (
    functools.partial(f, precision="highest")
    for f in (oxijax.conv, oxijax.deform_conv, oxijax.gemm)
)
LAYERS: dict[str, Layer] = {
    "conv": Layer(_conv, ((8, 4, 5, 6), (3, 3, 6, 8), (8,)), (0, None, None), (None, 3, 0)),
    "deform_conv": Layer(
        _deform_conv,
        ((8, 4, 5, 8), (8, 4, 5, 36), (3, 3, 8, 8), (8, 4, 5, 18), (8,)),
        (0, 0, None, 0, None),
        (None, None, 3, None, 0),
    ),
    "ms_deform_attn": Layer(
        functools.partial(oxijax.ms_deform_attn, spatial_shapes=((4, 6), (2, 3))),
        ((8, 30, 2, 8), (8, 5, 2, 2, 3, 2), (8, 5, 2, 2, 3)),
        (0, 0, 0),
    ),
    "gemm": Layer(_gemm, ((512, 16), (16, 8)), (0, None), (None, 1)),
    "gemm-transposed": Layer(
        functools.partial(_gemm, transpose_a=True, transpose_b=True),
        ((16, 512), (8, 16)),
        (1, None),
        (None, 0),
    ),
    "gemm-batch": Layer(_gemm, ((8, 96, 16), (8, 16, 8)), (0, 0), (None, 2)),
    "gemm-both": Layer(
        functools.partial(_gemm, transpose_a=True), ((16, 512), (16, 8)), (1, None), (None, 1)
    ),
    "gemm-columns": Layer(
        functools.partial(_gemm, transpose_b=True), ((512, 16), (8, 16)), (0, None), (None, 0)
    ),
}
PATHS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "xla": nullcontext,
    "kernels": emulate_gpu,
}


def program_of(layer: Layer) -> Any:
    """The jitted function (operands, gradient of the output) -> output, all gradients."""

    @jax.jit
    def program(operands, grad_y):
        y, vjp = jax.vjp(layer.function, *operands)
        return y, *vjp(grad_y)

    return program


def on_mesh(arrays: Iterable[Any], mesh: Mesh, specs: Iterable[PartitionSpec]) -> list[jax.Array]:
    """Arrays on a mesh, each with its own partition spec."""
    return jax.device_put([*arrays], [NamedSharding(mesh, spec) for spec in specs])


def expected(name: str) -> tuple[tuple[jax.Array, ...], np.ndarray]:
    """What `values_of` has for one of the layers."""
    return values_of(LAYERS[name])


@functools.cache
def values_of(layer: Layer) -> tuple[tuple[jax.Array, ...], np.ndarray]:
    """The output and all gradients on one device, and the gradient of the output."""
    shape = jax.eval_shape(layer.function, *layer.operands()).shape
    grad_y = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return program_of(layer)(layer.operands(), grad_y), grad_y


def kernel_primitives() -> dict[str, set[KernelPrimitive]]:
    """The primitives that each package of oxijax has, by its name; only those that have some."""
    packages = [
        f"{oxijax.__name__}.{m.name}"
        for m in pkgutil.iter_modules(oxijax.__path__)
        if m.ispkg and m.name[0] == "_"
    ]
    found: dict[str, set[KernelPrimitive]] = {}
    for package in packages:
        for value in vars(importlib.import_module(package)).values():
            for each in value.values() if isinstance(value, dict) else [value]:
                if isinstance(each, KernelPrimitive):
                    found.setdefault(package, set()).add(each)
    return found


def collectives(compiled: Any) -> dict[str, int]:
    """How many arrays each kind of collective operation of a program sends."""
    counts: dict[str, int] = {}
    pattern = (
        r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\((.*?)\)"
    )
    text = compiled.as_text()
    assert text is not None
    for kind, operands in re.findall(pattern, text):
        counts[kind] = counts.get(kind, 0) + operands.count("%")
    return counts


def primitives_of(jaxpr: Any) -> Counter[Primitive]:
    """How often a jaxpr binds each primitive, in what it calls too."""
    return Counter(eqn.primitive for eqn in equations_of(jaxpr))


def equations_of(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr, and of what it calls."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda v: hasattr(v, "jaxpr")
        ):
            if hasattr(inner, "jaxpr"):
                yield from equations_of(inner.jaxpr)
            elif hasattr(inner, "eqns"):
                yield from equations_of(inner)
