"""Say what bounds a matrix product on a GPU, memory or arithmetic, and draw its roofline.

From data sheets; nothing is measured, and no GPU is needed.
"""

import argparse
import dataclasses
import io
from collections.abc import Iterator

import oxijax
from oxijax._cli import CommandError, needs_extra, print_labelled
from oxijax._cli.arguments import (
    PictureFile,
    add_json_argument,
    add_output_argument,
    number_type,
    write_json,
)
from oxijax._cli.quantities import number, scaled, time
from oxijax._core.gpu.driver_errors import DriverError
from oxijax._gemm.roofline import Roofline
from ptx.devices import DATA_SHEETS

__all__ = ["add_arguments", "run"]

_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in ("m", "n", "k"):
        parser.add_argument(
            name, type=number_type(int), metavar=name.upper(), help="of [M, K] @ [K, N]"
        )
    parser.add_argument("--dtype", choices=_DTYPES, default="bf16", help="(default: %(default)s)")
    parser.add_argument(
        "--device",
        metavar="GPU",
        help=f"{', '.join(DATA_SHEETS)}, CUDA's name of one, or a target such as sm_90 "
        "(default: the GPU that JAX uses, else A100 80GB)",
    )
    parser.add_argument(
        "--batch",
        type=number_type(int),
        default=1,
        metavar="N",
        help="so many products (default: 1)",
    )
    parser.add_argument(
        "--beta", type=number_type(float), default=0.0, help="unless 0, c is read too (default: 0)"
    )
    parser.add_argument(
        "--exact", action="store_true", help="multiply f32 as f32, not rounded to TF32"
    )
    add_output_argument(
        parser, "--output", PictureFile, metavar="FILE", help="draw the roofline: a PNG file"
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    try:
        result = oxijax.roofline(
            *(args.m, args.n, args.k),
            dtype=_DTYPES[args.dtype],
            device=args.device,
            batch=args.batch,
            beta=args.beta,
            precision="highest" if args.exact else None,
        )
    except (ValueError, DriverError) as error:
        raise CommandError(str(error)) from error

    print_labelled(_lines(result))
    write_json(args, dataclasses.asdict(result))
    if args.output is not None:
        with needs_extra("demo"):
            from oxijax._cli import roofline_picture

        picture = io.BytesIO()
        roofline_picture.draw(picture, result)
        args.output.write(picture.getvalue())
        print(f"Picture: {args.output.path}")
    return 0


def _lines(result: Roofline) -> Iterator[tuple[str, str]]:
    """The analysis as (label, text) lines."""
    batch = f"{result.batch} x " if result.batch > 1 else ""
    product = f"{batch}[{result.m}, {result.k}] @ [{result.k}, {result.n}]"
    yield "product", f"{product}, {result.dtype}"
    rates = f"{result.peak_tflops:g} TFLOP/s ({result.unit}), {result.peak_bandwidth_tbps:g} TB/s"
    yield "GPU", f"{result.device}: {rates}"
    yield "source", DATA_SHEETS[result.device].source
    yield "operations", scaled(result.flops, "FLOP")
    yield "bytes", f"{scaled(result.bytes, 'B')}, if everything is moved once"
    yield "intensity", f"{number(result.intensity)} FLOP/byte"
    yield "balance point", f"{number(result.balance_point)} FLOP/byte"
    yield "bound", result.bound
    yield "at best", f"{time(result.attainable_us)}, {number(result.attainable_tflops)} TFLOP/s"
    yield "strategy", result.strategy
