"""Valid calls of the sampling operators, drawn, with the formulas of what they result in.

Coordinates are multiples of small powers of two, so that positions are exact in float32 too: what
is compared is not how a position is rounded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["Axis", "attention", "grid", "in_grid", "samples", "window"]


@dataclasses.dataclass(frozen=True)
class Axis:
    """Positions along an axis, in pixels, [N, Q, M, T].

    Attributes:
      position: a real number.
      slope: its derivative with respect to the coordinate.
    """

    position: np.ndarray
    slope: Any


def samples(
    value: np.ndarray,
    axes: tuple[Axis, Axis],
    weights: np.ndarray | None,
    grad_y: np.ndarray | None,
    *,
    levels: list[tuple[int, int]],
    points: list[int],
    normalize: bool = False,
    magnitudes: bool = False,
) -> dict[str, np.ndarray]:
    """Weighted sums of samples "y", and the gradients "dvalue", "dcoordinates" and "dweights".

    Args:
      value: [N, S, M, D].
      axes: positions of y and x.
      weights: [N, Q, M, T]; None for 1.
      grad_y: the gradient of the sums [N, Q, M, D]; None for no gradients.
      levels: height and width of each.
      points: of each level.
      normalize: whether weights are the softmax of what is given.
      magnitudes: whether each term counts with its absolute value.
    """
    value = np.asarray(value, np.float64)
    (y, x), (n, _, heads, channels) = (axis.position for axis in axes), value.shape
    used = np.ones(y.shape) if weights is None else np.asarray(weights, np.float64)
    if normalize:
        used = np.exp(used - used.max(-1, keepdims=True))
        used = used / used.sum(-1, keepdims=True)
    grad = None if grad_y is None else np.asarray(grad_y, np.float64)
    slopes = [np.broadcast_to(axis.slope, y.shape) for axis in axes]
    minus = np.subtract
    if magnitudes:
        value, used, minus = np.abs(value), np.abs(used), np.add
        grad = None if grad is None else np.abs(grad)
        slopes = [np.abs(slope) for slope in slopes]
    results = {"y": np.zeros((*y.shape[:3], channels))}
    if grad is not None:
        results |= {
            "dvalue": np.zeros(value.shape),
            "dcoordinates": np.zeros((*y.shape, 2)),  # x, y
            "dweights": np.zeros(y.shape),
        }
    image, head = np.arange(n)[:, None, None], np.arange(heads)
    starts = np.cumsum([0, *(h * w for h, w in levels)])
    of_point = np.repeat(np.arange(len(levels)), points)
    for t, level in enumerate(of_point):
        (height, width), start = levels[level], starts[level]
        rows, columns = np.floor(y[..., t]), np.floor(x[..., t])
        ly, lx = (y[..., t] - rows)[..., None], (x[..., t] - columns)[..., None]
        corners, places, inside = [], [], []
        for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
            row, column = rows + down, columns + right
            ok = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            pixel = np.where(ok, row * width + column, 0).astype(int) + start
            corners.append(np.where(ok[..., None], value[image, pixel, head], 0.0))
            places.append(pixel)
            inside.append(ok)
        fractions = [(1 - ly) * (1 - lx), (1 - ly) * lx, ly * (1 - lx), ly * lx]
        weight = used[..., t, None]
        for f, corner in zip(fractions, corners, strict=True):
            results["y"] += weight * f * corner
        if grad is None:
            continue
        for f, pixel, ok in zip(fractions, places, inside, strict=True):
            share = np.where(ok[..., None], weight * f * grad, 0.0)
            np.add.at(results["dvalue"], (image, pixel, head), share)
        d1, d2, d3, d4 = ((c * grad).sum(-1) for c in corners)
        ly, lx, weight = ly[..., 0], lx[..., 0], weight[..., 0]
        along_y = (1 - lx) * minus(d3, d1) + lx * minus(d4, d2)
        along_x = (1 - ly) * minus(d2, d1) + ly * minus(d4, d3)
        results["dcoordinates"][..., t, 0] = weight * along_x * slopes[1][..., t]
        results["dcoordinates"][..., t, 1] = weight * along_y * slopes[0][..., t]
        for fraction, d in zip(fractions, (d1, d2, d3, d4), strict=True):
            results["dweights"][..., t] += fraction[..., 0] * d
    if grad is not None and normalize:
        mean = (used * results["dweights"]).sum(-1, keepdims=True)
        results["dweights"] = used * minus(results["dweights"], mean)
    return results


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
      generator: of random numbers.
      dtypes: draws a dtype.
      values: draws an array.
      geometry: of a convolution with two dimensions.
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
    coordinate: np.ndarray, size: int, mode: str, align_corners: bool, *, nearest: bool
) -> Axis:
    """Positions of coordinates of `grid_sample`, in an image of some size."""
    last = size - 1
    position = (coordinate + 1) / 2 * last if align_corners else ((coordinate + 1) * size - 1) / 2
    slope = np.full(position.shape, (last if align_corners else size) / 2)
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
