"""`oxijax.tune` on a GPU, in processes that have a folder of their own for what is kept."""

import json
import pathlib

import pytest
from support.processes import python

pytestmark = pytest.mark.gpu

LAYER = """
import dataclasses, json
import jax, jax.numpy as jnp, numpy as np
import oxijax
from oxijax._core.gpu.driver import Driver, driver

random = np.random.default_rng(0)
operands = [
    jnp.asarray(random.standard_normal(shape), jnp.bfloat16)
    for shape in ((1, 6, 8, 32), (1, 6, 8, 18), (3, 3, 32, 32))
]
blocks, load = [], Driver.load

def noted(self, launch, device):
    blocks.append(launch.block[0])
    return load(self, launch, device)

Driver.load = noted

def result(function):
    blocks.clear()
    return np.asarray(function(*operands), np.float32).tobytes().hex()
"""

TUNE = """
layer = jax.jit(oxijax.deform_conv)
before, own = result(layer), list(blocks)
blocks.clear()
x, *others = operands
tuned = oxijax.tune(layer, jax.ShapeDtypeStruct(x.shape, x.dtype), *others)
(call,) = tuned
assert blocks == own + [block for c in call.candidates for block in [c.plan.threads]], blocks
assert call.kernel == "deform_conv_forward"
assert call.gpu == driver().devices[0].name
assert 2 <= len(call.candidates) <= 8
assert all(timed.microseconds > 0 for timed in call.candidates)
assert call.kept.microseconds == min(timed.microseconds for timed in call.candidates)
assert len(oxijax.config.tuning) == 1
assert result(layer) == before
assert blocks == [call.kept.plan.threads], "a program that is compiled already has the kept plan"

# From here on the file says that a plan of fewer threads is the fastest.
from oxijax._core.tuning import tune as module
other = next(c.plan for c in call.candidates if c.plan.threads != own[0])
module.time_launches = lambda call, launches: [float(l.block[0] != other.threads) for l in launches]
(call,) = oxijax.tune(oxijax.deform_conv, *operands)
assert call.kept.plan.threads == other.threads
assert result(layer) == before
print(json.dumps([before, own[0], other.threads, blocks[0]]))
"""

LATER = """
y = result(jax.jit(oxijax.deform_conv))
print(json.dumps([y, blocks[0], len(oxijax.config.tuning)]))
oxijax.config.tuning.clear()
print(json.dumps([result(jax.jit(oxijax.deform_conv)), blocks[0], len(oxijax.config.tuning)]))
"""


def run(program: str, folder: pathlib.Path) -> list[str]:
    """The lines that a program prints after `LAYER`, with a folder for tuned plans."""
    status, printed = python("-c", LAYER + program, OXIJAX_TUNING_DIR=str(folder))
    assert status == 0, printed
    return printed.splitlines()


def test_a_later_process_has_the_kept_plan(tmp_path):
    y, own, kept, used = json.loads(run(TUNE, tmp_path)[-1])
    assert used == kept != own
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("tuning-")

    tuned, cleared = map(json.loads, run(LATER, tmp_path)[-2:])
    assert tuned == [y, kept, 1]
    assert cleared == [y, own, 0]

    file.write_text("{")
    printed = run(LATER, tmp_path)
    warning = f"RuntimeWarning: oxijax: tuned plans are not read: {file}: "
    assert any(warning in line for line in printed)
    assert json.loads(printed[-1]) == [y, own, 0]
    assert file.read_text() == "{"


def test_a_program_that_is_a_cuda_graph(tmp_path):
    """It has been captured before: what it launches is found all the same."""
    program = """
from oxijax._core.tuning import candidates
candidates._MODEL_SECONDS = 0.0
def layers(x, offset, weight):
    y = jnp.sin(oxijax.deform_conv(x, offset, weight))
    return oxijax.deform_conv(y, offset, weight)

options = {
    "xla_gpu_graph_min_graph_size": 1, "xla_gpu_enable_command_buffer": "FUSION,CUSTOM_CALL",
}
compiled = jax.jit(layers).lower(*operands).compile(options)
before = [result(compiled) for _ in range(3)]
tuned = oxijax.tune(compiled, *operands)
print(json.dumps([[call.kernel for call in tuned], [*before, result(compiled)]]))
"""
    kernels, results = json.loads(run(program, tmp_path)[-1])
    assert kernels == ["deform_conv_forward"]
    assert len(set(results)) == 1


def test_calls_within_a_loop_and_a_gradient(tmp_path):
    program = """
def loss(weight):
    def step(y, _):
        return oxijax.deform_conv(y, operands[1], weight), None
    y, _ = jax.lax.scan(step, operands[0], length=2)
    return jnp.sum(y.astype(jnp.float32))

from oxijax._core.tuning import candidates
candidates._MODEL_SECONDS = 0.0
tuned = oxijax.tune(jax.grad(loss), operands[2])
assert {call.ordered_by for call in tuned} == {"generation"}
print(json.dumps(sorted(call.kernel for call in tuned)))
"""
    assert json.loads(run(program, tmp_path)[-1]) == [
        "deform_conv_backward_input",
        "deform_conv_backward_weight",
        "deform_conv_forward",
    ]
