"""XLA's programs for CUDA of jax.numpy, on the virtual GPU, against the CPU backend."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.platforms import on

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(7)
A = RNG.standard_normal((6, 40)).astype(np.float32)
B = RNG.standard_normal((6, 40)).astype(np.float32)
POSITIVE = (np.abs(A) + 0.1).astype(np.float32)
SQUARE = RNG.standard_normal((32, 32)).astype(np.float32)
CUBE = RNG.standard_normal((4, 16, 16)).astype(np.float32)
IMAGE = RNG.standard_normal((2, 9, 10, 3)).astype(np.float32)
INTEGERS = RNG.integers(-1000, 1000, (6, 40), np.int32)
INDICES = RNG.integers(0, 6, 17).astype(np.int32)
KEY = np.array([3, 5], np.uint32)


def attention(q, k, v):
    scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k) / 4.0)
    return jnp.einsum("bqk,bkd->bqd", scores, v)


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def cross_entropy(logits):
    return -jax.nn.log_softmax(logits)[jnp.arange(6), jnp.arange(6)].mean()


def newton(x):
    def wrong(state):
        return jnp.any(jnp.abs(state * state - x) > 1e-4)

    return lax.while_loop(wrong, lambda state: 0.5 * (state + x / state), jnp.ones_like(x))


def collatz(x):
    """How many steps each number takes to 1: a loop whose lanes end apart."""

    def step(state):
        n, count = state
        following = jnp.where(n % 2 == 0, n // 2, 3 * n + 1)
        return jnp.where(n > 1, following, n), count + (n > 1)

    return lax.while_loop(lambda s: jnp.any(s[0] > 1), step, (x, jnp.zeros_like(x)))[1]


def recurrence(x):
    def step(carry, row):
        carry = jnp.tanh(carry + row)
        return carry, carry * 2

    return lax.scan(step, jnp.zeros(x.shape[1]), x)


def pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


# One program of each kind, with its operands.
PROGRAMS: dict[str, tuple[Callable, tuple]] = {
    "arithmetic": (lambda a, b: a * b + a / (1 + b * b) - 3, (A, B)),
    "exponentials": (lambda a, b: jnp.exp(a) + jnp.expm1(b) + jnp.exp2(a - b), (A, B)),
    "logarithms": (lambda a: jnp.log(a) + jnp.log1p(a) + jnp.log2(a), (POSITIVE,)),
    "sines": (lambda a: jnp.sin(a) + jnp.cos(100 * a) + jnp.tan(a / 4), (A,)),
    "arctangents": (lambda a, b: jnp.arctan2(a, b) + jnp.arcsin(jnp.tanh(a)), (A, B)),
    "hyperbolic": (lambda a: jnp.sinh(a) + jnp.cosh(a) + jnp.arctanh(jnp.tanh(a) / 2), (A,)),
    "error_function": (lambda a: lax.erf(a) + jax.nn.gelu(a) + lax.erf_inv(jnp.tanh(a) / 2), (A,)),
    "gamma_function": (lambda a: lax.lgamma(a) + lax.digamma(a), (POSITIVE,)),
    "roots": (lambda a: jnp.sqrt(a) + lax.rsqrt(a) + jnp.cbrt(a), (POSITIVE,)),
    "powers": (lambda a, b: a**b + a**3, (POSITIVE, B)),
    "rounding": (lambda a: (jnp.floor(9 * a), jnp.ceil(9 * a), jnp.round(9 * a)), (A,)),
    "division_of_integers": (lambda a, b: (a // (b | 1), a % (b | 1)), (INTEGERS, INTEGERS[::-1])),
    "bits": (
        lambda a, b: (a & b ^ 5, a | b, a << 3, a >> 2, lax.population_count(a), lax.clz(a)),
        (INTEGERS, INTEGERS[::-1]),
    ),
    "comparisons": (lambda a, b: (a < b, a >= b, jnp.where(a > 0, a, b), a == a.T[0, 0]), (A, B)),
    "clip": (lambda a: jnp.clip(a, -0.5, 0.5), (A,)),
    "not_finite": (
        lambda a: (jnp.isnan(jnp.sqrt(a)), jnp.isinf(1 / jnp.floor(a)), jnp.nan_to_num(1 / a)),
        (A,),
    ),
    "complex": (lambda a, b: jnp.abs((a + 1j * b) * jnp.exp(1j * a)), (A, B)),
    "conversions": (
        lambda a: (a.astype(jnp.int8), a.astype(jnp.bfloat16), a.astype(jnp.float16), a != 0),
        (A,),
    ),
    "sum": (lambda a: (a.sum(), a.sum(0), a.sum(1)), (A,)),
    "mean_and_variance": (lambda a: (a.mean(1), a.var(0), a.std()), (A,)),
    "extremes": (lambda a: (a.max(0), a.min(1), a.argmax(1), a.argmin()), (A,)),
    "product": (lambda a: jnp.prod(a, axis=1), (POSITIVE,)),
    "any_and_all": (lambda a: ((a > 2).any(1), (a > -3).all(0), (a > 0).sum()), (A,)),
    "logsumexp": (lambda a: jax.nn.logsumexp(a, axis=1), (A,)),
    "norms": (lambda a: (jnp.linalg.norm(a), jnp.abs(a).max()), (A,)),
    "sums_so_far": (lambda a: (jnp.cumsum(a, 1), jnp.cumsum(a, 0)), (A,)),
    "products_so_far": (lambda a: (jnp.cumprod(a, 1), lax.cummax(a, axis=1)), (POSITIVE,)),
    "associative_scan": (lambda a: lax.associative_scan(jnp.maximum, a, axis=1), (A,)),
    "sort": (lambda a: (jnp.sort(a, 1), jnp.argsort(a, 1)), (A,)),
    "sort_of_integers": (lambda a: jnp.sort(a, axis=None, descending=True), (INTEGERS,)),
    "top_k": (lambda a: lax.top_k(a, 5), (A,)),
    "search": (lambda a, b: jnp.searchsorted(jnp.sort(a[0]), b), (A, B)),
    "median": (lambda a: jnp.median(a, axis=1), (A,)),
    "transpose": (lambda a: (jnp.transpose(a, (2, 0, 1)), a.swapaxes(1, 2) + 1), (CUBE,)),
    "reshape": (lambda a: a.reshape(8, -1).T + 1, (CUBE,)),
    "pad": (lambda a: jnp.pad(a, ((0, 0), (1, 2), (3, 0))), (CUBE,)),
    "reflected_padding": (lambda a: jnp.pad(a, ((0, 0), (2, 2), (1, 1)), mode="reflect"), (CUBE,)),
    "concatenation": (lambda a, b: jnp.concatenate([a, 2 * b, a[:, ::-1]], axis=0), (A, B)),
    "roll_and_flip": (lambda a: (jnp.roll(a, 3, 1), jnp.flip(a, 0), jnp.tile(a, (2, 2))), (A,)),
    "slices": (
        lambda a, i: (a[1::2, 3:30:4], lax.dynamic_slice(a, (i[0], i[1]), (2, 5))),
        (A, INDICES),
    ),
    "update_of_a_slice": (
        lambda a, i: lax.dynamic_update_slice(a, a[:2, :5] * 2, (i[0], i[1])),
        (A, INDICES),
    ),
    "gather": (lambda a, i: (a[i], jnp.take_along_axis(a, i[None, :6].T, 1)), (A, INDICES)),
    "scatter_add": (lambda a, i: jnp.zeros_like(a).at[i].add(1.5), (A, INDICES)),
    "scatter_of_values": (lambda a, i: a.at[i[:1], :3].set(9).at[:, i].max(0.5), (A, INDICES)),
    "segments": (lambda a, i: jax.ops.segment_sum(a[0, :17], i, 6), (A, INDICES)),
    "histogram": (lambda i: jnp.bincount(i, length=6), (INDICES,)),
    "one_hot": (lambda i: jax.nn.one_hot(i, 6), (INDICES,)),
    "matrix_product": (lambda a: a @ a, (SQUARE,)),
    "matrix_product_bfloat16": (
        lambda a: a.astype(jnp.bfloat16) @ a.astype(jnp.bfloat16),
        (SQUARE,),
    ),
    "matrix_product_with_epilogue": (lambda a: jax.nn.relu(a @ a.T + a[0]), (SQUARE,)),
    "batched_products": (lambda a: jnp.einsum("bij,bkj->bik", a, a), (CUBE,)),
    "attention": (attention, (CUBE, CUBE + 1, CUBE * 2)),
    "layer_norm": (layer_norm, (A,)),
    "pooling": (pool, (IMAGE,)),
    "while_loop": (newton, (POSITIVE,)),
    "while_loop_that_diverges": (collatz, (np.arange(1, 60, dtype=np.int32),)),
    "fori_loop": (lambda a: lax.fori_loop(0, 5, lambda i, s: s * 0.5 + i, a), (A,)),
    "scan": (recurrence, (A,)),
    "condition": (lambda a: lax.cond(a[0, 0] > 0, lambda x: x + 1, lambda x: x * 2, a), (A,)),
    "switch": (lambda a, i: lax.switch(i[0] % 3, [jnp.sin, jnp.cos, jnp.exp], a), (A, INDICES)),
    "map": (lambda a: lax.map(lambda row: row / row.sum(), a), (POSITIVE,)),
    "vmap": (lambda a, b: jax.vmap(jnp.outer)(a, b), (A[:, :8], B[:, :9])),
    "random_bits": (lambda key: jax.random.bits(key, (70,)), (KEY,)),
    "random_numbers": (
        lambda key: (jax.random.uniform(key, (70,)), jax.random.normal(key, (9,))),
        (KEY,),
    ),
    "permutation": (lambda key: jax.random.permutation(key, 50), (KEY,)),
    "gradient_of_cross_entropy": (jax.grad(cross_entropy), (A,)),
    "gradient_of_attention": (
        jax.grad(lambda *a: attention(*a).sum(), (0, 1, 2)),
        (CUBE, CUBE + 1, CUBE),
    ),
    "gradient_of_pooling": (jax.grad(lambda x: (pool(x) ** 2).sum()), (IMAGE,)),
    "jacobian": (jax.jacfwd(lambda a: jnp.tanh(a) * a.sum()), (A[0],)),
}
DTYPES = ("int8", "uint8", "int16", "int32", "uint32", "bfloat16", "float16", "float32", "bool")


def assert_same(function: Callable, operands: tuple) -> None:
    """Integers are equal; floats differ by what the functions' approximations do."""
    with jax.default_matmul_precision("highest"):
        results = on("cuda", function, operands), on("cpu", function, operands)
    for got, expected in zip(*results, strict=True):
        assert got.dtype == expected.dtype
        if jnp.issubdtype(got.dtype, jnp.floating):
            tolerance = {4: 2e-5, 2: 2e-2, 8: 1e-12}[got.dtype.itemsize]
            a, b = np.asarray(got, np.float64), np.asarray(expected, np.float64)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())
        else:
            np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    assert_same(*PROGRAMS[name])


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions(dtype):
    x = jnp.asarray(INTEGERS % 3).astype(dtype)
    assert_same(lambda x: (x.max(0), x.sum(1), jnp.any(x), x.argmax(1)), (np.asarray(x),))


@pytest.mark.parametrize("dtype", DTYPES)
def test_transposes(dtype):
    x = jnp.asarray(np.arange(4 * 16 * 16).reshape(4, 16, 16) % 7).astype(dtype)
    assert_same(lambda x: (x.T, x.transpose(0, 2, 1), x.reshape(64, 16).T), (np.asarray(x),))


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64"])
def test_of_64_bits(dtype):
    with jax.enable_x64(True):
        x = (np.arange(240).reshape(6, 40) % 17 + 1).astype(dtype)
        assert_same(lambda x: (x.sum(0), jnp.sort(x, 1), x.T * 2, x // 3, jnp.cumsum(x, 1)), (x,))
