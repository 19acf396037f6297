"""The operators on several devices: in `jax.shard_map`, under jit, and exported for them."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.helpers import assert_close
from support.layers import LAYERS, PATHS, Layer, program_of, values_of
from support.public_calls import find_call, operator_calls

import oxijax
from oxijax.testing import emulate_gpu

TOLERANCE = 2e-6  # float32, sums in another order
OPERATORS = [name for name, call in operator_calls().items() if call.differentiable]
# Operators, and the dimensions along which every part of a call is a call of its own.
QUERIES = ("ms_deform_attn", "grid_sample", "map_coordinates")
SPLITS = [(name, "n") for name in OPERATORS if "n" in operator_calls()[name].dims[0]]
SPLITS += [(name, "q") for name in QUERIES]


def mesh_of(**axes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def assert_trees_close(actual, expected, tolerance=TOLERANCE):
    jax.tree.map(lambda a, e: assert_close(a, e, tolerance), actual, expected)


# shard_map.


@pytest.mark.spread(2)
@pytest.mark.quick
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize(("name", "split"), SPLITS)
def test_shard_map(name, split, check_vma, path):
    """Gradients of what all devices have are summed over them."""
    call = find_call(name)
    every = tuple(range(len(call.dims)))

    def loss(*operands):
        return jnp.sum(jnp.sin(call.function(*operands)))

    parallel = jax.shard_map(
        lambda *operands: jax.lax.psum(loss(*operands), "batch"),
        mesh=mesh_of(batch=4), in_specs=tuple(call.specs(split, "batch")), out_specs=P(),
        check_vma=check_vma,
    )  # fmt: skip
    with PATHS[path]():
        actual = jax.jit(jax.grad(parallel, every))(*call.operands())
    # The terms of the gradient to alpha cancel.
    tolerance = 1e-5 if "gemm" in name else TOLERANCE
    assert_trees_close(actual, jax.jit(jax.grad(loss, every))(*call.operands()), tolerance)


@pytest.mark.spread(2)
@pytest.mark.parametrize(("name", "split"), SPLITS)
def test_derivatives_in_shard_map(name, split):
    """Gradients inside of the map, per device, and forward mode and vmap through it."""
    call, mesh = find_call(name), mesh_of(batch=2)
    operands, specs = call.operands(), tuple(call.specs(split, "batch"))
    gradients = jax.grad(
        lambda *operands: jnp.sum(jnp.sin(call.function(*operands))), tuple(range(len(operands)))
    )
    parallel = jax.jit(jax.shard_map(gradients, mesh=mesh, in_specs=specs, out_specs=specs))
    assert_trees_close(parallel(*operands), jax.jit(gradients)(*operands))

    mapped = jax.vmap(call.function)
    operands = [np.stack([v, v / 2]) for v in operands]
    specs = tuple(P(None, *spec) for spec in specs)
    y_spec = P(None, "batch") if split == "n" else P(None, None, "batch")
    outputs = jax.shard_map(mapped, mesh=mesh, in_specs=specs, out_specs=y_spec)
    actual, expected = (
        jax.jit(functools.partial(jax.jvp, function))(operands, operands)
        for function in (outputs, mapped)
    )
    assert_trees_close(actual, expected)


@pytest.mark.parametrize("name", ["conv", "deform_conv", "gemm"])
def test_empty_batch_in_shard_map(name):
    call = find_call(name)
    specs = tuple(call.specs("n", "batch"))
    operands = [
        v[:0] if "batch" in spec else v for v, spec in zip(call.operands(), specs, strict=True)
    ]
    shared = tuple(i for i, spec in enumerate(specs) if "batch" not in spec)

    def inside(*operands):
        return jax.lax.psum(jnp.sum(call.function(*operands)), "batch")

    parallel = jax.shard_map(inside, mesh=mesh_of(batch=2), in_specs=specs, out_specs=P())
    assert not any(np.any(g) for g in jax.jit(jax.grad(parallel, shared))(*operands))


# jit of kernels with sharded operands; what is sent is in `core/test_sharding.py`.

LAUNCHES = {"conv": 3, "conv-groups": 3, "deform_conv": 4, "ms_deform_attn": 3}
GROUPS = Layer(
    functools.partial(oxijax.conv, precision="highest"),
    ((4, 5, 4, 6), (3, 3, 2, 3), (3,)),
    (0, None, None),
)


def layer_of(name: str) -> Layer:
    return {**LAYERS, "conv-groups": GROUPS}[name]


def sharded(layer: Layer, mesh: jax.sharding.Mesh, values) -> list[jax.Array]:
    """Operands of a layer, each with its batch over the devices, if it has one."""
    return [
        jax.device_put(v, NamedSharding(mesh, P() if split is None else P("batch")))
        for v, split in zip(values, layer.split, strict=True)
    ]


@pytest.mark.spread(2)
@pytest.mark.parametrize("axes", [{"batch": 4}, {"batch": 2, "model": 2}, {"batch": 2}])
@pytest.mark.parametrize("name", LAUNCHES)
def test_jit_splits_the_batch(name, axes):
    """Each device launches kernels on its images; only gradients of weights are communicated."""
    layer, mesh = layer_of(name), mesh_of(**axes)
    expected, grad_y = values_of(layer)
    operands = sharded(layer, mesh, layer.operands())
    grad_y = jax.device_put(grad_y, NamedSharding(mesh, P("batch")))
    with emulate_gpu():
        compiled = program_of(layer).lower(operands, grad_y).compile()
        results = compiled(operands, grad_y)
    text = compiled.as_text()
    assert text is not None
    assert not re.search(r"\b(all-gather|all-to-all|collective-permute)", text)
    launches = [line for line in text.splitlines() if 'custom_call_target="oxijax_launch"' in line]
    assert len(launches) == LAUNCHES[name]
    images, *rest = layer.shapes[0]
    local = ",".join(map(str, (images // axes["batch"], *rest)))
    assert all(f"f32[{local}]" in line for line in launches)  # the images, or their gradient
    assert_trees_close(results, expected)
    assert results[0].sharding.spec == P("batch")


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", LAUNCHES)
def test_batch_that_the_devices_do_not_divide(name):
    layer, mesh = layer_of(name), mesh_of(batch=4)
    operands = [
        v if split is None else v[:3]
        for v, split in zip(layer.operands(), layer.split, strict=True)
    ]
    grad_y = values_of(layer)[1][:3]
    expected = program_of(layer)(operands, grad_y)
    operands = [jax.device_put(v, NamedSharding(mesh, P())) for v in operands]
    with emulate_gpu():
        results = program_of(layer)(operands, grad_y)
    assert_trees_close(results, expected)


@pytest.mark.parametrize("name", ["conv", "deform_conv", "gemm"])
def test_export_for_several_gpus(name):
    layer, mesh = layer_of(name), mesh_of(batch=4)
    operands = sharded(layer, mesh, layer.operands())
    shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=v.sharding) for v in operands]
    exported = jax.export.export(
        jax.jit(layer.function), platforms=("cuda",), disabled_checks=oxijax.EXPORT_CHECKS
    )(*shapes)
    assert exported.nr_devices == 4
    batch, *rest = layer.shapes[0]
    part = "x".join(map(str, (4, batch // 4, *rest)))
    assert f"tensor<{part}xf32>" in exported.mlir_module()
