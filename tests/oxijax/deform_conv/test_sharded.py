"""deform_conv's GPU kernels on several devices: each has its part of the batch, and no more."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.helpers import NAMES, assert_close, program_of, values_and_gradients

import oxijax
from oxijax.testing import DeformConvCase, emulate_gpu

SPECS = dict(zip(NAMES, (P("batch"), P("batch"), P(), P("batch"), P()), strict=True))
FUNCTION = functools.partial(oxijax.deform_conv, precision="highest")


def mesh_of(**axes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def layer(batch: int) -> DeformConvCase:
    return DeformConvCase(f"sharded-{batch}", (batch, 4, 5, 8), 6, offset_groups=2)


def expected(case):
    operands = case.operands()
    reference = functools.partial(oxijax.reference.deform_conv, precision="highest")
    return values_and_gradients(reference, operands, case.grad_y())


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("batch", "axes", "local"),
    [
        (8, {"batch": 4}, "[2,4,5,8]"),
        (4, {"batch": 2, "model": 2}, "[2,4,5,8]"),
        (2, {"batch": 2}, "[1,4,5,8]"),
    ],
)
def test_jit_splits_the_batch(batch, axes, local):
    case, mesh = layer(batch), mesh_of(**axes)
    operands = tuple(
        jax.device_put(v, NamedSharding(mesh, spec))
        for v, spec in zip(case.operands(), SPECS.values(), strict=True)
    )
    grad_y = jax.device_put(case.grad_y(), NamedSharding(mesh, P("batch")))
    with emulate_gpu():
        compiled = program_of(FUNCTION).lower(operands, grad_y).compile()
        y, gradients = compiled(operands, grad_y)
    text = compiled.as_text()
    assert text is not None
    assert not re.search(r"\b(all-gather|all-to-all|collective-permute)", text)
    calls = [line for line in text.splitlines() if 'custom_call_target="oxijax_launch"' in line]
    assert len(calls) == 4
    assert all(f"f32{local}" in line for line in calls)  # x, or its gradient
    results = {"y": y, **{f"d{name}": g for name, g in zip(NAMES, gradients, strict=True)}}
    for name, value in expected(case).items():
        assert_close(results[name], value, 2e-6, name)
    assert y.sharding.spec == P("batch")


def test_batch_that_the_devices_do_not_divide():
    case, mesh = layer(3), mesh_of(batch=4)
    operands = [jax.device_put(v, NamedSharding(mesh, P())) for v in case.operands()]
    with emulate_gpu():
        results = values_and_gradients(FUNCTION, operands, case.grad_y())
    for name, value in expected(case).items():
        assert_close(results[name], value, 2e-6, name)


def test_shard_map():
    case, mesh = layer(4), mesh_of(batch=4)

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(tuple(SPECS.values()), P("batch")), out_specs=P("batch")
    )
    def run(operands, grad_y):
        y, vjp = jax.vjp(FUNCTION, *operands)
        return y, vjp(grad_y)[0]

    with emulate_gpu():
        operands = case.operands()
        y, dx = jax.jit(run)(operands, case.grad_y())
    wanted = expected(case)
    assert_close(y, wanted["y"], 2e-6)
    assert_close(dx, wanted["dx"], 2e-6)


def test_export_for_several_gpus():
    case, mesh = layer(4), mesh_of(batch=4)
    shapes = [
        jax.ShapeDtypeStruct(np.shape(v), jnp.float32, sharding=NamedSharding(mesh, spec))
        for v, spec in zip(case.operands(), SPECS.values(), strict=True)
    ]
    exported = jax.export.export(
        jax.jit(oxijax.deform_conv), platforms=("cuda",), disabled_checks=oxijax.EXPORT_CHECKS
    )(*shapes)
    assert exported.nr_devices == 4
    assert "tensor<4x1x4x5x8xf32>" in exported.mlir_module()
