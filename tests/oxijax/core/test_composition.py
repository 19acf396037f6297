"""Every primitive within what JAX does to programs: their values are those of the plain program.

Buffers are donated, callbacks and prints run between kernels, programs are rematerialised, scanned,
vmapped and differentiated at once, a thousand calls wait in JAX's queue, and threads compile at
once: through XLA's operations, and through the kernels in the emulated GPU.
"""

import concurrent.futures
import faulthandler
import functools
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.helpers import assert_close
from support.layers import LAYERS, PATHS, TOLERANCE, expected, primitives_of, program_of

import oxijax
from oxijax._core.launch import _emulation

COVERING = "conv", "deform_conv", "gemm-batch", "gemm-transposed"  # of them all primitives are part
DEADLINE = 120  # seconds; no test takes ten


@pytest.fixture(autouse=True)
def _deadline():
    """A deadlock ends this process, with the stacks of all threads."""
    faulthandler.dump_traceback_later(DEADLINE, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    """A context in which a part of a test runs; the emulator runs in that of kernels alone."""
    launches = []
    run = _emulation.emulator_launch

    def recorded(*args, **kwargs):
        launches.append(threading.get_native_id())
        return run(*args, **kwargs)

    monkeypatch.setattr(_emulation, "emulator_launch", recorded)
    yield PATHS[request.param]
    assert bool(launches) == (request.param == "kernels")


@pytest.fixture(params=COVERING)
def name(request):
    """Of a layer, whose values are there."""
    expected(request.param)
    return request.param


def weight_of(name):
    """Which operand of a layer are its weights, or the matrix that is like them."""
    return next(i for i, column in enumerate(LAYERS[name].columns) if column is not None)


def assert_all_close(actual, values):
    for result, value in zip(actual, values, strict=True):
        assert_close(result, value, TOLERANCE)


def test_these_layers_have_every_primitive():
    def used(names):
        found = set()
        for name in names:
            layer, (_, grad_y) = LAYERS[name], expected(name)
            found |= {*primitives_of(program_of(layer).trace(layer.operands(), grad_y).jaxpr.jaxpr)}
        return {primitive for primitive in found if primitive.name.startswith(FAMILIES)}

    assert used(COVERING) == used(LAYERS)
    assert len(used(COVERING)) == 3 + 4 + 4


FAMILIES = "conv_", "deform_conv_", "gemm"


# Donation.


def test_donation(name, path):
    """A step of training writes the new x and weights where the old were, and reads them first."""
    layer, at = LAYERS[name], weight_of(name)

    def step(x, weight, others):
        operands = [x, *others[: at - 1], weight, *others[at - 1 :]]
        y, vjp = jax.vjp(layer.function, *operands)
        gradients = vjp(y)
        return x + 0.01 * gradients[0], weight - 0.01 * gradients[at], y

    x, *others = layer.operands()
    weight = others.pop(at - 1)
    wanted = x, weight
    for _ in range(2):
        *wanted, y = jax.jit(step)(*wanted, others)
    x, weight, others = jax.tree.map(jnp.array, (x, weight, others))
    with path():
        compiled = jax.jit(step, donate_argnums=(0, 1)).lower(x, weight, others).compile()
    given = x, weight
    for _ in range(2):
        before = given
        *given, actual = compiled(*given, others)
        assert all(array.is_deleted() for array in before)
        assert not any(array.is_deleted() for array in others)
    assert_all_close([*given, actual], [*wanted, y])
    analysis = compiled.memory_analysis()
    assert analysis is not None
    assert analysis.alias_size_in_bytes == x.nbytes + weight.nbytes


def test_what_is_donated_and_needed_again(path):
    """The kernel of `gemm` writes its result where c was, which this program reads afterwards."""
    a, b = LAYERS["gemm"].operands()
    c = np.random.default_rng(2).standard_normal((2048, 8)).astype(np.float32)

    def function(a, b, c):
        y = oxijax.gemm(a, b, c, beta=2.0, precision="highest")
        return y * c, c + 1

    wanted = jax.jit(function)(a, b, c)
    donated = jnp.array(c)
    with path():
        actual = jax.jit(function, donate_argnums=2)(a, b, donated)
    assert donated.is_deleted()
    assert_all_close(actual, wanted)


# Callbacks.


def test_callback_inside_jit_and_grad(name, path, capsys):
    """It runs once, between the kernels of forward and of backward."""
    layer, (values, grad_y) = LAYERS[name], expected(name)
    seen = []

    def function(*operands):
        y = layer.function(*operands)
        jax.debug.callback(lambda y: seen.append(np.array(y)), y)
        jax.debug.print("the output has {} elements", y.size + 0 * jnp.sum(y, dtype=jnp.int32))
        return y

    @jax.jit
    def program(operands, grad_y):
        y, vjp = jax.vjp(function, *operands)
        return y, *vjp(grad_y)

    with path():
        for _ in range(2):
            results = program(layer.operands(), grad_y)
    assert_all_close(results, values)
    jax.effects_barrier()
    assert len(seen) == 2
    assert_all_close(seen, [values[0]] * 2)
    assert capsys.readouterr().out == f"the output has {values[0].size} elements\n" * 2


def test_callback_inside_vmap(name, path):
    """It runs for each example, with that example's values."""
    layer, (values, _) = LAYERS[name], expected(name)
    seen = {}

    def function(number, *operands):
        y = layer.function(*operands)
        jax.debug.callback(lambda i, y: seen.setdefault(int(i), np.array(y)), number, y)
        return y

    numbers = jnp.arange(3)
    stacked = [np.stack([v, 2 * v, -v]) if i == 0 else v for i, v in enumerate(layer.operands())]
    wanted = [
        jax.jit(layer.function)(*(v[i] if at == 0 else v for at, v in enumerate(stacked)))
        for i in range(3)
    ]
    with path():
        results = jax.jit(jax.vmap(function, (0, 0, *[None] * (len(stacked) - 1))))(
            numbers, *stacked
        )
    jax.effects_barrier()
    assert_close(results[0], values[0], TOLERANCE)
    assert_all_close(results, wanted)
    assert sorted(seen) == [0, 1, 2]
    assert_all_close([seen[i] for i in range(3)], wanted)


def sharded(name, mesh):
    """A layer's operands on four devices, split along the batch; the specs."""
    layer = LAYERS[name]
    specs = [
        P(*("data" if i == split else None for i in range(len(shape))))
        for split, shape in zip(layer.split, layer.shapes, strict=True)
    ]
    return [
        jax.device_put(v, NamedSharding(mesh, spec))
        for v, spec in zip(layer.operands(), specs, strict=True)
    ], specs
