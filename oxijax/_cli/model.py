"""Model how long the deformable convolution kernels take on layers of known networks.

Registers, shared memory and blocks per SM are ptxas's; the time is modelled, not measured, from
the machine code, the grid and the GPU's rates: see docs/performance.md.
"""

import argparse
import itertools
import json
import pathlib
from typing import Any

from oxijax._cli import CommandError
from ptx.assembler import PtxasNotFoundError, assemble
from ptx.kernels.deformable.configs import CONFIGS, IMAGES
from ptx.kernels.deformable.model import MODELLED, work
from ptx.model import DEVICES, Device, modelled
from ptx.registry import kernels
from ptx.sass import NvdisasmNotFoundError
from ptx.targets import TARGETS

__all__ = ["add_arguments", "row", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        action="append",
        choices=DEVICES,
        help="a GPU; may be given more than once (default: all)",
    )
    parser.add_argument(
        "--layer", choices=IMAGES, action="append", help="may be given more than once"
    )
    parser.add_argument("--dtype", choices=("bf16", "f16", "f32"), default="bf16")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the figures")


def run(args: argparse.Namespace) -> int:
    devices = [device for name, device in DEVICES.items() if name in (args.target or DEVICES)]
    layers = args.layer or list(IMAGES)
    try:
        rows = [
            row(kernel, layer, args.dtype, device)
            for device, kernel, layer in itertools.product(devices, MODELLED, layers)
        ]
    except (PtxasNotFoundError, NvdisasmNotFoundError) as error:
        raise CommandError(str(error)) from error

    print(
        "Modelled, not measured. Bounds are what each resource alone would take, in microseconds."
    )
    bounds = list(rows[0]["bounds_us"])
    print(
        f"{'kernel':<16} {'layer':<16} {'GPU':<5} {'regs':>4} {'spills':>6} {'shared':>6} "
        f"{'CTAs/SM':>7} {'us':>12}  {'limit':<8}" + "".join(f"{name:>8}" for name in bounds)
    )
    for r in rows:
        low, high = (f"{t:.0f}" for t in r["time_us"])
        print(
            f"{r['kernel']:<16} {r['layer']:<16} {r['gpu']:<5} {r['registers']:>4} "
            f"{r['spills']:>6} {r['shared_bytes']:>6} {r['blocks_per_sm']:>7} "
            f"{low if low == high else f'{low}-{high}':>12}  {r['limit']:<8}"
            + "".join(f"{r['bounds_us'][name]:>8.0f}" for name in bounds)
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def row(kernel: str, layer: str, dtype: str, device: Device) -> dict[str, Any]:
    """The figures of one kernel.

    Args:
      kernel: one of `MODELLED`.
      layer: one of `IMAGES`.
      dtype: "bf16", "f16" or "f32".
      device: the GPU.
    """
    entry, target = kernels()[f"deformable_conv_{kernel}"], TARGETS[device.target]
    config = CONFIGS[f"{layer}/{dtype}"]
    (assembled,) = assemble(entry.generate(config, target), target).values()
    dynamic = entry.dynamic_shared(config, target)
    time = modelled(work(entry, config, target, IMAGES[layer]), device)
    return {
        "kernel": kernel,
        "layer": f"{layer}/{dtype}",
        "gpu": device.name,
        "registers": assembled.registers,
        "spills": assembled.spills,
        "shared_bytes": assembled.shared_bytes + dynamic,
        "blocks_per_sm": assembled.blocks_per_sm(None, dynamic),
        "time_us": [time.low, time.high],
        "limit": time.limit,
        "bounds_us": time.bounds,
    }
