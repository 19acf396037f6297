"""What each family computes, and its gradients, in float64 and numpy, as the formulas say it.

Nothing here is the library's: padding by rule and sizes of outputs are worked out too. With
`magnitudes` every term of every sum is taken as its absolute value, which is what the rounding
errors of that sum are measured by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["convolution", "matrix_product", "parse_padding"]

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
      strides: of the output's pixels, (vertical, horizontal).
      pads: ((above, below), (left, right)).
      dilation: of the taps, (vertical, horizontal).
      magnitudes: whether each term counts with its absolute value.
    """
    o = {name: np.asarray(value, np.float64) for name, value in arrays.items()}
    grad = None if grad_y is None else np.asarray(grad_y, np.float64)
    shift = o.get("offset")
    if magnitudes:
        o = {name: np.abs(value) for name, value in o.items()}
        grad = None if grad is None else np.abs(grad)
    x, weight, mask = o["x"], o["weight"], o.get("mask")
    (images, height, width, channels), (kh, kw, in_group, outputs) = x.shape, weight.shape
    groups, taps = channels // in_group, kh * kw
    pixels = (
        images,
        *(
            (size + sum(pad) - (k - 1) * gap - 1) // stride + 1
            for size, pad, k, gap, stride in zip(
                x.shape[1:3], pads, weight.shape, dilation, strides, strict=False
            )
        ),
    )
    offset_groups = 1 if shift is None else shift.shape[3] // (2 * taps)
    minus = np.add if magnitudes else np.subtract
    results = {"y": np.zeros((*pixels, outputs)) + o.get("bias", 0.0)}
    if grad is not None:
        results |= {f"d{name}": np.zeros(value.shape) for name, value in o.items()}
        if "bias" in o:
            results["dbias"] = grad.sum((0, 1, 2))

    n, p, q = np.ogrid[tuple(slice(size) for size in pixels)]
    of_group = np.arange(channels)[:, None] // in_group == np.arange(outputs) // (outputs // groups)
    for tap in range(taps):
        i, j = divmod(tap, kw)
        inputs = np.arange(channels) % in_group
        whole = np.where(of_group, weight[i, j][inputs], 0.0)  # [C, Co], zeros between groups
        for group, own in enumerate(np.array_split(np.arange(channels), offset_groups)):
            sample = group * taps + tap
            row, ly = _place(p * strides[0] - pads[0][0] + i * dilation[0], shift, 2 * sample)
            column, lx = _place(
                q * strides[1] - pads[1][0] + j * dilation[1], shift, 2 * sample + 1
            )
            row, column = np.broadcast_arrays(row + 0 * n + 0 * q, column + 0 * n + 0 * p)
            modulation = np.ones(()) if mask is None else mask[..., sample, None]
            corners, places, inside = [], [], []
            for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
                y_, x_ = row + down, column + right
                ok = (y_ >= 0) & (y_ < height) & (x_ >= 0) & (x_ < width)
                place = n + 0 * y_, np.where(ok, y_, 0), np.where(ok, x_, 0)
                corners.append(np.where(ok[..., None], x[place][..., own], 0.0))
                places.append(place)
                inside.append(ok)
            fractions = [(1 - ly) * (1 - lx), (1 - ly) * lx, ly * (1 - lx), ly * lx]
            read = sum(f * c for f, c in zip(fractions, corners, strict=True))
            results["y"] += (modulation * read) @ whole[own]
            if grad is None:
                continue

            gcol = grad @ whole[own].T
            for f, place, ok in zip(fractions, places, inside, strict=True):
                at = tuple(v[..., None] for v in place)
                share = np.where(ok[..., None], modulation * f * gcol, 0.0)
                np.add.at(results["dx"], (*at, own), share)
            of_weight = np.einsum("npqc,npqo->co", modulation * read, grad) * of_group[own]
            for c, row_of in zip(own, of_weight, strict=True):
                results["dweight"][i, j, c % in_group] += row_of
            if shift is None:
                continue
            d1, d2, d3, d4 = ((c * gcol).sum(-1, keepdims=True) for c in corners)
            along_y = modulation * ((1 - lx) * minus(d3, d1) + lx * minus(d4, d2))
            along_x = modulation * ((1 - ly) * minus(d2, d1) + ly * minus(d4, d3))
            results["doffset"][..., 2 * sample] = along_y[..., 0]
            results["doffset"][..., 2 * sample + 1] = along_x[..., 0]
            if mask is not None:
                for fraction, d in zip(fractions, (d1, d2, d3, d4), strict=True):
                    results["dmask"][..., sample] += (fraction * d)[..., 0]
    return results


def _place(base: np.ndarray, shift: np.ndarray | None, channel: int) -> tuple[Any, Any]:
    """The pixel before a sample, and how far behind it the sample is, [N, Ho, Wo, 1]."""
    if shift is None:
        return base, 0.0
    offset = shift[..., channel]
    floor = np.floor(np.clip(offset, -FAR, FAR))
    fraction = np.where(np.abs(offset) < FAR, offset - floor, 0.0)
    return base + floor.astype(np.int64), fraction[..., None]


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
      transpose_b: whether b is.
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
