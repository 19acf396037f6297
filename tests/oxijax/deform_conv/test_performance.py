"""Machine code and modelled times of the fast kernels, on layers of known networks."""

import re

import pytest
from support.deform_conv_kernels import KERNELS
from support.modelled import modelled_rows
from support.paths import DOCS

from oxijax.__main__ import main
from ptx.isa.sass import disassemble
from ptx.isa.targets import TARGETS
from ptx.kernels.deform_conv import (
    BACKWARD_OFFSET,
    BACKWARD_WEIGHT,
    FORWARD,
)
from ptx.kernels.deform_conv.catalog import CONFIGS, NETWORKS
from ptx.kernels.deform_conv.config import DeformConvConfig
from ptx.kernels.deform_conv.model import MODEL
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.deform_conv.samples.corners import CornerTable
from ptx.kernels.deform_conv.samples.tables import PositionTable, SampleTable
from ptx.kernels.network_layer import distinct_configs
from ptx.tile.direct import DirectPlan

pytestmark = pytest.mark.slow

PAGE = (DOCS / "modelled.md").read_text()
GPUS = ("H200", "A100 40GB")  # the second is checked with -m slow
# GPU, kernel, layer, and the other cells: all are in the name by which a verdict is kept.
ROWS = [
    pytest.param(gpu, *row, marks=() if gpu == GPUS[0] else pytest.mark.slow)
    for gpu in GPUS
    for row in re.findall(
        rf"^\| {gpu} \| (\w+) \| (\S+) \| (\d+) \| (\d+) \| (\w+) \| (\d+) \| ([\d,]+) \| (\d) \|",
        PAGE,
        re.M,
    )
]


def test_the_page_has_every_kernel_and_layer():
    assert [tuple(row.values[:3]) for row in ROWS] == [
        (gpu, kernel, layer)
        for gpu in GPUS
        for kernel in MODEL.kernels
        for layer in NETWORKS
        if kernel in MODEL.kernels_of(layer)
    ]


@pytest.mark.parametrize(
    ("gpu", "kernel", "layer", "us", "floor", "limit", "registers", "shared", "blocks"), ROWS
)
def test_modelled_times(gpu, kernel, layer, us, floor, limit, registers, shared, blocks):
    (row,) = modelled_rows("deform_conv", layer, gpu, kernel)
    assert float(us) == pytest.approx(row["us"], rel=0.03), "update the page"
    assert float(floor) == pytest.approx(row["floor_us"], abs=0.6)
    assert limit == row["limit"]
    assert int(registers) == row["registers"]
    assert int(shared.replace(",", "")) == row["shared_bytes"]
    assert int(blocks) == row["blocks_per_sm"]


BY_DTYPE = re.findall(
    rf"^\| ({'|'.join(GPUS)}) \| (\w+) \| (\S+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.M
)


def test_the_page_has_every_dtype():
    assert [row[:3] for row in BY_DTYPE] == [tuple(row.values[:3]) for row in ROWS]
    assert [row[3] for row in BY_DTYPE] == [row.values[3] for row in ROWS]


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize(("gpu", "kernel", "layer", "bf16", "f16", "f32"), BY_DTYPE)
def test_modelled_times_of_dtypes(gpu, kernel, layer, bf16, f16, f32, dtype):
    (row,) = modelled_rows("deform_conv", layer, gpu, kernel, dtype=dtype)
    written = float({"f16": f16, "f32": f32}[dtype])
    assert written == pytest.approx(row["us"], rel=0.03, abs=0.6), "update the page"


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("layer", distinct_configs(NETWORKS))
@pytest.mark.parametrize("kernel", MODEL.kernels)
def test_main_loops(kernel, layer, target):
    entry, gpu = KERNELS[kernel], TARGETS[target]
    sass = disassemble(entry.write_named(f"{layer}/bf16", gpu).text, gpu)
    (loop,) = [loop for loop in sass.loops if loop.count("HMMA")]
    plan = entry.plan(CONFIGS[f"{layer}/bf16"], gpu, None)
    assert isinstance(plan, SamplePlan)
    products = plan.m * plan.n * plan.k // (16 * 8 * 16 * plan.threads // 32)
    assert loop.count("HMMA.16816.F32.BF16") >= min(16, products)
    assert loop.count("LDGSTS.E.BYPASS.128") >= 1  # B
    assert loop.count("LDG.E.128") >= plan.m // 32  # A of a lane, or what it is made of
    assert not [i for i in sass.instructions if "LDL" in i.text or "STL" in i.text]


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
    options = ["--gpu", "H200", "--layer", "R50-c5", "--kernel", "backward_input"]
    assert main(["model", *options]) == 0
    first, _, row = capsys.readouterr().out.splitlines()
    assert first.startswith("Modelled, not measured.")
    assert row.split()[:3] == ["backward_input", "R50-c5/bf16", "H200"]
    (written,) = [p.values[3] for p in ROWS if p.values[:3] == ("H200", *row.split()[:1], "R50-c5")]
    assert float(row.split()[6]) == pytest.approx(float(str(written)), rel=0.03)
