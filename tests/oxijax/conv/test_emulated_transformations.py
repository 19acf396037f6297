"""conv's GPU kernels under JAX's transformations, in the emulator, against the reference."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.conv_checks import KERNELS, NAMES, operands_of
from support.helpers import assert_close, program_of, values_and_gradients

import oxijax
from oxijax._core.launch import Emulation, emulation
from oxijax.testing import ConvCase, emulate_gpu
from ptx.definition import KernelDefinition

TOLERANCE = 1e-5
EVERY = (0, 1, 2)
SPECS = (P("batch"), P(), P())
FUNCTION = functools.partial(oxijax.conv, precision="highest")
REFERENCE = functools.partial(oxijax.reference.conv, precision="highest")
# One layer with tiles, and one of tiny groups.
LAYERS = [ConvCase("tiled", (4, 4, 5, 6), 8), ConvCase("tiny", (4, 5, 4, 6), 3, groups=3)]


def squares(function):
    return lambda *operands: jnp.sum(function(*operands) ** 2)


def assert_trees_close(actual, expected):
    jax.tree.map(lambda a, e: assert_close(a, e, TOLERANCE), actual, expected)


def launches(compiled) -> list[str]:
    """The lines of a compiled program that launch a kernel."""
    text = compiled.as_text()
    assert not re.search(r"\b(all-gather|all-to-all|collective-permute)", text)
    return [line for line in text.splitlines() if 'custom_call_target="oxijax_launch"' in line]


def mesh_of(count: int) -> jax.sharding.Mesh:
    return jax.make_mesh((count,), ("batch",), axis_types=(AxisType.Auto,))


@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, 0), (0, 0, 0)])
@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
def test_vmap(case, axes):
    """Images, weights and both mapped: a batch, channels and groups of the same three kernels."""
    variants = [
        v if axis is None else jnp.stack([v, v * 0.9, -v])
        for v, axis in zip(operands_of(case), axes, strict=True)
    ]
    run = jax.jit(jax.vmap(jax.value_and_grad(squares(FUNCTION), EVERY), axes))
    with emulate_gpu():
        compiled = run.lower(*variants).compile()
        actual = compiled(*variants)
    assert len(launches(compiled)) == 3
    expected = jax.jit(jax.vmap(jax.value_and_grad(squares(REFERENCE), EVERY), axes))(*variants)
    assert_trees_close(actual, expected)


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
def test_grad_of_grad(case):
    operands = operands_of(case)

    def penalty(function):
        def of_gradients(*operands):
            gradients = jax.grad(lambda *o: jnp.sum(jnp.sin(function(*o))), EVERY)(*operands)
            return sum(jnp.sum(g**2) for g in gradients)

        return jax.jit(jax.grad(of_gradients, EVERY))

    with emulate_gpu():
        compiled = penalty(FUNCTION).lower(*operands).compile()
        actual = compiled(*operands)
    assert len(launches(compiled)) > 3
    assert_trees_close(actual, penalty(REFERENCE)(*operands))


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
def test_jit_splits_the_batch(case):
    """Each device launches kernels on its image; only the weights' gradients are communicated."""
    mesh = mesh_of(4)
    operands = tuple(
        jax.device_put(v, NamedSharding(mesh, spec))
        for v, spec in zip(operands_of(case), SPECS, strict=True)
    )
    grad_y = jax.device_put(case.grad_y(), NamedSharding(mesh, P("batch")))
    with emulate_gpu():
        compiled = program_of(FUNCTION).lower(operands, grad_y).compile()
        y, gradients = compiled(operands, grad_y)
    local = ",".join(map(str, (1, *case.x[1:])))
    assert len(launches(compiled)) == 3
    assert all(f"f32[{local}]" in line for line in launches(compiled))  # x, or its gradient
    results = {"y": y, **{f"d{name}": g for name, g in zip(NAMES, gradients, strict=True)}}
    expected = values_and_gradients(REFERENCE, operands_of(case), case.grad_y(), NAMES)
    assert_trees_close(results, expected)
    assert y.sharding.spec == P("batch")


def test_a_part_of_a_batch_has_the_plan_of_its_own_size(monkeypatch):
    """Each of 4 devices launches the kernels of its 2 images, and not those of all 8."""
    launched, of_kernel = {}, KernelDefinition.launch

    def launch(kernel, *arguments, **options):
        how = of_kernel(kernel, *arguments, **options)
        launched.setdefault(kernel.name, set()).add((how.text, how.grid, how.block))
        return how

    monkeypatch.setattr(KernelDefinition, "launch", launch)

    def launches_of(images, sharding):
        """What is launched for so many images, forward and backward."""
        launched.clear()
        oxijax.clear_caches()  # a part's kernels are those of a call of its size
        shapes = (images, 64, 64, 64), (3, 3, 64, 64)
        operands = [jax.device_put(jnp.zeros(shape, jnp.bfloat16), s)
                    for shape, s in zip(shapes, sharding, strict=True)]  # fmt: skip
        with emulation(Emulation("sm_90", dry_run=True)):
            jax.block_until_ready(program_of(oxijax.conv)(tuple(operands), operands[0]))
        return dict(launched)

    mesh = mesh_of(4)
    part = jax.devices()[0]
    of_part = launches_of(2, [part, part])
    split = launches_of(8, [NamedSharding(mesh, P("batch")), NamedSharding(mesh, P())])
    whole = launches_of(8, [part, part])
    assert split == of_part
    assert split.keys() == set(KERNELS)
    for kernel in KERNELS:
        assert split[kernel].isdisjoint(whole[kernel])


@pytest.mark.spread(1)
@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
def test_shard_map(case, check_vma):
    """Gradients to what all devices have are summed over them."""

    def loss(*operands):
        return jax.lax.psum(squares(FUNCTION)(*operands), "batch")

    parallel = jax.shard_map(
        loss, mesh=mesh_of(4), in_specs=SPECS, out_specs=P(), check_vma=check_vma
    )
    with emulate_gpu():
        actual = jax.jit(jax.grad(parallel, EVERY))(*operands_of(case))
    assert_trees_close(actual, jax.grad(squares(REFERENCE), EVERY)(*operands_of(case)))


def test_export_round_trip():
    """An exported program has the kernels' configurations in it, and no state of the process."""
    operands = operands_of(LAYERS[0])
    gradients = jax.jit(jax.grad(squares(FUNCTION), EVERY))
    with emulate_gpu():
        exported = jax.export.export(gradients, disabled_checks=oxijax.EXPORT_CHECKS)(*operands)
        actual = jax.export.deserialize(exported.serialize()).call(*operands)
    assert exported.mlir_module().count("@oxijax_launch") == 3
    assert_trees_close(actual, jax.grad(squares(REFERENCE), EVERY)(*operands))


def test_export_for_several_gpus():
    case, mesh = LAYERS[0], mesh_of(4)
    shapes = [
        jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=NamedSharding(mesh, spec))
        for v, spec in zip(operands_of(case), SPECS, strict=True)
    ]
    exported = jax.export.export(
        jax.jit(oxijax.conv), platforms=("cuda",), disabled_checks=oxijax.EXPORT_CHECKS
    )(*shapes)
    assert exported.nr_devices == 4
    assert "tensor<4x1x4x5x6xf32>" in exported.mlir_module()


# Streamed, in tiles of joined taps, and without tiles: (channels, outputs, groups, dtype).
KINDS = {"streamed": (32, 32, 1), "tiled": (5, 7, 1), "tiny": (6, 6, 6)}


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_spreads_as_in_the_reference(kind, strides):
    """To where taps inside of the image read it, and nowhere else: padding is no 0 * inf."""
    channels, outputs, groups = KINDS[kind]
    case = ConvCase("not-finite", (2, 6, 7, channels), outputs, strides=(strides, strides),
                    groups=groups)  # fmt: skip
    x, weight, bias = (np.array(v) for v in operands_of(case))
    x[0, 0, 0, 1], x[0, -1, -1, 0], x[1, 3, 0, 2] = np.inf, np.nan, -np.inf
    grad_y = np.array(case.grad_y())
    grad_y[0, 0, -1, 1], grad_y[1, -1, 0, 0] = np.inf, np.nan

    def run(function):
        """The output; the gradient to x, of grad_y; and to the weights, of x."""
        y, vjp = jax.vjp(functools.partial(function, strides=strides), x, weight, bias)
        return y, vjp(grad_y)[0], vjp(case.grad_y())[1]

    with emulate_gpu("sm_80"):
        results = jax.jit(functools.partial(run, FUNCTION if kind != "streamed" else oxijax.conv))()
    for result, expected in zip(results, jax.jit(functools.partial(run, REFERENCE))(), strict=True):
        assert 0 < np.isfinite(expected).sum() < expected.size
        for which in (np.isfinite, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(which(result), which(expected))
