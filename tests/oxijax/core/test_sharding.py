"""Every primitive on several devices: what is split, what is sent, and what comes out."""

import pathlib

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.helpers import assert_close
from support.layers import (
    LAYERS,
    PATHS,
    TOLERANCE,
    collectives,
    expected,
    kernel_primitives,
    primitives_of,
    program_of,
)
from support.processes import python

import oxijax

TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
_conv, _deform_conv = LAYERS["conv"].function, LAYERS["deform_conv"].function


def at(dimension, axis, ndim):
    return P(*(axis if i == dimension else None for i in range(ndim)))


def check(name, mesh, specs, grad_spec):
    """Runs a layer on sharded operands, and returns the collectives of forward and of all."""
    layer, (values, grad_y) = LAYERS[name], expected(name)
    with jax.set_mesh(mesh):
        operands = [
            jax.device_put(v, NamedSharding(mesh, spec))
            for v, spec in zip(layer.operands(), specs, strict=True)
        ]
        grad_y = jax.device_put(grad_y, NamedSharding(mesh, grad_spec))
        forward = jax.jit(layer.function).lower(*operands).compile()
        compiled = program_of(layer).lower(operands, grad_y).compile()
        results = compiled(operands, grad_y)
    for result, value in zip(results, values, strict=True):
        assert_close(result, value, TOLERANCE)
    if all(kind == AxisType.Explicit for kind in mesh.axis_types):
        assert results[0].sharding.is_equivalent_to(NamedSharding(mesh, grad_spec), results[0].ndim)
        for result, operand in zip(results[1:], operands, strict=True):
            assert result.sharding == operand.sharding
    return collectives(forward), collectives(compiled)


def mesh_of(*axes, kind="auto", sizes=None):
    return jax.make_mesh(sizes or (4,), axes, axis_types=(TYPES[kind],) * len(axes))


def test_every_primitive_is_in_a_layer():
    """A primitive of a new family needs a layer here."""
    found = set().union(*kernel_primitives().values())
    used = set()
    for name, layer in LAYERS.items():
        _, grad_y = expected(name)
        used.update(primitives_of(program_of(layer).trace(layer.operands(), grad_y).jaxpr.jaxpr))
    assert {primitive.primitive for primitive in found} <= used
    assert len(found) == 3 + 4 + 4


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", LAYERS)
def test_split_along_the_batch(name, kind, path):
    """Nothing is sent but the sums of the gradients of what all devices have."""
    layer = LAYERS[name]
    specs = [at(d, "data", len(s)) for d, s in zip(layer.split, layer.shapes, strict=True)]
    rank = expected(name)[1].ndim
    with PATHS[path]():
        forward, every = check(name, mesh_of("data", kind=kind), specs, at(0, "data", rank))
    replicated = sum(d is None for d in layer.split)
    if (kind, path) == ("auto", "kernels") and layer.split[0] != 0:
        # XLA splits calls of kernels along leading dimensions alone, and the rows of a transposed
        # matrix are none.
        assert "all-gather" in forward
        return
    assert forward == {}
    assert every == ({"all-reduce": replicated} if replicated else {})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", LAYERS)
def test_split_along_the_output_channels(name, path):
    """Each device has some of the weights; nothing is sent forward."""
    layer = LAYERS[name]
    specs = [at(d, "model", len(s)) for d, s in zip(layer.columns, layer.shapes, strict=True)]
    rank = expected(name)[1].ndim
    mesh = mesh_of("model", kind="explicit")
    with PATHS[path]():
        forward, every = check(name, mesh, specs, at(rank - 1, "model", rank))
    whole = sum(d is None for d in layer.columns)  # their gradients are sums over the columns
    assert forward == {}
    assert every == {"all-reduce": whole}


@pytest.mark.parametrize("path", PATHS)
def test_split_along_k(path):
    """The result is a sum over the devices."""
    mesh = mesh_of("data", kind="explicit")
    layer, (values, _) = LAYERS["gemm"], expected("gemm")
    with jax.set_mesh(mesh), PATHS[path]():
        a, b = layer.operands()
        operands = jax.device_put(a, P(None, "data")), jax.device_put(b, P("data"))
        compiled = jax.jit(layer.function).lower(*operands).compile()
        assert_close(compiled(*operands), values[0], TOLERANCE)
    assert collectives(compiled) == {"all-reduce": 1}


EIGHT_DEVICES = """
import sys
sys.path[:0] = sys.argv[1].split()
import test_sharding as tests
for kind in tests.TYPES:
    for name, path in (("conv", "kernels"), ("deform_conv", "kernels"), ("gemm", "xla")):
        layer = tests.LAYERS[name]
        mesh = tests.mesh_of("data", "model", kind=kind, sizes=(4, 2))
        specs = []
        for split, column, shape in zip(layer.split, layer.columns, layer.shapes, strict=True):
            axes = {split: "data", column: "model"}
            specs.append(tests.P(*(axes.get(i) for i in range(len(shape)))))
        rank = tests.expected(name)[1].ndim
        spec = tests.P("data", *(None,) * (rank - 2), "model")
        with tests.PATHS[path]():
            forward, every = tests.check(name, mesh, specs, spec)
        if kind == "explicit":
            assert forward == {}, forward
            assert every == {"all-reduce": len(layer.shapes)}, every
        print("done", kind, name)
"""


def test_eight_devices():
    """Images over four, output channels over two."""
    here = pathlib.Path(__file__)
    status, printed = python(
        "-c",
        EIGHT_DEVICES,
        f"{here.parent} {here.parents[2]}",
        XLA_FLAGS="--xla_force_host_platform_device_count=8",
    )
    assert status == 0, printed
    assert printed.count("done ") == 6


# Explicit axes: what JAX does with functions.


@pytest.fixture
def sharded():
    """deform_conv's operands on two by two devices; what it makes of them on one."""
    mesh = mesh_of("data", "model", kind="explicit", sizes=(2, 2))
    specs = P("data"), P("data"), P(None, None, None, "model"), P("data"), P("model")
    with jax.set_mesh(mesh):
        yield [
            jax.device_put(v, NamedSharding(mesh, spec))
            for v, spec in zip(LAYERS["deform_conv"].operands(), specs, strict=True)
        ]


def test_without_jit(sharded):
    values, grad_y = expected("deform_conv")
    assert_close(_deform_conv(*sharded), values[0], TOLERANCE)
    _, vjp = jax.vjp(_deform_conv, *sharded)
    gradients = vjp(jax.device_put(grad_y, P("data", None, None, "model")))
    for gradient, value, operand in zip(gradients, values[1:], sharded, strict=True):
        assert_close(gradient, value, TOLERANCE)
        assert gradient.sharding.is_equivalent_to(operand.sharding, operand.ndim)


@pytest.mark.parametrize("jitted", [False, True])
def test_without_set_mesh(jitted):
    """The mesh is that of an operand; under jit others need not be on it."""
    layer, mesh = LAYERS["deform_conv"], mesh_of("data", kind="explicit")
    x, *others = layer.operands()
    function = jax.jit(_deform_conv) if jitted else _deform_conv
    if not jitted:
        others = jax.device_put(others, NamedSharding(mesh, P()))
    y = function(jax.device_put(x, NamedSharding(mesh, P("data"))), *others)
    assert y.sharding.is_equivalent_to(NamedSharding(mesh, P("data")), 4)
    assert_close(y, expected("deform_conv")[0][0], TOLERANCE)


def test_vmap(sharded):
    x, offset, weight, mask, bias = sharded
    function = jax.vmap(_deform_conv, in_axes=(0, 0, None, 0, None))
    y = jax.jit(function)(x[:, None], offset[:, None], weight, mask[:, None], bias)
    assert_close(y[:, 0], expected("deform_conv")[0][0], TOLERANCE)


@pytest.mark.parametrize("policy", ["nothing_saveable", "dots_saveable", "everything_saveable"])
def test_remat(sharded, policy):
    (_, _, _, grad_weight, *_), grad_y = expected("deform_conv")
    function = jax.checkpoint(_deform_conv, policy=getattr(jax.checkpoint_policies, policy))

    @jax.jit
    def gradient(weight, grad_y):
        x, offset, _, *rest = sharded
        return jax.vjp(lambda weight: function(x, offset, weight, *rest), weight)[1](grad_y)[0]

    actual = gradient(sharded[2], jax.device_put(grad_y, P("data", None, None, "model")))
    assert_close(actual, grad_weight, TOLERANCE)


def test_scan_over_layers(sharded):
    x, offset, weight, *_ = sharded
    weights = jnp.stack([jax.sharding.reshard(weight, P())] * 3) / 8

    @jax.jit
    def layers(x, offset, weights):
        return jax.lax.scan(lambda y, w: (_deform_conv(y, offset, w), None), x, weights)[0]

    y = layers(x, offset, weights)
    assert y.sharding.spec == P("data", None, None, None)
    x, offset, weight, *_ = LAYERS["deform_conv"].operands()
    for _ in range(3):
        x = oxijax.reference.deform_conv(x, offset, weight / 8, precision="highest")
    assert_close(y, x, TOLERANCE)


def test_grad_of_grad(sharded):
    def twice(*operands):
        def inner(x):
            return (_deform_conv(x, *operands[1:]) ** 2).sum()

        return (jax.grad(inner)(operands[0]) ** 2).sum()

    actual = jax.jit(jax.grad(twice, 2))(*sharded)
    assert actual.sharding == sharded[2].sharding
    whole = [jax.sharding.reshard(v, P()) for v in sharded]
    assert_close(actual, jax.jit(jax.grad(twice, 2))(*whole), TOLERANCE)


def test_inside_auto_axes(sharded):
    function = jax.sharding.auto_axes(
        _deform_conv, out_sharding=P("data", None, None, "model"), axes=("data", "model")
    )
    assert_close(jax.jit(function)(*sharded), expected("deform_conv")[0][0], TOLERANCE)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("check_vma", [False, True])
def test_inside_shard_map(sharded, check_vma, jitted):
    specs = P("data"), P("data"), P(), P("data"), P()
    function = jax.shard_map(_deform_conv, in_specs=specs, out_specs=P("data"), check_vma=check_vma)
    operands = [jax.sharding.reshard(v, spec) for v, spec in zip(sharded, specs, strict=True)]
    y = (jax.jit(function) if jitted else function)(*operands)
    assert_close(y, expected("deform_conv")[0][0], TOLERANCE)


def test_inside_shard_map_over_some_axes(sharded):
    specs = P("data"), P("data"), P(), P("data"), P()
    function = jax.shard_map(_deform_conv, in_specs=specs, out_specs=P("data"), axis_names={"data"})
    y = jax.jit(function)(*sharded)
    assert y.sharding.spec == P("data", None, None, "model")
    assert_close(y, expected("deform_conv")[0][0], TOLERANCE)


def test_images_split_along_their_height(sharded):
    """They are gathered; the output is split as the offsets are."""
    values, _ = expected("deform_conv")
    x, offset, weight, mask, bias = (jax.sharding.reshard(v, P()) for v in sharded)
    rows = P(None, "data")
    x, offset, mask = (jax.sharding.reshard(v, rows) for v in (x, offset, mask))
    y = jax.jit(_deform_conv)(x, offset, weight, mask, bias)
    assert y.sharding.spec == P(None, "data", None, None)
    assert_close(y, values[0], TOLERANCE)
    gradient = jax.jit(jax.grad(lambda x: _deform_conv(x, offset, weight, mask, bias).sum()))(x)
    assert gradient.sharding == x.sharding


def test_axes_that_do_not_fit(sharded):
    x, offset, weight, mask, bias = sharded
    other = jax.sharding.reshard(offset, P("model"))
    with pytest.raises(
        ValueError, match=r"offset is sharded over model along its dimension n, and x"
    ):
        jax.jit(_deform_conv)(x, other, weight, mask, bias)
    other = jax.sharding.reshard(weight, P(None, None, None, "data"))
    bias = jax.sharding.reshard(bias, P("data"))
    with pytest.raises(ValueError, match=r"sharded over data along the dimensions n and o: use"):
        jax.jit(_deform_conv)(x, offset, other, mask, bias)
