"""Time oxijax beside XLA on the same layers, in the same run.

Every printed figure is the best of many rounds. What is compared takes turns in each of them, so
that a busy machine disturbs both alike. The JSON has the spread over the rounds as well.
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import oxijax
from oxijax._cli import PrintedTable
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
    where = machine()  # before there is any load of our own
    torch, torchvision, missing = import_torchvision(core_count())
    with jax.default_device(jax.devices("cpu")[0]):
        layers = _print_layers(*limits)
        sizes = _print_image_sizes(*limits)
        against = {}
        if missing:
            print(
                f"\ntorchvision's operator is not measured: {missing}. {_TORCHVISION}", flush=True
            )
        else:
            against = _print_torchvision(torch, torchvision, *limits)
        launches = _print_launch(max(1, args.repeats // 10))

    means = _geometric_means(layers)
    report = {
        "suite": args.suite,
        "date": time.strftime("%Y-%m-%d"),
        "machine": where,
        "versions": versions(),
        "repeats": args.repeats,
        "seconds": args.seconds,
        "layers": layers,
        "geometric_means": means,
        "image_sizes": sizes,
        "torchvision": {"not_measured": f"{missing}. {_TORCHVISION}"}
        if missing
        else {
            "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__},
            "threads": torch.get_num_threads(),
            "layers": against,
            "geometric_means": _geometric_means(against),
        },
        "launch": launches,
    }
    write_json(args, report)
    return 0


def _print_layers(repeats: int, seconds: float) -> dict[str, dict[str, Any]]:
    table = PrintedTable(
        "deform_conv on the CPU, float32, beside lax.conv_general_dilated\n"
        "MiB: temporaries of forward and backward pass together",
        "layer",
        [*BENCHMARK_CASES, _MEAN],
        ["forward ms", "conv ms", "ratio", "fwd+bwd ms", "conv ms", "ratio", "MiB"],
    )
    layers = {}
    for name, case in BENCHMARK_CASES.items():
        layers[name] = layer = measure_layer(case, repeats, seconds)
        table.row(
            name,
            f"{layer['forward_ms']:.2f}",
            f"{layer['conv_forward_ms']:.2f}",
            f"{layer['forward_ratio']:.2f}",
            f"{layer['forward_backward_ms']:.2f}",
            f"{layer['conv_forward_backward_ms']:.2f}",
            f"{layer['forward_backward_ratio']:.2f}",
            f"{layer['temporaries_mib']:.1f}",
        )
    means = _geometric_means(layers)
    table.row(
        _MEAN,
        *("", "", f"{means['forward_ratio']:.2f}"),
        *("", "", f"{means['forward_backward_ratio']:.2f}"),
    )
    return layers


def _print_image_sizes(repeats: int, seconds: float) -> dict[str, dict[str, Any]]:
    table = PrintedTable(
        "a pixel of larger images, 64 channels",
        "image",
        IMAGE_SIZE_CASES,
        ["forward \u00b5s", "of the first", "fwd+bwd \u00b5s", "of the first"],
    )
    sizes = measure_image_sizes(repeats, seconds)
    for name, size in sizes.items():
        table.row(
            name,
            f"{size['forward_us_per_pixel']:.3f}",
            f"{size['forward_growth']:.2f}",
            f"{size['forward_backward_us_per_pixel']:.3f}",
            f"{size['forward_backward_growth']:.2f}",
        )
    return sizes


def _print_torchvision(
    torch: Any, torchvision: Any, repeats: int, seconds: float
) -> dict[str, dict[str, Any]]:
    table = PrintedTable(
        "deform_conv on the CPU beside torchvision.ops.deform_conv2d",
        "layer",
        [*BENCHMARK_CASES, _MEAN],
        ["forward ms", "theirs ms", "ratio", "fwd+bwd ms", "theirs ms", "ratio"],
    )
    layers = {}
    for name, case in BENCHMARK_CASES.items():
        layer = measure_against_torchvision(torch, torchvision, case, repeats, seconds)
        layers[name] = layer
        table.row(
            name,
            f"{layer['forward_ms']:.2f}",
            f"{layer['torchvision_forward_ms']:.2f}",
            f"{layer['forward_ratio']:.3f}",
            f"{layer['forward_backward_ms']:.2f}",
            f"{layer['torchvision_forward_backward_ms']:.2f}",
            f"{layer['forward_backward_ratio']:.3f}",
        )
    means = _geometric_means(layers)
    table.row(
        _MEAN,
        *("", "", f"{means['forward_ratio']:.3f}"),
        *("", "", f"{means['forward_backward_ratio']:.3f}"),
    )
    return layers


def _print_launch(rounds: int) -> dict[str, Any]:
    from oxijax._cli.bench_launch import measure_launch  # registers a kernel

    handlers = {"native": "oxijax's", "ctypes": "in Python, ctypes"}
    table = PrintedTable(
        "one launch, but for the driver\nbusy: beside a thread that runs Python",
        "handler",
        handlers.values(),
        ["idle \u00b5s", "busy \u00b5s", "busy / idle"],
    )
    launches = measure_launch(rounds)
    for name, label in handlers.items():
        table.row(
            label,
            f"{launches[f'{name}_us']:.3f}",
            f"{launches[f'{name}_busy_us']:.3f}",
            f"{launches[f'{name}_busy_ratio']:.1f}",
        )
    return launches


def _geometric_means(layers: dict[str, dict]) -> dict[str, float]:
    return {
        key: math.prod(layer[key] for layer in layers.values()) ** (1 / len(layers))
        for key in ("forward_ratio", "forward_backward_ratio")
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
        return y + bias

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
    of_pixel: dict[str, dict[str, list[float]]] = {}
    for name, case in IMAGE_SIZE_CASES.items():
        us = 1e3 / math.prod(case.y[:3])
        of_pixel[name] = {
            what: [us * ms for ms in rounds[f"{name} {what}_ms"]]
            for what in ("forward", "forward_backward")
        }
    first = next(iter(of_pixel.values()))
    sizes: dict[str, dict[str, Any]] = {}
    for name, passes in of_pixel.items():
        best = {f"{what}_us_per_pixel": min(values) for what, values in passes.items()}
        growth = {f"{what}_growth": min(passes[what]) / min(first[what]) for what in passes}
        spreads = {
            **{f"{what}_us_per_pixel": values for what, values in passes.items()},
            **{f"{what}_growth": paired_ratios(passes[what], first[what]) for what in passes},
        }
        sizes[name] = {
            **best,
            **growth,
            "rounds": len(passes["forward"]),
            "spread": {key: spread(values) for key, values in spreads.items()},
        }
    return sizes


def measure_against_torchvision(
    torch: Any, torchvision: Any, case: DeformConvCase, repeats: int, seconds: float = math.inf
) -> dict[str, Any]:
    """Times in milliseconds of one layer, ours and torchvision's, and their ratios."""
    ours, theirs = _programs(case), torchvision_programs(torch, torchvision, case)
    check_same(case, ours["forward_ms"], theirs["torchvision_forward_ms"])
    return _with_ratios(time_rounds({**ours, **theirs}, repeats, seconds), "torchvision_")


def _with_ratios(rounds: dict[str, list[float]], prefix: str) -> dict[str, Any]:
    """The best of all rounds, the ratios of these, and the spread over the rounds of both."""
    best = {key: min(values) for key, values in rounds.items()}
    ratios, spreads = {}, {key: spread(values) for key, values in rounds.items()}
    for what in ("forward", "forward_backward"):
        ours, theirs = f"{what}_ms", f"{prefix}{what}_ms"
        ratios[f"{what}_ratio"] = best[ours] / best[theirs]
        spreads[f"{what}_ratio"] = spread(paired_ratios(rounds[ours], rounds[theirs]))
    return {**best, **ratios, "rounds": len(rounds["forward_ms"]), "spread": spreads}
