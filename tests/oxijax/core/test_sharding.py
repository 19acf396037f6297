"""Every primitive on several devices: what is split, what is sent, and what comes out."""

import gc
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
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
    on_mesh,
    primitives_of,
    program_of,
)
from support.processes import python

import oxijax
from oxijax.testing import emulate_gpu

TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
_conv, _deform_conv, _gemm = (LAYERS[name].function for name in ("conv", "deform_conv", "gemm"))


def at(dimension, axis, ndim):
    return P(*(axis if i == dimension else None for i in range(ndim)))


def check(name, mesh, specs, grad_spec):
    """Runs a layer on sharded operands, and returns the collectives of forward and of all."""
    layer, (values, grad_y) = LAYERS[name], expected(name)
    with jax.set_mesh(mesh):
        operands = on_mesh(layer.operands(), mesh, specs)
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
    parts = {part for primitive in found for part in primitive.parts}
    used = {part.primitive for part in parts}
    for name, layer in LAYERS.items():
        _, grad_y = expected(name)
        used.update(primitives_of(program_of(layer).trace(layer.operands(), grad_y).jaxpr.jaxpr))
    assert {primitive.primitive for primitive in found} <= used
    assert len(found) == 3 + 5 + 4 + 4
    for primitive in found:  # parts are split as the whole is
        for part in primitive.parts:
            rules = ("folds", "batch", "parallel")
            assert [getattr(part, r) for r in rules] == [getattr(primitive, r) for r in rules]


@pytest.mark.spread(2)
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
    assert forward == {}
    assert every == ({"all-reduce": replicated} if replicated else {})


@pytest.mark.spread(2)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", [name for name, layer in LAYERS.items() if layer.columns])
def test_split_along_the_output_channels(name, kind, path):
    """Each device has some of the weights; nothing is sent forward."""
    layer = LAYERS[name]
    specs = [at(d, "model", len(s)) for d, s in zip(layer.columns, layer.shapes, strict=True)]
    rank = expected(name)[1].ndim
    mesh = mesh_of("model", kind=kind)
    with PATHS[path]():
        forward, every = check(name, mesh, specs, at(rank - 1, "model", rank))
    whole = sum(d is None for d in layer.columns)  # their gradients are sums over the columns
    assert forward == {}
    if (name, kind, path) == ("deform_conv", "auto", "xla"):
        whole -= 1  # XLA sums what the gradients to offset and mask are made of
    assert every == {"all-reduce": whole}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", TYPES)
def test_split_along_k(kind, path):
    """The result is a sum over the devices."""
    mesh = mesh_of("data", kind=kind)
    layer, (values, _) = LAYERS["gemm"], expected("gemm")
    with jax.set_mesh(mesh), PATHS[path]():
        operands = on_mesh(layer.operands(), mesh, (P(None, "data"), P("data")))
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
        assert forward == {}, forward
        assert every == {"all-reduce": len(layer.shapes)}, every
        print("done", kind, name)
"""


@pytest.mark.slow
def test_eight_devices():
    """Images over four, output channels over two."""
    here = pathlib.Path(__file__)
    status, printed = python(
        "-c",
        EIGHT_DEVICES,
        f"{here.parent} {here.parents[2]}",
        XLA_FLAGS=f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8",
    )
    assert status == 0, printed
    assert printed.count("done ") == 6


# Auto axes: when XLA asks how to split a kernel.


@pytest.fixture
def columns():
    """Operands of gemm, b over four devices; the mesh; the result."""
    mesh = mesh_of("model")
    operands = on_mesh(LAYERS["gemm"].operands(), mesh, (P(), P(None, "model")))
    return operands, mesh, expected("gemm")[0][0]


def test_compiled_outside_of_what_it_was_lowered_in(columns):
    operands, _, value = columns
    with emulate_gpu():
        lowered = jax.jit(_gemm).lower(*operands)
    with jax.enable_x64(True), emulate_gpu():
        wide = jax.device_put([np.asarray(v, np.float64) for v in operands])
        wide = [jax.device_put(v, o.sharding) for v, o in zip(wide, operands, strict=True)]
        lowered_wide = jax.jit(_gemm).lower(*wide)
    for each, arguments, tolerance in ((lowered, operands, TOLERANCE), (lowered_wide, wide, 1e-6)):
        compiled = each.compile()
        assert collectives(compiled) == {}
        assert_close(compiled(*arguments), value, tolerance)


@pytest.mark.parametrize("deterministic", [False, True])
def test_deterministic_where_it_was_lowered_so(deterministic):
    """Also where XLA asks outside of that context; a cache takes the two for different programs."""
    layer, mesh = LAYERS["deform_conv"], mesh_of("data")
    specs = [at(d, "data", len(s)) for d, s in zip(layer.split, layer.shapes, strict=True)]
    operands = on_mesh(layer.operands(), mesh, specs)

    def gradient(x, *others):
        return jax.grad(lambda x: _deform_conv(x, *others).sum())(x)

    lowered = {}
    for mode in (not deterministic, deterministic):
        with emulate_gpu(), oxijax.config.deterministic_mode(mode):
            lowered[mode] = jax.jit(gradient).lower(*operands)
    texts = {mode: program.as_text() for mode, program in lowered.items()}
    assert texts[False] != texts[True]
    with oxijax.config.deterministic_mode(not deterministic):
        text = lowered[deterministic].compile().as_text()
    assert ("deform_conv_backward_input_gather" in text) == deterministic
    assert "deform_conv_backward_input" in text


def test_a_new_version_of_the_kernels_is_another_program(columns, monkeypatch):
    operands, _, _ = columns
    texts = []
    for version in (3, 4):
        monkeypatch.setattr("oxijax._core.primitive.kernel_primitive.VERSION", version)
        jax.clear_caches()
        with emulate_gpu():
            texts.append(jax.jit(_gemm).lower(*operands).as_text())
    assert "CustomSPMDPartitioning" in texts[0]
    assert texts[0] != texts[1]


def test_what_has_been_compiled_is_forgotten_and_nothing_else(columns):
    """Programs that split alike share what XLA asks, for as long as one of them is left."""
    operands, _, value = columns
    with emulate_gpu():
        first = jax.jit(lambda a, b: _gemm(a, b) + 1).lower(*operands)
        second = jax.jit(lambda a, b: _gemm(a, b) * 2).lower(*operands)
        del second
        jax.clear_caches()
        gc.collect()
        assert_close(first.compile()(*operands) - 1, value, TOLERANCE)


def test_one_axis_along_two_dimensions(columns):
    """The first operand's counts: the other one is gathered."""
    (a, b), mesh, value = columns
    a = jax.device_put(a, NamedSharding(mesh, P("model")))
    with emulate_gpu():
        compiled = jax.jit(_gemm).lower(a, b).compile()
    assert collectives(compiled) == {"all-gather": 1}
    y = compiled(a, b)
    assert y.sharding.is_equivalent_to(NamedSharding(mesh, P("model")), 2)
    assert_close(y, value, TOLERANCE)


def test_mesh_that_is_not_in_a_type(columns):
    """XLA splits the kernel along the batch, without asking."""
    _, mesh, value = columns
    a, b = LAYERS["gemm"].operands()
    shardings = NamedSharding(mesh, P("model")), NamedSharding(mesh, P())
    with emulate_gpu():
        compiled = jax.jit(_gemm, in_shardings=shardings).lower(a, b).compile()
    assert collectives(compiled) == {}
    assert_close(compiled(a, b), value, TOLERANCE)


IN_ANOTHER_PROCESS = """
import sys
sys.path[:0] = sys.argv[1].split()
import jax
import test_sharding as tests
layer = tests.LAYERS["deform_conv"]
mesh = tests.mesh_of("model")
specs = [tests.at(d, "model", len(s)) for d, s in zip(layer.columns, layer.shapes, strict=True)]
operands = tests.on_mesh(layer.operands(), mesh, specs)
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
with tests.emulate_gpu():
    y = jax.block_until_ready(jax.jit(layer.function)(*operands))
print("cache", *(events.count(f"/jax/compilation_cache/cache_{k}") for k in ("hits", "misses")))
tests.assert_close(y, tests.oxijax.reference.deform_conv(*layer.operands()), 1e-5)
"""


def test_persistent_cache(tmp_path):
    """A program that XLA asks for is the same in every process."""
    here = pathlib.Path(__file__)
    for hits, misses in ((0, 1), (1, 0)):
        status, printed = python(
            "-c",
            IN_ANOTHER_PROCESS,
            f"{here.parent} {here.parents[2]}",
            JAX_COMPILATION_CACHE_DIR=str(tmp_path),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
            JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
        )
        assert status == 0, printed
        assert f"cache {hits} {misses}\n" in printed


# Explicit axes: what JAX does with functions.


@pytest.fixture
def sharded():
    """deform_conv's operands on two by two devices; what it makes of them on one."""
    mesh = mesh_of("data", "model", kind="explicit", sizes=(2, 2))
    specs = P("data"), P("data"), P(None, None, None, "model"), P("data"), P("model")
    with jax.set_mesh(mesh):
        yield on_mesh(LAYERS["deform_conv"].operands(), mesh, specs)


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
