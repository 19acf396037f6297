"""deform_conv under JAX's transformations, against loops over the pure-JAX reference."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from jax.test_util import check_grads
from support.helpers import NAMES, assert_close, astype, values_and_gradients

import oxijax
from oxijax.testing import CASES

PRIMITIVES = ("forward", "backward_input", "backward_offset", "backward_weight")
TOLERANCE = 1e-5  # float32, sums in another order


def operands_of(name):
    return astype(CASES[name].operands(), jnp.float32)


def squares(function):
    return lambda *operands: jnp.sum(function(*operands) ** 2)


def assert_trees_close(actual, expected):
    jax.tree.map(lambda a, e: assert_close(a, e, TOLERANCE), actual, expected)


def variants(operand, count=3):
    """Operands that differ, along a new leading axis."""
    return np.stack([operand * (1 - 0.03 * i) for i in range(count)])


@pytest.mark.spread(1)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["v2", "v1", "groups-and-offset-groups"])
def test_check_grads(name):
    operands = [a for a in astype(CASES[name].operands(), jnp.float64) if a is not None]

    def function(*arrays):
        x, offset, weight, *rest = arrays
        mask = rest.pop(0) if CASES[name].mask else None
        return oxijax.deform_conv(x, offset, weight, mask, *rest, **CASES[name].options)

    check_grads(jax.jit(function), operands, order=2, modes=["rev"], atol=1e-6, rtol=1e-6)


@pytest.mark.usefixtures("x64")
def test_forward_mode_through_the_reference():
    operands = astype(CASES["v2"].operands(), jnp.float64)
    check_grads(
        jax.jit(oxijax.reference.deform_conv),
        operands,
        order=2,
        modes=["fwd"],
        atol=1e-6,
        rtol=1e-6,
    )


def function_of(argument, operands, function=oxijax.deform_conv):
    """The function of one operand."""

    def of_one(value):
        return function(*operands[:argument], value, *operands[argument + 1 :])

    return of_one


@pytest.mark.spread(4)
@pytest.mark.quick
@pytest.mark.parametrize("under_jit", [False, True])
@pytest.mark.parametrize("argument", range(5))
def test_forward_mode(argument, under_jit):
    operands = operands_of("v2")

    def tangent(function):
        of_one = function_of(argument, operands, function)
        run = jax.jit(lambda v, t: jax.jvp(of_one, [v], [t])) if under_jit else (
            lambda v, t: jax.jvp(of_one, [v], [t])
        )  # fmt: skip
        return run(operands[argument], jnp.cos(operands[argument]))

    for actual, expected in zip(
        tangent(oxijax.deform_conv), tangent(oxijax.reference.deform_conv), strict=True
    ):
        assert_close(actual, expected, TOLERANCE)


def test_linearize():
    operands = tuple(operands_of("v2"))
    tangents = tuple(jnp.sin(v) for v in operands)
    _, linear = jax.linearize(oxijax.deform_conv, *operands)
    _, expected = jax.jvp(oxijax.reference.deform_conv, operands, tangents)
    assert_close(linear(*tangents), expected, TOLERANCE)


@pytest.mark.spread(2)
@pytest.mark.parametrize("argument", [1, 2])
@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (jax.jacfwd, jax.jacfwd),
        (jax.jacfwd, jax.jacrev),
        (jax.jacrev, jax.jacfwd),
        (jax.jacrev, jax.jacrev),
    ],
)
def test_hessian(outer, inner, argument):
    operands = operands_of("kernel-1x1")

    def hessian(function, of_modes):
        of_one = function_of(argument, operands, function)
        return jax.jit(of_modes(lambda value: jnp.sum(jnp.sin(of_one(value)))))

    actual = hessian(oxijax.deform_conv, lambda f: outer(inner(f)))(operands[argument])
    expected = hessian(oxijax.reference.deform_conv, jax.hessian)(operands[argument])
    assert_close(actual, expected, TOLERANCE)


def test_forward_mode_through_vmap():
    operands = [variants(v) for v in operands_of("kernel-1x1")]
    tangents = [jnp.sin(v) for v in operands]
    actual = jax.jit(lambda p, t: jax.jvp(jax.vmap(oxijax.deform_conv), p, t))(operands, tangents)
    expected = jax.jvp(jax.vmap(oxijax.reference.deform_conv), operands, tangents)
    for a, b in zip(actual, expected, strict=True):
        assert_close(a, b, TOLERANCE)


def test_forward_mode_needs_no_gradients():
    """A program of forward mode has none of the kernels of reverse mode."""
    operands = operands_of("v2")
    tangent = jax.jit(lambda p, t: jax.jvp(oxijax.deform_conv, p, t)).trace(operands, operands)
    assert _primitives_in(tangent.lower().as_text(debug_info=True)) == {"forward"}


@pytest.mark.quick
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint])
def test_eager_jit_and_remat(transform):
    operands, grad_y = operands_of("v2"), CASES["v2"].grad_y()
    _, vjp = jax.vjp(transform(oxijax.deform_conv), *operands)
    expected = values_and_gradients(oxijax.reference.deform_conv, operands, grad_y)
    for name, gradient in zip(NAMES, vjp(grad_y), strict=True):
        assert_close(gradient, expected[f"d{name}"], TOLERANCE, name)


def test_scan():
    x, offset, weight, mask, _ = operands_of("kernel-1x1")
    weight = jnp.tile(weight, (1, 1, 1, 2))[..., : x.shape[-1]]  # as many channels out as in
    weights = variants(weight)

    def loss(function, x, weights):
        def layer(x, weight):
            return jnp.tanh(function(x, offset, weight, mask)), None

        return jnp.sum(jax.lax.scan(layer, x, weights)[0] ** 2)

    def unrolled(x, weights):
        for weight in weights:
            x = jnp.tanh(oxijax.reference.deform_conv(x, offset, weight, mask))
        return jnp.sum(x**2)

    actual = jax.jit(jax.grad(lambda *a: loss(oxijax.deform_conv, *a), (0, 1)))(x, weights)
    assert_trees_close(actual, jax.jit(jax.grad(unrolled, (0, 1)))(x, weights))


def _value_and_gradients(function):
    return jax.value_and_grad(squares(function), tuple(range(5)))


_reference = jax.jit(_value_and_gradients(oxijax.reference.deform_conv))  # compiled for all subsets
SUBSETS = [s for s in itertools.product([0, None], repeat=5) if any(a == 0 for a in s)]


@pytest.mark.spread(4)
@pytest.mark.parametrize("name", ["v2", "groups-and-offset-groups"])
@pytest.mark.parametrize("axes", SUBSETS, ids=lambda s: "".join(str(int(a == 0)) for a in s))
def test_vmap_over_every_subset(axes, name):
    """Values, and gradients of all operands, of vmap over each subset of the operands."""
    operands = operands_of(name)
    batched = [variants(a) if axis == 0 else a for a, axis in zip(operands, axes, strict=True)]

    actual = jax.jit(jax.vmap(_value_and_gradients(oxijax.deform_conv), axes))(*batched)
    expected = [
        _reference(*(a[i] if axis == 0 else a for a, axis in zip(batched, axes, strict=True)))
        for i in range(3)
    ]
    assert_trees_close(actual, jax.tree.map(lambda *a: np.stack(a), *expected))


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["v2", "groups"])
def test_grad_of_vmap(name):
    operands = [variants(a) for a in operands_of(name)]

    def loss(function):
        return squares(lambda *a: jax.vmap(function)(*a))

    def loops(*operands):
        outs = [oxijax.reference.deform_conv(*(a[i] for a in operands)) for i in range(3)]
        return jnp.sum(jnp.stack(outs) ** 2)

    every = tuple(range(5))
    actual = jax.jit(jax.grad(loss(oxijax.deform_conv), every))(*operands)
    assert_trees_close(actual, jax.jit(jax.grad(loops, every))(*operands))


@pytest.mark.parametrize("name", ["v2", "groups"])
def test_nested_vmap(name):
    """Images of x and weights mapped over different axes, one inside the other."""
    x, offset, weight, mask, bias = operands_of(name)
    xs, weights = variants(x, 2), jnp.moveaxis(variants(weight, 3), 0, -1)

    def run(function):
        def of_image(x):
            return jax.vmap(lambda w: function(x, offset, w, mask, bias), -1, 1)(weights)

        return jax.vmap(of_image, out_axes=2)(xs)

    actual = jax.jit(lambda: run(oxijax.deform_conv))()
    for i, k in itertools.product(range(2), range(3)):
        expected = oxijax.reference.deform_conv(xs[i], offset, weights[..., k], mask, bias)
        assert_close(actual[:, k, i], expected, TOLERANCE)


def test_vmap_over_nothing():
    operands = [a[:0] for a in map(variants, operands_of("groups"))]
    ys = jax.vmap(oxijax.deform_conv)(*operands)
    assert ys.shape == (0, *CASES["groups"].y)
    assert ys.dtype == jnp.float32


def test_vmap_shares_what_is_not_mapped():
    """Mapped weights alone make more output channels; x, offset and mask are not repeated."""
    x, offset, weight, mask, bias = operands_of("v2")
    function = jax.vmap(lambda w: oxijax.deform_conv(x, offset, w, mask, bias))
    jaxpr = jax.make_jaxpr(function)(variants(weight, 7))
    (forward,) = _equations_of("deform_conv_forward", jaxpr.jaxpr)
    shapes = [v.aval.shape for v in forward.invars]
    repeated = (*weight.shape[:3], 7 * weight.shape[3])
    assert shapes == [x.shape, offset.shape, repeated, mask.shape, (7 * bias.shape[0],)]


def _equations_of(primitive, jaxpr):
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == primitive:
            yield eqn
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations_of(primitive, inner)


def _primitives_in(text):
    return {name for name in PRIMITIVES if f"deform_conv_{name}" in text}


NEEDED = {
    "x": "backward_input",
    "offset": "backward_offset",
    "weight": "backward_weight",
    "mask": "backward_offset",
    "bias": None,
}


@pytest.mark.quick
@pytest.mark.parametrize("wanted", NAMES)
def test_unwanted_gradients_leave_no_trace(wanted):
    """A gradient that was not asked for is in neither jaxpr nor HLO."""
    operands = operands_of("v2")
    gradient = jax.grad(squares(oxijax.deform_conv), NAMES.index(wanted))
    traced = jax.jit(gradient).trace(*operands)
    expected = {"forward", NEEDED[wanted]} - {None}
    assert _primitives_in(str(traced.jaxpr)) == expected
    assert _primitives_in(traced.lower().as_text(debug_info=True)) == expected


@pytest.mark.quick
@pytest.mark.parametrize("used", NAMES)
def test_unused_gradients_leave_no_trace(used):
    """Nor is one that was asked for and then dropped in the HLO."""
    operands = operands_of("v2")
    every = jax.grad(squares(oxijax.deform_conv), tuple(range(5)))
    lowered = jax.jit(lambda *a: every(*a)[NAMES.index(used)]).lower(*operands)
    expected = {"forward", NEEDED[used]} - {None}
    assert _primitives_in(lowered.as_text(debug_info=True)) == expected


@pytest.mark.quick
@pytest.mark.parametrize("check_vma", [False, True])
def test_shard_map(check_vma):
    """Images over 4 devices, weights on each: gradients of the weights are summed."""
    x, offset, weight, mask, bias = operands_of("v2")
    x, offset, mask = (np.concatenate([a, a * np.float32(0.9)]) for a in (x, offset, mask))
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(AxisType.Auto,))
    sharded, everywhere = PartitionSpec("batch"), PartitionSpec()

    def loss(x, offset, weight, mask, bias):
        y = oxijax.deform_conv(x, offset, weight, mask, bias)
        return jax.lax.psum(jnp.sum(y**2), "batch")

    every = tuple(range(5))
    specs = (sharded, sharded, everywhere, sharded, everywhere)
    parallel = jax.shard_map(
        loss, mesh=mesh, in_specs=specs, out_specs=everywhere, check_vma=check_vma
    )
    actual = jax.jit(jax.grad(parallel, every))(x, offset, weight, mask, bias)
    expected = jax.jit(jax.grad(squares(oxijax.reference.deform_conv), every))(
        x, offset, weight, mask, bias
    )
    assert_trees_close(actual, expected)


def test_reference_in_shard_map():
    x, offset, weight, mask, bias = operands_of("v2")
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
    sharded, everywhere = PartitionSpec("batch"), PartitionSpec()
    specs = (sharded, sharded, everywhere, sharded, everywhere)
    function = jax.shard_map(
        oxijax.reference.deform_conv, mesh=mesh, in_specs=specs, out_specs=sharded
    )
    expected = oxijax.reference.deform_conv(x, offset, weight, mask, bias)
    assert_close(jax.jit(function)(x, offset, weight, mask, bias), expected, TOLERANCE)


def test_sharded_inputs_under_jit():
    """Images sharded over devices give the same values; the result stays sharded."""
    x, offset, weight, mask, bias = operands_of("v2")
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec("batch"))
    x_, offset_, mask_ = jax.device_put((x, offset, mask), sharding)
    y = jax.jit(oxijax.deform_conv)(x_, offset_, weight, mask_, bias)
    assert_close(y, oxijax.reference.deform_conv(x, offset, weight, mask, bias), TOLERANCE)


def test_export_round_trip():
    operands = operands_of("v2")
    exported = jax.export.export(jax.jit(oxijax.deform_conv))(*operands)
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_array_equal(again.call(*operands), jax.jit(oxijax.deform_conv)(*operands))
