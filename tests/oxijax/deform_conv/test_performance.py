"""What the machine code and the model say of the fast kernels, on layers of known networks."""

import dataclasses
import re

import pytest
from support.deform_conv_problem import KERNELS
from support.paths import DOCS

from oxijax.__main__ import main
from ptx.isa.sass import disassemble
from ptx.isa.targets import TARGETS
from ptx.kernels.deform_conv import (
    BACKWARD_INPUT_GATHER,
    BACKWARD_OFFSET,
    BACKWARD_WEIGHT,
    FORWARD,
)
from ptx.kernels.deform_conv.catalog import CONFIGS, IMAGES, NETWORKS
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.corners import CornerTable
from ptx.kernels.deform_conv.model import MODELLED, work
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.deform_conv.sample_table import PositionTable, SampleTable
from ptx.model import DEVICES, Modelled, modelled
from ptx.tile.direct import DirectPlan

pytestmark = pytest.mark.kept("oxijax/**/*.py", "docs/performance.md")

PAGE = (DOCS / "performance.md").read_text()
# Kernel, layer, target and modelled microseconds on an H200 in bf16.
ROWS = re.findall(r"^\| (\w+) \| (\S+) \| ([\d-]+) \| ([\d-]+) \| \d\.\d\d \|", PAGE, re.M)


def limits(written: str) -> tuple[float, float]:
    """The lower and the higher of "830-1460"; the same for "138"."""
    low, _, high = written.partition("-")
    return float(low), float(high or low)


def time_of(kernel: str, config: str, target: str) -> Modelled:
    layer = config.partition("/")[0]
    entry = KERNELS[kernel]
    done = work(entry, CONFIGS[config], TARGETS[target], IMAGES[layer])
    return modelled(done, DEVICES[target])


def test_the_page_has_every_kernel_and_layer():
    assert [row[:2] for row in ROWS] == [(k, layer) for k in MODELLED for layer in NETWORKS]


@pytest.mark.parametrize(("kernel", "layer", "target", "written"), ROWS)
def test_modelled_times(kernel, layer, target, written):
    time = time_of(kernel, f"{layer}/bf16", "sm_90")
    assert (time.low, time.high) == pytest.approx(limits(written), rel=0.03), "update the page"
    low, high = limits(target)
    assert time.low <= 1.3 * low, time
    assert time.high <= 1.3 * high, time


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("layer", NETWORKS)
@pytest.mark.parametrize("kernel", MODELLED)
def test_main_loops(kernel, layer, target):
    entry, gpu = KERNELS[kernel], TARGETS[target]
    sass = disassemble(entry.write_named(f"{layer}/bf16", gpu).text, gpu)
    loop = sass.main_loop
    assert loop.count("HMMA.16816.F32.BF16") >= 16
    assert loop.count("LDGSTS.E.BYPASS.128") >= 1  # B
    # A, or what it is made of; offset groups of 4 channels have 8 bytes of each corner.
    narrow = layer == "BasicVSR++" and kernel in ("forward", "backward_weight")
    assert loop.count("LDG.E.64" if narrow else "LDG.E.128") >= 4
    assert not [i for i in sass.instructions if "LDL" in i or "STL" in i]


@pytest.mark.parametrize("kernel", MODELLED)
def test_a_wrong_plan_is_noticed(kernel):
    entry, target = KERNELS[kernel], TARGETS["sm_90"]
    other, write = CONFIGS["BasicVSR++/bf16"], entry.body
    plan = entry.plan(other, target, None)
    swapped = dataclasses.replace(entry, body=lambda k, c, _, p: write(k, other, plan, p))
    with pytest.raises(ValueError, match=r"is out of date|loops around the products"):
        work(swapped, CONFIGS["R50-c4/bf16"], target, IMAGES["R50-c4"])


def test_what_is_not_modelled():
    target, images = TARGETS["sm_90"], (1, 16, 16)
    with pytest.raises(ValueError, match="without tensor cores is not modelled"):
        work(FORWARD, CONFIGS["16-channels/f32-exact"], target, images)
    with pytest.raises(ValueError, match="modelled are tables of corners and positions"):
        work(FORWARD, CONFIGS["16-channels/bf16"], target, images)
    with pytest.raises(ValueError, match="not deform_conv_backward_input_gather"):
        work(BACKWARD_INPUT_GATHER, CONFIGS["R50-c3/bf16"], target, images)


def test_configurations_cover_the_plans():
    """Every kind of plan that the chooser makes has a configuration that check assembles."""
    assert all(isinstance(config, DeformConvConfig) for config in CONFIGS.values())
    for config in CONFIGS.values():
        config.validate()
    for target in (TARGETS["sm_75"], TARGETS["sm_90"]):
        fast = {CornerTable, PositionTable} if target.sm > 75 else set()
        for kernel in (FORWARD, BACKWARD_OFFSET, BACKWARD_WEIGHT):
            plans = [kernel.plan(c, target, kernel.launch_sizes.get(n)) for n, c in CONFIGS.items()]
            assert {p.table for p in plans if isinstance(p, SamplePlan)} == {SampleTable} | fast
            assert any(isinstance(plan, DirectPlan) for plan in plans)
    assert FORWARD.launch_sizes
    for name, sizes in FORWARD.launch_sizes.items():
        config, target = CONFIGS[name], TARGETS["sm_90"]
        small, large = (FORWARD.plan(config, target, s) for s in (sizes, None))
        assert small != large


def test_the_command(capsys):
    assert main(["model", "--target", "sm_90", "--layer", "R50-c5"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("Modelled, not measured.")
    assert [line.split()[:3] for line in printed[2:]] == [
        [kernel, "R50-c5/bf16", "H200"] for kernel in MODELLED
    ]
    time = time_of("forward", "R50-c5/bf16", "sm_90")
    assert printed[2].split()[7] == f"{time.low:.0f}"
