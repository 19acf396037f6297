"""Time oxijax beside XLA on the same layers, in the same run.

Every figure is the best of many repeats, and the repeats of what is compared take turns,
so that a busy machine disturbs both alike.
"""

import argparse
import math
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
from oxijax._cli import add_json_argument, needs_extra, plain_table, write_json
from oxijax.testing import BENCHMARK_CASES, DeformConvCase

__all__ = ["add_arguments", "best_times", "measure_layer", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", choices=["cpu"], default="cpu", help="what to measure")
    add_json_argument(parser)
    parser.add_argument(
        "--repeats", type=int, default=100, help="runs of each function (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    with needs_extra("demo"):
        from rich.console import Console

    with jax.default_device(jax.devices("cpu")[0]):
        layers = {name: measure_layer(c, args.repeats) for name, c in BENCHMARK_CASES.items()}
        from oxijax._cli.bench_launch import measure_launch  # registers a kernel

        launches = measure_launch(max(1, args.repeats // 20))
    means = {
        key: math.prod(layer[key] for layer in layers.values()) ** (1 / len(layers))
        for key in ("forward_ratio", "forward_backward_ratio")
    }

    table = plain_table(
        "deform_conv on the CPU, float32, beside lax.conv_general_dilated",
        ["layer"],
        ["forward ms", "conv ms", "ratio", "fwd+bwd ms", "conv ms", "ratio", "MiB"],
        caption="MiB: temporaries of forward and backward pass together",
    )
    for name, layer in layers.items():
        table.add_row(
            name,
            f"{layer['forward_ms']:.2f}",
            f"{layer['conv_forward_ms']:.2f}",
            f"{layer['forward_ratio']:.2f}",
            f"{layer['forward_backward_ms']:.2f}",
            f"{layer['conv_forward_backward_ms']:.2f}",
            f"{layer['forward_backward_ratio']:.2f}",
            f"{layer['temporaries_mib']:.1f}",
        )
    table.add_section()
    table.add_row(
        "mean (geom.)",
        *("", "", f"{means['forward_ratio']:.2f}"),
        *("", "", f"{means['forward_backward_ratio']:.2f}", ""),
    )
    console = Console()
    console.print(table)

    table = plain_table(
        "one launch, but for the driver",
        ["handler"],
        ["idle \u00b5s", "busy \u00b5s", "busy / idle"],
        caption="busy: beside a thread that runs Python",
    )
    for name, label in (("native", "oxijax's"), ("ctypes", "in Python, ctypes")):
        table.add_row(
            label,
            f"{launches[f'{name}_us']:.3f}",
            f"{launches[f'{name}_busy_us']:.3f}",
            f"{launches[f'{name}_busy_ratio']:.1f}",
        )
    console.print(table)

    report = {
        "suite": args.suite,
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"processor": _processor(), "cores": _cores()},
        "versions": {
            "oxijax": oxijax.__version__,
            "jax": jax.__version__,
            "python": platform.python_version(),
        },
        "repeats": args.repeats,
        "layers": layers,
        "geometric_means": means,
        "launch": launches,
    }
    write_json(args, report)
    return 0


def measure_layer(case: DeformConvCase, repeats: int) -> dict[str, Any]:
    """Times in milliseconds, their ratios, and temporaries in MiB, of one layer.

    The convolution has the layer's x, weight and bias. The temporaries are those of
    deform_conv's forward and backward pass together, by XLA's own account.
    """
    operands = [None if a is None else jnp.asarray(a) for a in case.operands()]
    x, _, weight, _, bias = operands
    grad_y = jnp.asarray(case.grad_y())

    def deform_conv(*operands):
        return oxijax.deform_conv(*operands, **case.options)

    def conv(x, weight, bias):
        y = jax.lax.conv_general_dilated(
            x,
            weight,
            case.strides,
            case.padding,  # pyright: ignore[reportArgumentType]
            rhs_dilation=case.dilation,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=case.groups,
        )
        return y + bias

    def with_gradients(function: Callable) -> Callable:
        def forward_backward(grad_y, *operands):
            y, vjp = jax.vjp(function, *operands)
            return y, vjp(grad_y)

        return forward_backward

    programs = {
        "forward_ms": (deform_conv, operands),
        "conv_forward_ms": (conv, [x, weight, bias]),
        "forward_backward_ms": (with_gradients(deform_conv), [grad_y, *operands]),
        "conv_forward_backward_ms": (with_gradients(conv), [grad_y, x, weight, bias]),
    }
    compiled = {
        key: (jax.jit(function).lower(*inputs).compile(), inputs)
        for key, (function, inputs) in programs.items()
    }
    times = best_times(compiled, repeats)
    memory = compiled["forward_backward_ms"][0].memory_analysis()
    assert memory is not None  # the CPU backend has it
    return {
        **times,
        "forward_ratio": times["forward_ms"] / times["conv_forward_ms"],
        "forward_backward_ratio": times["forward_backward_ms"] / times["conv_forward_backward_ms"],
        "temporaries_mib": memory.temp_size_in_bytes / 2**20,
    }


def best_times(programs: dict[str, tuple[Callable, list]], repeats: int) -> dict[str, float]:
    """Milliseconds of the fastest of `repeats` runs of each program, taking turns."""
    times = {key: np.full(repeats + 1, np.inf) for key in programs}
    for repeat in range(repeats + 1):
        for key, (program, inputs) in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*inputs))
            times[key][repeat] = 1e3 * (time.perf_counter() - start)
    return {key: float(runs[1:].min()) for key, runs in times.items()}  # the first one warms up


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((s.partition(":")[2].strip() for s in lines if s.startswith("model name")), "")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
