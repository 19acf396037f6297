"""Times the sampling operators beside the same written in plain JAX, on this machine.

python benchmarks/sampling.py --json FILE

Plain JAX gathers the four pixels around every sample, and leaves gradients to `jax.vjp`. Both
programs take turns, in one process; the best of their runs counts. Temporaries are XLA's own count.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import oxijax

LEVELS = ((100, 167), (50, 84), (25, 42), (13, 21))  # of an image of 800 x 1333
HEADS, CHANNELS, POINTS = 8, 32, 4
MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer.

    Attributes:
      ours: the operator.
      plain: the same in plain JAX.
      arrays: its operands.
    """

    ours: Callable[..., jax.Array]
    plain: Callable[..., jax.Array]
    arrays: tuple[np.ndarray, ...]


def four_gathers(image: jax.Array, y: jax.Array, x: jax.Array) -> jax.Array:
    """Samples [N, Q, M, P, D] of an image [N, H, W, M, D] at positions [N, Q, M, P] in pixels."""
    n, height, width, heads, _ = image.shape
    top, left = jnp.floor(y), jnp.floor(x)
    of_image, of_head = jnp.arange(n)[:, None, None, None], jnp.arange(heads)[:, None]
    total = jnp.zeros((), image.dtype)
    for row, by_row in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, by_column in ((left, 1 - (x - left)), (left + 1, x - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            at_row = jnp.clip(row, 0, height - 1).astype(int)
            at_column = jnp.clip(column, 0, width - 1).astype(int)
            pixel = image[of_image, at_row, at_column, of_head]
            total = total + pixel * (by_row * by_column * inside)[..., None]
    return total


def plain_attention(value: jax.Array, locations: jax.Array, weights: jax.Array) -> jax.Array:
    """Multi-scale deformable attention."""
    n, _, heads, channels = value.shape
    total, start = jnp.zeros((), value.dtype), 0
    for level, (height, width) in enumerate(LEVELS):
        image = value[:, start : start + height * width]
        image = image.reshape(n, height, width, heads, channels)
        start += height * width
        at = locations[:, :, :, level] * jnp.array([width, height]) - 0.5
        samples = four_gathers(image, at[..., 1], at[..., 0])
        total = total + (samples * weights[:, :, :, level, :, None]).sum(3)
    return total


def plain_dcnv3(groups: int) -> Callable[..., jax.Array]:
    """DCNv3 with a window of 3 x 3."""

    def dcnv3(x: jax.Array, offset: jax.Array, mask: jax.Array) -> jax.Array:
        n, height, width, channels = x.shape
        image = x.reshape(n, height, width, groups, channels // groups)
        offset = offset.reshape(n, height * width, groups, 9, 2)
        row, column = jnp.divmod(jnp.arange(height * width), width)
        tap_x, tap_y = jnp.divmod(jnp.arange(9), 3)
        y = row[:, None, None] + (tap_y - 1) + offset[..., 1]
        left = column[:, None, None] + (tap_x - 1) + offset[..., 0]
        samples = four_gathers(image, y, left)
        weights = mask.reshape(n, height * width, groups, 9, 1)
        return (samples * weights).sum(3).reshape(x.shape)

    return dcnv3


def attention(queries: int) -> Case:
    """Deformable DETR's encoder, or its decoder with so many queries."""
    random, pixels = np.random.default_rng(0), sum(h * w for h, w in LEVELS)
    if queries == pixels:
        grids = [np.indices(size)[::-1].reshape(2, -1).T + 0.5 for size in LEVELS]
        sizes = [(width, height) for height, width in LEVELS]
        centers = np.concatenate([g / size for g, size in zip(grids, sizes, strict=True)])
    else:
        centers = random.random((queries, 2))
    # Two pixels of each level, or so, around the query.
    spread = 2 / np.array([(width, height) for height, width in LEVELS])[:, None]
    shape = (1, queries, HEADS, len(LEVELS), POINTS)
    offsets = spread * random.standard_normal((*shape, 2))
    arrays = (
        random.standard_normal((1, pixels, HEADS, CHANNELS)),
        centers[:, None, None, None] + offsets,
        np.asarray(jax.nn.softmax(random.standard_normal((*shape[:3], 16)))).reshape(shape),
    )

    def ours(*operands: jax.Array) -> jax.Array:
        return oxijax.ms_deform_attn(*operands, spatial_shapes=LEVELS)

    return Case(ours, plain_attention, tuple(a.astype(np.float32) for a in arrays))


def stage(n: int, size: int, channels: int) -> Case:
    """A layer of InternImage: 16 channels a group."""
    random, groups = np.random.default_rng(0), channels // 16
    arrays = (
        random.standard_normal((n, size, size, channels)),
        random.standard_normal((n, size, size, groups * 18)),
        random.random((n, size, size, groups * 9)),
    )

    def ours(*operands: jax.Array) -> jax.Array:
        return oxijax.dcnv3(*operands, kernel_size=3, groups=groups)

    return Case(ours, plain_dcnv3(groups), tuple(a.astype(np.float32) for a in arrays))


CASES: dict[str, Callable[[], Case]] = {
    "Deformable DETR, encoder": lambda: attention(sum(h * w for h, w in LEVELS)),
    "Deformable DETR, decoder": lambda: attention(300),
    "InternImage-T, stage 1": lambda: stage(8, 56, 64),
    "InternImage-T, stage 3": lambda: stage(8, 14, 256),
}


def with_gradients(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    def run(*arrays: jax.Array) -> Any:
        y, vjp = jax.vjp(function, *arrays)
        return y, vjp(y)

    return run


def compare(case: Case, wrap: Callable, runs: int) -> dict[str, dict[str, float]]:
    """Milliseconds and temporaries of both programs, whose results are compared first."""
    arrays = [jnp.asarray(array) for array in case.arrays]
    programs = {
        name: jax.jit(wrap(function)).lower(*arrays).compile()
        for name, function in (("oxijax", case.ours), ("plain", case.plain))
    }
    results = [jax.tree.leaves(program(*arrays)) for program in programs.values()]
    for index, (ours, plain) in enumerate(zip(*results, strict=True)):
        error = jnp.linalg.norm(ours - plain) / jnp.linalg.norm(plain)
        # After the result and the gradient to images: where a position is rounded to the other side
        # of a whole number, its derivative is another one.
        if not error < (1e-5 if index < 2 else 1e-3):
            raise SystemExit(f"the programs differ by {error}")
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(runs):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*arrays))
            times[name].append(1e3 * (time.perf_counter() - start))
    return {
        name: {
            "ms": min(times[name]),
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
    layers = {}
    print("layer | pass | oxijax, ms | plain, ms | ratio | temporaries, MiB | plain, MiB")
    for name, make in CASES.items():
        case = make()
        layers[name] = {}
        for key, wrap in (("forward", lambda f: f), ("forward and backward", with_gradients)):
            found = layers[name][key] = compare(case, wrap, args.runs)
            ours, plain = found["oxijax"], found["plain"]
            print(
                f"{name} | {key} | {ours['ms']:.1f} | {plain['ms']:.1f} | "
                f"{plain['ms'] / ours['ms']:.1f} | {ours['temporaries_mib']:.0f} | "
                f"{plain['temporaries_mib']:.0f}",
                flush=True,
            )
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "processor": platform.machine()},
        "versions": {"jax": jax.__version__, "python": platform.python_version()},
        "runs": args.runs,
        "layers": layers,
    }
    args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
