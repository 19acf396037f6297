"""Modelled times of the sampling kernels, which are those in the page."""

import re

import pytest
from support.modelled import modelled_rows
from support.paths import DOCS

from oxijax.__main__ import main
from ptx.kernels.sampling.model import MODEL, VOLUMES, WINDOWS

pytestmark = pytest.mark.slow

ROWS = re.findall(
    r"^\| (\S+) \| (b?f\d+) \| (H200|A100 40GB) \| (\d+) \| (\d+|-) \| (\d+|-) \| (\d+) \|$",
    (DOCS / "sampling.md").read_text(),
    re.M,
)
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
