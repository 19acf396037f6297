"""`roi_align` for boxes of each image, of images by number, and of levels of a pyramid."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import assert_close

import oxijax

SIZE: dict[str, Any] = {"output_size": (2, 3)}


def boxes_of(n: int, count: int, extent: float, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    corners = random.uniform(-0.2 * extent, extent, (n, count, 2))
    return np.concatenate([corners, corners + random.uniform(0, extent, (n, count, 2))], -1)


def numbered(boxes: np.ndarray) -> np.ndarray:
    """Boxes [N, K, 4] as [N * K, 5], with the numbers of their images."""
    n, count, _ = boxes.shape
    image = np.repeat(np.arange(n), count)[:, None]
    return np.concatenate([image, boxes.reshape(-1, 4)], -1)


@pytest.mark.spread(2)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [0, 2])
def test_boxes_of_each_image_or_numbered(ratio, aligned):
    """The same values and gradients, also with respect to boxes."""
    x, boxes = np.random.default_rng(1).standard_normal((2, 7, 9, 3)), boxes_of(2, 5, 8.0)
    grad_y = np.random.default_rng(2).standard_normal((2, 5, 2, 3, 3))
    options = {**SIZE, "sampling_ratio": ratio, "aligned": aligned, "max_sampling_ratio": 7}
    pool = jax.jit(functools.partial(oxijax.roi_align, **options))
    y, pull_back = jax.vjp(pool, x, boxes)
    flat, flat_back = jax.vjp(pool, x, numbered(boxes))
    assert_close(flat.reshape(y.shape), y, 1e-12)
    (of_x, of_boxes), (flat_x, flat_boxes) = (
        pull_back(grad_y), flat_back(grad_y.reshape(flat.shape))
    )  # fmt: skip
    assert_close(flat_x, of_x, 1e-12)
    assert_close(flat_boxes[:, 1:].reshape(boxes.shape), of_boxes, 1e-12)


@pytest.mark.spread(1)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["of images", "numbered"])
def test_levels_of_a_pyramid(form):
    """Each box has the values of a call with its level alone."""
    random, scales = np.random.default_rng(1), (0.5, 0.25, 0.125)
    levels = [random.standard_normal((2, int(40 * s), int(48 * s), 3)) for s in scales]
    boxes = boxes_of(2, 6, 40.0)
    which = oxijax.roi_levels(boxes, 3, canonical_size=16.0, canonical_level=1)
    assert set(np.unique(which)) == {0, 1, 2}
    options = {**SIZE, "sampling_ratio": 2}
    given, level = (boxes, which)
    if form == "numbered":
        given, level = numbered(boxes), which.reshape(-1)
    y = oxijax.roi_align(levels, given, spatial_scale=scales, levels=level, **options)
    y = y.reshape(2, 6, 2, 3, 3)
    for index, scale in enumerate(scales):
        alone = oxijax.roi_align(levels[index], boxes, spatial_scale=scale, **options)
        chosen = np.asarray(which) == index
        assert_close(np.asarray(y)[chosen], np.asarray(alone)[chosen], 1e-12)


def test_levels_by_size():
    """A box of the canonical size is in the canonical level, one of half its side a level below."""
    sides = np.array([1.0, 56, 111.9, 112, 223.9, 224, 447, 448, 5000, 0], np.float32)
    boxes = np.stack([0 * sides, 0 * sides, sides, sides], -1)
    np.testing.assert_array_equal(oxijax.roi_levels(boxes, 4), [0, 0, 0, 1, 1, 2, 2, 3, 3, 0])


def test_what_does_not_exist_is_zero():
    x = jnp.ones((2, 5, 6, 3))
    numbers = np.array([-1, 0, 1, 2, 1000], np.float32)
    boxes = np.stack([numbers, *np.broadcast_to([[1], [1], [4], [4]], (4, 5))], -1)
    y = oxijax.roi_align(x, boxes.astype(np.float32), sampling_ratio=2, **SIZE)
    np.testing.assert_allclose(y.mean((1, 2, 3)), [0, 1, 1, 0, 0], atol=1e-6)
    levels = np.array([-1, 0, 1, 2, 7])
    boxes[:, 0] = 0
    y = oxijax.roi_align(
        *([x, x], boxes.astype(np.float32)),
        levels=levels, spatial_scale=(1.0, 1.0), sampling_ratio=2, **SIZE,
    )  # fmt: skip
    np.testing.assert_allclose(y.mean((1, 2, 3)), [0, 1, 1, 0, 0], atol=1e-6)


def test_traced_boxes_need_a_bound():
    x, boxes = jnp.ones((1, 5, 6, 3)), jnp.asarray(boxes_of(1, 3, 5.0), jnp.float32)
    with pytest.raises(ValueError, match=r"sampling_ratio 0 takes .*: give max_sampling_ratio"):
        jax.jit(functools.partial(oxijax.roi_align, **SIZE))(x, boxes)
    bounded = jax.jit(functools.partial(oxijax.roi_align, max_sampling_ratio=5, **SIZE))
    y = oxijax.roi_align(x, boxes, **SIZE)
    assert_close(bounded(x, boxes), y, 1e-6)
    # Boxes that a traced program holds are known.
    assert_close(jax.jit(lambda x: oxijax.roi_align(x, boxes, **SIZE))(x), y, 1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": []}, "x must not be empty"),
        ({"x": [jnp.ones((1, 5, 6, 3))]}, "levels must be given where x is a sequence"),
        ({"x": [jnp.ones((1, 5, 6, 3)), jnp.ones((2, 5, 6, 3))]}, r"x\[1\] must have shape"),
        ({"spatial_scale": (1.0, 2.0)}, "spatial_scale must be a number"),
        ({"boxes": jnp.ones((2, 3, 4))}, r"boxes must have shape \(N, K, 4\) = \(1, K, 4\)"),
        ({"levels": np.zeros((1, 3), int)}, "levels must be None where x is no sequence"),
        ({"sampling_ratio": -2}, "sampling_ratio must not be negative, got -2"),
    ],
)
def test_wrong_arguments(change, message):
    arguments = {"x": jnp.ones((1, 5, 6, 3)), "boxes": jnp.ones((1, 3, 4)), **SIZE, **change}
    if isinstance(arguments["x"], list) and "levels" not in change:
        arguments["spatial_scale"] = (1.0,) * len(arguments["x"])
    with pytest.raises((ValueError, TypeError), match=message):
        oxijax.roi_align(**arguments)
