"""Times BasicVSR++ in Flax beside the same in PyTorch, on this machine's CPU.

python benchmarks/basicvsr_times.py --json FILE

It needs an environment with `pip install ".[demo]"` and what
`benchmarks/requirements-torchvision.txt` lists. Both networks have the same weights and are given
the same video in float32; results are compared before anything is timed. Programs take turns in
one process, on as many threads. Medians are printed, and the file has the spread over the runs too.
What compilation takes is not in them.
"""

# pyright: reportMissingImports=false
import argparse
import datetime
import json
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

# Threads of OpenMP that have no work would otherwise keep a core from the program that is next.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Last, since there is a folder `ptx` among the tests.
sys.path += [str(pathlib.Path(__file__).parents[1] / name) for name in ("examples", "tests")]

import jax
import numpy as np
import torch
import torchvision
from basicvsr_network import BasicVSRPlusPlus, load
from flax import nnx
from recording.basicvsr_pp_modules import BasicVSRPlusPlus as TorchNetwork

from oxijax._cli.bench_rounds import core_count, machine, paired_ratios, spread, versions

TOLERANCE = 1e-3  # of the gradient to the video too, whose terms come from ReLUs and cells


def weights_of(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Random weights with which no part is idle, and flows of a few pixels."""
    random = np.random.default_rng(0)
    state = {}
    for name, value in network.state_dict().items():
        array = value.numpy()
        if not name.endswith(("spynet.mean", "spynet.std")):
            # With larger ones features grow from block to block, and so does what float32 rounds.
            scale = 0.05 if array.ndim == 1 else 0.8 * np.prod(array.shape[1:]) ** -0.5
            array = scale * random.standard_normal(array.shape)
        state[name] = torch.from_numpy(np.asarray(array, np.float32))
    return state


def torch_programs(network: torch.nn.Module, video: np.ndarray) -> dict[str, Callable[[], Any]]:
    frames = torch.from_numpy(np.ascontiguousarray(np.moveaxis(video, -1, 2)))
    parameters = [p for p in network.parameters() if p.requires_grad]

    def forward():
        with torch.no_grad():
            return network(frames)

    def both():
        moving = frames.clone().requires_grad_()
        y = network(moving)
        return y, torch.autograd.grad(y.square().mean() / 2, [moving, *parameters])[0]

    return {"forward": forward, "forward and backward": both}


def jax_programs(network: BasicVSRPlusPlus, video: np.ndarray) -> dict[str, Callable[[], Any]]:
    structure, parameters = nnx.split(network)

    def run(parameters, frames):
        return nnx.merge(structure, parameters)(frames)

    def loss(parameters, frames):
        y = run(parameters, frames)
        return (y**2).mean() / 2, y

    gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    frames = jax.numpy.asarray(video)
    forward = jax.jit(run).lower(parameters, frames).compile()
    both = jax.jit(gradients).lower(parameters, frames).compile()

    def forward_backward():
        (_, y), (_, of_frames) = jax.block_until_ready(both(parameters, frames))
        return y, of_frames

    return {
        "forward": lambda: jax.block_until_ready(forward(parameters, frames)),
        "forward and backward": forward_backward,
    }


def check_same(ours: Any, theirs: Any) -> None:
    """Raises unless both have the same video and the same gradient to it."""
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
    for mine, other in pairs:
        expected = np.moveaxis(other.detach().numpy(), 2, -1)
        error = np.linalg.norm(np.asarray(mine) - expected) / np.linalg.norm(expected)
        if not error < TOLERANCE:
            raise SystemExit(f"the networks differ by {error:.3g}: nothing to compare")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--json", type=pathlib.Path, required=True, help="where results go")
    add("--runs", type=int, default=5, help="of each program; %(default)s")
    add("--frames", type=int, default=3, help="of the video; %(default)s")
    add("--size", type=int, nargs=2, default=(64, 64), help="of small frames; 64 64")
    add("--blocks", type=int, default=7, help="residual blocks of a branch; %(default)s")
    add("--shared", action="store_true", help="note that the machine did other work")
    args = parser.parse_args()
    where, threads = machine(), core_count()
    torch.set_num_threads(threads)
    theirs = TorchNetwork(num_blocks=args.blocks)
    theirs.load_state_dict(weights_of(theirs))
    shapes = nnx.eval_shape(
        lambda: BasicVSRPlusPlus(num_blocks=args.blocks, unroll=True, rngs=nnx.Rngs(0))
    )
    ours = load(shapes, {k: v.numpy() for k, v in theirs.state_dict().items()}, prefix="")
    shape = (1, args.frames, *args.size, 3)
    video = np.random.default_rng(1).random(shape, np.float32)
    programs = {"oxijax": jax_programs(ours, video), "torch": torch_programs(theirs, video)}
    times: dict[str, dict[str, float]] = {}
    spreads: dict[str, dict[str, dict[str, float]]] = {}
    for what in programs["oxijax"]:
        both = {name: each[what] for name, each in programs.items()}
        check_same(*(run() for run in both.values()))
        seconds: dict[str, list[float]] = {name: [] for name in both}
        for _ in range(args.runs):
            for name, run in both.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
        times[what] = {f"{k}_s": statistics.median(v) for k, v in seconds.items()}
        times[what]["ratio"] = times[what]["torch_s"] / times[what]["oxijax_s"]
        spreads[what] = {f"{k}_s": spread(v) for k, v in seconds.items()}
        spreads[what]["time_ratio"] = spread(paired_ratios(seconds["oxijax"], seconds["torch"]))
        print(f"{what}: {times[what]}", flush=True)
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {**where, "shared": args.shared},
        "versions": {
            **versions(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
        },
        "runs": args.runs,
        "video": shape,
        "blocks": args.blocks,
        "median_seconds": times,
        "spread": spreads,
    }
    args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
