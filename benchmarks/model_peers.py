"""The model of a GPU beside measured times of others' kernels: DCNv3, DCNv4, Deformable DETR.

    python benchmarks/model_peers.py RUN.json [--json FILE]

RUN.json is a run of the GPU suite whose section times-peers has measured them. Their sources are
where `gpu_suite.peers.sources` looks, and nvcc, ptxas and nvdisasm are on PATH. oxijax's own
kernels are `python -m oxijax model --operators`.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gpu_suite.peers.launches import LAUNCHES, one_kernel  # noqa: E402
from gpu_suite.peers.sources import REPOSITORIES, ptx_texts  # noqa: E402
from gpu_suite.sampling_layers import SamplingLayer, layers, operands  # noqa: E402
from gpu_suite.tables import microseconds, results  # noqa: E402

from ptx.emulator import EmulatorError  # noqa: E402
from ptx.model import Modelled, model_text  # noqa: E402
from ptx.replay import MACHINES, Machine, TraceError  # noqa: E402

_LEAST_US = 15.0  # shorter ones are mostly a launch
_ROW = "{peer:<22} {operation:<9} {layer:<16} {dtype:<8} {us:>7.1f} "


def main() -> None:
    parser = argparse.ArgumentParser(description="The model beside others' kernels.")
    parser.add_argument("run", type=pathlib.Path, metavar="RUN.json")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    args = parser.parse_args()
    found = results(json.loads(args.run.read_text()), "times-peers")
    gpu = next(name for name in MACHINES if name.partition(" ")[0] in found["device"])
    texts = ptx_texts(MACHINES[gpu].target.name)
    rows: list[dict[str, Any]] = []
    for peer, layer, dtype, operation in itertools.product(
        LAUNCHES, layers(tiny=False), ("float32", "float16"), ("forward", "backward")
    ):
        us = microseconds(found["peers"].get(peer, {}), layer.name, dtype, operation)
        if us is None or us < _LEAST_US:
            continue
        row: dict[str, Any] = {"peer": peer, "source": REPOSITORIES[peer], "operation": operation}
        row |= {"layer": layer.name, "dtype": dtype, "gpu": gpu, "us": us}
        try:
            modelled = _model(texts, peer, layer, dtype, operation, MACHINES[gpu])
        except (EmulatorError, TraceError) as error:
            row["not_modelled"] = str(error).partition("\n")[0]
            print(_ROW.format(**row), row["not_modelled"], flush=True)
        else:
            row |= {"modelled": modelled.us, "limit": modelled.limit}
            error = modelled.us / us - 1
            print(_ROW.format(**row), f"{modelled.us:>7.1f} {error:>+5.0%}  {modelled.limit}")
        rows.append(row)
    errors = [row["modelled"] / row["us"] - 1 for row in rows if "modelled" in row]
    print(f"Mean error {statistics.mean(map(abs, errors)):.0%} of {len(errors)} kernels.")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


def _model(
    texts: str, peer: str, layer: SamplingLayer, dtype: str, operation: str, machine: Machine
) -> Modelled:
    given = list(map(np.asarray, operands(layer, "float32", jnp.int32(0))))
    launch = LAUNCHES[peer](operation, layer, dtype, given)
    text = one_kernel(texts, launch.kernel)
    shared = launch.dynamic_shared
    return model_text(
        text, launch.grid, launch.block, launch.arguments, machine, dynamic_shared=shared
    )


if __name__ == "__main__":
    main()
