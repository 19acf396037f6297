"""The model's figures of kernels, by `ptx` alone: a proof with them needs no more.

    PYTHONPATH=tests python -m support.modelled FAMILY LAYER GPU DTYPE KERNEL...

prints the figures of each kernel on a line.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from ptx.isa.dtypes import DTYPES
from ptx.kernels.deform_conv import model as deform_conv
from ptx.kernels.sampling import model as sampling
from ptx.replay import MACHINES
from support.paths import SUPPORT
from support.processes import python

__all__ = ["modelled_rows"]

MODELS = {
    "deform_conv": deform_conv.MODEL,
    "sampling": sampling.MODEL,
    "volumes": sampling.VOLUMES,
    "windows": sampling.WINDOWS,
}


def modelled_rows(
    family: str, layer: str, gpu: str, *kernels: str, dtype: str = "bf16"
) -> list[dict[str, Any]]:
    """The figures of some kernels, from a process of its own: layers take memory.

    Each has the fields of `ptx.model.Modelled`, "kernel", "limit" and "floor_us".
    """
    command = ("-m", __name__, family, layer, gpu, dtype, *kernels)
    status, said = python(*command, PYTHONPATH=str(SUPPORT.parent))
    assert status == 0, said
    return [json.loads(line) for line in said.splitlines()]


def main(family: str, layer: str, gpu: str, dtype: str, *kernels: str) -> None:
    """Prints the figures, and fails if they are of more than `ptx`."""
    of, machine = MODELS[family], MACHINES[gpu]
    images = of.layers[layer].extent
    config = dataclasses.replace(of.layers[layer].config, float_type=DTYPES[dtype])
    floor_us = of.floor_us(config, images, machine)
    for kernel in kernels:
        modelled = of.model(kernel, config, images, machine)
        figures = {**dataclasses.asdict(modelled), "limit": modelled.limit, "floor_us": floor_us}
        print(json.dumps({"kernel": kernel, **figures}))
    others = [name for name in sys.modules if name.partition(".")[0] in ("jax", "oxijax")]
    assert not others, f"more than ptx is imported: {others}"


if __name__ == "__main__":
    main(*sys.argv[1:])
