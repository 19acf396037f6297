"""The model of a GPU beside measured times of others' kernels: DCNv3, DCNv4, Deformable DETR.

    python benchmarks/model_peers.py RUN.json [--json FILE]

RUN.json is a run of the GPU suite whose section times-peers has measured them. Their sources are
where `gpu_suite.peers.sources` looks, and nvcc, ptxas and nvdisasm are on PATH. oxijax's own
kernels are `python -m oxijax model --operators`.
"""

import argparse
import json
import pathlib
import statistics
import sys

import jax.numpy as jnp
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gpu_suite.peers.launches import LAUNCHES, one_kernel  # noqa: E402
from gpu_suite.peers.sources import REPOSITORIES, ptx_texts  # noqa: E402
from gpu_suite.sampling_layers import layers, operands  # noqa: E402
from gpu_suite.tables import microseconds, results  # noqa: E402

from ptx.model import model_text  # noqa: E402
from ptx.replay import MACHINES  # noqa: E402

_LEAST_US = 15.0  # shorter ones are mostly a launch


def main() -> None:
    parser = argparse.ArgumentParser(description="The model beside others' kernels.")
    parser.add_argument("run", type=pathlib.Path, metavar="RUN.json")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    args = parser.parse_args()
    found = results(json.loads(args.run.read_text()), "times-peers")
    gpu = next(
        name
        for name in MACHINES
        if found["device"].endswith(name.partition(" ")[0])
        or name.partition(" ")[0] in found["device"]
    )
    texts = ptx_texts(MACHINES[gpu].target.name)
    rows = []
    for name, launch_of in LAUNCHES.items():
        for layer in layers(tiny=False):
            for dtype in ("float32", "float16"):
                for operation in ("forward", "backward"):
                    us = microseconds(found["peers"].get(name, {}), layer.name, dtype, operation)
                    if us is None or us < _LEAST_US:
                        continue
                    given = operands(layer, "float32", jnp.int32(0))
                    launch = launch_of(operation, layer, dtype, list(map(np.asarray, given)))
                    modelled = model_text(
                        *(one_kernel(texts, launch.kernel), launch.grid, launch.block),
                        *(launch.arguments, MACHINES[gpu]), dynamic_shared=launch.dynamic_shared,
                    )  # fmt: skip
                    row = {
                        **{"peer": name, "source": REPOSITORIES[name], "operation": operation},
                        **{"layer": layer.name, "dtype": dtype, "gpu": gpu, "us": us},
                        **{"modelled": modelled.us, "limit": modelled.limit},
                        "busy": dict(modelled.busy),
                    }
                    rows.append(row)
                    print(
                        f"{name:<22} {operation:<9} {layer.name:<16} {dtype:<8} {us:>8.1f} "
                        f"{modelled.us:>8.1f} {modelled.us / us - 1:>+5.0%}  {modelled.limit}",
                        flush=True,
                    )
    errors = [row["modelled"] / row["us"] - 1 for row in rows]
    print(f"Mean error {statistics.mean(map(abs, errors)):.0%}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
