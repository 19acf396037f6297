"""Times the sampling operators beside the same written in plain JAX, on this machine.

python benchmarks/sampling.py --json FILE

Plain JAX gathers the four pixels around every sample, and leaves gradients to `jax.vjp`. Both
programs take turns, in one process; the best of their runs is printed, and the file has the spread
over the runs too. Temporaries are XLA's own count.
"""

import argparse
import dataclasses
import datetime
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gpu_suite.sampling_layers import SamplingLayer

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
    """

    ours: Callable[..., jax.Array]
    plain: Callable[..., jax.Array]
    arrays: tuple[np.ndarray, ...]


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


def compare(case: Case, wrap: Callable, runs: int) -> dict[str, dict[str, Any]]:
    """Milliseconds and temporaries of both programs, whose results are compared first.

    "time_ratio" has the spread of our time over plain JAX's of the same round.
    """
    arrays = [jnp.asarray(array) for array in case.arrays]
    programs = {
        name: jax.jit(wrap(function)).lower(*arrays).compile()
        for name, function in (("oxijax", case.ours), ("plain", case.plain))
    }
    results = [jax.tree.leaves(program(*arrays)) for program in programs.values()]
    for index, (ours, plain) in enumerate(zip(*results, strict=True)):
        error, scale = jnp.linalg.norm(ours - plain), jnp.linalg.norm(plain)
        # After the result and the gradient to images: where a position is rounded to the other side
        # of a whole number, its derivative is another one.
        if not error <= (1e-5 if index < 2 else 1e-3) * scale:
            raise SystemExit(f"the programs differ by {error / scale}")
    rounds = time_rounds({name: (program, arrays) for name, program in programs.items()}, runs)
    found: dict[str, dict[str, Any]] = {
        name: {
            "ms": min(rounds[name]),
            "spread": spread(rounds[name]),
            "temporaries_mib": temporaries(program) / MIB,
        }
        for name, program in programs.items()
    }
    return {**found, "time_ratio": spread(paired_ratios(rounds["oxijax"], rounds["plain"]))}


def dtypes(case: Case, wrap: Callable, runs: int) -> dict[str, dict[str, Any]]:
    """Milliseconds and temporaries of our program with images in each of these dtypes."""
    images, *others = case.arrays
    programs, arrays = {}, {}
    for dtype in (jnp.float32, jnp.float16, jnp.bfloat16):
        operands = arrays[dtype.__name__] = [jnp.asarray(images, dtype), *map(jnp.asarray, others)]
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
        for key, wrap in (("forward", lambda f: f), ("forward and backward", with_gradients)):
            found = layers[name][key] = compare(case, wrap, args.runs)
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
