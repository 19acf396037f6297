r"""Nsight Compute's counters of kernels on layers of networks, by which the model's memory is made.

    METRICS=$(python benchmarks/counters.py metrics)
    ncu --clock-control none -k 'regex:(deformable_conv|sampling)' --metrics $METRICS --csv \
        --page raw python benchmarks/counters.py run > FILE.csv
    python benchmarks/counters.py read FILE.csv > FILE.json

Each kernel runs once; Nsight Compute empties the caches before it.
"""

import argparse
import csv
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

# By what the JSON file calls them.
METRICS = {
    "ns": "gpu__time_duration.sum",
    "cycles": "sm__cycles_elapsed.max",
    "blocks": "launch__grid_size",
    "registers": "launch__registers_per_thread",
    "warps_active_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "issue_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "l1_percent": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "l2_percent": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1_wavefronts": "l1tex__data_pipe_lsu_wavefronts.sum",
    "l1_wavefronts_of_shared_memory": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "addition_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum",
    "addition_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum",
    "l1_hit_percent": "l1tex__t_sector_hit_rate.pct",
    "l2_read_sectors": "lts__t_sectors_op_read.sum",
    "l2_addition_sectors": "lts__t_sectors_op_red.sum",
    "l2_write_sectors": "lts__t_sectors_op_write.sum",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
    "memory_read_bytes": "dram__bytes_read.sum",
    "memory_written_bytes": "dram__bytes_write.sum",
    "instructions": "sm__inst_executed.sum",
}
# (layer, dtype, operations), in the order in which they run.
CALLS = (
    ("R50-c3", "float32", ("input",)),
    ("BasicVSR++-train", "bfloat16", ("forward", "offset", "input", "weight")),
    ("BasicVSR++-train", "float32", ("offset", "input", "weight")),
    ("BasicVSR++", "bfloat16", ("forward",)),
    ("R50-c3", "bfloat16", ("forward", "offset")),
    ("InternImage-T-1", "float32", ("value",)),
    ("DDETR-encoder", "bfloat16", ("forward", "value", "points")),
    ("DDETR-encoder", "float32", ("forward", "value", "points")),
)
# Numbers of the operands whose gradients one kernel makes.
_OPERANDS = {"input": [0], "offset": [1, 3], "weight": [2], "value": [0], "points": [1, 2]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Nsight Compute's counters of kernels.")
    parser.add_argument("what", choices=("metrics", "run", "read"))
    parser.add_argument("csv", nargs="?", type=pathlib.Path, metavar="FILE.csv")
    args = parser.parse_args()
    if args.what == "metrics":
        print(",".join(METRICS.values()))
    elif args.what == "run":
        _run()
    elif args.csv is None:
        parser.error("read needs FILE.csv")
    else:
        print(json.dumps({"date": time.strftime("%Y-%m-%d"), "kernels": read(args.csv)}, indent=1))


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """The counters of each kernel, from Nsight Compute's CSV; raises ValueError if some lack."""
    with path.open(newline="") as file:
        heading, _, *rows = (row for row in csv.reader(file) if len(row) > len(METRICS))
    layers = [layer for layer, _, operations in CALLS for _ in operations]
    found = []
    for layer, row in zip(layers, rows, strict=True):
        cells = dict(zip(heading, row, strict=True))
        counted = {name: float(cells[key].replace(",", "")) for name, key in METRICS.items()}
        numbers = {name: int(n) if n.is_integer() else n for name, n in counted.items()}
        found.append({"kernel": cells["Kernel Name"], "layer": layer, **numbers})
    return found


def _run() -> None:
    # Of a graph Nsight Compute would see one launch.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_command_buffer="
    import jax
    import jax.numpy as jnp
    from gpu_suite.jax_jobs import forward, gradients_of

    for layer, dtype, operations in CALLS:
        function, operands = _of_layer(layer)
        given = operands(dtype, jnp.int32(0))
        for name in operations:
            if name == "forward":
                program = forward(function)
            else:
                program = gradients_of(function, _OPERANDS[name])
            jax.block_until_ready(jax.jit(program)(*given))


def _of_layer(name: str) -> tuple[Callable, Callable]:
    """The operator, and what makes its operands of (dtype, seed)."""
    import functools

    from gpu_suite import deform_conv_layers, sampling_layers

    import oxijax

    for layer in sampling_layers.layers(tiny=False):
        if layer.name == name:
            return layer.ours, functools.partial(sampling_layers.operands, layer)
    case = deform_conv_layers.layers(tiny=False)[name]

    def deform_conv(x, offset, weight, mask, bias):
        return oxijax.deform_conv(x, offset, weight, mask, bias, **case.options)

    return deform_conv, functools.partial(deform_conv_layers.operands, case)


if __name__ == "__main__":
    main()
