"""Times the sampling operators beside the same written in plain JAX, on this machine.

python benchmarks/sampling.py --json FILE

Plain JAX gathers the pixels around every sample, from images or from rows of channels, or calls
`jax.scipy.ndimage.map_coordinates`, and leaves gradients to `jax.vjp`; the fastest of these counts,
which the file names. Programs take turns, in one process; the best of their runs is printed, and
the file has the spread over the runs too. Temporaries are XLA's own count.
"""

import argparse
import dataclasses
import datetime
import itertools
import json
import pathlib
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gpu_suite.sampling_layers import SamplingLayer, four_gathers
from jax.scipy.ndimage import map_coordinates

import oxijax
from oxijax._cli.bench_rounds import machine, paired_ratios, spread, time_rounds, versions
from ptx.kernels.sampling.catalog import NETWORKS
from ptx.kernels.sampling.model import centers

LEVELS = NETWORKS["DDETR-encoder"].config.levels
HEADS, CHANNELS, POINTS = 8, 32, 4
MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer.

    Attributes:
      ours: the operator.
      plain: the same in plain JAX.
      arrays: its operands.
      has_dtypes: whether images may have another dtype than the other operands.
      others: other programs in plain JAX, by name.
    """

    ours: Callable[..., jax.Array]
    plain: Callable[..., jax.Array]
    arrays: tuple[np.ndarray, ...]
    has_dtypes: bool = True
    others: Mapping[str, Callable[..., jax.Array]] = dataclasses.field(default_factory=dict)


def attention(queries: int) -> Case:
    """Deformable DETR's encoder, or its decoder with so many queries."""
    random, pixels = np.random.default_rng(0), sum(h * w for h, w in LEVELS)
    places = centers(LEVELS) if queries == pixels else random.random((queries, 2))
    # Two pixels of each level, or so, around the query.
    spread = 2 / np.array([(width, height) for height, width in LEVELS])[:, None]
    shape = (1, queries, HEADS, len(LEVELS), POINTS)
    offsets = spread * random.standard_normal((*shape, 2))
    arrays = (
        random.standard_normal((1, pixels, HEADS, CHANNELS)),
        places[:, None, None, None] + offsets,
        np.asarray(jax.nn.softmax(random.standard_normal((*shape[:3], 16)))).reshape(shape),
    )

    layer = SamplingLayer("attention", 1, LEVELS, HEADS, CHANNELS, queries, POINTS, normalize=False)
    return Case(layer.ours, layer.plain, tuple(a.astype(np.float32) for a in arrays))


def stage(n: int, size: int, channels: int) -> Case:
    """A layer of InternImage: 16 channels a group."""
    random, groups = np.random.default_rng(0), channels // 16
    arrays = (
        random.standard_normal((n, size, size, channels)),
        random.standard_normal((n, size, size, groups * 18)),
        random.random((n, size, size, groups * 9)),
    )

    layer = SamplingLayer("window", n, ((size, size),), groups, 16, normalize=False)
    return Case(layer.ours, layer.plain, tuple(a.astype(np.float32) for a in arrays))


def warp(n: int, size: tuple[int, ...], channels: int) -> Case:
    """Images or volumes, sampled near each of their pixels."""
    random = np.random.default_rng(0)
    grid = _positions(size) + 2 * random.standard_normal((n, *size, len(size)))
    images = random.standard_normal((n, *size, channels))

    def ours(x: jax.Array, grid: jax.Array) -> jax.Array:
        return oxijax.grid_sample(x, grid, coordinates="pixel")

    def gathers(x: jax.Array, grid: jax.Array) -> jax.Array:
        x_of, y_of = (grid[..., axis].reshape(n, -1, 1, 1) for axis in range(2))
        return four_gathers(x[..., None, :], y_of, x_of).reshape(n, *size, channels)

    others = {"rows": of_rows, **({"four gathers": gathers} if len(size) == 2 else {})}
    arrays = images.astype(np.float32), grid.astype(np.float32)
    return Case(ours, interpolated, arrays, others=others)


def _positions(size: tuple[int, ...]) -> np.ndarray:
    """(x, y) or (x, y, z) of each pixel, [..., K]."""
    return np.moveaxis(np.indices(size)[::-1], 0, -1)


def interpolated(x: jax.Array, grid: jax.Array) -> jax.Array:
    """Samples of images [N, ..., C] at (x, y) or (x, y, z) in pixels, [N, ..., K]."""

    def of_channel(image: jax.Array, grid: jax.Array) -> jax.Array:
        return map_coordinates(image, list(jnp.moveaxis(grid, -1, 0))[::-1], order=1)

    return jax.vmap(jax.vmap(of_channel, (-1, None), -1))(x, grid)


def of_rows(x: jax.Array, grid: jax.Array) -> jax.Array:
    """The same, from rows of channels [P, C]."""
    n, *size, channels = x.shape
    rows, floor = x.reshape(-1, channels), jnp.floor(grid)
    pairs = [(1 - (grid - floor), floor), (grid - floor, floor + 1)]
    image = jnp.arange(n).reshape(n, *[1] * (grid.ndim - 2))
    total = jnp.zeros((), x.dtype)
    for corner in itertools.product(pairs, repeat=len(size)):
        row, factor = image, jnp.ones((), grid.dtype)
        for axis, (extent, (along, pixel)) in enumerate(zip(size, corner, strict=True)):
            along, pixel = along[..., -1 - axis], pixel[..., -1 - axis]
            row = row * extent + jnp.clip(pixel, 0, extent - 1).astype(jnp.int32)
            factor = factor * jnp.where((pixel >= 0) & (pixel < extent), along, 0)
        pixels = rows.at[row].get(mode="promise_in_bounds", wrap_negative_indices=False)
        total = total + factor[..., None] * pixels
    return total


def lookup() -> Case:
    """RAFT's lookup in a level of its volumes: one for each pixel of an image of 368 x 496."""
    random, radius = np.random.default_rng(0), 4
    volumes = random.standard_normal((2852, 46, 62, 1))
    centers = random.random((2852, 2)) * (62, 46)
    steps = _positions((9, 9)) - radius

    def by(sample: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return lambda x, at: sample(x, at[:, None, None] + steps.astype(np.float32))

    def ours(x: jax.Array, centers: jax.Array) -> jax.Array:
        return oxijax.sample_windows(x, centers, radius)

    arrays = volumes.astype(np.float32), centers.astype(np.float32)
    return Case(ours, by(interpolated), arrays, others={"rows": by(of_rows)})


def volume_convolution() -> Case:
    """Deformable convolution of a volume, 3 x 3 x 3, with a mask."""
    random, size, channels = np.random.default_rng(0), (8, 32, 32), 32
    arrays = (
        random.standard_normal((1, *size, channels)),
        2 * random.standard_normal((1, *size, 81)),
        random.standard_normal((3, 3, 3, channels, channels)) / 30,
        random.random((1, *size, 27)),
    )
    corner = _positions(size)[..., ::-1] - 1
    tap = np.indices((3, 3, 3)).reshape(3, 27).T

    def ours(*arrays: jax.Array) -> jax.Array:
        return oxijax.deform_conv(*arrays, data_format="NDHWC")

    def plain(x: jax.Array, offset: jax.Array, weight: jax.Array, mask: jax.Array) -> jax.Array:
        places = offset.reshape(1, *size, 27, 3) + (corner[..., None, :] + tap)
        samples = interpolated(x, jnp.flip(places, -1)) * mask[..., None]
        return jnp.einsum("...kc,kco->...o", samples, weight.reshape(27, channels, channels))

    float32 = tuple(array.astype(np.float32) for array in arrays)
    return Case(ours, plain, float32, has_dtypes=False)  # weights have that of images


CASES: dict[str, Callable[[], Case]] = {
    "Deformable DETR, encoder": lambda: attention(sum(h * w for h, w in LEVELS)),
    "Deformable DETR, decoder": lambda: attention(300),
    "InternImage-T, stage 1": lambda: stage(8, 56, 64),
    "InternImage-T, stage 3": lambda: stage(8, 14, 256),
    "RAFT, lookup": lookup,
    "Warp, 512 x 512 x 3": lambda: warp(1, (512, 512), 3),
    "Warp, 2 x 100 x 100 x 32": lambda: warp(2, (100, 100), 32),
    "Warp, 2 x 100 x 100 x 64": lambda: warp(2, (100, 100), 64),
    "Warp, 2 x 50 x 50 x 256": lambda: warp(2, (50, 50), 256),
    "Warp, 64 x 64 x 64 x 1": lambda: warp(1, (64, 64, 64), 1),
    "Warp, 64 x 64 x 64 x 8": lambda: warp(1, (64, 64, 64), 8),
    "Volume, deform_conv 3 x 3 x 3": volume_convolution,
}


def with_gradients(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    """The function's result and its gradients, for that of the result before the operands."""

    def run(grad_y: jax.Array, *arrays: jax.Array) -> Any:
        y, vjp = jax.vjp(function, *arrays)
        return y, vjp(grad_y)

    return run


def forward(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The function, for the arguments that `with_gradients` has."""
    return lambda _, *arrays: function(*arrays)


PASSES = {"forward": forward, "forward and backward": with_gradients}


def inputs_of(case: Case) -> list[jax.Array]:
    """The gradient of a case's result, and its operands."""
    arrays = [jnp.asarray(array) for array in case.arrays]
    y = jax.eval_shape(case.plain, *arrays)
    return [jnp.asarray(np.random.default_rng(1).standard_normal(y.shape), y.dtype), *arrays]


def compare(case: Case, wrap: Callable, runs: int) -> dict[str, dict[str, Any]]:
    """Milliseconds and temporaries of our program, and of the fastest in plain JAX.

    Results are compared first. "time_ratio" has the spread of our time over plain JAX's of the same
    round.
    """
    arrays = inputs_of(case)
    functions = {"oxijax": case.ours, "plain": case.plain, **case.others}
    programs = {
        name: jax.jit(wrap(function)).lower(*arrays).compile()
        for name, function in functions.items()
    }
    ours, *others = (jax.tree.leaves(program(*arrays)) for program in programs.values())
    for results in others:
        for index, (result, plain) in enumerate(zip(ours, results, strict=True)):
            error, scale = jnp.linalg.norm(result - plain), jnp.linalg.norm(plain)
            # After the result and the gradient to images: where a position is rounded to the other
            # side of a whole number, its derivative is another one.
            if not error <= (1e-5 if index < 2 else 1e-3) * scale:
                raise SystemExit(f"the programs differ by {error / scale}")
    rounds = time_rounds({name: (program, arrays) for name, program in programs.items()}, runs)
    fastest = min(programs.keys() - {"oxijax"}, key=lambda name: statistics.median(rounds[name]))
    found: dict[str, dict[str, Any]] = {
        name: {
            "ms": min(rounds[program]),
            "spread": spread(rounds[program]),
            "temporaries_mib": temporaries(programs[program]) / MIB,
        }
        for name, program in (("oxijax", "oxijax"), ("plain", fastest))
    }
    if case.others:
        found["plain"]["program"] = "map_coordinates" if fastest == "plain" else fastest
    return {**found, "time_ratio": spread(paired_ratios(rounds["oxijax"], rounds[fastest]))}


def dtypes(case: Case, wrap: Callable, runs: int) -> dict[str, dict[str, Any]]:
    """Milliseconds and temporaries of our program with images in each of these dtypes."""
    grad_y, images, *others = inputs_of(case)
    programs, arrays = {}, {}
    for dtype in (jnp.float32, jnp.float16, jnp.bfloat16):
        operands = arrays[dtype.__name__] = [grad_y.astype(dtype), images.astype(dtype), *others]
        programs[dtype.__name__] = jax.jit(wrap(case.ours)).lower(*operands).compile()
    rounds = time_rounds({name: (p, arrays[name]) for name, p in programs.items()}, runs)
    return {
        name: {
            "ms": min(rounds[name]),
            "spread": spread(rounds[name]),
            "temporaries_mib": temporaries(program) / MIB,
        }
        for name, program in programs.items()
    }


def temporaries(program: Any) -> int:
    """Bytes that a program needs beside its operands and results."""
    return program.memory_analysis().temp_size_in_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=pathlib.Path, required=True, help="where results go")
    parser.add_argument("--runs", type=int, default=5, help="of each program")
    args = parser.parse_args()
    where = machine()  # before there is any load of our own
    layers = {}
    print("layer | pass | oxijax, ms | plain, ms | ratio | temporaries, MiB | plain, MiB")
    for name, make in CASES.items():
        case = make()
        layers[name] = {}
        for key, wrap in PASSES.items():
            found = layers[name][key] = compare(case, wrap, args.runs)
            if case.has_dtypes:
                found["dtypes"] = dtypes(case, wrap, args.runs)
            ours, plain = found["oxijax"], found["plain"]
            print(
                f"{name} | {key} | {ours['ms']:.1f} | {plain['ms']:.1f} | "
                f"{plain['ms'] / ours['ms']:.1f} | {ours['temporaries_mib']:.0f} | "
                f"{plain['temporaries_mib']:.0f}",
                flush=True,
            )
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": where,
        "versions": versions(),
        "runs": args.runs,
        "layers": layers,
    }
    args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
