"""Valid calls of the sampling operators, drawn, with the formulas of what they result in.

Coordinates are multiples of small powers of two, so that positions are exact in float32 too: what
is compared is not how a position is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from support.formulas import Axis, samples

__all__ = ["attention", "grid", "in_grid", "window"]

Arrays = Mapping[str, np.ndarray]
Formula = Callable[[Arrays, np.ndarray | None, bool], dict[str, np.ndarray]]
Draw = tuple[dict[str, np.ndarray], dict[str, Any], Formula]


def exact(generator: np.random.Generator, low: float, high: float, shape: Any) -> np.ndarray:
    """Multiples of 1/64 in a range, some at its ends, some far outside."""
    drawn = generator.integers(round(64 * low), round(64 * high), shape, endpoint=True) / 64
    kind = generator.random(shape)
    ends = generator.choice([low, high], shape)
    far = generator.choice([-40.5, 7.25, 1000.0], shape)
    return np.where(kind < 0.05, ends, np.where(kind > 0.95, far, drawn))


def attention(
    generator: np.random.Generator, dtypes: Callable[[], Any], values: Callable[..., np.ndarray]
) -> Draw:
    """A call of `ms_deform_attn`."""
    count = int(generator.integers(1, 4))
    levels = [(int(h), int(w)) for h, w in generator.choice([1, 2, 3, 4, 5, 8], (count, 2))]
    listed = bool(generator.random() < 0.5)
    points = generator.integers(1, 4, count).tolist() if listed else [1 + count % 3] * count
    n, queries = (int(generator.choice([0, 1, 2, 3, 5])) for _ in range(2))
    heads, channels = int(generator.integers(1, 4)), int(generator.choice([1, 3, 4, 8, 21]))
    each = (sum(points),) if listed else (count, points[0])
    method = str(generator.choice(["bilinear", "bilinear", "nearest"]))
    normalize = bool(generator.random() < 0.4)
    pixels = sum(h * w for h, w in levels)
    locations = exact(generator, -0.25, 1.25, (n, queries, heads, *each, 2))
    arrays = {
        "value": values(generator, (n, pixels, heads, channels), dtypes()),
        "sampling_locations": locations.astype(dtypes()),
        "attention_weights": values(generator, (n, queries, heads, *each), dtypes()),
    }
    options = {"spatial_shapes": levels, "method": method, "normalize": normalize}
    if listed:
        options["points"] = points

    def formula(arrays: Arrays, grad_y: Any, magnitudes: bool) -> dict[str, np.ndarray]:
        shape = arrays["attention_weights"].shape
        flat = n, queries, heads, sum(points)
        at = np.asarray(arrays["sampling_locations"], np.float64).reshape(*flat, 2)
        axes = []
        for axis, last in ((0, 1), (1, 0)):
            size = np.repeat([level[axis] for level in levels], points)
            if method == "nearest":
                pixel = np.clip(np.floor(at[..., last] * size + 0.5), 0, size - 1)
                axes.append(Axis(pixel, 0.0))
            else:
                axes.append(Axis(at[..., last] * size - 0.5, size))
        found = samples(
            arrays["value"], (axes[0], axes[1]), arrays["attention_weights"].reshape(flat), grad_y,
            levels=levels, points=points, normalize=normalize, magnitudes=magnitudes,
        )  # fmt: skip
        if grad_y is None:
            return found
        return {
            "y": found["y"],
            "dvalue": found["dvalue"],
            "dsampling_locations": found["dcoordinates"].reshape(*shape, 2),
            "dattention_weights": found["dweights"].reshape(shape),
        }

    return arrays, options, formula


def window(
    generator: np.random.Generator,
    dtypes: Callable[[], Any],
    values: Callable[..., np.ndarray],
    geometry: Any,
    *,
    packed: bool,
) -> Draw:
    """A call of `dcnv3`, or of `dcnv4` if its operands are `packed`.

    Args:
      generator: the generator of random numbers.
      dtypes: the function that draws a dtype.
      values: the function that draws an array.
      geometry: the geometry of a convolution with two dimensions.
      packed: whether offsets and masks are one array.
    """
    g = geometry
    center = all(k % 2 for k in g.kernel) and max(g.kernel) > 1
    remove_center = center and bool(generator.random() < 0.4)
    taps = [(i, j) for j in range(g.kernel[1]) for i in range(g.kernel[0])]
    if remove_center:
        taps.remove((g.kernel[0] // 2, g.kernel[1] // 2))
    groups, channels = int(generator.integers(1, 4)), int(generator.choice([1, 2, 5, 8]))
    count, pixels = len(taps), (g.images, *g.pixels)
    offset = exact(generator, -2.0, 2.0, (*pixels, groups, count, 2))
    scale = float(generator.choice([1.0, 1.0, 0.5, 2.0, 1.25]))
    softmax = bool(generator.random() < 0.5)
    of_offset = dtypes()
    mask = values(generator, (*pixels, groups, count), of_offset if packed else dtypes())
    arrays = {"x": values(generator, (g.images, *g.image, groups * channels), dtypes())}
    options = {
        "kernel_size": g.kernel, "strides": g.strides, "padding": g.padding,
        "dilation": g.dilation, "groups": groups, "offset_scale": scale,
        "remove_center": remove_center, "softmax": softmax,
    }  # fmt: skip
    used = 3 * groups * count
    if packed:
        whole = np.full((*pixels, -(-used // 8) * 8), np.nan)  # what nobody reads
        both = [offset.reshape(*pixels, groups, 2 * count), np.asarray(mask, np.float64)]
        whole[..., :used] = np.concatenate(both, -1).reshape(*pixels, used)
        arrays["offset_mask"] = whole.astype(of_offset)
    else:
        arrays |= {
            "offset": offset.reshape(*pixels, groups * count * 2).astype(of_offset),
            "mask": mask.reshape(*pixels, groups * count),
        }

    def formula(arrays: Arrays, grad_y: Any, magnitudes: bool) -> dict[str, np.ndarray]:
        flat = g.images, int(np.prod(g.pixels)), groups, count
        if packed:
            each = np.asarray(arrays["offset_mask"], np.float64)[..., :used]
            each = each.reshape(*flat[:3], 3 * count)
            offset, mask = each[..., : 2 * count].reshape(*flat, 2), each[..., 2 * count :]
        else:
            offset = np.asarray(arrays["offset"], np.float64).reshape(*flat, 2)
            mask = arrays["mask"].reshape(flat)
        axes = []
        for axis, last in ((0, 1), (1, 0)):
            middle = g.dilation[axis] * (g.kernel[axis] - 1) // 2
            tap = np.array([tap[axis] * g.dilation[axis] - middle for tap in taps])
            pixel = np.indices(g.pixels)[axis].reshape(1, -1, 1, 1) * g.strides[axis]
            start = pixel - g.pads[axis][0] + middle
            axes.append(Axis(start + scale * (offset[..., last] + tap), scale))
        shape = arrays["x"].shape
        value = arrays["x"].reshape(shape[0], shape[1] * shape[2], groups, channels)
        grad = None if grad_y is None else grad_y.reshape(*flat[:3], channels)
        found = samples(
            value, (axes[0], axes[1]), mask, grad,
            levels=[(shape[1], shape[2])], points=[count], normalize=softmax, magnitudes=magnitudes,
        )  # fmt: skip
        results = {"y": found["y"].reshape(*pixels, groups * channels)}
        if grad_y is None:
            return results
        results["dx"] = found["dvalue"].reshape(shape)
        if not packed:
            results["doffset"] = found["dcoordinates"].reshape(arrays["offset"].shape)
            results["dmask"] = found["dweights"].reshape(arrays["mask"].shape)
            return results
        both = [found["dcoordinates"].reshape(*flat[:3], 2 * count), found["dweights"]]
        results["doffset_mask"] = np.zeros(arrays["offset_mask"].shape)
        results["doffset_mask"][..., :used] = np.concatenate(both, -1).reshape(*pixels, used)
        return results

    return arrays, options, formula


def in_grid(
    coordinate: np.ndarray,
    size: int,
    mode: str,
    align_corners: bool,
    *,
    nearest: bool,
    coordinates: str = "normalized",
) -> Axis:
    """Positions of coordinates of `grid_sample`, in an image of some size."""
    last = size - 1
    if coordinates == "pixel":
        position, scale = coordinate, 1.0
    elif coordinates == "unit":
        position, scale = coordinate * size - 0.5, size
    elif align_corners:
        position, scale = (coordinate + 1) / 2 * last, last / 2
    else:
        position, scale = ((coordinate + 1) * size - 1) / 2, size / 2
    slope = np.full(position.shape, scale)
    if mode == "reflection":
        low, high = (0.0, float(last)) if align_corners else (-0.5, last + 0.5)
        # There and back again: a triangle wave.
        span = high - low
        distance = np.abs(position - low)
        flips = np.floor(distance / span) if span else 0 * distance
        slope = slope * np.where(position < low, -1, 1) * np.where(flips % 2 == 1, -1, 1)
        phase = np.mod(distance, 2 * span) if span else 0 * distance
        position, slope = low + np.minimum(phase, 2 * span - phase), slope * bool(span)
    if mode != "zeros":
        slope = np.where((position > 0) & (position < last), slope, 0.0)
        position = np.clip(position, 0, last)
    if nearest:
        return Axis(np.round(position), 0.0)
    return Axis(position, slope)


def grid(
    generator: np.random.Generator, dtypes: Callable[[], Any], values: Callable[..., np.ndarray]
) -> Draw:
    """A call of `grid_sample`."""
    n = int(generator.choice([0, 1, 2, 3]))
    height, width = (int(size) for size in generator.choice([1, 2, 3, 4, 5, 8], 2))
    outer = tuple(generator.integers(1, 5, int(generator.integers(0, 4))).tolist())
    channels = int(generator.choice([1, 3, 8]))
    method = str(generator.choice(["bilinear", "bilinear", "nearest"]))
    mode = str(generator.choice(["zeros", "border", "reflection"]))
    align = bool(generator.random() < 0.5)
    arrays = {
        "x": values(generator, (n, height, width, channels), dtypes()),
        "grid": exact(generator, -1.5, 1.5, (n, *outer, 2)).astype(dtypes()),
    }
    options = {"method": method, "padding_mode": mode, "align_corners": align}

    def formula(arrays: Arrays, grad_y: Any, magnitudes: bool) -> dict[str, np.ndarray]:
        at = np.asarray(arrays["grid"], np.float64).reshape(n, -1 if n else 0, 1, 1, 2)
        axes = (
            in_grid(at[..., 1], height, mode, align, nearest=method == "nearest"),
            in_grid(at[..., 0], width, mode, align, nearest=method == "nearest"),
        )
        value = arrays["x"].reshape(n, height * width, 1, channels)
        grad = None if grad_y is None else grad_y.reshape(*at.shape[:3], channels)
        found = samples(
            value, axes, None, grad, levels=[(height, width)], points=[1], magnitudes=magnitudes
        )
        results = {"y": found["y"].reshape(n, *outer, channels)}
        if grad_y is not None:
            results["dx"] = found["dvalue"].reshape(arrays["x"].shape)
            results["dgrid"] = found["dcoordinates"].reshape(arrays["grid"].shape)
        return results

    return arrays, options, formula
