"""Valid calls of the public functions that have kernels, drawn, and what they should result in."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

import oxijax
from support import drawn_samples, formulas

__all__ = ["FAMILIES", "Drawn", "Family", "draw"]

Generator = np.random.Generator
Formula = Callable[[Mapping[str, np.ndarray], np.ndarray | None, bool], dict[str, np.ndarray]]

# What DESIGN's norms allow, here for each value: of a result's own rounding by its dtype, and of
# the sums, by their terms' absolute values, on a CPU and by kernels.
ROUNDING = {"float64": 1e-13, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}
MOST_OUTPUTS = 2000
EXACT = ("highest", "float32", lax.Precision.HIGHEST)  # of float32, which is else TF32 on a GPU
PRECISIONS = (None, None, "default", "high", *EXACT)
# Operands by which samples are weighed, as exactly as they are.
SAMPLING = (
    "offset", "offset_mask", "sampling_locations", "attention_weights", "mask", "grid",
)  # fmt: skip
FAR = (7.0, -7.0, 100.5, -100.5, 6e4, -6e4)  # within float16
FARTHER = (np.inf, -np.inf, 2.0**31, -(2.0**31), 1e30, -1e30)


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
    """A call.

    Attributes:
      family: the public function's name.
      number: the number that it was drawn with, besides `float64`.
      float64: whether JAX has 64 bits.
      arrays: the operands that are differentiated, by name.
      options: all other arguments.
      grad_y: the gradient of the output.
      formula: called with the operands, the output's gradient and whether to take the terms'
        magnitudes, returns "y", and the gradients "d..." by name.
      kernels: the least number of calls of kernels in its program on a GPU.
      sampled_in_float32: whether samples are weighed in float32 whatever the images have.
    """

    family: str
    number: tuple[int, ...]
    float64: bool
    arrays: Mapping[str, np.ndarray]
    options: Mapping[str, Any]
    grad_y: np.ndarray
    formula: Formula
    kernels: int
    sampled_in_float32: bool

    def __repr__(self) -> str:
        arrays = [f"{name}={v.dtype.name}{[*v.shape]}" for name, v in self.arrays.items()]
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        call = f"{self.family}({', '.join(arrays + options)})"
        return f"draw({self.family!r}, {self.number}, float64={self.float64}) = {call}"

    def __call__(self, arrays: Mapping[str, Any]) -> Any:
        return getattr(oxijax, self.family)(**arrays, **self.options)

    def complaints(self, results: Mapping[str, Any], kernels: bool) -> list[str]:
        """What is wrong with "y" and the gradients "d...", each within its own tolerance.

        Args:
          results: by name.
          kernels: whether they are the GPU's, which multiplies in fewer bits.
        """
        wanted, magnitudes = (self.formula(self.arrays, self.grad_y, m) for m in (False, True))
        if set(results) != set(wanted):
            return [f"results {sorted(results)} instead of {sorted(wanted)}"]
        return [
            complaint
            for name, result in results.items()
            if (complaint := self._complaint(name, result, wanted[name], magnitudes[name], kernels))
        ]

    def _complaint(
        self, name: str, result: Any, wanted: np.ndarray, magnitude: np.ndarray, kernels: bool
    ) -> str:
        like = self.grad_y if name == "y" else self.arrays[name[1:]]
        if (result.dtype, result.shape) != (like.dtype, like.shape):
            return f"{name} is {result.dtype}{result.shape}, not {like.dtype}{like.shape}"
        rounding = ROUNDING[like.dtype.name]
        tiny = float(jnp.finfo(like.dtype).smallest_subnormal)
        bound = rounding * np.abs(wanted) + self._of_sums(name, kernels) * magnitude + tiny
        error = np.abs(np.asarray(result, np.float64) - wanted)
        if (error <= bound).all():
            return ""
        worst = np.unravel_index(
            np.argmax(np.where(error <= bound, 0, error / bound)), wanted.shape
        )
        return (
            f"{name}{[*map(int, worst)]} is {np.asarray(result, np.float64)[worst]}, not "
            f"{wanted[worst]}, where terms of magnitude {magnitude[worst]} are added; "
            f"{np.sum(~(error <= bound))} of {wanted.size} values are wrong"
        )

    def _of_sums(self, name: str, kernels: bool) -> float:
        """The error of a sum over that of its terms' absolute values."""
        dtype = self.grad_y.dtype.name
        if dtype == "float64":
            return ROUNDING["float32" if self.sampled_in_float32 else "float64"]
        # These are sums over products that are rounded as a result is: that alpha has no part in,
        # and the shares that several products have in the gradient of an operand of them all.
        shared = (
            name in ("da", "db", "dc")
            and self.arrays[name[1:]].shape[:-2] != self.grad_y.shape[:-2]
        )
        if shared or name == "dalpha":
            return max(ROUNDING[dtype], self._of_sums("y", kernels))
        if not kernels:
            return ROUNDING["float32"]
        exact = self.options.get("precision", "highest") in EXACT
        return 1e-3 if dtype == "float32" and not exact else ROUNDING[dtype]


def draw(family: str, number: tuple[int, ...], float64: bool) -> Drawn:
    """A call; what it is depends on these alone."""
    generator = np.random.default_rng([*number, *family.encode(), float64])
    arrays, options, formula = FAMILIES[family].draw(generator, float64)
    y = formula(arrays, None, False)["y"]
    assert y.size <= MOST_OUTPUTS
    grad_y = values(generator, y.shape, next(iter(arrays.values())).dtype)
    return Drawn(
        family, number, float64, arrays, options, grad_y, formula,
        kernels=FAMILIES[family].kernels(arrays, options) if y.size else 0,
        sampled_in_float32=any(
            arrays[name].dtype != np.float64 for name in SAMPLING if name in arrays
        ),
    )  # fmt: skip


def one_of(generator: Generator, *choices: Any) -> Any:
    return choices[generator.integers(len(choices))]


def chance(generator: Generator, probability: float = 0.5) -> bool:
    return bool(generator.random() < probability)


def values(generator: Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Of either sign and of magnitudes that no product of a few takes out of float16; some 0."""
    drawn = generator.uniform(0.25, 2, shape) * generator.choice([-1.0, 1.0], shape)
    return np.asarray(np.where(generator.random(shape) < 0.05, 0, drawn)).astype(dtype)


def dtype_of(generator: Generator, float64: bool) -> np.dtype:
    names = ("float16", "bfloat16", "float32", "float64")
    return jnp.dtype(one_of(generator, *names[: 4 if float64 else 3]))


def numbers(generator: Generator, both: tuple[int, ...]) -> Any:
    """One number for each dimension, in one of the forms that they may have."""
    if len(set(both)) == 1 and chance(generator):
        return one_of(generator, int, np.int64)(both[0])
    return one_of(generator, tuple, list)(both)


def padding_of(generator: Generator, rank: int) -> Any:
    def amount() -> int:
        return int(generator.integers(0, 4))

    rule = one_of(generator, "SAME", "SAME", "SAME_LOWER", "VALID", "same", None, None, None, None)
    if rule is not None:
        return rule
    if chance(generator, 0.25):
        return amount()
    each = [amount() if chance(generator, 0.3) else (amount(), amount()) for _ in range(rank)]
    return one_of(generator, tuple, list)(each)


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Sizes of a convolution, of which each output has a pixel at least."""

    images: int
    image: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: Any
    pads: tuple[tuple[int, int], ...]
    pixels: tuple[int, ...]


def geometry(generator: Generator, rank: int, paddings: Callable = padding_of) -> Geometry:
    def sizes(*choices: int) -> tuple[int, ...]:
        return tuple(int(one_of(generator, *choices)) for _ in range(rank))

    while True:
        image, kernel = sizes(1, 2, 3, 4, 5, 6, 7, 9), sizes(1, 1, 2, 3, 3, 3, 4, 5)
        strides, dilation = sizes(1, 1, 1, 2, 2, 3, 5), sizes(1, 1, 1, 2, 3)
        padding = paddings(generator, rank)
        pads = formulas.parse_padding(padding, image, kernel, strides, dilation)
        window = [gap * (taps - 1) + 1 for gap, taps in zip(dilation, kernel, strict=True)]
        pixels = tuple(
            (size + sum(pad) - reach) // stride + 1
            for size, pad, reach, stride in zip(image, pads, window, strides, strict=True)
        )
        images = int(one_of(generator, 0, 1, 1, 1, 1, 2, 2, 2, 3, 5))
        if min(pixels) >= 1 and images * np.prod(pixels) <= 150:
            return Geometry(images, image, kernel, strides, dilation, padding, pads, pixels)


def channels_of(generator: Generator, pixels: int) -> tuple[int, int, int, int]:
    """Input channels, output channels, groups and offset groups."""
    groups = int(one_of(generator, 1, 1, 1, 2, 3, 4))
    offset_groups = int(one_of(generator, 1, 1, 1, 2, 3, 4))
    least = int(np.lcm(groups, offset_groups))
    channels = least * int(generator.integers(1, 4))
    if chance(generator, 0.1) and channels * pixels <= MOST_OUTPUTS:
        groups = channels  # depthwise
    elif chance(generator, 0.15):  # wide enough for whole tiles of tensor cores
        channels = least * int(generator.integers(8, 33) // least + 1)
    most = max(
        1, min(40 if chance(generator, 0.15) else 6, MOST_OUTPUTS // max(1, pixels)) // groups
    )
    return channels, groups * int(generator.integers(1, most + 1)), groups, offset_groups


def convolution(generator: Generator, float64: bool, deformable: bool) -> tuple:
    rank = 2 if deformable or chance(generator, 0.7) else 1
    g = geometry(generator, rank)
    channels, outputs, groups, offset_groups = channels_of(
        generator, g.images * int(np.prod(g.pixels))
    )
    dtype = dtype_of(generator, float64)
    arrays = {
        "x": values(generator, (g.images, *g.image, channels), dtype),
        "weight": values(generator, (*g.kernel, channels // groups, outputs), dtype),
    }
    if deformable:
        samples = offset_groups * int(np.prod(g.kernel))
        pixels = (g.images, *g.pixels)
        of_offset = dtype_of(generator, float64) if chance(generator) else dtype
        arrays["offset"] = offsets(generator, (*pixels, 2 * samples), of_offset)
        if chance(generator, 0.6):
            of_mask = dtype_of(generator, float64) if chance(generator) else dtype
            arrays["mask"] = values(generator, (*pixels, samples), of_mask)
    if chance(generator, 0.6):
        arrays["bias"] = values(generator, (outputs,), dtype)
    spatial = "HW"[-rank:]
    first = chance(generator)
    layout = ("NC" + spatial, "OI" + spatial) if first else ("N" + spatial + "C", spatial + "IO")
    options = {
        "strides": numbers(generator, g.strides),
        "padding": g.padding,
        "dilation": numbers(generator, g.dilation),
        "data_format": layout[0],
        "precision": one_of(generator, *PRECISIONS),
    }
    formula = in_layout(g, rank, (*layout, layout[0]))
    stored = {name: turned(name, v, (*layout, layout[0]), rank) for name, v in arrays.items()}
    return stored, options, formula


def offsets(generator: Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Inside, on whole pixels, at the border, and far outside."""
    near = np.floor(2 * generator.standard_normal(shape))
    kind = one_of(generator, "any", "grid", "whole", "zero", "mixed", "mixed")
    fraction = generator.uniform(0.1, 0.9, shape)
    grid = generator.integers(0, 16, shape) / 16
    if kind == "zero":
        return np.zeros(shape, dtype)
    drawn = near + {"any": fraction, "grid": grid, "whole": 0.0}.get(
        kind, np.where(generator.random(shape) < 0.5, fraction, grid)
    )
    if kind == "mixed":
        far = FAR if dtype == np.float16 else FAR + FARTHER
        drawn = np.where(generator.random(shape) < 0.05, generator.choice(far, shape), drawn)
    return drawn.astype(dtype)


def turned(
    name: str, array: np.ndarray, layout: tuple[str, str, str], rank: int, back: bool = False
) -> np.ndarray:
    """An array NHWC or HWIO, or its gradient, in the layout (x, weight, y), or back from it."""
    name = name if name == "y" else name.removeprefix("d")
    if name == "bias":
        return array
    spatial = "HW"[-rank:]
    ours = spatial + "IO" if name in ("weight", "rhs") else "N" + spatial + "C"
    theirs = layout[{"weight": 1, "rhs": 1, "y": 2}.get(name, 0)]
    before, after = (theirs, ours) if back else (ours, theirs)
    return np.ascontiguousarray(array.transpose([before.index(axis) for axis in after]))


def in_layout(
    g: Geometry,
    rank: int,
    layout: tuple[str, str, str],
    names: Mapping[str, str] = types.MappingProxyType({}),
) -> Formula:
    """The formula of a convolution on operands in a layout; `names` are what the caller has."""
    strides, dilation = (
        (pair[0], pair[-1]) if rank == 2 else (1, pair[0]) for pair in (g.strides, g.dilation)
    )
    ours = {theirs: name for name, theirs in names.items()}

    def formula(
        arrays: Mapping[str, np.ndarray], grad_y: np.ndarray | None, magnitudes: bool
    ) -> dict[str, np.ndarray]:
        plain = {ours.get(n, n): turned(n, v, layout, rank, back=True) for n, v in arrays.items()}
        grad = None if grad_y is None else turned("y", grad_y, layout, rank, back=True)
        if rank == 1:  # an image of height 1
            plain |= {"x": plain["x"][:, None], "weight": plain["weight"][None]}
            grad = None if grad is None else grad[:, None]
        results = formulas.convolution(
            plain, grad, strides=strides, pads=((0, 0), *g.pads)[-2:], dilation=dilation,
            magnitudes=magnitudes,
        )  # fmt: skip
        if rank == 1:
            results |= {n: results[n].squeeze(1) for n in ("y", "dx") if n in results}
            results |= {n: results[n].squeeze(0) for n in ("dweight",) if n in results}
        results = {n if n == "y" else f"d{names.get(n[1:], n[1:])}": v for n, v in results.items()}
        return {name: turned(name, v, layout, rank) for name, v in results.items()}

    return formula


def general_padding(generator: Generator, rank: int) -> Any:
    if chance(generator, 0.4):
        return one_of(generator, "SAME", "SAME_LOWER", "VALID")
    return [tuple(int(v) for v in generator.integers(-2, 4, 2)) for _ in range(rank)]


def conv_general_dilated(generator: Generator, float64: bool) -> tuple:
    rank = 2 if chance(generator, 0.7) else 1
    g = geometry(generator, rank, general_padding)
    channels, outputs, groups, _ = channels_of(generator, g.images * int(np.prod(g.pixels)))
    dtype = dtype_of(generator, float64)
    spatial = "HW"[-rank:]

    def order(axes: str) -> str:
        return "".join(generator.permutation([*axes]))

    default = chance(generator, 0.2)
    images = "NC" + spatial
    layout = (images, "OI" + spatial, images)
    if not default:
        layout = (order(images), order("OI" + spatial), order(images))
    arrays = {
        "lhs": values(generator, (g.images, *g.image, channels), dtype),
        "rhs": values(generator, (*g.kernel, channels // groups, outputs), dtype),
    }
    # JAX's arguments are in the order that dimensions have in rhs.
    way = 1 if [*spatial] == [axis for axis in layout[1] if axis in spatial] else -1
    options = {
        "window_strides": [*g.strides][::way],
        "padding": g.padding if isinstance(g.padding, str) else g.padding[::way],
        "lhs_dilation": one_of(generator, None, (1,) * rank),
        "rhs_dilation": g.dilation[::way] if max(g.dilation) > 1 or chance(generator) else None,
        "dimension_numbers": None if default else layout,
        "feature_group_count": groups,
        "preferred_element_type": one_of(generator, None, dtype),
        "precision": one_of(generator, *PRECISIONS, ("high", "high")),
    }
    formula = in_layout(g, rank, layout, {"x": "lhs", "weight": "rhs"})
    return {n: turned(n, v, layout, rank) for n, v in arrays.items()}, options, formula


def gemm(generator: Generator, float64: bool) -> tuple:
    def size(most: int) -> int:
        return 0 if chance(generator, 0.03) else int(np.exp(generator.uniform(0, np.log(most + 1))))

    strategy = one_of(generator, "auto", "auto", "shallow_k", "cache_persistent", "warp_parallel")
    depth = size({"shallow_k": 32, "cache_persistent": 130}.get(strategy, 300))
    m, n = size(60), size(24)
    m, n = (m, n) if chance(generator) else (n, m)
    whole = tuple(
        int(one_of(generator, 1, 2, 3)) for _ in range(int(one_of(generator, 0, 0, 1, 2)))
    )
    if whole and chance(generator, 0.05):
        whole = (0, *whole[1:])
    while np.prod([*whole, m, n]) > MOST_OUTPUTS:
        m, n = (m + 1) // 2, (n + 1) // 2

    def leading() -> tuple[int, ...]:
        """Dimensions that broadcast to `whole`."""
        some = tuple(one_of(generator, 1, v, v) for v in whole)
        return some[int(generator.integers(0, len(some) + 1)) if chance(generator) else 0 :]

    dtype = dtype_of(generator, float64)
    transpose_a, transpose_b = chance(generator), chance(generator)
    a = values(generator, (*leading(), *((depth, m) if transpose_a else (m, depth))), dtype)
    b = values(generator, (*leading(), *((n, depth) if transpose_b else (depth, n))), dtype)
    arrays: dict[str, np.ndarray] = {"a": a, "b": b}
    options: dict[str, Any] = {
        "transpose_a": transpose_a, "transpose_b": transpose_b, "strategy": strategy,
        "precision": one_of(generator, *PRECISIONS),
    }  # fmt: skip
    if chance(generator, 0.6):
        arrays["c"] = values(generator, (*leading(), m, n), dtype)

    def factor(name: str, *choices: float) -> float:
        """A number or an array, which may be differentiated; exact in every dtype."""
        value = float(one_of(generator, *choices))
        if chance(generator, 0.4):
            arrays[name] = np.asarray(value, dtype_of(generator, float64))
        elif not chance(generator, 0.3 if value else 0.7) or value != choices[0]:
            options[name] = one_of(
                generator, value, np.float32(value), *([int(value)] if value == int(value) else [])
            )
        return value

    alpha = factor("alpha", 1.0, 1.0, 0.0, -0.5, 2.25, 3.0)
    beta = factor("beta", 0.0, 1.0, 1.0, -1.5, 0.25, 2.0) if "c" in arrays else 0.0
    used = {"alpha": np.asarray(alpha), "beta": np.asarray(beta)}

    def formula(arrays, grad_y, magnitudes):
        every = formulas.matrix_product(
            {**used, **arrays}, grad_y, transpose_a=transpose_a, transpose_b=transpose_b,
            magnitudes=magnitudes,
        )  # fmt: skip
        return {name: v for name, v in every.items() if name == "y" or name[1:] in arrays}

    return arrays, options, formula


def sampling(generator: Generator, float64: bool, operator: str) -> tuple:
    """A call of a sampling operator."""
    dtypes = functools.partial(dtype_of, generator, float64)
    if operator == "attention":
        return drawn_samples.attention(generator, dtypes, values)
    if operator == "grid":
        return drawn_samples.grid(generator, dtypes, values)
    g = geometry(generator, 2)
    return drawn_samples.window(generator, dtypes, values, g, packed=operator == "dcnv4")


def general_kernels(arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> int:
    """Three, but XLA drops the gradient to images of which negative padding leaves no pixel."""
    padding = options["padding"]
    return 3 if isinstance(padding, str) or np.min(padding) >= 0 else 2


def gemm_kernels(arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> int:
    """The product's own, where it is not XLA's by the rule of "auto", or for want of a depth."""
    return int(options["strategy"] != "auto" and 0 not in arrays["a"].shape)


@dataclasses.dataclass(frozen=True)
class Family:
    """A public function.

    Attributes:
      draw: called with a generator and whether JAX has 64 bits, returns the operands, all other
        arguments, and the formula.
      kernels: called with these operands and arguments, returns how many calls of kernels the
        program of the output and all gradients has at least, on a GPU.
    """

    draw: Callable[[Generator, bool], tuple[dict[str, np.ndarray], dict[str, Any], Formula]]
    kernels: Callable[[Mapping[str, np.ndarray], Mapping[str, Any]], int]


FAMILIES = {
    "deform_conv": Family(functools.partial(convolution, deformable=True), lambda *_: 4),
    "conv": Family(functools.partial(convolution, deformable=False), lambda *_: 3),
    "conv_general_dilated": Family(conv_general_dilated, general_kernels),
    "gemm": Family(gemm, gemm_kernels),
    "ms_deform_attn": Family(functools.partial(sampling, operator="attention"), lambda *_: 3),
    "dcnv3": Family(functools.partial(sampling, operator="dcnv3"), lambda *_: 3),
    "dcnv4": Family(functools.partial(sampling, operator="dcnv4"), lambda *_: 3),
    "grid_sample": Family(functools.partial(sampling, operator="grid"), lambda *_: 3),
}
