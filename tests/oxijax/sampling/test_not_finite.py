"""Positions and weights that are not finite or at an edge: kernels do what XLA's program does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oxijax
from oxijax.testing import emulate_gpu

POSITIONS = [
    *(np.inf, -np.inf, np.nan, 0.0, -1.0, 1.0, 0.5, -0.5, 2.0, 1e30, -1e30, 3e38, 4e9, -4e9),
    *(1.0000001, -0.99999994, 1e-40),
]
# Beside integers a scaled offset is rounded into one pixel or the next, which shows where it has a
# weight that is not finite.
OFFSETS = POSITIONS[:-3]
WEIGHTS = [np.inf, -np.inf, np.nan, 0.0]
TARGETS = ("sm_75", "sm_80", "sm_90")


def spiced(random, array, values, share):
    return np.where(random.random(array.shape) < share, random.choice(values, array.shape), array)


def drawn(seed: int):
    """A small call of one of the sampling operators, and its operands."""
    random = np.random.default_rng(seed)

    def flip() -> bool:
        return bool(random.integers(2))

    n, h, w, channels = (int(random.integers(1, most)) for most in (3, 4, 4, 5))
    if seed % 2:
        options = {
            "method": str(random.choice(["bilinear", "nearest"])),
            "padding_mode": str(random.choice(["zeros", "border", "reflection"])),
            "align_corners": flip(),
        }
        grid = spiced(random, random.uniform(-1.5, 1.5, (n, 5, 2)), POSITIONS, 0.4)
        images = random.standard_normal((n, h, w, channels))
        return functools.partial(oxijax.grid_sample, **options), [images, grid]
    if seed % 4:
        levels = ((h, w), (int(random.integers(1, 3)), 1))
        options = {"method": str(random.choice(["bilinear", "nearest"])), "normalize": flip()}
        value = random.standard_normal((n, sum(a * b for a, b in levels), 2, channels))
        locations = spiced(random, random.uniform(-0.2, 1.2, (n, 3, 2, 2, 2, 2)), POSITIONS, 0.25)
        weights = spiced(random, random.standard_normal((n, 3, 2, 2, 2)), WEIGHTS, 0.25)
        function = functools.partial(oxijax.ms_deform_attn, spatial_shapes=levels, **options)
        return function, [value, locations, weights]
    images, taps = random.standard_normal((n, h, w, 4)), 9
    options = {"kernel_size": 3, "groups": 2, "softmax": flip()}
    if seed % 8:
        packed = spiced(random, random.standard_normal((n, h, w, 56)), POSITIONS, 0.1)
        return functools.partial(oxijax.dcnv4, **options), [images, packed]
    options["offset_scale"] = float(random.choice([1.0, 0.0, -2.0, 0.5]))
    offset = spiced(random, random.standard_normal((n, h, w, 4 * taps)), OFFSETS, 0.25)
    mask = spiced(random, random.standard_normal((n, h, w, 2 * taps)), WEIGHTS, 0.15)
    return functools.partial(oxijax.dcnv3, **options), [images, offset, mask]


def check(seed: int) -> None:
    function, operands = drawn(seed)

    def values(*arrays):
        y, pull_back = jax.vjp(function, *arrays)
        return y, pull_back(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    arrays = [array.astype(np.float32) for array in operands]
    expected = jax.jit(values)(*arrays)
    with oxijax.config.deterministic_mode(bool(seed % 3)), emulate_gpu(TARGETS[seed % 3]):
        found = jax.jit(values)(*arrays)
    for result, value in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, value, 1e-4, 1e-4)  # NaN and infinities are the same


@pytest.mark.spread(3)
@pytest.mark.parametrize("seed", range(12))
def test_some_calls(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 300))
def test_many_calls(seed):
    check(seed)


@pytest.mark.quick
def test_infinitely_far_from_one_pixel():
    """With "border" that is the pixel at the edge."""
    x = jnp.asarray([[[[7.0]], [[8.0]]]])
    grid = jnp.asarray([[[jnp.inf, -1.0], [-jnp.inf, 1.0], [1e30, -1.0], [jnp.nan, 1.0]]])
    for context in (emulate_gpu("sm_80"), jax.named_scope("xla")):
        with context:
            y = oxijax.grid_sample(x, grid, padding_mode="border", align_corners=True)
        np.testing.assert_array_equal(np.ravel(y), [7, 8, 7, np.nan])


@pytest.mark.spread(6)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("width", [1, 3])
def test_infinitely_far(width, padding_mode, align_corners):
    """Nowhere: a mirror has no place for it, and zero times infinity is no position."""
    x = jnp.arange(1.0, 1 + width).reshape(1, 1, width, 1)
    grid = jnp.asarray([[[jnp.inf, 0.0], [-jnp.inf, 0.0]]])

    def sample(grid):
        return oxijax.grid_sample(x, grid, padding_mode=padding_mode, align_corners=align_corners)

    y, pull_back = jax.vjp(sample, grid)
    np.testing.assert_array_equal(np.ravel(y), [width, 1] if padding_mode == "border" else [0, 0])
    np.testing.assert_array_equal(pull_back(jnp.ones_like(y))[0], jnp.zeros_like(grid))


@pytest.mark.quick
def test_subnormals_are_kept_by_the_emulator():
    """As on a GPU; XLA's own threads flush them."""
    with emulate_gpu("sm_80"):
        y = oxijax.grid_sample(jnp.full((1, 1, 1, 1), 1e-40), jnp.zeros((1, 1, 2)))
    assert np.ravel(y) == np.float32(1e-40)
