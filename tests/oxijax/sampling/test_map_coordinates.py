"""`map_coordinates` beside JAX's own, which has the same signature."""

import functools
import itertools

import jax
import jax.numpy as jnp
import jax.scipy.ndimage
import numpy as np
import pytest
from support.helpers import assert_close

import oxijax

MODES = ("constant", "nearest", "wrap", "mirror", "reflect")
SHAPES = ((9,), (5, 8), (4, 6, 3))


def operands(shape: tuple[int, ...], dtype: str = "float64"):
    random = np.random.default_rng(0)
    image = (20 * random.standard_normal(shape)).astype(dtype)
    return image, random.uniform(-9, 15, (len(shape), 3, 4))


@pytest.mark.spread(3)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(("mode", "shape"), itertools.product(MODES, SHAPES))
def test_values_and_gradients(mode, shape, order):
    """With a value outside."""
    image, coordinates = operands(shape)
    grad_y = np.random.default_rng(1).standard_normal((3, 4))
    results = []
    for function in (oxijax.map_coordinates, jax.scipy.ndimage.map_coordinates):

        def call(image, coordinates, function=function):
            return function(image, list(coordinates), order, mode=mode, cval=1.5)

        y, pull_back = jax.vjp(jax.jit(call), image, coordinates)
        results.append((y, *pull_back(grad_y)))
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected, 1e-12)


@pytest.mark.spread(3)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_integers_are_rounded(dtype, mode, order):
    image, coordinates = operands((5, 8), "int32")
    image = np.abs(image).astype(dtype)
    halves = np.round(2 * coordinates) / 2  # of which some results are halves
    found = oxijax.map_coordinates(image, halves, order, mode=mode, cval=3)
    expected = jax.scipy.ndimage.map_coordinates(image, list(halves), order, mode=mode, cval=3)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("channel_axis", [0, -1, 2])
def test_channels(channel_axis):
    image, coordinates = operands((5, 8), "float32")
    images = np.stack([image, 2 * image, image**2], channel_axis)
    y = oxijax.map_coordinates(
        images, coordinates.astype(np.float32), 1, cval=2.0, channel_axis=channel_axis
    )
    each = functools.partial(oxijax.map_coordinates, order=1, cval=2.0)
    for channel, found in zip(
        np.moveaxis(images, channel_axis, 0), jnp.moveaxis(y, channel_axis, 0), strict=True
    ):
        assert_close(found, each(channel, coordinates.astype(np.float32)), 1e-6)


def test_one_channel_is_not_copied():
    image = jax.ShapeDtypeStruct((2048, 2048), jnp.float32)
    coordinates = jax.ShapeDtypeStruct((2, 64, 64), jnp.float32)
    call = functools.partial(oxijax.map_coordinates, order=1)
    analysis = jax.jit(call).lower(image, coordinates).compile().memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes < image.size // 10
