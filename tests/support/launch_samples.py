"""Sample kernels that are launched from JAX, each as a primitive.

Importing this module registers them, as importing oxijax registers its own.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from oxijax._core import compat as _compat
from oxijax._core.launch import launch
from oxijax._core.primitive import Fold, KernelPrimitive, Result
from ptx import Kernel, Target, f32, u32
from ptx.launch import Address, Launch
from ptx.registry import Shapes, register

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


def _elements(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _one_thread_each(config: Elementwise, target: Target, shapes: Shapes) -> Launch:
    n = _elements(shapes[0])
    grid = (-(-n // config.block), 1, 1)
    buffers = tuple(Address(i) for i in range(len(shapes)))
    return Launch(grid, (config.block, 1, 1), (*buffers, np.uint32(n)))


def _scale_and_add_ptx(config: Elementwise, target: Target) -> str:
    """Out = alpha * x + y."""
    k = Kernel("scale_and_add", target, block=config.block)
    x, y = (k.pointer(name, f32, readonly=True) for name in ("x", "y"))
    out, n = k.pointer("out", f32), k.param("n", u32)
    i = k.ctaid() * config.block + k.tid()
    with k.if_(i < n):
        out.store(i, k.fma(x.load(i), config.alpha, y.load(i)))
    return k.text()


register(
    "scale_and_add",
    {"default": Elementwise(), "other": Elementwise(3.0, 64)},
    _scale_and_add_ptx,
    launch=_one_thread_each,
)


def _scale_and_add(config: Elementwise, x, y):
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return tuple(launch("scale_and_add", config, [x, y], [like], batch_dims=1))


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


def _accumulate_ptx(config: Elementwise, target: Target) -> str:
    """Total += x, and seen = total before; total and its result share memory."""
    k = Kernel("accumulate", target, block=config.block)
    x = k.pointer("x", f32, readonly=True)
    total, seen, n = k.pointer("total", f32), k.pointer("seen", f32), k.param("n", u32)
    i = k.ctaid() * config.block + k.tid()
    with k.if_(i < n):
        before = total.load(i)
        seen.store(i, before)
        total.store(i, before + x.load(i))
    return k.text()


def _accumulate_launch(config: Elementwise, target: Target, shapes: Shapes) -> Launch:
    one = _one_thread_each(config, target, shapes)
    x, _, total, seen, n = one.arguments
    return dataclasses.replace(one, arguments=(x, total, seen, n))


register("accumulate", {"default": Elementwise()}, _accumulate_ptx, launch=_accumulate_launch)


def _accumulate(config: Elementwise, x, total):
    """Two kernels, zeros made by XLA, and a workspace: what `seen` is for."""
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    doubled, _ = launch("accumulate", config, [x, jnp.zeros_like(x)], [like] * 2, aliases={1: 0})
    doubled, _ = launch("accumulate", config, [x, doubled], [like] * 2, aliases={1: 0})
    total, seen = launch("accumulate", config, [doubled, total], [like] * 2, aliases={1: 0})
    return total, seen


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


def _broken_ptx(config: Broken, target: Target) -> str:
    if config.fault == "no PTX":
        raise ValueError("there is no PTX for this configuration")
    k = Kernel("broken", target)
    x, out, n = k.pointer("x", f32, readonly=True), k.pointer("out", f32), k.param("n", u32)
    i = k.ctaid() * 32 + k.tid()
    with k.if_(i < n):
        if config.fault == "loop":
            with k.loop(0, 2**31 - 1):
                out.store(i, x.load(i))
        elif config.fault == "out of bounds":
            out.store(i + 1, x.load(i))
        elif config.fault == "unwritten":
            with k.if_(i.ne(3)):
                out.store(i, x.load(i))
        else:
            out.store(i, x.load(i))
    text = k.text()
    return text.replace("st.global", "st.globule") if config.fault == "bad PTX" else text


def _broken_launch(config: Broken, target: Target, shapes: Shapes) -> Launch:
    n = _elements(shapes[0])
    block = 1025 if config.fault == "block of 1025" else 32
    return Launch((-(-n // 32), 1, 1), (block, 1, 1), (Address(0), Address(1), np.uint32(n)))


register(
    "broken",
    {fault: Broken(fault) for fault in ("out of bounds", "unwritten", "loop", "block of 1025")},
    _broken_ptx,
    launch=_broken_launch,
)

_broken_p = KernelPrimitive(
    "broken",
    operands={"x": "n m"},
    results={"out": Result("n m", like="x")},
    sizes=lambda config, sizes: sizes,
    folds=[Fold("n")],
    reference=lambda config, x: (x,),
    cuda=lambda config, x: tuple(
        launch("broken", config, [x], [jax.ShapeDtypeStruct(x.shape, x.dtype)])
    ),
)


def broken(x: jax.Array, fault: str) -> jax.Array:
    """x, but in the emulator and on a GPU the fault."""
    (out,) = _broken_p(Broken(fault), x)
    assert out is not None
    return out
