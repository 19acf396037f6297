"""Every function in a process that does much at once: its calls end, are right, and leave little.

A thousand calls wait in JAX's queue, eight threads compile at once, two hundred configurations pass
through one process, a call is interrupted, and a second process takes programs from JAX's
persistent compilation cache: through XLA's operations, and through the kernels in the emulated GPU.
"""

import concurrent.futures
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import assert_close
from support.layers import PATHS, TOLERANCE
from support.paths import ROOT
from support.processes import python

import oxijax

DEADLINE = 120  # seconds, for what takes ten at most
FAMILIES = {
    "conv": functools.partial(oxijax.conv, precision="highest"),
    "deform_conv": functools.partial(oxijax.deform_conv, precision="highest"),
    "gemm": functools.partial(oxijax.gemm, precision="highest", strategy="shallow_k"),
}


def within(seconds, work):
    """What `work` returns; a deadlock leaves its thread behind and fails."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    try:
        return pool.submit(work).result(timeout=seconds)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


# A queue.

CALLS = 1000


def add(family, x, term):
    """x + term, as the smallest call of a family that adds a term to its products."""
    if family == "gemm":
        return FAMILIES[family](x, jnp.eye(8), term, beta=1.0)
    weight = jnp.ones((1, 1, 1, 1))
    if family == "conv":
        return FAMILIES[family](x, weight, term)
    return FAMILIES[family](x, jnp.zeros((1, 1, 1, 2)), weight, None, term)


SHAPES = {  # of x and the term
    "conv": ((1, 1, 1, 1), (1,)),
    "deform_conv": ((1, 1, 1, 1), (1,)),
    "gemm": ((8, 8), (8, 8)),
}


@jax.jit
def late(x):
    """x, after a while; what needs it has to wait."""
    ones = jax.lax.fori_loop(0, 300, lambda _, m: m @ m / 300, jnp.ones((300, 300)))
    return x + 0 * ones[0, 0]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chained", [True, False])
def test_thousand_queued_calls(family, path, chained):
    """Each takes the result of the last one, or all that of one that is late: all are right."""
    shape, of_term = SHAPES[family]
    start = np.full(shape, 0.5, np.float32)

    def work():
        with PATHS[path]():
            call = (
                jax.jit(functools.partial(add, family))
                .lower(start, np.ones(of_term, np.float32))
                .compile()
            )
            terms = [np.full(of_term, float(i), np.float32) for i in range(CALLS)]
            y, results = late(start), []
            for i in range(CALLS):
                results.append(
                    call(results[-1] if chained and results else y, terms[1 if chained else i])
                )
                if i == 10:
                    assert not any(result.is_ready() for result in results)
            return jax.block_until_ready(results)

    late(start).block_until_ready()
    for i, result in enumerate(within(DEADLINE, work)):
        np.testing.assert_array_equal(result, np.full(shape, 0.5 + i + chained, np.float32))


# Threads.


def configuration(family, number):
    """Arguments, and options, of one of eight calls of which no two compile to the same."""
    one, two, four = 1 + (number & 1), 1 + (number >> 1 & 1), number >> 2
    generator = np.random.default_rng(number)

    def normal(*shape):
        return generator.standard_normal(shape).astype(np.float32)

    if family == "gemm":
        a, b = normal(40 + 8 * four, 16), normal(16, 8)
        options = {"transpose_a": one == 2, "transpose_b": two == 2}
        return (a.T if one == 2 else a, b.T if two == 2 else b), options
    x, weight = normal(1, 4 + four, 5, 2), normal(2, 2, 2, 3)
    options = {"strides": one, "dilation": two, "padding": 2}
    if family == "conv":
        return (x, weight), options
    _, height, width, _ = oxijax.reference.conv(x, weight, **options).shape
    return (x, normal(1, height, width, 8), weight), options


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_eight_threads_compile_eight_configurations(family, path):
    def program(function, options):
        def values(*operands):
            y, vjp = jax.vjp(functools.partial(function, **options), *operands)
            return y, *vjp(jnp.cos(y))

        return jax.jit(values)

    calls = [configuration(family, number) for number in range(8)]
    reference = functools.partial(getattr(oxijax.reference, family), precision="highest")
    wanted = [program(reference, options)(*operands) for operands, options in calls]
    start, actual = threading.Barrier(8), {}

    def work(number):
        operands, options = calls[number]
        start.wait(DEADLINE)
        with PATHS[path]():
            for _ in range(2):
                results = program(FAMILIES[family], options)(*operands)
        actual[number] = jax.block_until_ready(results)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(actual) == list(range(8))
    for number, values in enumerate(wanted):
        for result, value in zip(actual[number], values, strict=True):
            assert_close(result, value, TOLERANCE, f"configuration {number}")


# Processes.


def run(program, *arguments):
    """What a program says that is started with the path of what tests share, and with arguments."""
    status, said = python("-c", program, str(ROOT / "tests"), *arguments)
    assert status == 0, said
    return said


MEMORY = """
import ctypes, gc, sys
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
import oxijax
from oxijax._core.launch import _emulation
from oxijax.testing import emulate_gpu
from support.memory import resident_memory

def call(number):
    kind, n = number % 3, number // 3
    ones = lambda *shape: np.ones(shape, np.float32)
    if kind == 2:
        m, k = 1 + n // 16, 1 + n % 16
        y = jax.jit(lambda a, b: oxijax.gemm(a, b, strategy="shallow_k", precision="highest"))(
            ones(8 * m, k), ones(k, 8 * m))
        wanted = k
    else:
        top, left = n // 8, n % 8
        options = {"padding": ((top, 1), (left, 1)), "precision": "highest"}
        x, weight = ones(1, 2, 2, 1), ones(1, 1, 1, 1)
        if kind == 0:
            y = jax.jit(lambda x, weight: oxijax.conv(x, weight, **options))(x, weight)
        else:
            offset = np.zeros((1, 3 + top, 3 + left, 2), np.float32)
            y = jax.jit(lambda *operands: oxijax.deform_conv(*operands, **options))(
                x, offset, weight)
        y, wanted = y.sum(), 4
    np.testing.assert_array_equal(y, np.full(y.shape, wanted, np.float32))

with emulate_gpu():
    for number in range(200):
        call(number)
        if number % 25 == 24:
            jax.clear_caches()
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
        if number % 50 == 49:
            print("resident", resident_memory())
    loaded = len(_emulation._loaded)
    for number in range(175, 200):
        call(number)
    print("loaded", loaded, len(_emulation._loaded))
"""
