"""XLA's schedulers are told how long each launch takes at least."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import oxijax
from oxijax._core.launch import _latency
from oxijax._core.launch._latency import least_nanoseconds
from ptx.devices import DATA_SHEETS

A100 = DATA_SHEETS["A100 80GB"]  # what programs are made for on a machine without a GPU
SHAPES = {
    "conv": ((4, 28, 28, 32), (3, 3, 32, 64), (64,)),
    "deform_conv": ((4, 28, 28, 32), (4, 28, 28, 18), (3, 3, 32, 64), (4, 28, 28, 9)),
    "gemm": ((4096, 64), (64, 8)),
}


def lowered(program, *operands, **options) -> str:
    program = jax.jit(program, **options)
    return program.trace(*operands).lower(lowering_platforms=("cuda",)).as_text()


def times_of(program, *operands, **options) -> list[int]:
    """Nanoseconds of each launch of a program for GPUs; each launch has to say them."""
    lines = lowered(program, *operands, **options).splitlines()
    launches = [line for line in lines if "@oxijax_launch" in line]
    found = [re.search(r'latency_metadata = "(\d+)"', line) for line in launches]
    assert found
    assert all(found)
    return [int(match.group(1)) for match in found if match]


def operands_of(family, dtype=jnp.bfloat16):
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in SHAPES[family]]


def gradient_of(family):
    function = getattr(oxijax, family)
    return jax.grad(lambda operands: function(*operands).astype(jnp.float32).sum())


@pytest.mark.quick
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("family", SHAPES)
def test_every_launch_says_its_time(family, deterministic):
    with oxijax.config.deterministic_mode(deterministic):
        times = times_of(gradient_of(family), operands_of(family))
    assert min(times) > 1


def test_bound_by_memory():
    a, b = operands_of("gemm")
    moved = 2 * (4096 * 64 + 64 * 8 + 4096 * 8)
    assert times_of(oxijax.gemm, a, b) == [-(-moved * 1000 // 2_039_000)]


def test_bound_by_arithmetic():
    x, weight, _ = operands_of("conv", jnp.float32)
    exact = -(-2 * 4 * 28 * 28 * 9 * 32 * 64 // 19_500)
    assert times_of(functools.partial(oxijax.conv, precision="highest"), x, weight) == [exact]
    (rounded,) = times_of(oxijax.conv, x, weight)
    assert rounded < exact / 4


def test_a_launch_takes_a_nanosecond_at_least():
    assert least_nanoseconds(None, moved_bytes=0, products=0, sheet=A100) == 1


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_it_is_the_time_of_a_devices_part(kind):
    """Where XLA asks how to split a program, parts are lowered when it does, as on one device."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
    x, weight, _ = operands_of("conv")
    whole = times_of(oxijax.conv, x, weight)
    shardings = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    if kind == AxisType.Auto:  # without the mesh in a type, for which XLA does not ask
        parts = times_of(oxijax.conv, x, weight, in_shardings=shardings)
    else:
        x, weight = (
            jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=sharding)
            for v, sharding in zip((x, weight), shardings, strict=True)
        )
        with jax.set_mesh(mesh):
            parts = times_of(oxijax.conv, x, weight)
    assert len(parts) == len(whole) == 1
    assert parts[0] == pytest.approx(whole[0] / 4, rel=0.05)


def test_sizes_that_are_not_known_have_no_time():
    (n,) = jax.export.symbolic_shape("n")
    x, weight, _ = operands_of("conv")
    x = jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype)
    exported = jax.export.export(
        jax.jit(oxijax.conv), platforms=("cuda",), disabled_checks=oxijax.EXPORT_CHECKS
    )(x, weight)
    assert "oxijax_launch" in exported.mlir_module()
    assert "latency_metadata" not in exported.mlir_module()


def test_the_gpu_that_programs_are_made_for(monkeypatch):
    x, weight, _ = operands_of("conv")
    (time,) = times_of(oxijax.conv, x, weight)
    half = dataclasses.replace(A100, bandwidth=A100.bandwidth / 2, bf16=A100.bf16 / 2)
    monkeypatch.setattr(_latency, "default_data_sheet", lambda: half)
    (twice,) = times_of(functools.partial(oxijax.conv), x, weight)  # a new function for jit
    assert twice == pytest.approx(2 * time, abs=1)
    monkeypatch.setattr(_latency, "default_data_sheet", lambda: None)
    assert "latency_metadata" not in lowered(functools.partial(oxijax.conv), x, weight)
