"""Sample kernels that are launched from JAX, each as a primitive.

Importing this module registers them, as importing oxijax registers its own.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from oxijax._core import compat as _compat
from oxijax._core.launch import call
from oxijax._core.primitive.kernel_primitive import Fold, KernelPrimitive, Result
from ptx import Kernel, Target, f32
from ptx.definition import In, Instance, KernelDefinition, Out, Plan, Size, Sizes
from ptx.registry import register

__all__ = ["Elementwise", "accumulate", "broken", "scale_and_add"]


@dataclasses.dataclass(frozen=True)
class Elementwise:
    """Of a kernel with one thread for each element.

    Attributes:
      alpha: a factor, known when the kernel is generated.
      block: threads of a block.
    """

    alpha: float = 2.0
    block: int = 32


def _grid(instance: Instance) -> tuple[int, int, int]:
    return -(-_elements(instance) // instance.plan.threads), 1, 1


def _elements(instance: Instance) -> int:
    return instance.sizes["n"] * instance.sizes["m"]


def _plan(config: Elementwise, target: Target, sizes: Sizes | None) -> Plan:
    return Plan(config.block)


def _write_scale_and_add(k: Kernel, config: Elementwise, plan: Plan, p: Any) -> None:
    """Out = alpha * x + y."""
    i = k.ctaid() * config.block + k.tid()
    with k.if_(i < p.n):
        p.out.store(i, k.fma(p.x.load(i), config.alpha, p.y.load(i)))


SCALE_AND_ADD = register(
    KernelDefinition(
        name="scale_and_add",
        configs={"default": Elementwise(), "other": Elementwise(3.0, 64)},
        parameters=(
            *(In(name, "n m", dtype=f32) for name in ("x", "y")),
            Out("out", "n m", dtype=f32),
            Size("n", _elements),
        ),
        plan=_plan,
        grid=_grid,
        body=_write_scale_and_add,
    )
)


def _scale_and_add(config: Elementwise, x, y):
    return call(SCALE_AND_ADD, config, batch="n", x=x, y=y)


_scale_and_add_p = KernelPrimitive(
    "scale_and_add",
    operands={"x": "n m", "y": "n m"},
    results={"out": Result("n m", like="x")},
    sizes=lambda config, sizes: sizes,
    folds=[Fold("n")],
    reference=lambda config, x, y: (config.alpha * x + y,),
    cuda=_scale_and_add,
)


def scale_and_add(x: jax.Array, y: jax.Array, config: Elementwise = Elementwise()) -> jax.Array:
    """Alpha * x + y, of matrices."""
    (out,) = _scale_and_add_p(config, *_compat.match_varying(x, y))
    assert out is not None
    return out


def _write_accumulate(k: Kernel, config: Elementwise, plan: Plan, p: Any) -> None:
    """Total += x, and seen = total before."""
    i = k.ctaid() * config.block + k.tid()
    with k.if_(i < p.n):
        before = p.sum.load(i)
        p.seen.store(i, before)
        p.sum.store(i, before + p.x.load(i))


ACCUMULATE = register(
    KernelDefinition(
        name="accumulate",
        configs={"default": Elementwise()},
        parameters=(
            In("x", "n m", dtype=f32),
            Out("sum", "n m", dtype=f32, initial="total"),
            Out("seen", "n m", dtype=f32),
            Size("n", _elements),
        ),
        plan=_plan,
        grid=_grid,
        body=_write_accumulate,
    )
)


def _accumulate(config: Elementwise, x, total):
    """Two kernels, zeros made by XLA, and a workspace: what `seen` is for."""
    doubled, _ = call(ACCUMULATE, config, x=x, total=jnp.zeros_like(x))
    doubled, _ = call(ACCUMULATE, config, x=x, total=doubled)
    return call(ACCUMULATE, config, x=doubled, total=total)


_accumulate_p = KernelPrimitive(
    "accumulate",
    operands={"x": "n m", "total": "n m"},
    results={"total": Result("n m", like="x"), "seen": Result("n m", like="x")},
    sizes=lambda config, sizes: sizes,
    folds=[Fold("n")],
    reference=lambda config, x, total: (2 * x + total, total),
    cuda=_accumulate,
)


def accumulate(x: jax.Array, total: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(2 * x + total, total), of matrices."""
    out, seen = _accumulate_p(Elementwise(), x, total)
    assert out is not None
    assert seen is not None
    return out, seen


@dataclasses.dataclass(frozen=True)
class Broken:
    """Of a kernel that copies x, but for one fault.

    Attributes:
      fault: "out of bounds", "unwritten", "bad PTX", "no PTX", "block of 1025" or "loop", which
        is none, but an endless loop.
    """

    fault: str


def _write_broken(k: Kernel, config: Broken, plan: Plan, p: Any) -> str | None:
    if config.fault == "no PTX":
        raise ValueError("there is no PTX for this configuration")
    i = k.ctaid() * 32 + k.tid()
    with k.if_(i < p.n):
        if config.fault == "loop":
            with k.loop(0, 2**31 - 1):
                p.out.store(i, p.x.load(i))
        elif config.fault == "out of bounds":
            p.out.store(i + 1, p.x.load(i))
        elif config.fault == "unwritten":
            with k.if_(i.ne(3)):
                p.out.store(i, p.x.load(i))
        else:
            p.out.store(i, p.x.load(i))
    return k.text().replace("st.global", "st.globule") if config.fault == "bad PTX" else None


BROKEN = register(
    KernelDefinition(
        name="broken",
        configs={fault: Broken(fault) for fault in ("out of bounds", "unwritten", "loop")},
        parameters=(
            In("x", "n m", dtype=f32),
            Out("out", "n m", dtype=f32),
            Size("n", _elements),
        ),
        plan=lambda config, target, sizes: Plan(1025 if config.fault == "block of 1025" else 32),
        grid=lambda instance: (-(-_elements(instance) // 32), 1, 1),
        body=_write_broken,
    )
)

_broken_p = KernelPrimitive(
    "broken",
    operands={"x": "n m"},
    results={"out": Result("n m", like="x")},
    sizes=lambda config, sizes: sizes,
    folds=[Fold("n")],
    reference=lambda config, x: (x,),
    cuda=lambda config, x: call(BROKEN, config, x=x),
)


def broken(x: jax.Array, fault: str) -> jax.Array:
    """x, but in the emulator and on a GPU the fault."""
    (out,) = _broken_p(Broken(fault), x)
    assert out is not None
    return out
