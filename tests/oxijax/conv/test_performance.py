"""What the machine code and the model say of the convolution kernels, on ResNet-50's layers."""

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
from ptx.isa.targets import TARGETS
from ptx.kernel import KernelDefinition
from ptx.kernels.conv import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, ConvConfig
from ptx.kernels.conv.catalog import CONFIGS
from ptx.kernels.conv.model import LAYERS, MODELLED, floor_us, launch, work
from ptx.model import DEVICES, modelled

pytestmark = pytest.mark.kept("oxijax/**/*.py", "docs/performance.md")

PAGE = (DOCS / "performance.md").read_text()
# Layers of each kind of plan and limit: the others are checked with -m full.
SAMPLE = ("conv1", "conv2-in", "conv2-3x3", "conv3-3x3-s2", "conv5-back")
ALL = [
    pytest.param(
        target, kernel, layer,
        marks=() if target == "sm_90" and layer in SAMPLE else pytest.mark.full,
    )
    for target in DEVICES
    for kernel in MODELLED
    for layer in LAYERS
]  # fmt: skip


@functools.cache
def table(target: str) -> dict[str, list[str]]:
    """The page's rows of a GPU: layer -> the other cells."""
    header = f"| {DEVICES[target].name} | floor, µs |"
    (found,) = re.findall(rf"^{re.escape(header)}.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.M)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]
    return {layer: cells for layer, *cells in rows}


def entry(kernel: str) -> KernelDefinition[ConvConfig]:
    definitions = {k.name: k for k in (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)}
    return definitions[f"conv_{kernel}"]


@pytest.mark.parametrize("target", DEVICES)
def test_the_page_has_every_layer(target):
    assert list(table(target)) == list(LAYERS)
    for layer, (config, images) in LAYERS.items():
        config = dataclasses.replace(config, float_type=bf16)
        floor = floor_us(config, images, DEVICES[target])
        assert float(table(target)[layer][0]) == pytest.approx(floor, rel=0.03)


def test_the_sums_are_those_of_the_table():
    sums = [sum(float(cells[i]) for cells in table("sm_90").values()) / 1e3 for i in (1, 4, 7)]
    written = "take {:.2f}, {:.2f} and {:.2f} ms on an H200".format(*sums)
    assert written in PAGE, f"update the page: {written}"


@pytest.mark.parametrize(("target", "kernel", "layer"), ALL)
def test_modelled_times(target, kernel, layer):
    """`work` raises where the SASS does not multiply as often as the plan says."""
    config, images = LAYERS[layer]
    config, gpu = dataclasses.replace(config, float_type=bf16), TARGETS[target]
    done = work(entry(kernel), config, gpu, images)
    time = modelled(done, DEVICES[target])
    floor, *cells = table(target)[layer]
    written, ratio, limit = cells[3 * MODELLED.index(kernel) :][:3]
    assert float(written) == pytest.approx(time.low, rel=0.03), "update the page"
    assert float(ratio) == pytest.approx(time.low / float(floor), rel=0.03, abs=0.06)
    assert limit == time.limit
    sass = disassemble(launch(entry(kernel), config, gpu, images).text, gpu)
    assert not [i for i in sass.instructions if "LDL" in i or "STL" in i]  # spills


@pytest.mark.parametrize("kernel", MODELLED)
def test_a_wrong_plan_is_noticed(kernel):
    target, (config, images) = TARGETS["sm_90"], LAYERS["conv4-in"]
    config = dataclasses.replace(config, float_type=bf16)
    right = entry(kernel)

    def with_other_tiles(k, config, plan, parameters):
        right.body(k, config, dataclasses.replace(plan, n=plan.n // 2), parameters)

    wrong = dataclasses.replace(right, body=with_other_tiles)
    with pytest.raises(ValueError, match="the model of its plan is out of date"):
        work(wrong, config, target, images)


def test_what_is_not_modelled():
    target, images = TARGETS["sm_90"], (1, 16, 16)
    with pytest.raises(ValueError, match="without tensor cores is not modelled"):
        work(entry("forward"), CONFIGS["wide/f32-exact"], target, images)
    with pytest.raises(ValueError, match="has direct kernels"):
        work(entry("forward"), CONFIGS["depthwise/bf16"], target, images)
    other = dataclasses.replace(entry("forward"), name="deform_conv_forward")
    with pytest.raises(ValueError, match="not deform_conv_forward"):
        work(other, CONFIGS["wide/bf16"], target, images)


@pytest.mark.parametrize("layer", ["conv1", "conv3-3x3-s2", "conv4-out", "conv4-back"])
def test_modelled_is_what_the_lowering_calls(layer):
    config, images = LAYERS[layer]
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
            found[call.kernel] = entry(call.kernel.removeprefix("conv_")).launch(
                call.config, "sm_90", shapes
            )
    for kernel in MODELLED:
        expected = launch(entry(kernel), config, TARGETS["sm_90"], images)
        assert found[f"conv_{kernel}"] == expected, kernel


def test_the_command(capsys, tmp_path):
    file = tmp_path / "figures.json"
    options = ["--target", "sm_90", "--layer", "conv2-*n", "--kernel", "backward_*"]
    assert main(["model", "--family", "conv", "--json", str(file), *options]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in printed[2:]] == [
        [kernel, "conv2-in/bf16", "H200"] for kernel in ("backward_input", "backward_weight")
    ]
    rows = json.loads(file.read_text())
    assert [row["spills"] for row in rows] == [0, 0]
    for row, first in zip(rows, (4, 7), strict=True):
        written = float(table("sm_90")["conv2-in"][first])
        assert row["time_us"][0] == pytest.approx(written, rel=0.03)
    assert main(["model", "--family", "conv", "--layer", "R50-c3"]) == 2
    assert "no layer R50-c3; there are conv1, " in capsys.readouterr().err
