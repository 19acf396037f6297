"""Time oxijax beside XLA on the same layers, in the same run.

Every printed figure is the best of many rounds. What is compared takes turns in each of them, so
that a busy machine disturbs both alike. The JSON has the spread over the rounds as well.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import oxijax
from oxijax._cli import Column, PrintedTable
from oxijax._cli.arguments import COUNT, add_json_argument, number_type, write_json
from oxijax._cli.bench_rounds import (
    core_count,
    machine,
    paired_ratios,
    spread,
    time_rounds,
    versions,
)
from oxijax._cli.bench_torchvision import check_same, import_torchvision, torchvision_programs
from oxijax.testing import BENCHMARK_CASES, IMAGE_SIZE_CASES, DeformConvCase

__all__ = [
    "add_arguments",
    "measure_against_torchvision",
    "measure_image_sizes",
    "measure_layer",
    "run",
]

_MEAN = "mean (geom.)"
_PASSES = {"forward": "forward", "forward_backward": "fwd+bwd"}  # keys, and in headings
_TORCHVISION = "pip install -r benchmarks/requirements-torchvision.txt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", choices=["cpu"], default="cpu", help="what to measure")
    add_json_argument(parser)
    parser.add_argument(
        "--repeats", type=COUNT, default=100, help="runs of each function (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=number_type(float, 0),
        default=30,
        help="no layer is repeated for longer, but three times at least (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    limits = args.repeats, args.seconds
    print("Timing takes some minutes; each row is printed when it is measured.", flush=True)
    description = machine()  # before there is any load of our own
    torch, torchvision, missing = import_torchvision(core_count())
    with jax.default_device(jax.devices("cpu")[0]):
        layers = _print_comparison(
            "deform_conv on the CPU, float32, beside lax.conv_general_dilated\n"
            "MiB: temporaries of forward and backward pass together",
            "conv",
            "conv_",
            lambda case: measure_layer(case, *limits),
            more=[Column("MiB", "temporaries_mib", ".1f")],
        )
        sizes = _print_image_sizes(*limits)
        if missing:
            missing = f"{missing}. {_TORCHVISION}"
            print(f"\ntorchvision's operator is not measured: {missing}", flush=True)
            against: dict[str, Any] = {"not_measured": missing}
        else:
            against = _beside_torchvision(torch, torchvision, *limits)
        launches = _print_launch(max(1, args.repeats // 10))

    report = {
        "suite": args.suite,
        "date": time.strftime("%Y-%m-%d"),
        "machine": description,
        "versions": versions(),
        "repeats": args.repeats,
        "seconds": args.seconds,
        "layers": layers,
        "geometric_means": _geometric_means(layers),
        "image_sizes": sizes,
        "torchvision": against,
        "launch": launches,
    }
    write_json(args, report)
    return 0


def _beside_torchvision(
    torch: Any, torchvision: Any, repeats: int, seconds: float
) -> dict[str, Any]:
    layers = _print_comparison(
        "deform_conv on the CPU beside torchvision.ops.deform_conv2d",
        "theirs",
        "torchvision_",
        lambda case: measure_against_torchvision(torch, torchvision, case, repeats, seconds),
        digits=3,
    )
    return {
        "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__},
        "threads": torch.get_num_threads(),
        "layers": layers,
        "geometric_means": _geometric_means(layers),
    }


def _print_comparison(
    title: str,
    theirs: str,
    prefix: str,
    measure: Callable[[DeformConvCase], dict[str, Any]],
    *,
    digits: int = 2,
    more: Sequence[Column] = (),
) -> dict[str, dict[str, Any]]:
    """Measures the layers, and prints each as it is known; after the last one, the mean ratios.

    Args:
      title: the table's title.
      theirs: what deform_conv is compared with, in headings.
      prefix: the same in the keys of figures.
      measure: returns the figures of a layer.
      digits: how many digits a ratio has after the point.
      more: further columns.
    """
    columns: list[Column] = []
    for key, heading in _PASSES.items():
        columns += [
            Column(f"{heading} ms", f"{key}_ms", ".2f"),
            Column(f"{theirs} ms", f"{prefix}{key}_ms", ".2f"),
            Column("ratio", f"{key}_ratio", f".{digits}f"),
        ]
    names = {"layer": [*BENCHMARK_CASES, _MEAN]}
    table = PrintedTable(f"\n{title}", names, [*columns, *more])
    layers = {}
    for name, case in BENCHMARK_CASES.items():
        layers[name] = measure(case)
        table.row([name], layers[name])
    table.row([_MEAN], _geometric_means(layers))
    return layers


def _print_image_sizes(repeats: int, seconds: float) -> dict[str, dict[str, Any]]:
    columns: list[Column] = []
    for key, heading in _PASSES.items():
        columns += [
            Column(f"{heading} \u00b5s", f"{key}_us_per_pixel", ".3f"),
            Column("of the first", f"{key}_growth", ".2f"),
        ]
    title = "\na pixel of larger images, 64 channels"
    table = PrintedTable(title, {"image": IMAGE_SIZE_CASES}, columns)
    sizes = measure_image_sizes(repeats, seconds)
    for name, figures in sizes.items():
        table.row([name], figures)
    return sizes


def _print_launch(rounds: int) -> dict[str, Any]:
    from oxijax._cli.bench_launch import measure_launch  # registers a kernel

    handlers = {"native": "oxijax's", "ctypes": "in Python, ctypes"}
    columns = [
        Column("idle \u00b5s", "us", ".3f"),
        Column("busy \u00b5s", "busy_us", ".3f"),
        Column("busy / idle", "busy_ratio", ".1f"),
    ]
    title = "\none launch, but for the driver\nbusy: beside a thread that runs Python"
    table = PrintedTable(title, {"handler": handlers.values()}, columns)
    launches = measure_launch(rounds)
    for name, label in handlers.items():
        table.row([label], {c.key: launches[f"{name}_{c.key}"] for c in columns})
    return launches


def _geometric_means(layers: dict[str, dict[str, Any]]) -> dict[str, float]:
    return {
        key: statistics.geometric_mean(layer[key] for layer in layers.values())
        for key in (f"{name}_ratio" for name in _PASSES)
    }


def _programs(case: DeformConvCase) -> dict[str, tuple[Any, list]]:
    """The layer's compiled programs with their operands: forward, and with the gradients."""
    operands = [None if a is None else jnp.asarray(a) for a in case.operands()]

    def deform_conv(*operands):
        return oxijax.deform_conv(*operands, **case.options)

    return _compiled(deform_conv, operands, jnp.asarray(case.grad_y()))


def _compiled(
    function: Callable, operands: list, grad_y: jax.Array, prefix: str = ""
) -> dict[str, tuple[Any, list]]:
    def forward_backward(grad_y, *operands):
        y, vjp = jax.vjp(function, *operands)
        return y, vjp(grad_y)

    programs = {
        f"{prefix}forward_ms": (function, operands),
        f"{prefix}forward_backward_ms": (forward_backward, [grad_y, *operands]),
    }
    return {
        key: (jax.jit(function).lower(*inputs).compile(), inputs)
        for key, (function, inputs) in programs.items()
    }


def measure_layer(case: DeformConvCase, repeats: int, seconds: float = math.inf) -> dict[str, Any]:
    """Times in milliseconds, their ratios, and temporaries in MiB, of one layer.

    The convolution has the layer's x, weight and bias. The temporaries are those of
    deform_conv's forward and backward pass together, by XLA's own account. "spread" has the
    quartiles of each time, and of the ratio of the two times of a round.
    """
    ours = _programs(case)
    grad_y, x, _, weight, _, bias = ours["forward_backward_ms"][1]

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
        return y if bias is None else y + bias

    theirs = _compiled(conv, [x, weight, bias], grad_y, prefix="conv_")
    rounds = time_rounds({**ours, **theirs}, repeats, seconds)
    memory = ours["forward_backward_ms"][0].memory_analysis()
    assert memory is not None  # the CPU backend has it
    return {**_with_ratios(rounds, "conv_"), "temporaries_mib": memory.temp_size_in_bytes / 2**20}


def measure_image_sizes(repeats: int, seconds: float = math.inf) -> dict[str, dict[str, Any]]:
    """Microseconds a pixel for each of `IMAGE_SIZE_CASES`, and how many times those of the first.

    The layers take turns, so that nothing disturbs one of them alone.
    """
    programs = {
        f"{name} {key}": program
        for name, case in IMAGE_SIZE_CASES.items()
        for key, program in _programs(case).items()
    }
    rounds = time_rounds(programs, repeats, seconds)
    first: dict[str, list[float]] = {}
    sizes: dict[str, dict[str, Any]] = {}
    for name, case in IMAGE_SIZE_CASES.items():
        us = 1e3 / math.prod(case.y[:3])
        times = {key: [us * ms for ms in rounds[f"{name} {key}_ms"]] for key in _PASSES}
        first = first or times
        sizes[name] = _figures(
            {f"{key}_us_per_pixel": times[key] for key in _PASSES},
            {f"{key}_growth": (times[key], first[key]) for key in _PASSES},
        )
    return sizes


def measure_against_torchvision(
    torch: Any, torchvision: Any, case: DeformConvCase, repeats: int, seconds: float = math.inf
) -> dict[str, Any]:
    """Times in milliseconds of one layer, ours and torchvision's, and their ratios."""
    ours, theirs = _programs(case), torchvision_programs(torch, torchvision, case)
    check_same(case, ours["forward_ms"], theirs["torchvision_forward_ms"])
    return _with_ratios(time_rounds({**ours, **theirs}, repeats, seconds), "torchvision_")


def _with_ratios(rounds: dict[str, list[float]], prefix: str) -> dict[str, Any]:
    """The figures of a layer, from our times and from those whose keys begin with a prefix."""
    ratios = {f"{p}_ratio": (rounds[f"{p}_ms"], rounds[f"{prefix}{p}_ms"]) for p in _PASSES}
    return _figures(rounds, ratios)


def _figures(
    times: Mapping[str, Sequence[float]],
    ratios: Mapping[str, tuple[Sequence[float], Sequence[float]]],
) -> dict[str, Any]:
    """The best of all rounds, ratios of two of these, and the spread over the rounds of both."""
    spreads = {**times, **{key: paired_ratios(*pair) for key, pair in ratios.items()}}
    return {
        **{key: min(values) for key, values in times.items()},
        **{key: min(ours) / min(theirs) for key, (ours, theirs) in ratios.items()},
        "rounds": len(next(iter(times.values()))),
        "spread": {key: spread(values) for key, values in spreads.items()},
    }
