"""oxijax's operators by JAX's CUDA plugin, on the virtual GPU, against the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.platforms import on

import oxijax

pytestmark = pytest.mark.gpu


def rand(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape, np.float32)


def deform_conv(x, offset, weight, mask):
    return oxijax.deform_conv(x, offset, weight, mask, precision="highest")


def conv(x, weight, bias):
    return oxijax.conv(x, weight, bias, strides=2, precision="highest")


def gemm(a, b, c):
    return oxijax.gemm(a, b, c, alpha=0.5, beta=2.0, strategy="shallow_k", precision="highest")


CASES = {
    "deform_conv": (
        deform_conv,
        (rand(2, 8, 9, 16), rand(2, 8, 9, 18), rand(3, 3, 16, 16) / 12, rand(2, 8, 9, 9)),
    ),
    "conv": (conv, (rand(2, 9, 8, 16), rand(3, 3, 16, 8) / 12, rand(8))),
    "gemm": (gemm, (rand(40, 24), rand(24, 16), rand(40, 16))),
}


def assert_same(function, operands) -> None:
    for got, expected in zip(
        on("cuda", function, operands), on("cpu", function, operands), strict=True
    ):
        error = np.linalg.norm(np.asarray(got) - np.asarray(expected)) / np.linalg.norm(expected)
        assert error < 2e-6


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def test_the_device_is_virtual():
    assert jax.devices("cuda")[0].platform == "gpu"


def test_gradients(case):
    function, operands = case

    def loss(*operands):
        return (function(*operands) ** 2).sum()

    assert_same(jax.grad(loss, argnums=tuple(range(len(operands)))), operands)


def test_gradients_of_order_two(case):
    function, operands = case

    def slope(*operands):
        def loss(*operands):
            return jnp.sin(function(*operands)).sum()

        gradients = jax.grad(loss, argnums=tuple(range(len(operands))))(*operands)
        return sum(jnp.cos(gradient).sum() for gradient in gradients)

    assert_same(jax.grad(slope, argnums=tuple(range(len(operands)))), operands)


def test_scan_of_steps():
    """A loop on the device: each step uses what the one before has written."""
    function, (x, offset, weight, mask) = CASES["deform_conv"]

    def steps(x, offset, weight, mask):
        def step(x, _):
            return jnp.tanh(function(x, offset, weight, mask)), None

        return jax.lax.scan(step, x, None, length=3)[0]

    assert_same(steps, (x, offset, weight, mask))


@pytest.mark.parametrize("function", [jnp.cos, lambda x: jnp.sort(x, axis=-1), jnp.cumsum])
def test_kernels_of_xla_with_variables_in_their_modules(function):
    assert_same(function, (10 * rand(6, 50),))


def test_a_donated_operand():
    function, (x, *rest) = CASES["deform_conv"]
    device = jax.devices("cuda")[0]
    expected = np.asarray(on("cpu", function, (x, *rest))[0])
    given = jax.device_put(x, device)
    update = jax.jit(lambda x, *rest: x + function(x, *rest), donate_argnums=0)
    result = update(given, *(jax.device_put(y, device) for y in rest))
    np.testing.assert_allclose(np.asarray(result), x + expected, rtol=1e-4, atol=1e-5)
    assert given.is_deleted()
