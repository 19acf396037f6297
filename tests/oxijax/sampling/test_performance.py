"""Modelled times of the sampling kernels, which are those in the page."""

import re

import pytest
from support.modelled import modelled_rows
from support.paths import DOCS

from oxijax.__main__ import main
from ptx.isa.dtypes import bf16, f32
from ptx.kernels.sampling import BACKWARD_VALUE, SamplingConfig
from ptx.kernels.sampling import model as sampling_model
from ptx.kernels.sampling.geometry import Window
from ptx.kernels.sampling.model import MODEL, VOLUMES, WINDOWS
from ptx.kernels.sampling.plan import SamplingPlan, without_tiles
from ptx.model import model
from ptx.replay import MACHINES

pytestmark = pytest.mark.slow

_PAGE = (DOCS / "sampling.md").read_text()
ROWS = re.findall(
    r"^\| (\S+) \| (b?f\d+) \| (H200|A100 40GB) \| (\d+) \| (\d+|-) \| (\d+|-) \| (\d+) \|$",
    _PAGE,
    re.M,
)
TILES = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", _PAGE, re.M)
FAMILIES = {"sampling": MODEL, "volumes": VOLUMES, "windows": WINDOWS}
GPUS = ("H200", "A100 40GB")


def test_the_page_has_every_layer():
    expected = [
        (layer, dtype, gpu)
        for gpu in GPUS
        for dtype in ("bf16", "f16", "f32")
        for layer in MODEL.layers
    ]
    expected += [(name, "f32", gpu) for gpu in GPUS for name in [*VOLUMES.layers, *WINDOWS.layers]]
    assert [row[:3] for row in ROWS] == expected


@pytest.mark.parametrize(
    ("layer", "dtype", "gpu", "forward", "backward_value", "backward_points", "floor"), ROWS
)
def test_modelled_times(layer, dtype, gpu, forward, backward_value, backward_points, floor):
    written = (forward, backward_value, backward_points)
    (family,) = (name for name, model in FAMILIES.items() if layer in model.layers)
    kernels = FAMILIES[family].kernels_of(layer)
    assert [us != "-" for us in written] == [kernel in kernels for kernel in MODEL.kernels]
    rows = modelled_rows(family, layer, gpu, *kernels, dtype=dtype)
    for row, us in zip(rows, written, strict=False):
        assert float(us) == pytest.approx(row["us"], rel=0.03, abs=0.6), "update the page"
        assert float(floor) == pytest.approx(row["floor_us"], abs=0.6)


def test_deformable_detr_on_an_h200():
    """The encoder, as a batch of one: forward at most 0.15 ms, and backward 1 ms."""
    (cells,) = (row[3:] for row in ROWS if row[:3] == ("DDETR-encoder", "bf16", "H200"))
    forward, *backward, _ = map(int, cells)
    assert forward <= 150
    assert sum(backward) <= 1000


@pytest.mark.parametrize(("heads", "channels", "offsets", "tiled", "units"), TILES)
def test_tiles_of_queries(monkeypatch, heads, channels, offsets, tiled, units):
    monkeypatch.setattr(sampling_model, "OFFSET_DEVIATION", float(offsets))
    config = SamplingConfig(
        int(heads), int(channels), ((56, 56),), (9,), Window((56, 56)),
        float_type=bf16, location_type=f32, weight_type=f32,
    )  # fmt: skip
    extent, machine = (64, 56 * 56), MACHINES["H200"]
    own = BACKWARD_VALUE.plan(config, machine.target, None)
    assert isinstance(own, SamplingPlan)
    for written, plan in ((tiled, own), (units, without_tiles(own))):
        operands = MODEL.operands(BACKWARD_VALUE, config, extent)
        shapes = MODEL.shapes(BACKWARD_VALUE, config, extent)
        found = model(BACKWARD_VALUE, config, operands, shapes, machine, plan=plan)
        assert float(written) == pytest.approx(found.us, rel=0.03), "update the page"


def test_the_command(capsys):
    options = ["--gpu", "H200", "--layer", "DDETR-decoder"]
    assert main(["model", "--family", "sampling", *options]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [cells[:3] for cells in printed] == [
        [kernel, "DDETR-decoder/bf16", "H200"] for kernel in MODEL.kernels
    ]
    (written,) = (row[3:6] for row in ROWS if row[:3] == ("DDETR-decoder", "bf16", "H200"))
    for cells, us in zip(printed, written, strict=True):
        assert float(cells[6]) == pytest.approx(float(us), rel=0.03, abs=0.6)
