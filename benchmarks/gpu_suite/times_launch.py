"""Section times-launch: what a call costs of a few pixels, with and without XLA's CUDA graphs.

XLA makes CUDA graphs ("command buffers") of a program's launches, and records them again where
addresses change. Each setting of its flag needs a process of its own.
"""

import contextlib
import json
import os
import pathlib
import sys

import jax
import jax.numpy as jnp

from gpu_suite import processes
from gpu_suite.layers import LAUNCH_FLOOR
from gpu_suite.recorder import Mode, Recorder
from gpu_suite.sampling_layers import SamplingLayer, operands
from gpu_suite.timing import chain, time_chain
from oxijax.testing import emulate_gpu

__all__ = ["FLAGS", "run"]

FLAGS = {
    "XLA's choice": "",
    "no graphs": "--xla_gpu_enable_command_buffer=",
}
_CALLS = (1, 4, 16)  # of a program
_LAYER = SamplingLayer(LAUNCH_FLOOR, 1, ((4, 4),), 2, 8, 4, 4, normalize=False)


def run(recorder: Recorder) -> None:
    for name, flag in FLAGS.items():
        flags = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
        environment = {**os.environ, "XLA_FLAGS": flags}
        command = [sys.executable, "-m", "gpu_suite.times_launch", recorder.mode.value]
        folder = pathlib.Path(__file__).parents[2]
        status, said = processes.run(recorder, command, env=environment, cwd=folder)
        if status is None:
            recorder.cut(name)
        elif status:
            recorder.fail(name, said[-3000:])
        else:
            recorder.put("launches", name, value=json.loads(said.splitlines()[-1]))


def main(mode: Mode) -> None:
    """Prints the times of a call, by how many of them a program has."""
    found = {}
    for calls in _CALLS:
        sets = [operands(_LAYER, "float32", jnp.int32(i))[:-1] for i in range(calls)]
        with emulate_gpu("sm_90") if mode.emulated else contextlib.nullcontext():
            compiled = jax.jit(chain(_LAYER.ours)).lower(*sets).compile()
        found[str(calls)] = time_chain(compiled, sets, mode.tiny)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Mode(sys.argv[1]))
