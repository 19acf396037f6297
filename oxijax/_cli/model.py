"""Model how long a family's kernels take on layers of known networks.

Registers, shared memory and blocks per SM are ptxas's; the time is modelled, not measured, from
the machine code, the grid and the GPU's rates: see docs/performance.md. The floor is what no kernel
can beat: tensor cores at their peak, or operands and results through memory once.
"""

import argparse
import dataclasses
import fnmatch
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from oxijax._cli import CommandError, add_json_argument, add_repeatable_argument, write_json
from ptx.isa.assembler import ToolNotFoundError, assemble
from ptx.isa.dtypes import bf16, f16, f32
from ptx.isa.targets import TARGETS, Target
from ptx.kernels.conv import model as conv
from ptx.kernels.deform_conv import model as deform_conv
from ptx.launch import Launch
from ptx.model import DEVICES, Device, Image, Work, modelled
from ptx.registry import kernels

__all__ = ["FAMILIES", "Family", "add_arguments", "row", "run"]


@dataclasses.dataclass(frozen=True)
class Family:
    """Kernels that are modelled alike.

    Attributes:
      prefix: of their names in the registry.
      kernels: the rest of their names.
      layers: configuration, but for the dtype, and images of each.
      launch: (registered kernel, configuration, target, images) -> the launch.
      work: (registered kernel, configuration, target, images) -> what a launch does.
      floor_us: (configuration, images, GPU) -> microseconds that no kernel can beat.
    """

    prefix: str
    kernels: tuple[str, ...]
    layers: Mapping[str, tuple[Any, Image]]
    launch: Callable[[Any, Any, Target, Image], Launch]
    work: Callable[[Any, Any, Target, Image], Work]
    floor_us: Callable[[Any, Image, Device], float]


FAMILIES = {
    name: Family(prefix, model.MODELLED, model.LAYERS, model.launch, model.work, model.floor_us)
    for name, prefix, model in (
        ("deform_conv", "deform_conv_", deform_conv),
        ("conv", "conv_", conv),
    )
}
_DTYPES = {dtype.name: dtype for dtype in (bf16, f16, f32)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--family", choices=FAMILIES, default="deform_conv", help="kernels (default: %(default)s)"
    )
    add_repeatable_argument(parser, "--kernel", "for example backward_input", metavar="K")
    add_repeatable_argument(parser, "--layer", "for example 'conv3-*'", metavar="PATTERN")
    add_repeatable_argument(parser, "--target", "a GPU", choices=DEVICES)
    parser.add_argument("--dtype", choices=_DTYPES, default="bf16")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    family = FAMILIES[args.family]
    devices = [device for name, device in DEVICES.items() if name in (args.target or DEVICES)]
    chosen = _matching("kernel", args.kernel, family.kernels)
    layers = _matching("layer", args.layer, tuple(family.layers))
    try:
        rows = [
            row(args.family, kernel, layer, args.dtype, device)
            for device, kernel, layer in itertools.product(devices, chosen, layers)
        ]
    except ToolNotFoundError as error:
        raise CommandError(str(error)) from error

    print(
        "Modelled, not measured. Bounds are what each resource alone would take, in microseconds."
    )
    bounds = list(rows[0]["bounds_us"])
    print(
        f"{'kernel':<16} {'layer':<19} {'GPU':<5} {'regs':>4} {'spills':>6} {'shared':>6} "
        f"{'CTAs/SM':>7} {'us':>12}  {'limit':<8}{'floor':>8}"
        + "".join(f"{name:>8}" for name in bounds)
    )
    for r in rows:
        low, high = (f"{t:.0f}" for t in r["time_us"])
        print(
            f"{r['kernel']:<16} {r['layer']:<19} {r['gpu']:<5} {r['registers']:>4} "
            f"{r['spills']:>6} {r['shared_bytes']:>6} {r['blocks_per_sm']:>7} "
            f"{low if low == high else f'{low}-{high}':>12}  {r['limit']:<8}{r['floor_us']:>8.1f}"
            + "".join(f"{r['bounds_us'][name]:>8.1f}" for name in bounds)
        )
    write_json(args, rows)
    return 0


def row(family: str, kernel: str, layer: str, dtype: str, device: Device) -> dict[str, Any]:
    """The figures of one kernel.

    Args:
      family: one of `FAMILIES`.
      kernel: one of the family's.
      layer: one of the family's.
      dtype: "bf16", "f16" or "f32".
      device: the GPU.
    """
    of = FAMILIES[family]
    entry, target = kernels()[of.prefix + kernel], TARGETS[device.target]
    config, images = of.layers[layer]
    config = dataclasses.replace(config, float_type=_DTYPES[dtype])
    launch = of.launch(entry, config, target, images)
    (assembled,) = assemble(launch.text, target).values()
    dynamic = launch.dynamic_shared
    time = modelled(of.work(entry, config, target, images), device)
    return {
        "family": family,
        "kernel": kernel,
        "layer": f"{layer}/{dtype}",
        "gpu": device.name,
        "registers": assembled.registers,
        "spills": assembled.spills,
        "shared_bytes": assembled.shared_bytes + dynamic,
        "blocks_per_sm": assembled.blocks_per_sm(None, dynamic),
        "time_us": [time.low, time.high],
        "limit": time.limit,
        "floor_us": of.floor_us(config, images, device),
        "bounds_us": time.bounds,
    }


def _matching(what: str, patterns: list[str] | None, names: tuple[str, ...]) -> list[str]:
    """The names that a pattern fits; all without patterns."""
    for pattern in patterns or ():
        if not fnmatch.filter(names, pattern):
            raise CommandError(f"no {what} {pattern}; there are {', '.join(names)}")
    return [n for n in names if any(fnmatch.fnmatchcase(n, p) for p in patterns or ["*"])]
