"""Flax models with conv_general_dilated swapped in train as they do with jax.lax's."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from support.helpers import assert_close, relative_error

import oxijax

TOLERANCE = 2e-6  # float32, sums in another order
RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((4, 12, 11, 3), np.float32)
LINES = RNG.standard_normal((4, 20, 3), np.float32)
# Layers of all kinds, one after the other: (features, kernel_size, options).
STACKS = {
    "images": (
        IMAGES,
        [
            (8, (3, 3), {}),
            (8, (3, 3), {"feature_group_count": 8, "strides": 2}),
            (12, (1, 1), {"use_bias": False}),
            (
                4,
                (2, 3),
                {"feature_group_count": 4, "kernel_dilation": 2, "padding": ((1, 0), (2, 3))},
            ),
        ],
    ),
    "borders": (
        IMAGES[:2],
        [
            (6, (3, 3), {"padding": "CIRCULAR"}),
            (6, (3, 2), {"padding": "REFLECT", "precision": "highest"}),
            (5, (5, 5), {"padding": 1, "strides": (2, 1)}),
        ],
    ),
    "lines": (
        LINES,
        [
            (8, 5, {"padding": "CAUSAL"}),
            (8, (3,), {"feature_group_count": 8, "kernel_dilation": 2}),
            (6, (4,), {"strides": (2,)}),
        ],
    ),
    "images-without-batch": (IMAGES[0], [(4, (3, 3), {}), (4, (3, 3), {"strides": 2})]),
    "batches-of-batches": (IMAGES.reshape(2, 2, *IMAGES.shape[1:]), [(4, (3, 3), {})]),
}


class NnxModel(nnx.Module):
    def __init__(self, channels, layers, dtype=None, **swap):
        self.layers = nnx.List()
        for index, (features, kernel_size, options) in enumerate(layers):
            options = {**options, **swap, "dtype": dtype, "rngs": nnx.Rngs(index)}
            self.layers.append(nnx.Conv(channels, features, kernel_size, **options))
            channels = features

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


class LinenModel(linen.Module):
    layers: tuple
    swap: dict
    dtype: str | None = None

    @linen.compact
    def __call__(self, x):
        for features, kernel_size, options in self.layers:
            size = (kernel_size,) if isinstance(kernel_size, int) else kernel_size
            x = jnp.tanh(linen.Conv(features, size, dtype=self.dtype, **options, **self.swap)(x))
        return x


def nnx_program(x, layers, dtype=None, **swap):
    """The parameters of a model, and a function of them: its loss."""
    graph, parameters = nnx.split(NnxModel(x.shape[-1], layers, dtype, **swap))
    return parameters, lambda parameters: loss_of(nnx.merge(graph, parameters)(x))


def linen_program(x, layers, dtype=None, **swap):
    model = LinenModel(tuple(layers), swap, dtype)
    parameters = jax.jit(model.init)(jax.random.key(0), x)
    return parameters, lambda parameters: loss_of(model.apply(parameters, x))


def loss_of(y):
    return jnp.mean((y.astype(jnp.float32) - 0.3) ** 2)


def train(parameters, loss, steps=3):
    """Losses and gradients of some steps of gradient descent."""

    @jax.jit
    def step(parameters):
        value, gradients = jax.value_and_grad(loss)(parameters)
        return jax.tree.map(lambda p, g: p - 0.5 * g, parameters, gradients), (value, gradients)

    history = []
    for _ in range(steps):
        parameters, result = step(parameters)
        history.append(result)
    return history


SWAP: dict[str, Any] = {"conv_general_dilated": oxijax.conv_general_dilated}
PROGRAMS = {
    "nnx": (nnx_program, SWAP),
    "linen": (linen_program, SWAP),
    "linen-cls": (linen_program, {"conv_general_dilated_cls": lambda: oxijax.conv_general_dilated}),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("library", "stack"),
    [
        ("nnx", "borders"),
        ("linen", "lines"),
        ("nnx", "images-without-batch"),
        ("linen", "batches-of-batches"),
    ],
)
def test_trains_as_with_lax(library, stack):
    check(library, stack)


@pytest.mark.spread(2)
@pytest.mark.quick
@pytest.mark.parametrize("library", PROGRAMS)
def test_every_way_to_swap(library):
    check(library, "images")


@pytest.mark.parametrize(("library", "dtype"), [("nnx", "bfloat16"), ("linen", "float16")])
def test_half_precision(library, dtype):
    """Parameters in float32, the computation in half: gradients as near to float32 as lax's."""
    program, swap = PROGRAMS[library]
    x, layers = STACKS["images"]

    def gradient(dtype, **swap):
        parameters, loss = program(x, layers, dtype, **swap)
        leaves = jax.tree.leaves(jax.jit(jax.grad(loss))(parameters))
        assert all(leaf.dtype == jnp.float32 for leaf in leaves)
        return jnp.concatenate([leaf.ravel() for leaf in leaves])

    exact = gradient(None)
    of_lax = relative_error(gradient(dtype), exact)
    assert 0 < of_lax < {"bfloat16": 2e-2, "float16": 3e-3}[dtype]
    assert relative_error(gradient(dtype, **swap), exact) <= 1.25 * of_lax


def check(library, stack):
    program, swap = PROGRAMS[library]
    x, layers = STACKS[stack]
    parameters, loss = program(x, layers, **swap)
    expected_parameters, expected_loss = program(x, layers)
    jax.tree.map(np.testing.assert_array_equal, parameters, expected_parameters)
    # Nothing but oxijax's primitives is in the one, and none of them in the other.
    ours, theirs = (str(jax.make_jaxpr(jax.grad(f))(parameters)) for f in (loss, expected_loss))
    assert "conv_forward" in ours
    assert "conv_general_dilated[" not in ours
    assert "conv_general_dilated[" in theirs
    history = train(parameters, loss)
    expected = train(parameters, expected_loss)
    assert history[-1][0] < history[0][0]
    jax.tree.map(functools.partial(assert_close, tolerance=TOLERANCE), history, expected)


def test_float64_model():
    with jax.enable_x64(True):
        layers = [(4, (3, 3), {"param_dtype": jnp.float64})]
        x = IMAGES.astype(np.float64)
        parameters, loss = nnx_program(x, layers, **SWAP)
        _, expected_loss = nnx_program(x, layers)
        actual, expected = (jax.jit(jax.grad(f))(parameters) for f in (loss, expected_loss))
        jax.tree.map(lambda a, e: assert_close(a, e, 1e-13), actual, expected)


def test_what_a_layer_asks_for_and_is_not_covered():
    """A layer's own arguments reach the error."""
    layer = nnx.Conv(3, 4, (3, 3), input_dilation=2, padding=1, rngs=nnx.Rngs(0), **SWAP)
    with pytest.raises(NotImplementedError, match=r"lhs_dilation=\(2, 2\): use jax\.lax"):
        layer(jnp.asarray(IMAGES))
    layer = nnx.Conv(3, 4, (3, 3, 3), rngs=nnx.Rngs(0), **SWAP)
    with pytest.raises(NotImplementedError, match=r"lhs with 3 spatial dimensions"):
        layer(jnp.ones((1, 4, 4, 4, 3)))
