"""Machine code and modelled times of the convolution kernels, on ResNet-50's layers."""

import dataclasses
import functools
import json
import re

import jax
import jax.numpy as jnp
import pytest
from support.paths import DOCS

import oxijax
from oxijax.__main__ import main
from oxijax._core.launch._spec import Spec
from oxijax.testing import emulate_gpu
from ptx.isa.dtypes import bf16
from ptx.isa.sass import disassemble
from ptx.kernels.conv.model import MODEL
from ptx.replay import MACHINES

pytestmark = pytest.mark.slow

PAGE = (DOCS / "modelled.md").read_text()
# Layers of each kind of plan and limit: the others are checked with -m slow.
SAMPLE = ("conv1", "conv2-in", "conv2-3x3", "conv3-3x3-s2", "conv5-back")
GPUS = ("H200", "A100 40GB")
KERNELS = tuple(MODEL.kernels)


@functools.cache
def table(gpu: str) -> dict[str, list[str]]:
    """The page's rows of a GPU: layer -> the other cells."""
    header = f"| {gpu} | floor, µs |"
    (found,) = re.findall(rf"^{re.escape(header)}.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.M)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]
    return {layer: cells for layer, *cells in rows}


# GPU, layer, floor, kernel, and its cells: all are in the name by which a verdict is kept.
ALL = [
    pytest.param(
        gpu, layer, floor, kernel, *cells[3 * i :][:3],
        marks=() if gpu == "H200" and layer in SAMPLE else pytest.mark.slow,
    )
    for gpu in GPUS
    for i, kernel in enumerate(KERNELS)
    for layer, (floor, *cells) in table(gpu).items()
]  # fmt: skip


@pytest.mark.parametrize("gpu", GPUS)
def test_the_page_has_every_layer(gpu):
    assert list(table(gpu)) == list(MODEL.layers)
    for layer, of_network in MODEL.layers.items():
        config = dataclasses.replace(of_network.config, float_type=bf16)
        floor = MODEL.floor_us(config, of_network.extent, MACHINES[gpu])
        assert float(table(gpu)[layer][0]) == pytest.approx(floor, abs=0.06)


def test_the_sums_are_those_of_the_table():
    sums = [sum(float(cells[i]) for cells in table("H200").values()) / 1e3 for i in (1, 4, 7)]
    written = "take {:.2f}, {:.2f} and {:.2f} ms on an H200".format(*sums)
    assert written in (DOCS / "performance.md").read_text(), f"update the page: {written}"


@pytest.mark.parametrize(("gpu", "layer", "floor", "kernel", "us", "ratio", "limit"), ALL)
def test_modelled_times(gpu, layer, floor, kernel, us, ratio, limit):
    config, images = MODEL.layers[layer].config, MODEL.layers[layer].extent
    config, gpu_target = dataclasses.replace(config, float_type=bf16), MACHINES[gpu].target
    modelled = MODEL.model(kernel, config, images, MACHINES[gpu])
    assert float(us) == pytest.approx(modelled.us, rel=0.03), "update the page"
    assert float(ratio) == pytest.approx(modelled.us / float(floor), rel=0.03, abs=0.06)
    assert limit == modelled.limit
    definition = MODEL.kernels[kernel]
    shapes = MODEL.shapes(definition, config, images)
    text = definition.launch(config, gpu_target, list(shapes.values())).text
    sass = disassemble(text, gpu_target)
    assert not [i for i in sass.instructions if "LDL" in i.text or "STL" in i.text]  # spills


@pytest.mark.parametrize("layer", ["conv1", "conv3-3x3-s2", "conv4-out", "conv4-back"])
def test_modelled_is_what_the_lowering_calls(layer):
    config, images = MODEL.layers[layer].config, MODEL.layers[layer].extent
    config = dataclasses.replace(config, float_type=bf16)
    kernel_size = (config.kernel_h, config.kernel_w)
    conv = functools.partial(
        oxijax.conv, strides=(config.stride_h, config.stride_w), padding=config.pad_h
    )

    def forward_and_backward(x, weight):
        y, vjp = jax.vjp(conv, x, weight)
        return y, vjp(y)

    x = jax.ShapeDtypeStruct((*images, config.in_channels), jnp.bfloat16)
    weight = (*kernel_size, config.in_channels_per_group, config.out_channels)
    with emulate_gpu("sm_90"):
        lowered = jax.jit(forward_and_backward).lower(x, jax.ShapeDtypeStruct(weight, jnp.bfloat16))
    found = {}
    for line in lowered.as_text().splitlines():
        if spec := re.search(r'\bspec = "(.*?)"', line):
            types = re.findall(r"tensor<([\dx]+)x\w+>", line.rpartition(" : ")[2])
            shapes = [tuple(map(int, dims.split("x"))) for dims in types]
            call = Spec.from_json(spec[1].replace("\\22", '"'))
            name = call.kernel.removeprefix("conv_")
            found[name] = MODEL.kernels[name].launch(call.config, "sm_90", shapes)
    for name, definition in MODEL.kernels.items():
        shapes = list(MODEL.shapes(definition, config, images).values())
        assert found[name] == definition.launch(config, "sm_90", shapes), name


def test_the_command(capsys, tmp_path):
    file = tmp_path / "figures.json"
    options = ["--gpu", "H200", "--layer", "conv2-*n", "--kernel", "backward_*"]
    assert main(["model", "--family", "conv", "--json", str(file), *options]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in printed[2:]] == [
        [kernel, "conv2-in/bf16", "H200"] for kernel in ("backward_input", "backward_weight")
    ]
    for row, first in zip(json.loads(file.read_text()), (4, 7), strict=True):
        written = float(table("H200")["conv2-in"][first])
        assert row["us"] == pytest.approx(written, rel=0.03)
        assert 0 < row["busy"]["tensor"] < 1
    assert main(["model", "--family", "conv", "--layer", "R50-c3"]) == 2
    assert "no layer R50-c3; there are conv1, " in capsys.readouterr().err
