"""conv under JAX's transformations, against the pure-JAX reference."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads
from support.conv_checks import NAMES, operands_of
from support.helpers import assert_close, values_and_gradients

import oxijax
from oxijax.testing import CONV_CASES, ConvCase

PRIMITIVES = ("conv_forward", "conv_backward_input", "conv_backward_weight")
TOLERANCE = 1e-5  # float32, sums in another order
EVERY = (0, 1, 2)
BATCH, EVERYWHERE = PartitionSpec("batch"), PartitionSpec()
TINY = ConvCase("tiny", (1, 4, 3, 2), 2, (2, 2), (2, 1), groups=2)


def squares(function):
    return lambda *operands: jnp.sum(function(*operands) ** 2)


def layer(name, function=oxijax.conv):
    return functools.partial(function, **CONV_CASES[name].options)


def assert_trees_close(actual, expected):
    jax.tree.map(lambda a, e: assert_close(a, e, TOLERANCE), actual, expected)


def variants(operand, count=3):
    """Operands that differ, along a new leading axis."""
    operand = np.asarray(operand)
    return np.stack([operand * (1 - 0.03 * i) for i in range(count)])


# Derivatives: every one, of any order and in either mode, is made of the three primitives.


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("modes", ["rev", "fwd"])
@pytest.mark.parametrize("name", ["groups-3-strided"])
def test_check_grads(name, modes):
    operands = operands_of(name, "float64")
    check_grads(jax.jit(layer(name)), operands, order=2, modes=[modes], atol=1e-6, rtol=1e-6)


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("outer", "inner", "transform"),
    [
        (jax.jacfwd, jax.jacfwd, jax.jit),
        (jax.jacfwd, jax.jacrev, lambda f: f),
        (jax.jacrev, jax.jacfwd, jax.jit),
        (jax.jacrev, jax.jacrev, jax.jit),
    ],
)
def test_second_derivatives(outer, inner, transform):
    """All combinations of modes, eager and compiled, and no convolution by others in them."""
    operands = operands_of(TINY)

    def hessian(function):
        def loss(*operands):
            return jnp.sum(jnp.sin(function(*operands, **TINY.options)))

        return transform(outer(inner(loss, EVERY), EVERY))

    assert_trees_close(hessian(oxijax.conv)(*operands), hessian(oxijax.reference.conv)(*operands))
    assert "conv_general_dilated" not in str(jax.make_jaxpr(hessian(oxijax.conv))(*operands))


@pytest.mark.quick
@pytest.mark.parametrize("name", ["plain", "groups-4-nchw"])
def test_forward_mode(name):
    primals = operands_of(name)
    tangents = tuple(jnp.cos(a) for a in primals)
    actual = jax.jit(lambda p, t: jax.jvp(layer(name), p, t))(primals, tangents)
    reference = layer(name, oxijax.reference.conv)
    assert_trees_close(actual, jax.jvp(reference, primals, tangents))


@pytest.mark.quick
@pytest.mark.parametrize("argument", [0, 1])
def test_linear_transpose(argument):
    """Without a bias, and in one operand, the function is linear to JAX too."""
    operands = list(operands_of("strides-2x3"))[:2]

    def transpose(function):
        def linear(value):
            return function(*(value if i == argument else a for i, a in enumerate(operands)))

        return jax.linear_transpose(linear, operands[argument])

    grad_y = CONV_CASES["strides-2x3"].grad_y()
    actual = transpose(layer("strides-2x3"))(grad_y)
    assert_trees_close(actual, transpose(layer("strides-2x3", oxijax.reference.conv))(grad_y))


def test_not_linear_with_a_bias():
    x, weight, bias = operands_of("plain")
    transpose = jax.linear_transpose(lambda x: oxijax.conv(x, weight, bias), x)
    with pytest.raises(TypeError, match=r"conv_forward is linear in one factor .* without a term"):
        transpose(CONV_CASES["plain"].grad_y())


NEEDED = {"x": "conv_backward_input", "weight": "conv_backward_weight", "bias": None}


def _primitives_in(text):
    return {name for name in PRIMITIVES if name in text}


@pytest.mark.quick
@pytest.mark.parametrize("wanted", NAMES)
def test_unwanted_gradients_leave_no_trace(wanted):
    """A gradient that was not asked for is in neither jaxpr nor HLO."""
    gradient = jax.grad(squares(oxijax.conv), NAMES.index(wanted))
    traced = jax.jit(gradient).trace(*operands_of("plain"))
    expected = {"conv_forward", NEEDED[wanted]} - {None}
    assert _primitives_in(str(traced.jaxpr)) == expected
    assert _primitives_in(traced.lower().as_text(debug_info=True)) == expected


@pytest.mark.quick
@pytest.mark.parametrize("used", NAMES)
def test_unused_gradients_leave_no_trace(used):
    """Nor is one that was asked for and then dropped in the HLO."""
    every = jax.grad(squares(oxijax.conv), EVERY)
    lowered = jax.jit(lambda *a: every(*a)[NAMES.index(used)]).lower(*operands_of("plain"))
    expected = {"conv_forward", NEEDED[used]} - {None}
    assert _primitives_in(lowered.as_text(debug_info=True)) == expected


# Control flow.


@pytest.mark.quick
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint])
def test_eager_jit_and_remat(transform):
    operands, grad_y = operands_of("plain"), CONV_CASES["plain"].grad_y()
    _, vjp = jax.vjp(transform(oxijax.conv), *operands)
    expected = values_and_gradients(oxijax.reference.conv, operands, grad_y, NAMES)
    for name, gradient in zip(NAMES, vjp(grad_y), strict=True):
        assert_close(gradient, expected[f"d{name}"], TOLERANCE, name)


def test_scan():
    x, weight, _ = operands_of("groups-wide")
    weights = variants(weight)

    def loss(function, x, weights):
        def step(x, weight):
            return jnp.tanh(function(x, weight)), None

        return jnp.sum(jax.lax.scan(step, x, weights)[0] ** 2)

    def unrolled(x, weights):
        for weight in weights:
            x = jnp.tanh(oxijax.reference.conv(x, weight))
        return jnp.sum(x**2)

    actual = jax.jit(jax.grad(lambda *a: loss(oxijax.conv, *a), (0, 1)))(x, weights)
    assert_trees_close(actual, jax.jit(jax.grad(unrolled, (0, 1)))(x, weights))


# vmap.

SUBSETS = [s for s in itertools.product([0, None], repeat=3) if any(a == 0 for a in s)]
MAPPED = [("plain", s) for s in SUBSETS] + [("groups-3-strided", s) for s in SUBSETS[::2]]


@functools.cache
def _loss_and_gradients(name):
    return jax.jit(jax.value_and_grad(squares(layer(name, oxijax.reference.conv)), EVERY))


@pytest.mark.parametrize(("name", "axes"), MAPPED)
def test_vmap_over_every_subset(name, axes):
    """Values, and gradients of all operands, of vmap over each subset of the operands."""
    operands = operands_of(name)
    batched = [variants(a) if axis == 0 else a for a, axis in zip(operands, axes, strict=True)]

    run = jax.vmap(jax.value_and_grad(squares(layer(name)), EVERY), axes)
    actual = jax.jit(run)(*batched)
    expected = [
        _loss_and_gradients(name)(
            *(a[i] if axis == 0 else a for a, axis in zip(batched, axes, strict=True))
        )
        for i in range(3)
    ]
    assert_trees_close(actual, jax.tree.map(lambda *a: np.stack(a), *expected))


@pytest.mark.parametrize("name", ["strides-2x3", "groups-2"])
@pytest.mark.parametrize("axes", [(0, None), (None, 1), (2, 0)])
def test_vmap_of_linear_maps(axes, name):
    """Each backward primitive with either operand mapped, along any axis."""
    (x, weight, _), grad_y = operands_of(name), CONV_CASES[name].grad_y()

    def grad_x(function):
        return lambda weight, grad_y: jax.vjp(lambda x: function(x, weight), x)[1](grad_y)[0]

    def grad_weight(function):
        return lambda x, grad_y: jax.vjp(lambda w: function(x, w), weight)[1](grad_y)[0]

    for make, operand in ((grad_x, weight), (grad_weight, x)):
        operands = [operand, grad_y]
        batched = [
            a if axis is None else np.moveaxis(variants(a), 0, axis)
            for a, axis in zip(operands, axes, strict=True)
        ]
        actual, expected = (
            jax.jit(jax.vmap(make(layer(name, function)), axes))(*batched)
            for function in (oxijax.conv, oxijax.reference.conv)
        )
        assert_close(actual, expected, TOLERANCE)


@pytest.mark.parametrize("name", ["plain", "groups-2"])
def test_grad_of_vmap(name):
    operands = [variants(a) for a in operands_of(name)]

    def loops(*operands):
        function = layer(name, oxijax.reference.conv)
        return jnp.stack([function(*(a[i] for a in operands)) for i in range(3)])

    actual = jax.jit(jax.grad(squares(jax.vmap(layer(name))), EVERY))(*operands)
    assert_trees_close(actual, jax.jit(jax.grad(squares(loops), EVERY))(*operands))


@pytest.mark.parametrize("name", ["plain", "groups-2"])
def test_nested_vmap(name):
    """Images and weights mapped over different axes, one inside the other."""
    x, weight, bias = operands_of(name)
    xs, weights = variants(x, 2), np.moveaxis(variants(weight, 3), 0, -1)

    @jax.jit
    def run(xs, weights):
        def of_image(x):
            return jax.vmap(lambda w: oxijax.conv(x, w, bias), -1, 1)(weights)

        return jax.vmap(of_image, out_axes=2)(xs)

    actual = run(xs, weights)
    for i, k in itertools.product(range(2), range(3)):
        expected = oxijax.reference.conv(xs[i], weights[..., k], bias)
        assert_close(actual[:, k, i], expected, TOLERANCE)


def test_vmap_over_nothing():
    operands = [a[:0] for a in map(variants, operands_of("groups-2"))]
    ys = jax.vmap(oxijax.conv)(*operands)
    assert ys.shape == (0, *CONV_CASES["groups-2"].y)
    assert ys.dtype == jnp.float32


def _equations_of(primitive, jaxpr):
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == primitive:
            yield eqn
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations_of(primitive, inner)


def _one_bind(primitive, function, *operands):
    """The configuration, and shapes of the operands, of the one bind of a primitive."""
    (eqn,) = _equations_of(primitive, jax.make_jaxpr(function)(*operands).jaxpr)
    return eqn.params["config"].op, [v.aval.shape for v in eqn.invars]


@pytest.mark.quick
def test_vmap_shares_what_is_not_mapped():
    x, weight, _ = operands_of("plain")
    grad_y = CONV_CASES["plain"].grad_y()
    n, h, w, c = x.shape
    i, j, e, o = weight.shape

    def forward(x, weight):
        return oxijax.conv(x, weight)

    # Images: a larger batch.
    config, shapes = _one_bind("conv_forward", jax.vmap(forward, (0, None)), variants(x, 7), weight)
    assert shapes == [(7 * n, h, w, c), weight.shape]
    # Weights: more output channels.
    config, shapes = _one_bind("conv_forward", jax.vmap(forward, (None, 0)), x, variants(weight, 7))
    assert shapes == [x.shape, (i, j, e, 7 * o)]
    assert config.groups == 1
    # Both: groups.
    both = variants(x, 7), variants(weight, 7)
    config, shapes = _one_bind("conv_forward", jax.vmap(forward), *both)
    assert shapes == [(n, h, w, 7 * c), (i, j, e, 7 * o)]
    assert config.groups == 7

    # Weights for one gradient of the output: more input channels, as many outputs.
    def grad_x(weight):
        return jax.linear_transpose(lambda x: forward(x, weight), x)(grad_y)

    config, shapes = _one_bind("conv_backward_input", jax.vmap(grad_x), variants(weight, 7))
    assert shapes == [(i, j, 7 * e, o), grad_y.shape]
    assert config.groups == 1

    # Gradients of one image for each example: groups, as both differ.
    def grad_weight(x, grad_y):
        return jax.linear_transpose(lambda weight: forward(x, weight), weight)(grad_y)

    grads = variants(grad_y, 7)
    config, shapes = _one_bind("conv_backward_weight", jax.vmap(grad_weight), both[0], grads)
    assert shapes == [(n, h, w, 7 * c), (*grad_y.shape[:3], 7 * o)]
    assert config.groups == 7


# Several devices.


def mesh_of(count, axis_type=AxisType.Auto):
    return jax.make_mesh((count,), ("batch",), axis_types=(axis_type,))


@pytest.mark.quick
@pytest.mark.parametrize("check_vma", [False, True])
def test_shard_map(check_vma):
    """Images over 4 devices, weights on each: gradients of the weights are summed."""
    x, weight, bias = operands_of("plain")
    x = jnp.concatenate([x, x * 0.9])

    def loss(x, weight, bias):
        return jax.lax.psum(jnp.sum(oxijax.conv(x, weight, bias) ** 2), "batch")

    specs = (BATCH, EVERYWHERE, EVERYWHERE)
    parallel = jax.shard_map(
        loss, mesh=mesh_of(4), in_specs=specs, out_specs=EVERYWHERE, check_vma=check_vma
    )
    actual = jax.jit(jax.grad(parallel, EVERY))(x, weight, bias)
    expected = jax.jit(jax.grad(squares(oxijax.reference.conv), EVERY))(x, weight, bias)
    assert_trees_close(actual, expected)


def test_derivatives_in_shard_map():
    """Gradients inside of the map, per device, and forward mode through it."""
    x, weight, bias = operands_of("plain")
    specs = (BATCH, EVERYWHERE, EVERYWHERE)

    def inside(x, weight, bias):
        return jax.grad(squares(oxijax.conv), EVERY)(x, weight, bias)

    parallel = jax.jit(jax.shard_map(inside, mesh=mesh_of(2), in_specs=specs, out_specs=specs))
    expected = jax.grad(squares(oxijax.reference.conv), EVERY)(x, weight, bias)
    assert_trees_close(parallel(x, weight, bias), expected)

    outputs = jax.shard_map(oxijax.conv, mesh=mesh_of(2), in_specs=specs, out_specs=BATCH)
    primals = x, weight, bias
    actual = jax.jit(lambda *p: jax.jvp(outputs, p, p))(*primals)
    assert_trees_close(actual, jax.jvp(oxijax.reference.conv, primals, primals))


def test_empty_batch_in_shard_map():
    x, weight, bias = operands_of("plain")

    def inside(x, weight, bias):
        return jax.lax.psum(jnp.sum(oxijax.conv(x, weight, bias)), "batch")

    parallel = jax.shard_map(
        inside, mesh=mesh_of(2), in_specs=(BATCH, EVERYWHERE, EVERYWHERE), out_specs=EVERYWHERE
    )
    grads = jax.jit(jax.grad(parallel, (1, 2)))(x[:0], weight, bias)
    assert not any(np.any(g) for g in grads)


def test_sharded_inputs_under_jit():
    """Images sharded over devices give the same values and gradients; the result is sharded."""
    x, weight, bias = operands_of("plain")
    x_ = jax.device_put(x, NamedSharding(mesh_of(2), BATCH))
    y = jax.jit(oxijax.conv)(x_, weight, bias)
    assert not y.sharding.is_fully_replicated
    assert_close(y, oxijax.reference.conv(x, weight, bias), TOLERANCE)
    actual = jax.jit(jax.grad(squares(oxijax.conv), EVERY))(x_, weight, bias)
    assert_trees_close(actual, jax.grad(squares(oxijax.reference.conv), EVERY)(x, weight, bias))


# Export.


def test_export_round_trip():
    operands = operands_of("plain")
    exported = jax.export.export(jax.jit(oxijax.conv))(*operands)
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_array_equal(again.call(*operands), jax.jit(oxijax.conv)(*operands))


def test_export_for_any_batch():
    x, weight, bias = operands_of("groups-2")
    (batch,) = jax.export.symbolic_shape("n")
    any_x = jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype)
    gradients = jax.jit(jax.grad(squares(oxijax.conv), EVERY))
    exported = jax.export.export(gradients)(any_x, weight, bias)
    assert_trees_close(exported.call(x, weight, bias), gradients(x, weight, bias))
    assert_trees_close(exported.call(x[:1], weight, bias), gradients(x[:1], weight, bias))
