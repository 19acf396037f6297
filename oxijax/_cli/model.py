"""Model how long a family's kernels take on layers of known networks.

The time is modelled, not measured: the machine code that ptxas makes is replayed on a simulated SM,
with what each warp did in the emulator. Registers, shared memory and blocks per SM are ptxas's. The
floor is what no kernel can beat: tensor cores at their peak, or operands and results through memory
once. --published compares the simulator with what others have measured; see docs/performance.md.
"""

import argparse
import dataclasses
import fnmatch
import itertools
from collections.abc import Mapping
from typing import Any, Protocol

from oxijax._cli import CommandError, add_repeatable_argument, tool_message
from oxijax._cli.arguments import add_json_argument, write_json
from ptx.definition import KernelDefinition
from ptx.isa.assembler import ToolNotFoundError, find_ptxas
from ptx.isa.dtypes import bf16, f16, f32
from ptx.isa.sass import find_nvdisasm
from ptx.kernels.conv import model as conv
from ptx.kernels.deform_conv import model as deform_conv
from ptx.kernels.sampling import model as sampling
from ptx.model import Modelled
from ptx.replay import MACHINES, Machine
from ptx.replay.published import PUBLISHED

__all__ = ["FAMILIES", "add_arguments", "published_row", "row", "run"]


class FamilyModel(Protocol):
    """What is asked of a family's model.

    Attributes:
      kernels: by what users call them.
      layers: of networks: the configuration, and how many images and what else of them.
    """

    @property
    def kernels(self) -> Mapping[str, KernelDefinition[Any]]: ...
    @property
    def layers(self) -> Mapping[str, tuple[Any, Any]]: ...
    def model(self, name: str, config: Any, images: Any, machine: Machine, /) -> Modelled: ...
    def floor_us(self, config: Any, images: Any, machine: Machine, /) -> float: ...


FAMILIES: Mapping[str, FamilyModel] = {
    "deform_conv": deform_conv.MODEL,
    "conv": conv.MODEL,
    "sampling": sampling.MODEL,
}
_DTYPES = {dtype.name: dtype for dtype in (bf16, f16, f32)}
_SHOWN = ("issue", "L1", "L2", "memory", "atomics", "tensor")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--family", choices=FAMILIES, default="deform_conv", help="kernels (default: %(default)s)"
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
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    try:
        find_ptxas()
        find_nvdisasm()
        rows = _published() if args.published else _modelled(args)
    except ToolNotFoundError as error:
        raise CommandError(tool_message(error)) from error
    write_json(args, rows)
    return 0


def row(family: str, kernel: str, layer: str, dtype: str, gpu: str) -> dict[str, Any]:
    """The figures of one kernel.

    Args:
      family: one of `FAMILIES`.
      kernel: one of the family's.
      layer: one of the family's.
      dtype: "bf16", "f16" or "f32".
      gpu: one of `MACHINES`.
    """
    of, machine = FAMILIES[family], MACHINES[gpu]
    config, images = of.layers[layer]
    config = dataclasses.replace(config, float_type=_DTYPES[dtype])
    modelled = of.model(kernel, config, images, machine)
    return {
        "family": family,
        "kernel": kernel,
        "layer": f"{layer}/{dtype}",
        "gpu": gpu,
        "registers": modelled.registers,
        "shared_bytes": modelled.shared_bytes,
        "blocks_per_sm": modelled.blocks_per_sm,
        "us": modelled.us,
        "limit": modelled.limit,
        "floor_us": of.floor_us(config, images, machine),
        "busy": dict(modelled.busy),
    }


def published_row(index: int) -> dict[str, Any]:
    """One figure of `PUBLISHED`, and what the simulator says of it."""
    figure = PUBLISHED[index]
    return {
        "name": figure.name,
        "gpu": figure.gpu,
        "unit": figure.unit,
        "measured": figure.measured,
        "simulated": figure.simulated,
        "source": figure.source,
    }


def _modelled(args: argparse.Namespace) -> list[dict[str, Any]]:
    family = FAMILIES[args.family]
    chosen = _matching("kernel", args.kernel, tuple(family.kernels))
    layers = _matching("layer", args.layer, tuple(family.layers))
    print("Modelled, not measured. After the floor: of the time, how much each resource is busy.")
    print(
        f"{'kernel':<16} {'layer':<19} {'GPU':<9} {'regs':>4} {'shared':>6} {'CTAs/SM':>7} "
        f"{'us':>7}  {'limit':<8}{'floor':>7}" + "".join(f"{name:>8}" for name in _SHOWN)
    )
    rows = []
    for gpu, kernel, layer in itertools.product(args.gpu or ("A100 40GB", "H200"), chosen, layers):
        r = row(args.family, kernel, layer, args.dtype, gpu)
        print(
            f"{r['kernel']:<16} {r['layer']:<19} {r['gpu']:<9} {r['registers']:>4} "
            f"{r['shared_bytes']:>6} {r['blocks_per_sm']:>7} {r['us']:>7.1f}  {r['limit']:<8}"
            f"{r['floor_us']:>7.1f}" + "".join(f"{r['busy'].get(n, 0):>8.0%}" for n in _SHOWN),
            flush=True,
        )
        rows.append(r)
    return rows


def _published() -> list[dict[str, Any]]:
    print("The simulator beside published measurements.")
    rows = []
    for index in range(len(PUBLISHED)):
        r = published_row(index)
        print(
            f"{r['name']:<54} {r['gpu']:<9} {r['measured']:>8.2f} {r['simulated']:>8.2f} "
            f"{r['unit']:<7} {r['simulated'] / r['measured'] - 1:>+5.0%}",
            flush=True,
        )
        rows.append(r)
    return rows


def _matching(what: str, patterns: list[str] | None, names: tuple[str, ...]) -> list[str]:
    """The names that a pattern fits; all without patterns."""
    for pattern in patterns or ():
        if not fnmatch.filter(names, pattern):
            raise CommandError(f"no {what} {pattern}; there are {', '.join(names)}")
    return [n for n in names if any(fnmatch.fnmatchcase(n, p) for p in patterns or ["*"])]
