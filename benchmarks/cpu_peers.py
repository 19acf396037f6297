"""Times the operators beside those of other libraries, on this machine's CPU.

python benchmarks/cpu_peers.py --json FILE

Peers are OpenVINO and ONNX Runtime (forward alone), and PyTorch with torchvision, with as many
threads as this process may use cores. Results are compared with those in float64 first, which gives
each program's error. Programs take turns in one process; the file has the spread over the runs.
Layers are in float32, and lie in memory as each library has them. All is timed again, by a process
of its own, on one of the cores; and what it takes until oxijax's program is there.
"""

import argparse
import dataclasses
import datetime
import functools
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

# Before libraries count cores.
if "--one-core" in sys.argv:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
# Threads of OpenMP that have no work would otherwise keep a core from the program that is next.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import jax
import jax.numpy as jnp
import numpy as np
from cpu_suite.program import Array, Program

import oxijax
from oxijax._cli.bench_rounds import machine, paired_ratios, spread, time_rounds, versions
from oxijax.testing import BENCHMARK_CASES, DeformConvCase
from ptx.kernels.sampling.catalog import NETWORKS
from ptx.kernels.sampling.model import centers

__all__ = ["CASES", "main", "measure"]

_TOLERANCE = 1e-4  # of float32 programs, relative to float64
_PASSES = ("forward", "forward and backward")
# Seconds after which a library's threads are on cores of their own again, when those of another
# have run. On a machine of two cores it takes up to 10 ms.
_SETTLE = 0.03
_COMPILED = 2  # times that a program is compiled, of which the fastest is reported


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer.

    Attributes:
      ours: the operator, of `arrays`.
      arrays: its operands, float32, channels last.
      peers: makes the programs of others, by name; imports their libraries.
    """

    ours: Callable[..., jax.Array]
    arrays: tuple[Array, ...]
    peers: Callable[[], Mapping[str, Program]]


# ---- deformable convolution


def deform_conv(case: DeformConvCase) -> Case:
    arrays, grad_y = case.operands(), case.grad_y()

    def ours(*operands: Any) -> jax.Array:
        return oxijax.deform_conv(*operands, **case.options)

    def peers() -> Mapping[str, Program]:
        from cpu_suite.peers import deform_conv_peers

        return deform_conv_peers(case, arrays, grad_y)

    return Case(ours, arrays, peers)


# ---- sampling


def warp(n: int, size: tuple[int, int], channels: int, grid_size: tuple[int, int]) -> Case:
    """Images, sampled near as many of their places as a grid has, in PyTorch's coordinates."""
    random = np.random.default_rng(0)
    images = random.standard_normal((n, *size, channels)).astype(np.float32)
    places = (np.moveaxis(np.indices(grid_size)[::-1], 0, -1) + 0.5) / grid_size[::-1]
    noise = 2 * random.standard_normal((n, *grid_size, 2)) / size[::-1]
    grid = (2 * (places + noise) - 1).astype(np.float32)
    grad_y = random.standard_normal((n, *grid_size, channels)).astype(np.float32)

    def peers() -> Mapping[str, Program]:
        from cpu_suite.peers import grid_sample_peers

        return grid_sample_peers(images, grid, grad_y)

    return Case(oxijax.grid_sample, (images, grid), peers)


def attention(levels: tuple[tuple[int, int], ...], queries: int | None) -> Case:
    """The core of a deformable attention: of pixels as queries, or of so many."""
    random, heads, channels, points = np.random.default_rng(0), 8, 32, 4
    pixels = [height * width for height, width in levels]
    count = queries or sum(pixels)
    at = random.random((count, 2)) if queries else centers(levels)
    shape = (1, count, heads, len(levels), points)
    sizes = np.array([(width, height) for height, width in levels])[:, None]
    locations = at[:, None, None, None] + 2 / sizes * random.standard_normal((*shape, 2))
    weights = np.asarray(jax.nn.softmax(random.standard_normal((*shape[:3], len(levels) * points))))
    value = random.standard_normal((1, sum(pixels), heads, channels))
    arrays = tuple(a.astype(np.float32) for a in (value, locations, weights.reshape(shape)))
    grad_y = random.standard_normal((1, count, heads, channels)).astype(np.float32)

    def ours(value: Any, locations: Any, weights: Any) -> jax.Array:
        return oxijax.ms_deform_attn(value, locations, weights, spatial_shapes=levels)

    def peers() -> Mapping[str, Program]:
        from cpu_suite.peers import attention_peers

        return attention_peers(arrays, levels, grad_y)

    return Case(ours, arrays, peers)


_DDETR = NETWORKS["DDETR-encoder"].config.levels
_RTDETR = NETWORKS["RT-DETR-decoder"].config.levels
CASES: dict[str, Callable[[], Case]] = {
    **{
        f"deform_conv, {name}": (lambda case=case: deform_conv(case))
        for name, case in BENCHMARK_CASES.items()
        if case.groups == 1
    },
    "grid_sample, 512 x 512 x 3": lambda: warp(1, (512, 512), 3, (512, 512)),
    "grid_sample, 2 x 100 x 100 x 64": lambda: warp(2, (100, 100), 64, (100, 100)),
    "grid_sample, 2 x 50 x 50 x 256": lambda: warp(2, (50, 50), 256, (50, 50)),
    "grid_sample, 256 x 28 x 28 x 1": lambda: warp(256, (28, 28), 1, (28, 28)),
    "grid_sample, 2852 x 46 x 62 x 1, 81 points": lambda: warp(2852, (46, 62), 1, (9, 9)),
    "ms_deform_attn, Deformable DETR, encoder": lambda: attention(_DDETR, None),
    "ms_deform_attn, Deformable DETR, decoder": lambda: attention(_DDETR, 300),
    "ms_deform_attn, RT-DETR, decoder": lambda: attention(_RTDETR, 300),
    "ms_deform_attn, Mask2Former, encoder": lambda: attention(
        ((32, 32), (64, 64), (128, 128)), None
    ),
}


# ---- measuring


def our_program(case: Case) -> Program:
    """Oxijax's, compiled."""
    arrays = tuple(None if a is None else jnp.asarray(a) for a in case.arrays)
    y = jax.eval_shape(case.ours, *arrays)
    grad_y = jnp.asarray(np.random.default_rng(1).standard_normal(y.shape), y.dtype)
    forward, backward = (compiled(each) for each in (case.ours, backward_of(case.ours)))
    return Program(forward(*arrays), arrays, np.asarray, backward(grad_y, *arrays), grad_y)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """What compiles a function for arrays."""
    return lambda *arrays: jax.jit(function).lower(*arrays).compile()


def backward_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function and its gradients, for the gradient of its result, which comes first."""

    def backward(grad_y: jax.Array, *arrays: Any) -> Any:
        y, vjp = jax.vjp(function, *arrays)
        return y, vjp(grad_y)

    return backward


def compile_times(case: Case) -> dict[str, float]:
    """Milliseconds from a function to a program, of both passes."""
    arrays = tuple(None if a is None else jnp.asarray(a) for a in case.arrays)
    grad_y = jax.eval_shape(case.ours, *arrays)
    calls = ((case.ours, arrays), (backward_of(case.ours), (grad_y, *arrays)))
    found = {}
    for key, (function, operands) in zip(_PASSES, calls, strict=True):
        times = []
        for _ in range(_COMPILED):
            jax.clear_caches()
            start = time.perf_counter()
            compiled(function)(*operands)
            times.append(1e3 * (time.perf_counter() - start))
        found[key] = min(times)
    return found


def convolution(case: DeformConvCase) -> Case:
    """JAX's own convolution of a layer's sizes, whose programs are compiled beside ours."""
    x, _, weight, *_ = case.operands()
    dilation, kernel = case.dilation, case.kernel_size
    pads = [d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True)]
    ours = functools.partial(
        jax.lax.conv_general_dilated,
        window_strides=case.strides,
        padding=[(pad, pad) for pad in pads],
        rhs_dilation=dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return Case(ours, (x, weight), dict)


def exact(case: Case) -> np.ndarray:
    """The result in float64."""
    with jax.enable_x64(True):
        arrays = (None if a is None else jnp.asarray(a, jnp.float64) for a in case.arrays)
        return np.asarray(jax.jit(case.ours)(*arrays))


def measure(case: Case, runs: int) -> dict[str, Any]:
    """Errors and times of a layer's programs, and our times over those of peers in the same round.

    Raises:
      SystemExit: a program finds something else.
    """
    programs = {"oxijax": our_program(case), **case.peers()}
    expected, found = exact(case), {}
    for name, program in programs.items():
        y = program.result(program.run(*program.operands))
        error = float(np.linalg.norm(y - expected) / np.linalg.norm(expected))
        if not error < _TOLERANCE:
            raise SystemExit(f"{name} differs from float64 by {error:.2g}")
        found[name] = {"error": error}
    backward = {n: p for n, p in programs.items() if p.gradients is not None}
    runs_of = (
        {name: (p.run, p.operands) for name, p in programs.items()},
        {name: (p.gradients, (p.grad_y, *p.operands)) for name, p in backward.items()},
    )
    passes = dict(zip(_PASSES, runs_of, strict=True))
    for key, each in passes.items():
        rounds = time_rounds(each, runs, settle=_SETTLE)  # pyright: ignore[reportArgumentType]
        for name, times in rounds.items():
            found[name][key] = {"ms": min(times), "spread": spread(times)}
            if name != "oxijax":
                ratios = paired_ratios(rounds["oxijax"], times)
                found[name][key]["time_ratio"] = spread(ratios)
    return found


def on_one_core(runs: int) -> dict[str, Any]:
    """The layers of a run of this program that may use one core."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "report.json")
        command = [sys.executable, __file__, "--json", file, "--runs", runs, "--one-core"]
        subprocess.run([*map(str, command)], check=True)
        return json.loads(file.read_text())["layers"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--json", type=pathlib.Path, required=True, help="where results go")
    add("--runs", type=int, default=9, help="of each program")
    add("--one-core", action="store_true", help="on the first core alone, as the second part is")
    args = parser.parse_args()
    where, layers = machine(), {}
    for name, make in CASES.items():
        case = make()
        layers[name] = measure(case, args.runs)
        if not args.one_core:
            layers[name]["oxijax"]["compile_ms"] = compile_times(case)
        for peer, figures in layers[name].items():
            for key in _PASSES:
                if key in figures:
                    ratio = figures[key].get("time_ratio", {}).get("median", 1.0)
                    print(f"{name} | {peer} | {key} | {figures[key]['ms']:.1f} ms | {ratio:.2f}")
    if not args.one_core:
        for name, layer in on_one_core(min(args.runs, 3)).items():
            for peer, figures in layer.items():
                for key in _PASSES:
                    if key in figures:
                        layers[name][peer][key]["one_core_ms"] = figures[key]["spread"]["median"]
    peers = ("torch", "torchvision", "openvino", "onnxruntime")
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": where,
        "versions": {**versions(), **{name: importlib.metadata.version(name) for name in peers}},
        "runs": args.runs,
        "layers": layers,
    }
    if not args.one_core:
        report["lax.conv"] = {
            f"deform_conv, {name}": compile_times(convolution(case))
            for name, case in BENCHMARK_CASES.items()
            if case.groups == 1
        }
    args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
