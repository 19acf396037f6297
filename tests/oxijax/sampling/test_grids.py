"""Grids of one, two and three dimensions: their coordinates, periodic images, and the adjoint."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import assert_close
from support.places import emulated
from support.sampling_checks import TOLERANCES

import oxijax

SIZES = {"line": (7,), "image": (5, 6), "volume": (3, 4, 5)}
METHODS = ("bilinear", "nearest", "bicubic")
PADDING = ("zeros", "border", "reflection", "wrap")
# "bicubic" has no volumes.
KINDS = [
    pytest.param(sizes, method, id=f"{name}-{method}")
    for name, sizes in SIZES.items()
    for method in METHODS[: 2 if name == "volume" else 3]
]


def operands(sizes: tuple[int, ...], *, beyond: float = 0.3, seed: int = 0):
    """Images, a grid in "unit" coordinates that reaches beyond them, and values, in float64."""
    random = np.random.default_rng(seed)
    grid = random.uniform(-beyond, 1 + beyond, (2, 4, 3, len(sizes)))
    return random.standard_normal((2, *sizes, 3)), grid, random.standard_normal((2, 4, 3, 3))


@pytest.mark.spread(2)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("padding_mode", PADDING)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_coordinates(sizes, padding_mode):
    """The same places, by other coordinates."""
    x, unit, _ = operands(sizes)
    sample = functools.partial(oxijax.grid_sample, x, padding_mode=padding_mode)
    expected = sample(unit, coordinates="unit")
    assert_close(sample(2 * unit - 1), expected, 1e-12)
    pixel = unit * np.array(sizes[::-1]) - 0.5
    assert_close(sample(pixel, coordinates="pixel"), expected, 1e-12)


@pytest.mark.spread(4)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("sizes", "method"), KINDS)
def test_wrap_is_the_image_again_and_again(sizes, method):
    x, unit, _ = operands(sizes, beyond=0.9)
    tiled = np.tile(x, (1, *[5] * len(sizes), 1))
    pixel = unit * np.array(sizes[::-1]) - 0.5
    sample = functools.partial(oxijax.grid_sample, method=method, coordinates="pixel")
    middle = pixel + 2 * np.array(sizes[::-1])
    assert_close(sample(x, pixel, padding_mode="wrap"), sample(tiled, middle), 1e-12)


@pytest.mark.spread(2)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("data_format", [None, "first"])
@pytest.mark.parametrize("padding_mode", PADDING)
@pytest.mark.parametrize(("sizes", "method"), KINDS)
def test_splat_is_the_adjoint(sizes, method, padding_mode, data_format):
    """Its values are the gradient of `grid_sample`, and its gradients `grid_sample`'s results."""
    x, grid, values = operands(sizes)
    options = {"method": method, "padding_mode": padding_mode, "coordinates": "unit"}
    if data_format:
        options["data_format"] = "NC" + "DHW"[3 - len(sizes) :]
        x, values = (np.moveaxis(array, -1, 1) for array in (x, values))
    y, pull_back = jax.vjp(functools.partial(oxijax.grid_sample, **options), x, grid)
    of_x, of_grid = pull_back(values)
    splat = functools.partial(oxijax.splat, size=sizes, **options)
    sums, pull_back = jax.vjp(splat, values, grid)
    assert_close(sums, of_x, 1e-12)
    of_values, of_places = pull_back(x)
    assert_close(of_values, y, 1e-12)
    assert_close(of_places, of_grid, 1e-12)
    again, weights = oxijax.splat(values, grid, sizes, return_weights=True, **options)
    assert_close(again, sums, 1e-12)
    ones = np.ones_like(values[:, :1] if data_format else values[..., :1])
    assert_close(weights, splat(ones, grid), 1e-12)


@pytest.mark.spread(2)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_splat_by_kernels(sizes, dtype):
    """Values and gradients, which `grid_sample`'s kernels make."""
    _, grid, values = operands(sizes, seed=1)
    grad_y = np.random.default_rng(2).standard_normal((2, *sizes, 3))
    arrays = [array.astype(dtype) for array in (values, grid, grad_y)]
    splat = functools.partial(oxijax.splat, size=sizes, coordinates="unit")
    kernels = ("sampling_backward_value", "sampling_forward", "sampling_backward_points")
    found = emulated("sm_80").values_and_gradients(splat, arrays[:2], arrays[2], kernels)
    twin = functools.partial(oxijax.reference.splat, size=sizes, coordinates="unit")
    wide = [np.asarray(array, np.float64) for array in arrays]
    expected, pull_back = jax.vjp(twin, *wide[:2])
    expected = (expected, pull_back(wide[2]))
    for actual, wanted in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert actual.dtype == dtype
        assert_close(np.asarray(actual, np.float64), wanted, TOLERANCES[dtype])


def test_splat_adds_nothing_where_a_position_is_not_finite():
    grid = np.array([[[np.nan, 1], [np.inf, 1], [1, -np.inf], [1, 1]]], np.float32)
    values = np.arange(1, 5, dtype=np.float32).reshape(1, 4, 1)
    sums = oxijax.splat(values, grid, (3, 4), coordinates="pixel")
    expected = np.zeros((1, 3, 4, 1))
    expected[0, 1, 1] = 4
    np.testing.assert_array_equal(sums, expected)


@pytest.mark.parametrize("shared", ["values", "grid"])
def test_splat_shares_values_or_a_grid(shared):
    _, grid, values = operands((5, 6))
    kept, one = (values, grid[:1]) if shared == "grid" else (grid, values[:1])
    both = np.broadcast_to(one, kept.shape[:1] + one.shape[1:])
    pair = (kept, one) if shared == "grid" else (one, kept)
    full = (kept, both) if shared == "grid" else (both, kept)
    splat = functools.partial(oxijax.splat, size=(5, 6))
    assert_close(splat(*map(jnp.asarray, pair)), splat(*map(jnp.asarray, full)), 1e-6)


@pytest.mark.spread(2)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_attention_over_lines_and_volumes(sizes, method):
    """A sum over levels of what `grid_sample` makes of each, value and gradients."""
    random, dims = np.random.default_rng(0), len(sizes)
    levels, heads = (sizes, tuple(-(-size // 2) for size in sizes)), 2
    pixels = [int(np.prod(level)) for level in levels]
    value = random.standard_normal((2, sum(pixels), heads, 4))
    locations = random.uniform(-0.1, 1.1, (2, 5, heads, 2, 3, dims))
    weights = random.standard_normal((2, 5, heads, 2, 3))
    grad_y = random.standard_normal((2, 5, heads, 4))

    def by_grids(value, locations, weights):
        total = 0
        for level, (size, start) in enumerate(zip(levels, (0, pixels[0]), strict=True)):
            images = value[:, start : start + pixels[level]].reshape(2, *size, heads, 4)
            # "nearest" is the pixel at the edge outside of the image, and counts from its corner.
            sample = functools.partial(
                *(oxijax.grid_sample,),
                method=method, coordinates="pixel",
                padding_mode="border" if method == "nearest" else "zeros",
            )  # fmt: skip
            at = locations[:, :, :, level] * np.array(size[::-1]) - 0.5 * (method == "bilinear")
            for head in range(heads):
                found = sample(images[..., head, :], at[:, :, head])
                part = (found * weights[:, :, head, level, :, None]).sum(2)
                total = total + jnp.zeros((2, 5, heads, 4)).at[:, :, head].set(part)
        return total

    attend = functools.partial(oxijax.ms_deform_attn, spatial_shapes=levels, method=method)
    y, pull_back = jax.vjp(attend, value, locations, weights)
    expected, expected_back = jax.vjp(by_grids, value, locations, weights)
    assert_close(y, expected, 1e-12)
    for found, wanted in zip(pull_back(grad_y), expected_back(grad_y), strict=True):
        assert_close(found, wanted, 1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coordinates": "pixel", "align_corners": True}, "align_corners must be False with"),
        ({"method": "bicubic"}, 'method must be "bilinear" or "nearest" for volumes'),
        ({"padding_mode": "circular"}, "padding_mode must be .* which is called 'wrap' here"),
        ({"method": "trilinear"}, "method must be .* which is called 'bilinear' here"),
        ({"data_format": "NCHW"}, "data_format must be one of 'NDHWC', 'NCDHW', got 'NCHW'"),
    ],
)
def test_wrong_arguments_of_volumes(change, message):
    x, grid = jnp.ones((1, 3, 4, 5, 2)), jnp.ones((1, 6, 3))
    with pytest.raises(ValueError, match=message):
        oxijax.grid_sample(x, grid, **change)


@pytest.mark.parametrize("shape", [(1, 4), (1, 2, 3, 4, 5, 6)])
def test_images_of_other_dimensions(shape):
    with pytest.raises(ValueError, match="x must have 3, 4 or 5 dimensions"):
        oxijax.grid_sample(jnp.ones(shape), jnp.ones((1, 6, 2)))
