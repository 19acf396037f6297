"""The formulas of each family and of its gradients, in float64 and numpy.

Nothing here is the library's: padding by rule and sizes of outputs are worked out too. With
`magnitudes` every term of every sum is taken as its absolute value, which is what the rounding
errors of that sum are measured by.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["Axis", "convolution", "matrix_product", "parse_padding", "samples"]

Arrays = Mapping[str, np.ndarray]
Pairs = tuple[tuple[int, int], ...]
FAR = 2.0**40  # no image reaches so far


def parse_padding(padding: Any, sizes: Any, kernel: Any, strides: Any, dilation: Any) -> Pairs:
    """Zeros before and after, for each spatial dimension."""
    if isinstance(padding, str) and padding.upper() == "VALID":
        return tuple((0, 0) for _ in sizes)
    if isinstance(padding, str):
        pads = []
        for size, taps, stride, gap in zip(sizes, kernel, strides, dilation, strict=True):
            pixels = -(-size // stride)  # of the output, so that each input starts in some window
            both = max(0, (pixels - 1) * stride + (taps - 1) * gap + 1 - size)
            less, more = both // 2, both - both // 2
            pads.append((less, more) if padding.upper() == "SAME" else (more, less))
        return tuple(pads)
    each = padding if isinstance(padding, tuple | list) else [padding] * len(sizes)
    return tuple((p[0], p[1]) if isinstance(p, tuple | list) else (p, p) for p in each)


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
    axes: Sequence[Axis],
    weights: np.ndarray | None,
    grad_y: np.ndarray | None,
    *,
    levels: Sequence[tuple[int, ...]],
    points: Sequence[int],
    normalize: bool = False,
    magnitudes: bool = False,
) -> dict[str, np.ndarray]:
    """Weighted sums of samples "y", and the gradients "dvalue", "dcoordinates" and "dweights".

    Args:
      value: [N, S, M, D], the pixels of all levels.
      axes: positions along each axis of the images: of y and x, for example.
      weights: [N, Q, M, T]; None for 1.
      grad_y: the gradient of the sums [N, Q, M, D]; None for no gradients.
      levels: the sizes of each.
      points: how many samples each level has; T in all.
      normalize: whether weights are the softmax of what is given.
      magnitudes: whether each term counts with its absolute value.
    """
    value = np.asarray(value, np.float64)
    positions, (n, _, heads, channels) = [axis.position for axis in axes], value.shape
    shape, dims = positions[0].shape, len(axes)
    used = np.ones(shape) if weights is None else np.asarray(weights, np.float64)
    if normalize:
        used = np.exp(used - used.max(-1, keepdims=True))
        used = used / used.sum(-1, keepdims=True)
    grad = None if grad_y is None else np.asarray(grad_y, np.float64)
    slopes = [np.broadcast_to(axis.slope, shape) for axis in axes]
    minus = np.subtract
    if magnitudes:
        value, used, minus = np.abs(value), np.abs(used), np.add
        grad = None if grad is None else np.abs(grad)
        slopes = [np.abs(slope) for slope in slopes]
    results: dict[str, Any] = {"y": np.zeros((*shape[:3], channels))}
    if grad is not None:
        results |= {
            "dvalue": np.zeros(value.shape),
            "dcoordinates": np.zeros((*shape, dims)),  # the last axis's first: x, y
            "dweights": np.zeros(shape),
        }
    image, head = np.arange(n)[:, None, None], np.arange(heads)
    starts = np.cumsum([0, *(math.prod(level) for level in levels)])
    of_point = np.repeat(np.arange(len(levels)), points)
    for t, level in enumerate(of_point.tolist()):
        size, weight = levels[level], used[..., t]
        floors = [np.floor(position[..., t]) for position in positions]
        # Of each axis the weights of its first and its second pixel.
        pairs = [
            (1 - (position[..., t] - floor), position[..., t] - floor)
            for position, floor in zip(positions, floors, strict=True)
        ]
        for corner in itertools.product((0, 1), repeat=dims):
            pixel: Any = 0
            ok: Any = True
            for floor, step, extent in zip(floors, corner, size, strict=True):
                at = floor + step
                pixel, ok = pixel * extent + at, ok & (at >= 0) & (at < extent)
            pixel = np.where(ok, pixel, 0).astype(int) + starts[level]
            found = np.where(ok[..., None], value[image, pixel, head], 0.0)
            of_axes = [pair[step] for pair, step in zip(pairs, corner, strict=True)]
            fraction = math.prod(of_axes)
            results["y"] += (weight * fraction)[..., None] * found
            if grad is None:
                continue
            share = np.where(ok[..., None], (weight * fraction)[..., None] * grad, 0.0)
            np.add.at(results["dvalue"], (image, pixel, head), share)
            dot = (found * grad).sum(-1)
            results["dweights"][..., t] += fraction * dot
            for axis, (step, slope) in enumerate(zip(corner, slopes, strict=True)):
                others = math.prod(of_axes[:axis] + of_axes[axis + 1 :])
                change = weight * others * dot * slope[..., t]
                add = np.add if step else minus
                along = results["dcoordinates"][..., t, dims - 1 - axis]
                add(along, change, out=along)
    if grad is not None and normalize:
        mean = (used * results["dweights"]).sum(-1, keepdims=True)
        results["dweights"] = used * minus(results["dweights"], mean)
    return results


def convolution(
    arrays: Arrays,
    grad_y: np.ndarray | None = None,
    *,
    strides: tuple[int, int],
    pads: Pairs,
    dilation: tuple[int, int],
    magnitudes: bool = False,
) -> dict[str, np.ndarray]:
    """The output "y", and with `grad_y` the gradients "dx", "doffset", ... of what there is.

    Args:
      arrays: x [N, H, W, C], weight [Kh, Kw, C/G, Co], perhaps bias, and for a deformable one
        offset and perhaps mask. Without offset all samples are where the taps are.
      grad_y: the output's gradient, [N, Ho, Wo, Co].
      strides: the steps between the output's pixels, (vertical, horizontal).
      pads: ((above, below), (left, right)).
      dilation: the steps between taps, (vertical, horizontal).
      magnitudes: whether each term counts with its absolute value.
    """
    o = {name: np.asarray(value, np.float64) for name, value in arrays.items()}
    grad = None if grad_y is None else np.asarray(grad_y, np.float64)
    offset = o.get("offset")
    if magnitudes:
        o = {name: np.abs(value) for name, value in o.items()}
        grad = None if grad is None else np.abs(grad)
    x, weight, mask = o["x"], o["weight"], o.get("mask")
    (images, height, width, channels), (kh, kw, in_group, outputs) = x.shape, weight.shape
    groups, taps = channels // in_group, kh * kw
    sizes = [
        (size + sum(pad) - (k - 1) * gap - 1) // stride + 1
        for size, pad, k, gap, stride in zip(
            x.shape[1:3], pads, weight.shape, dilation, strides, strict=False
        )
    ]
    offset_groups = 1 if offset is None else offset.shape[3] // (2 * taps)

    # Each tap of each offset group is a head of one sample, of the group's channels.
    heads, depth = offset_groups * taps, channels // offset_groups
    shape = images, sizes[0] * sizes[1], heads
    axes = []
    for axis, tap in enumerate(np.divmod(np.arange(heads) % taps, kw)):
        pixel = np.indices(sizes)[axis].reshape(-1, 1)
        position = pixel * strides[axis] - pads[axis][0] + tap * dilation[axis]
        if offset is not None:
            position = position + offset.reshape(*shape, 2)[..., axis]
        axes.append(Axis(np.broadcast_to(np.clip(position, -FAR, FAR), shape)[..., None], 1.0))
    of_group = np.arange(channels)[:, None] // in_group == np.arange(outputs) // (outputs // groups)
    weights = weight.reshape(taps, in_group, outputs)[:, np.arange(channels) % in_group]
    weights = np.where(of_group, weights, 0.0)  # [taps, C, Co], zeros between groups
    weights = weights.reshape(taps, offset_groups, depth, outputs).swapaxes(0, 1)
    weights = weights.reshape(heads, depth, outputs)
    grad_rows = None if grad is None else grad.reshape(*shape[:2], outputs)
    value = x.reshape(images, height * width, offset_groups, depth)
    sampled = samples(
        value.repeat(taps, axis=2),
        (axes[0], axes[1]),
        None if mask is None else mask.reshape(*shape, 1),
        None if grad_rows is None else np.einsum("nqo,mdo->nqmd", grad_rows, weights),
        levels=[(height, width)],
        points=[1],
        magnitudes=magnitudes,
    )
    y = np.einsum("nqmd,mdo->nqo", sampled["y"], weights)
    results = {"y": y.reshape(images, *sizes, outputs) + o.get("bias", 0.0)}
    if grad_rows is None:
        return results
    grad_weights = np.einsum("nqmd,nqo->mdo", sampled["y"], grad_rows)
    grad_weights = grad_weights.reshape(offset_groups, taps, depth, outputs).swapaxes(0, 1)
    grad_weights = grad_weights.reshape(taps, channels, outputs) * of_group
    grad_values = sampled["dvalue"].reshape(*value.shape[:3], taps, depth)
    results |= {
        "dx": grad_values.sum(3).reshape(x.shape),
        "dweight": grad_weights.reshape(taps, groups, in_group, outputs)
        .sum(1)
        .reshape(weight.shape),
        "dbias": grad_rows.sum((0, 1)),
    }
    if offset is not None:
        results["doffset"] = sampled["dcoordinates"][..., ::-1].reshape(offset.shape)
    if mask is not None:
        results["dmask"] = sampled["dweights"].reshape(mask.shape)
    return {name: found for name, found in results.items() if name == "y" or name[1:] in o}


def matrix_product(
    arrays: Arrays,
    grad_y: np.ndarray | None = None,
    *,
    transpose_a: bool,
    transpose_b: bool,
    magnitudes: bool = False,
) -> dict[str, np.ndarray]:
    """The product "y", and with `grad_y` the gradients "da", "db", "dc", "dalpha" and "dbeta".

    Args:
      arrays: a, b, alpha, and perhaps c and beta, which are used only together.
      grad_y: the product's gradient.
      transpose_a: whether a is transposed first.
      transpose_b: whether b is transposed first.
      magnitudes: whether each term counts with its absolute value.
    """
    o = {name: np.asarray(value, np.float64) for name, value in arrays.items()}
    grad = None if grad_y is None else np.asarray(grad_y, np.float64)
    if magnitudes:
        o = {name: np.abs(value) for name, value in o.items()}
        grad = None if grad is None else np.abs(grad)
    alpha, beta = o["alpha"], o.get("beta", np.zeros(()))
    a = o["a"].swapaxes(-1, -2) if transpose_a else o["a"]
    b = o["b"].swapaxes(-1, -2) if transpose_b else o["b"]
    product = np.einsum("...mk,...kn->...mn", a, b)
    c = o.get("c", np.zeros(product.shape[-2:]))
    results = {"y": alpha * product + beta * c}
    if grad is None:
        return results
    da = alpha * np.einsum("...mn,...kn->...mk", grad, b)
    db = alpha * np.einsum("...mk,...mn->...kn", a, grad)
    results |= {
        "da": _summed_to(da.swapaxes(-1, -2) if transpose_a else da, o["a"].shape),
        "db": _summed_to(db.swapaxes(-1, -2) if transpose_b else db, o["b"].shape),
        "dc": _summed_to(np.asarray(beta * grad), c.shape),
        "dalpha": np.sum(grad * product),
        "dbeta": np.sum(grad * c),
    }
    return {name: v for name, v in results.items() if name == "y" or name[1:] in o}


def _summed_to(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The gradient to an operand of this shape, from that to what it was broadcast to."""
    summed = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    repeated = tuple(i for i, size in enumerate(shape) if size == 1 != summed.shape[i])
    return summed.sum(axis=repeated, keepdims=True)
