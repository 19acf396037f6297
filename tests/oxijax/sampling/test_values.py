"""Values and gradients of the sampling operators, against PyTorch's and against the formula."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import TOLERANCES, assert_close, values_and_gradients
from support.sampling_checks import (
    INTERNIMAGE_CHANNELS,
    compare,
    float64_results,
    in_dtype,
    internimage,
    results,
    smooth,
)
from support.sampling_data import RECORDED, Recorded, bilinear, recorded, recorded_names

import oxijax

NAMES = [name for family in RECORDED for name in recorded_names(family)]


def moved(call: Recorded, distance: float) -> Recorded:
    """The call with other offsets: of a gradient with two values it has the one above."""
    offset = call.arrays["offset"].astype(np.float64) + distance
    return dataclasses.replace(call, arrays={**call.arrays, "offset": offset})


def test_every_recorded_call_is_listed():
    counts = {family: len(recorded_names(family)) for family in RECORDED}
    of_grids = {"grid_sample": 60, "grids": 60, "map_coordinates": 30, "roi_align": 48}
    assert counts == {"msda": 60, "dcnv3": 60, **of_grids}


@pytest.mark.spread(4, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", NAMES)
def test_recorded(name):
    call = recorded(name)
    found = results(call, jnp.float64)
    assert found.keys() == call.results.keys()
    for key, expected in call.results.items():
        actual = np.asarray(found[key])
        if key == "doffset":
            kept = smooth(call)
            if not kept.all():
                above = results(moved(call, 1e-7), jnp.float64)["doffset"]
                assert_close(actual[~kept], np.asarray(above)[~kept], 1e-5, "between pixels")
            actual, expected = actual[kept], expected[kept]
        assert_close(actual, expected, 1e-12, key)


@pytest.mark.spread(2, rest="proof")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["msda-3", "msda-17", "dcnv3-4", "dcnv3-21", "grid_sample-14", "grids-1", "grids-40"]
)
def test_dtypes(name, dtype):
    call = recorded(name)
    # Operands are what the dtype has: only what is done with them is judged.
    arrays = {k: np.asarray(jnp.asarray(v, dtype), np.float64) for k, v in call.arrays.items()}
    call = Recorded(
        call.function, arrays, call.options, np.asarray(jnp.asarray(call.grad_y, dtype)), {}
    )
    with jax.enable_x64(True):
        exact = results(call, jnp.float64)
    found = results(call, dtype)
    for key, expected in exact.items():
        assert found[key].dtype == dtype
        # A coordinate in float32 has an error of some 1e-7 of the image's size.
        tolerance = TOLERANCES[dtype]
        actual, expected = np.asarray(found[key], np.float64), np.asarray(expected)
        if key == "doffset":
            kept = smooth(call)
            actual, expected = actual[kept], expected[kept]
        assert_close(actual, expected, tolerance, key)


def operands(*shapes, seed=0):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("channels", [1, 4, 30, 32, 64, 71, 1025])
def test_channels_of_a_head(channels):
    levels, heads = ((6, 4), (3, 2)), 2
    value, weights = operands((1, 30, heads, channels), (1, 2, heads, 2, 2))
    locations = np.random.default_rng(1).random((1, 2, heads, 2, 2, 2)).astype(np.float32)
    y = oxijax.ms_deform_attn(value, locations, weights, spatial_shapes=levels)
    expected, start = np.zeros((2, heads, channels)), 0
    for level, (height, width) in enumerate(levels):
        image = value[0, start : start + height * width].reshape(height, width, heads, channels)
        at = locations[0, :, :, level].astype(np.float64) * (width, height) - 0.5
        samples = np.stack(
            [bilinear(image[:, :, m], at[:, m, :, 1], at[:, m, :, 0]) for m in range(heads)], axis=1
        )
        expected += (samples * weights[0, :, :, level, :, None]).sum(2)
        start += height * width
    assert_close(y[0], expected, 2e-6)


def windows(image, offset, mask, groups: int, offset_scale: float = 1.0) -> np.ndarray:
    """The formula of windows of 3 x 3 on one image with a border of a pixel, in float64."""
    height, width = image.shape[:2]
    rows, columns = np.arange(height)[:, None], np.arange(width)
    x = image.reshape(height, width, groups, -1)
    offset = offset.reshape(height, width, groups, 9, 2).astype(np.float64)
    mask, total = np.asarray(mask).reshape(height, width, groups, 9), np.zeros(x.shape)
    for tap in range(9):
        j, i = divmod(tap, 3)
        at = offset[..., tap, :]
        samples = [
            bilinear(
                x[:, :, g],
                rows + offset_scale * (i - 1 + at[:, :, g, 1]),
                columns + offset_scale * (j - 1 + at[:, :, g, 0]),
            )
            for g in range(groups)
        ]
        total += np.stack(samples, axis=2) * mask[..., tap, None]
    return total.reshape(image.shape)


@pytest.mark.spread(1, rest="proof")
@pytest.mark.parametrize("channels", INTERNIMAGE_CHANNELS)
def test_channels_of_a_group(channels):
    call = in_dtype(internimage(channels), "float32")
    found = results(call, "float32")
    images = zip(*call.arrays.values(), strict=True)
    for y, (x, offset, mask) in zip(found["y"], images, strict=True):
        assert_close(y, windows(x, offset, mask, call.options["groups"], 2.0), 2e-6)
    compare(call, found, float64_results(call, "float32"), 2e-6)


def test_points_of_levels_may_differ():
    levels, points = ((5, 7), (3, 4), (1, 1)), (3, 1, 2)
    value, weights = operands((2, 48, 3, 4), (2, 5, 3, 6))
    locations = np.random.default_rng(2).uniform(-0.2, 1.2, (2, 5, 3, 6, 2)).astype(np.float32)
    y = oxijax.ms_deform_attn(value, locations, weights, spatial_shapes=levels, points=points)
    # As many points of each level as of the one with most, whose weights are 0.
    first = np.cumsum([0, *points[:-1]])
    even = np.zeros((2, 5, 3, 3, 3), np.float32)
    even_locations = np.zeros((2, 5, 3, 3, 3, 2), np.float32)
    for level, (start, count) in enumerate(zip(first, points, strict=True)):
        even[..., level, :count] = weights[..., start : start + count]
        even_locations[..., level, :count, :] = locations[..., start : start + count, :]
    expected = oxijax.ms_deform_attn(value, even_locations, even, spatial_shapes=levels)
    assert_close(y, expected, 1e-6)


@pytest.mark.parametrize("function", [oxijax.ms_deform_attn, oxijax.reference.ms_deform_attn])
def test_normalize_is_a_softmax_over_all_points(function):
    value, weights = operands((2, 48, 3, 4), (2, 5, 3, 3, 2))
    locations = np.random.default_rng(3).uniform(0, 1, (2, 5, 3, 3, 2, 2)).astype(np.float32)
    levels = ((5, 7), (3, 4), (1, 1))

    def by_hand(value, locations, weights):
        flat = jax.nn.softmax(weights.reshape(2, 5, 3, 6)).reshape(weights.shape)
        return oxijax.ms_deform_attn(value, locations, flat, spatial_shapes=levels)

    (grad_y,) = operands((2, 5, 3, 4), seed=1)
    names = ("value", "locations", "weights")
    arrays = [value, locations, weights]
    normalized = functools.partial(function, normalize=True, spatial_shapes=levels)
    ours = values_and_gradients(normalized, arrays, grad_y, names)
    theirs = values_and_gradients(by_hand, arrays, grad_y, names)
    for key, expected in theirs.items():
        assert_close(ours[key], expected, 2e-6, key)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("queries", [8, 64])
@pytest.mark.parametrize("points", [1, 2])
def test_images_are_not_copied(dtype, queries, points):
    """Whatever the dtype, with a loop over blocks and without: large images need little beside."""
    images = jax.ShapeDtypeStruct((2, 512 * 512, 1, 64), dtype)
    of_points = 2, queries**2, 1, 1, points
    locations = jax.ShapeDtypeStruct((*of_points, 2), jnp.float32)
    attend = functools.partial(oxijax.ms_deform_attn, spatial_shapes=((512, 512),))
    weights = jax.ShapeDtypeStruct(of_points, jnp.float32)
    compiled = jax.jit(attend).lower(images, locations, weights).compile()
    assert (" while(" in str(compiled.as_text())) == (points == 2)
    analysis = compiled.memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes < images.size // 10


@pytest.mark.spread(2)
@pytest.mark.parametrize("method", ["bilinear", "nearest", "bicubic"])
def test_one_image_or_one_grid_is_shared(method):
    """As if it were repeated: values, gradients, and where samples lie."""
    random = np.random.default_rng(3)
    images = jnp.asarray(random.standard_normal((3, 5, 6, 2)), jnp.float32)
    grids = jnp.asarray(random.uniform(-1.2, 1.2, (3, 4, 2, 2)), jnp.float32)
    grad_y = jnp.asarray(random.standard_normal((3, 4, 2, 2)), jnp.float32)
    call = functools.partial(oxijax.grid_sample, method=method)

    def repeated(images, grids):
        return call(*(jnp.broadcast_to(a, (3, *a.shape[1:])) for a in (images, grids)))

    for arrays in ((images[:1], grids), (images, grids[:1])):
        y, vjp = jax.vjp(call, *arrays)
        expected, expected_vjp = jax.vjp(repeated, *arrays)
        np.testing.assert_array_equal(y, expected)
        for found, wanted in zip(vjp(grad_y), expected_vjp(grad_y), strict=True):
            assert_close(found, wanted, 1e-6)
        samples = oxijax.sampling_locations(oxijax.grid_sample, *arrays, method=method)
        assert samples.locations.shape[:3] == y.shape[:3]
    # Images that are shared are one operand of one image.
    shapes = {eqn.invars[0].aval.shape for eqn in jax.make_jaxpr(call)(images[:1], grids).eqns}
    assert (1, 30, 1, 2) in shapes


def test_nearest_is_the_pixel_at_the_edge_or_nearer():
    value = np.arange(12, dtype=np.float32).reshape(1, 12, 1, 1)
    x = np.array([-0.3, 0.0, 0.124, 0.126, 0.99, 5.0], np.float32)
    locations = np.stack([x, np.full_like(x, 0.5)], axis=-1).reshape(1, 6, 1, 1, 1, 2)
    weights = np.full((1, 6, 1, 1, 1), 2, np.float32)

    def attend(locations, weights):
        return oxijax.ms_deform_attn(
            value, locations, weights, spatial_shapes=((3, 4),), method="nearest"
        )

    # Row floor(0.5 * 3 + 0.5) = 2, columns floor(4 * x + 0.5).
    expected = np.array([8, 8, 8, 9, 11, 11])
    np.testing.assert_array_equal(attend(locations, weights).ravel(), 2 * expected)
    grads = jax.grad(lambda *a: attend(*a).sum(), argnums=(0, 1))(locations, weights)
    np.testing.assert_array_equal(grads[0], np.zeros_like(locations))
    np.testing.assert_array_equal(grads[1].ravel(), expected)


@pytest.mark.spread(1, rest="proof")
@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize(("n", "size", "groups"), [(64, (7, 7), 32), (2, (25, 42), 4)])
def test_dcnv4_is_dcnv3_of_packed_operands(n, size, groups, softmax):
    taps, channels = 9, 2 * groups
    used = 3 * groups * taps
    x, packed = operands((n, *size, channels), (n, *size, -(-used // 8) * 8))
    y = oxijax.dcnv4(x, packed, kernel_size=3, groups=groups, softmax=softmax)
    each = packed[..., :used].reshape(n, *size, groups, 3 * taps)
    offset = each[..., : 2 * taps].reshape(n, *size, -1)
    mask = each[..., 2 * taps :]
    logits = mask.reshape(n, *size, -1)
    same = oxijax.dcnv3(x, offset, logits, kernel_size=3, groups=groups, softmax=softmax)
    np.testing.assert_array_equal(y, same)
    if softmax:
        mask = jax.nn.softmax(mask)
    mask = mask.reshape(n, *size, -1)
    expected = oxijax.dcnv3(x, offset, mask, kernel_size=3, groups=groups)
    assert_close(y, expected, 1e-6)
    # The last image, and the formula: each image has its own samples.
    assert_close(y[-1], windows(x[-1], offset[-1], mask[-1], groups), 2e-6)


def test_far_windows_are_exact():
    """A window far from the first pixel has the fraction of one that is near."""
    x = np.tile(np.array([0, 1], np.float32), 4096).reshape(1, 1, 8192, 1)
    offset = np.full((1, 1, 8192, 2), 0.0, np.float32)
    offset[..., 0] = 1e-4
    mask = np.ones((1, 1, 8192, 1), np.float32)
    y = oxijax.dcnv3(x, offset, mask, kernel_size=1, groups=1)
    np.testing.assert_allclose(y[0, 0, :-1, 0], np.abs(x[0, 0, :-1, 0] - 1e-4), rtol=1e-6)


@pytest.mark.spread(5)
@pytest.mark.parametrize("coordinate", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(
    "sample",
    [
        *(
            functools.partial(oxijax.grid_sample, padding_mode=mode, align_corners=aligned)
            for mode in ("zeros", "reflection")
            for aligned in (True, False)
        ),
        lambda x, grid: oxijax.dcnv3(
            x, grid, np.ones((1, 4, 5, 1), np.float32), kernel_size=1, groups=1, offset_scale=0.0
        ),
    ],
    ids=["zeros-aligned", "zeros", "reflection-aligned", "reflection", "scale-0"],
)
def test_coordinates_without_a_position(sample, coordinate):
    """Infinity in a mirror, or scaled by 0, is nowhere, and NaN is NaN."""
    (x,) = operands((1, 4, 5, 2))
    grid = np.zeros((1, 4, 5, 2), np.float32)
    grid[0, 1, 2, 0] = coordinate
    y, vjp = jax.vjp(sample, x, grid)
    grad_x, grad_grid = vjp(jnp.ones_like(y))
    expected = np.nan if np.isnan(coordinate) else 0
    for found in (y, grad_grid):
        np.testing.assert_array_equal(found[0, 1, 2], expected)
        assert np.isfinite(np.delete(found.reshape(20, 2), 7, axis=0)).all()
    assert np.isfinite(grad_x).all()


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3)])
def test_empty(shape):
    n, queries, heads = shape
    value = np.zeros((n, 6, heads, 4), np.float32)
    locations = np.zeros((n, queries, heads, 1, 2, 2), np.float32)
    weights = np.zeros((n, queries, heads, 1, 2), np.float32)
    options = {"spatial_shapes": ((2, 3),)}
    attend = functools.partial(oxijax.ms_deform_attn, **options)
    grad_y = np.zeros((n, queries, heads, 4), np.float32)
    found = values_and_gradients(
        attend, [value, locations, weights], grad_y, ("value", "locations", "weights")
    )
    assert found["y"].shape == grad_y.shape
    assert found["dvalue"].shape == value.shape
    assert not np.asarray(found["dvalue"]).any()


@pytest.mark.parametrize("n", [33, 37])
def test_many_images(n):
    value, weights = operands((n, 20, 2, 3), (n, 1, 2, 1, 2))
    locations = np.random.default_rng(5).random((n, 1, 2, 1, 2, 2)).astype(np.float32)
    attend = functools.partial(oxijax.ms_deform_attn, spatial_shapes=((4, 5),))
    y = attend(value, locations, weights)
    for i in (0, n - 1):
        alone = attend(value[i : i + 1], locations[i : i + 1], weights[i : i + 1])
        assert_close(y[i : i + 1], alone, 1e-6)
