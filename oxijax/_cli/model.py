"""Model how long a family's kernels take on layers of known networks.

The time is modelled, not measured: the machine code that ptxas makes is replayed on a simulated SM,
with what each warp did in the emulator. Registers, shared memory and blocks per SM are ptxas's. The
floor is what no kernel can beat: tensor cores at their peak, or operands and results through memory
once. --published compares the simulator with what others have measured, and --operators the model
with times of whole kernels; see docs/performance.md.
"""

import argparse
import dataclasses
import fnmatch
import itertools
from collections.abc import Collection, Mapping
from typing import Any

from oxijax._cli import CommandError, add_repeatable_argument
from oxijax._cli.arguments import add_json_argument, write_json
from ptx.isa.assembler import find_ptxas
from ptx.isa.dtypes import bf16, f16, f32
from ptx.isa.sass import find_nvdisasm
from ptx.kernels.conv import model as conv
from ptx.kernels.deform_conv import model as deform_conv
from ptx.kernels.layer_model import LayerModel
from ptx.kernels.measured import MEASURED
from ptx.kernels.sampling import model as sampling
from ptx.replay import MACHINES
from ptx.replay.published import PUBLISHED

__all__ = ["add_arguments", "run"]

_FAMILIES: Mapping[str, LayerModel] = {
    "deform_conv": deform_conv.MODEL,
    "conv": conv.MODEL,
    "sampling": sampling.MODEL,
    "volumes": sampling.VOLUMES,
    "windows": sampling.WINDOWS,
}
_DTYPES = {dtype.name: dtype for dtype in (bf16, f16, f32)}
_SHOWN = ("issue", "L1", "L2", "memory", "atomics", "tensor")

_HEADING = (
    "kernel           layer               GPU       regs shared CTAs/SM      us  limit     floor"
)
_ROW = (
    "{kernel:<16} {layer:<19} {gpu:<9} {registers:>4} {shared_bytes:>6} {blocks_per_sm:>7} "
    "{us:>7.1f}  {limit:<8}{floor_us:>7.1f}"
)
_OPERATOR_ROW = (
    "{kernel:<16} {layer:<16} {dtype:<5} {gpu:<9} {us:>7.1f} {modelled:>7.1f} {error:>+5.0%}"
    "  {limit}"
)
_PUBLISHED_ROW = (
    "{name:<54} {gpu:<9} {measured:>8.2f} {simulated:>8.2f} {unit:<7} {error:>+5.0%}  {source}"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--family", choices=_FAMILIES, default="deform_conv", help="kernels (default: %(default)s)"
    )
    add_repeatable_argument(parser, "--kernel", "for example backward_input", metavar="K")
    add_repeatable_argument(parser, "--layer", "for example 'conv3-*'", metavar="PATTERN")
    add_repeatable_argument(
        parser, "--gpu", "a GPU; A100 40GB and H200 if there is none", choices=MACHINES
    )
    parser.add_argument("--dtype", choices=_DTYPES, default="bf16")
    parser.add_argument(
        "--published", action="store_true", help="compare the simulator with published figures"
    )
    parser.add_argument(
        "--operators", action="store_true", help="compare the model with times measured on a GPU"
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    find_ptxas()
    find_nvdisasm()
    rows = _operators() if args.operators else _published() if args.published else _modelled(args)
    write_json(args, rows)
    return 0


def _modelled(args: argparse.Namespace) -> list[dict[str, Any]]:
    family = _FAMILIES[args.family]
    gpus = args.gpu or ("A100 40GB", "H200")
    kernels = _matching("kernel", args.kernel, family.kernels)
    layers = _matching("layer", args.layer, family.layers)
    print("Modelled, not measured. After the floor: of the time, how much each resource is busy.")
    print(_HEADING + "".join(f"{name:>8}" for name in _SHOWN))
    rows = []
    for gpu, kernel, layer in itertools.product(gpus, kernels, layers):
        if kernel not in family.kernels_of(layer):
            continue
        machine, extent = MACHINES[gpu], family.layers[layer].extent
        config = dataclasses.replace(family.layers[layer].config, float_type=_DTYPES[args.dtype])
        modelled = family.model(kernel, config, extent, machine)
        row = {
            "family": args.family,
            "kernel": kernel,
            "layer": f"{layer}/{args.dtype}",
            "gpu": gpu,
            **dataclasses.asdict(modelled),
            "limit": modelled.limit,
            "floor_us": family.floor_us(config, extent, machine),
        }
        busy = "".join(f"{modelled.busy.get(name, 0):>8.0%}" for name in _SHOWN)
        print(_ROW.format(**row) + busy, flush=True)
        rows.append(row)
    return rows


def _operators() -> list[dict[str, Any]]:
    print("The model beside measured times of whole kernels, in microseconds.")
    rows = []
    for figure in MEASURED:
        family = _FAMILIES[figure.family]
        layer = family.layers[figure.layer]
        config = dataclasses.replace(layer.config, float_type=_DTYPES[figure.dtype])
        modelled = family.model(figure.kernel, config, layer.extent, MACHINES[figure.gpu])
        row = {**dataclasses.asdict(figure), "modelled": modelled.us, "limit": modelled.limit}
        print(_OPERATOR_ROW.format(**row, error=modelled.us / figure.us - 1), flush=True)
        rows.append(row)
    errors = [row["modelled"] / row["us"] - 1 for row in rows]
    mean = sum(map(abs, errors)) / len(errors)
    print(f"Mean error {mean:.0%}, from {min(errors):+.0%} to {max(errors):+.0%}.")
    return rows


def _published() -> list[dict[str, Any]]:
    print("The simulator beside published measurements.")
    rows = []
    for figure in PUBLISHED:
        row = {
            key: getattr(figure, key)
            for key in ("name", "gpu", "unit", "measured", "simulated", "source")
        }
        error = row["simulated"] / figure.measured - 1
        print(_PUBLISHED_ROW.format(**row, error=error), flush=True)
        rows.append(row)
    return rows


def _matching(what: str, patterns: list[str] | None, names: Collection[str]) -> list[str]:
    """The names that a pattern fits; all without patterns."""
    for pattern in patterns or ():
        if not fnmatch.filter(names, pattern):
            raise CommandError(f"no {what} {pattern}; there are {', '.join(names)}")
    return [n for n in names if any(fnmatch.fnmatchcase(n, p) for p in patterns or ["*"])]
