"""Reported sampling positions, compared with what the operators read."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from support.helpers import assert_close

import oxijax

RANDOM = np.random.default_rng(0)
LEVELS = ((5, 7), (3, 4))


def normal(*shape: int, scale: float = 1.0) -> jax.Array:
    return jnp.asarray(scale * RANDOM.normal(size=shape), jnp.float32)


def uniform(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.uniform(-0.2, 1.2, size=shape), jnp.float32)


def calls() -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], tuple[int, ...]]]:
    """Operator, arguments, options, and the shape of its weights."""
    x = normal(2, 6, 7, 8)
    geometry = {"strides": (2, 1), "padding": (1, 2), "dilation": (1, 2)}
    window: Any = {"kernel_size": 3, "groups": 2, **geometry}
    size = (2, 3, 7)  # of an output
    small = {"offset_scale": 1.5, "remove_center": True}
    return {
        "deform_conv": (
            oxijax.deform_conv,
            (x, normal(*size, 36), normal(3, 3, 8, 4), uniform(*size, 18)),
            geometry,
            (*size, 2, 9),
        ),
        "deform_conv/v1": (
            oxijax.deform_conv,
            (jnp.moveaxis(x, 3, 1), normal(2, 12, 6, 7), normal(4, 8, 2, 3)),
            {"data_format": "NCHW"},
            (2, 6, 7, 1, 6),
        ),
        "dcnv3": (
            oxijax.dcnv3,
            (x, normal(*size, 36), normal(*size, 18)),
            {**window, "softmax": True},
            (*size, 2, 9),
        ),
        "dcnv4": (oxijax.dcnv4, (x, normal(*size, 48)), window | small, (*size, 2, 8)),
        "ms_deform_attn": (
            oxijax.ms_deform_attn,
            (normal(2, 47, 2, 4), uniform(2, 6, 2, 2, 3, 2), normal(2, 6, 2, 2, 3)),
            {"spatial_shapes": LEVELS, "normalize": True},
            (2, 6, 2, 6),
        ),
        "ms_deform_attn/nearest": (
            oxijax.ms_deform_attn,
            (normal(2, 47, 1, 4), uniform(2, 6, 1, 5, 2), normal(2, 6, 1, 5)),
            {"spatial_shapes": LEVELS, "points": (4, 1), "method": "nearest"},
            (2, 6, 1, 5),
        ),
        "grid_sample": (oxijax.grid_sample, (x, normal(2, 5, 4, 2)), {}, (2, 5, 4, 1, 1)),
        "grid_sample/border": (
            oxijax.grid_sample,
            (x, normal(2, 9, 2)),
            {"padding_mode": "border", "align_corners": True},
            (2, 9, 1, 1),
        ),
    }


CALLS = calls()
each_call = pytest.mark.parametrize("name", CALLS)


def read_at(image: np.ndarray, y: float, x: float) -> np.ndarray:
    """Bilinear interpolation of [H, W, C], with zeros outside."""
    height, width, _ = image.shape
    total = np.zeros(image.shape[2])
    for row in (np.floor(y), np.floor(y) + 1):
        for column in (np.floor(x), np.floor(x) + 1):
            if 0 <= row < height and 0 <= column < width:
                share = (1 - abs(y - row)) * (1 - abs(x - column))
                total += share * image[int(row), int(column)]
    return total


def from_samples(samples: oxijax.Samples, images: list[np.ndarray]) -> np.ndarray:
    """Weighted samples [N, Q..., M, T, C of a group], of images [N, H, W, M, C] of each level."""
    found = np.zeros((*samples.weights.shape, images[0].shape[-1]))
    for index in np.ndindex(samples.weights.shape):
        image = images[samples.levels[index[-1]]][index[0], :, :, index[-2]]
        y, x = np.asarray(samples.locations[index], np.float64)
        found[index] = float(samples.weights[index]) * read_at(image, y, x)
    return found


@pytest.mark.spread(2)
@pytest.mark.quick
@each_call
def test_operators_sample_there(name):
    operator, operands, options, shape = CALLS[name]
    samples = oxijax.sampling_locations(operator, *operands, **options)
    assert samples.weights.shape == shape
    assert samples.locations.shape == (*shape, 2)
    assert samples.levels.shape == shape[-1:]
    y = np.asarray(operator(*operands, **options))
    x = np.asarray(operands[0], np.float64)
    groups = shape[-2]
    if operator is oxijax.ms_deform_attn:
        images = [
            level.reshape(2, *size, groups, -1)
            for level, size in zip(np.split(x, [35], axis=1), LEVELS, strict=True)
        ]
        expected = from_samples(samples, images).sum(axis=-2)
    else:
        x = np.moveaxis(x, 1, -1) if options.get("data_format") == "NCHW" else x
        columns = from_samples(samples, [x.reshape(*x.shape[:3], groups, -1)])
        if operator is oxijax.deform_conv:
            weight = np.asarray(operands[2], np.float64)
            if options.get("data_format") == "NCHW":
                weight, y = np.transpose(weight, (2, 3, 1, 0)), np.moveaxis(y, 1, -1)
            weight = weight.reshape(shape[-1], groups, -1, weight.shape[-1])
            expected = np.einsum("nhwgtc,tgco->nhwo", columns, weight)
        else:
            expected = columns.sum(axis=-2).reshape(y.shape)
    assert_close(y, expected, 1e-5)


@pytest.mark.usefixtures("x64")
def test_dtypes():
    """Those in which the operator computes, whatever the images'."""
    x, weight = jnp.ones((1, 4, 4, 2), jnp.bfloat16), jnp.ones((3, 3, 2, 2), jnp.bfloat16)
    for given, found in (("bfloat16", "float32"), ("float32", "float32"), ("float64", "float64")):
        offset, mask = jnp.zeros((1, 4, 4, 18), given), jnp.ones((1, 4, 4, 9), given)
        samples = oxijax.sampling_locations(oxijax.deform_conv, x, offset, weight, mask)
        assert (samples.locations.dtype, samples.weights.dtype) == (found, found)
        grid = jnp.zeros((1, 3, 2), given)
        assert oxijax.sampling_locations(oxijax.grid_sample, x, grid).locations.dtype == found


def test_within_a_program():
    operator, operands, options, _ = CALLS["dcnv3"]

    @jax.jit
    def outside(*operands):
        y, _ = jnp.moveaxis(oxijax.sampling_locations(operator, *operands, **options)[0], -1, 0)
        return jnp.mean((y < 0) | (y > 5))

    samples = oxijax.sampling_locations(operator, *operands, **options)
    y = np.asarray(samples.locations[..., 0])
    assert outside(*operands) == pytest.approx(np.mean((y < 0) | (y > 5)))


def test_no_images_and_no_queries():
    x, grid = jnp.ones((0, 4, 4, 2)), jnp.ones((0, 3, 2))
    assert oxijax.sampling_locations(oxijax.grid_sample, x, grid).weights.shape == (0, 3, 1, 1)
    x, grid = jnp.ones((2, 4, 4, 2)), jnp.ones((2, 0, 5, 2))
    assert oxijax.sampling_locations(oxijax.grid_sample, x, grid).weights.shape == (2, 0, 5, 1, 1)


def test_wrong_operators():
    for operator in (jax.lax.conv, oxijax.conv, oxijax.reference.deform_conv, "deform_conv", []):
        with pytest.raises(TypeError, match=r"operator must be one of oxijax.deform_conv, .* got"):
            oxijax.sampling_locations(operator, 1, 2)  # pyright: ignore
    with pytest.raises(TypeError, match="missing a required argument: 'weight'"):
        oxijax.sampling_locations(oxijax.deform_conv, 1, 2)
    with pytest.raises(ValueError, match="offset must have OG"):
        oxijax.sampling_locations(
            oxijax.deform_conv,
            jnp.ones((1, 4, 4, 2)),
            jnp.ones((1, 4, 4, 3)),
            jnp.ones((3, 3, 2, 2)),
        )


def test_offset_statistics():
    offset = jnp.asarray([[3.0, -4.0], [0.0, jnp.nan], [jnp.inf, -1.0]])
    found = jax.jit(oxijax.offset_statistics)(offset)
    expected = {"mean": 2, "rms": np.sqrt(26 / 4), "max": 4, "not_finite": 2 / 6}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value), name
        assert found[name].dtype == jnp.float32
    huge = oxijax.offset_statistics(jnp.full(10, 1e30, jnp.float32))
    assert float(huge["rms"]) == pytest.approx(1e30)
    none = oxijax.offset_statistics(jnp.full(10, jnp.nan, jnp.bfloat16))
    assert {name: float(value) for name, value in none.items()} == {
        "mean": 0, "rms": 0, "max": 0, "not_finite": 1,
    }  # fmt: skip


def test_picture(tmp_path):
    """Each sample is a dot at its place, as large as its weight."""
    operator, operands, options, _ = CALLS["dcnv3"]
    locations, weights, _ = oxijax.sampling_locations(operator, *operands, **options)
    weights = weights.at[0, 1, 2, 0, 0].multiply(-1)
    image = operands[0][0, ..., :3]
    draw = functools.partial(oxijax.draw_samples, image, locations[0, 1, 2], weights[0, 1, 2])
    axes = draw(center=(2.0, 3.0), area=100)
    filled, hollow = map(dots, axes.collections)
    assert len(hollow) == 1
    expected = np.asarray(locations[0, 1, 2]).reshape(-1, 2)[:, ::-1]
    sizes = 100 * np.abs(weights[0, 1, 2].reshape(-1, 1))
    drawn = np.concatenate([hollow, filled])
    np.testing.assert_allclose(drawn, np.concatenate([expected, sizes], axis=1), rtol=1e-6)
    assert len(axes.lines) == 18 + 1
    np.testing.assert_array_equal(axes.images[0].get_array(), np.asarray(image, float).clip(0, 1))
    axes.get_figure(root=True).savefig(tmp_path / "samples.png")  # pyright: ignore
    assert (tmp_path / "samples.png").stat().st_size > 5000
    own = Figure().add_subplot()
    assert oxijax.draw_samples(None, locations[0, 1, 2], axes=own) is own
    assert len(dots(own.collections[0])) == 18
    assert not own.images


def dots(collection: Any) -> np.ndarray:
    """x, y and area of each dot."""
    return np.concatenate([collection.get_offsets(), collection.get_sizes()[:, None]], axis=1)


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((None, np.ones((3, 3))), {}, "locations must have shape (..., 2), got (3, 3)"),
    ((None, np.ones((3, 2)), np.ones(2)), {}, "weights must have the shape of locations without"),
    ((np.ones((3, 3, 2)), np.ones((3, 2))), {}, "image must have shape (H, W) or (H, W, 3), got"),
    ((np.ones(3), np.ones((3, 2))), {}, "image must have shape (H, W) or (H, W, 3), got (3,)"),
    ((None, np.ones((3, 2))), {"center": (1, 2, 3)}, "center must be (y, x), got (1, 2, 3)"),
    ((None, np.ones((3, 2))), {"area": float("nan")}, "area must be a finite number, got nan"),
]


@pytest.mark.parametrize(("operands", "options", "message"), WRONG)
def test_wrong_pictures(operands, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        oxijax.draw_samples(*operands, **options)
