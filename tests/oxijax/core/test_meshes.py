"""Every public function and layer on arrays that are sharded along each of their dimensions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from support.helpers import assert_close
from support.layers import collectives, on_mesh
from support.public_calls import CALLS, LAYER_KINDS, LAYER_LIBRARIES, PublicCall, find_call

import oxijax

TOLERANCE = 1e-5
# Functions of no arrays that could be sharded, or of arrays on the host.
NOT_OF_ARRAYS = {"clear_caches", "draw_samples", "resolve", "roofline", "tune"}
SPLITS = [(name, split) for name in CALLS for split in find_call(name).splits]


def transformed(call: PublicCall):
    """What JAX makes of a call, by name."""
    every = tuple(range(len(call.dims) + len(call.parameters)))
    if not call.differentiable:
        return {"forward": call.function}

    def loss(*arrays):
        # Far from a whole turn: second derivatives of more would not be known to float32.
        return jnp.sum(jnp.sin(call.function(*arrays) / 8))

    def squares(*arrays):
        return sum(jnp.sum(gradient**2) for gradient in gradients(*arrays))

    def twice(arrays):
        return [jnp.stack([array, array / 2]) for array in arrays]

    gradients = jax.grad(loss, every)
    return {
        "forward": call.function,
        "gradients": gradients,
        "jvp": lambda *a: jax.jvp(call.function, a, tuple(map(jnp.cos, a)))[1],
        "second order": jax.grad(squares, every),
        "remat": lambda *a: jax.grad(jax.checkpoint(loss), every)(*a),
        "vmap": lambda *a: jax.vmap(call.function)(*twice(a)),
        "vmap of grad": lambda *a: jax.vmap(gradients)(*twice(a)),
        "scan": lambda *a: jax.lax.scan(
            lambda carry, arrays: (carry, call.function(*arrays)), 0, tuple(twice(a))
        )[1],
    }


TRANSFORMED = [*transformed(find_call("conv"))]


def sharded(call: PublicCall, split: str, kind: AxisType):
    """The mesh of two devices, and the operands on it."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,))
    return mesh, on_mesh(map(jnp.asarray, call.operands()), mesh, call.specs(split, "data"))


def test_every_function_and_layer_has_a_row():
    """A new one is held to what the others are as soon as it has its row in `public_calls`."""
    public = {name for name in oxijax.__all__ if callable(getattr(oxijax, name))}
    public -= {name for name in public if isinstance(getattr(oxijax, name), type)}
    rows = {name.partition(" ")[0] for name in CALLS}
    assert public - NOT_OF_ARRAYS <= rows
    assert {f"reference.{name}" for name in oxijax.reference.__all__} <= rows
    for library in LAYER_LIBRARIES:
        assert {*getattr(oxijax, library).__all__} == {*LAYER_KINDS}


@pytest.mark.spread(11)
@pytest.mark.quick
@pytest.mark.parametrize(("name", "split"), SPLITS)
def test_explicit_axes_are_traced(name, split):
    """JAX decides at tracing whether it takes a program: forward, or with vmap and gradients."""
    call = find_call(name)
    mesh, arrays = sharded(call, split, AxisType.Explicit)
    way = "vmap of grad" if call.differentiable and "reference" not in name else "forward"
    with jax.set_mesh(mesh):
        jax.eval_shape(transformed(call)[way], *arrays)


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", [n for n in CALLS if not n.startswith(("reference", "linen"))])
def test_explicit_axes_along_the_batch(name):
    check(name, find_call(name).splits[0], AxisType.Explicit, "gradients")


SHARED = {"conv": 2, "deform_conv": 2, "ms_deform_attn": 0, "dcnv4": 0, "grid_sample": 0}


@pytest.mark.parametrize("name", SHARED)
def test_vmap_of_a_sharded_batch_sends_nothing(name):
    """Each device merges the mapped axis with its own images."""
    call = find_call(name)
    mesh, arrays = sharded(call, "n", AxisType.Explicit)
    with jax.set_mesh(mesh):
        compiled = jax.jit(transformed(call)["vmap"]).lower(*arrays).compile()
    assert collectives(compiled) == {}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", SHARED)
def test_vmap_over_a_sharded_axis_sends_nothing(name):
    """Examples are mapped, and so are their gradients; those of weights are each example's own."""
    call = find_call(name)
    mesh, arrays = sharded(call, "n", AxisType.Explicit)
    in_axes = [0 if "n" in dims.split() else None for dims in call.dims]
    assert in_axes.count(None) == SHARED[name]

    def loss(*arrays):
        batches = [a if axis is None else a[None] for a, axis in zip(arrays, in_axes, strict=True)]
        return jnp.sum(jnp.sin(call.function(*batches)))

    gradients = jax.jit(jax.vmap(jax.grad(loss, range(len(in_axes))), in_axes))
    expected = gradients(*call.operands())
    with jax.set_mesh(mesh):
        compiled = gradients.lower(*arrays).compile()
        found = compiled(*arrays)
    assert collectives(compiled) == {}
    for result, value in zip(found, expected, strict=True):
        assert_close(np.asarray(result), np.asarray(value), TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("way", TRANSFORMED)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize(("name", "split"), SPLITS)
def test_values(name, split, kind, way):
    check(name, split, kind, way)


def check(name: str, split: str, kind: AxisType, way: str) -> None:
    """Compares a program on two devices with the same one on one."""
    call = find_call(name)
    function = transformed(call).get(way)
    if function is None:  # it has no gradients
        return
    mesh, arrays = sharded(call, split, kind)
    expected = jax.jit(function)(*call.operands())
    with jax.set_mesh(mesh):
        found = jax.jit(function)(*arrays)
    for result, value in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_close(np.asarray(result), np.asarray(value), TOLERANCE)
    if way == "gradients" and kind == AxisType.Explicit:
        for gradient, array in zip(found, arrays, strict=True):
            assert gradient.sharding.is_equivalent_to(array.sharding, array.ndim)
