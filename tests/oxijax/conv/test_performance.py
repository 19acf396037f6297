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
from ptx.model import Modelled
from ptx.replay import MACHINES

pytestmark = pytest.mark.slow

PAGE = (DOCS / "performance.md").read_text()
GPU = "H200"
KERNELS = tuple(MODEL.kernels)


@functools.cache
def modelled(layer: str, kernel: str) -> Modelled:
    """What the model says of a kernel on a layer, in bf16."""
    of_network = MODEL.layers[layer]
    config = dataclasses.replace(of_network.config, float_type=bf16)
    return MODEL.model(kernel, config, of_network.extent, MACHINES[GPU])


def test_the_page_has_the_sums_of_all_layers():
    sums = [sum(modelled(layer, kernel).us for layer in MODEL.layers) / 1e3 for kernel in KERNELS]
    floor = sum(
        MODEL.floor_us(
            dataclasses.replace(layer.config, float_type=bf16), layer.extent, MACHINES[GPU]
        )
        for layer in MODEL.layers.values()
    )
    said = re.search(
        r"take ([\d.]+), ([\d.]+) and ([\d.]+) ms on an H200,.*?"
        r"([\d.]+), ([\d.]+) and ([\d.]+) times the floor",
        PAGE, re.S,
    )  # fmt: skip
    assert said
    assert [*map(float, said.groups())] == pytest.approx(
        [*sums, *(1e3 * each / floor for each in sums)], rel=0.02
    ), "update the page"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("layer", MODEL.layers)
def test_no_kernel_spills(layer, kernel):
    config = dataclasses.replace(MODEL.layers[layer].config, float_type=bf16)
    definition, target = MODEL.kernels[kernel], MACHINES[GPU].target
    shapes = MODEL.shapes(definition, config, MODEL.layers[layer].extent)
    sass = disassemble(definition.launch(config, target, list(shapes.values())).text, target)
    assert not [i for i in sass.instructions if "LDL" in i.text or "STL" in i.text]


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
    for row in json.loads(file.read_text()):
        assert row["us"] == pytest.approx(modelled("conv2-in", row["kernel"]).us)
        assert 0 < row["busy"]["tensor"] < 1
    assert main(["model", "--family", "conv", "--layer", "R50-c3"]) == 2
    assert "no layer R50-c3; there are conv1, " in capsys.readouterr().err
