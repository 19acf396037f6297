"""Modelled times of the sampling kernels, which are those in the page."""

import re

import pytest
from support.modelled import modelled_rows
from support.paths import DOCS

from oxijax.__main__ import main
from ptx.kernels.sampling.model import MODEL

pytestmark = pytest.mark.slow

ROWS = re.findall(
    r"^\| (\S+) \| (H200|A100 40GB) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$",
    (DOCS / "sampling.md").read_text(),
    re.M,
)


def test_the_page_has_every_layer():
    expected = {(layer, gpu) for gpu in ("H200", "A100 40GB") for layer in MODEL.layers}
    assert {tuple(cells[:2]) for cells in ROWS} == expected


# All cells are in the name by which a verdict is kept.
@pytest.mark.parametrize(
    ("layer", "gpu", "forward", "backward_value", "backward_points", "floor"),
    [pytest.param(*row, marks=() if row[1] == "H200" else pytest.mark.slow) for row in ROWS],
)
def test_modelled_times(layer, gpu, forward, backward_value, backward_points, floor):
    rows = modelled_rows("sampling", layer, gpu, *MODEL.kernels)
    for row, us in zip(rows, (forward, backward_value, backward_points), strict=True):
        assert float(us) == pytest.approx(row["us"], rel=0.03, abs=0.6), "update the page"
        assert float(floor) == pytest.approx(row["floor_us"], abs=0.6)


def test_deformable_detr_on_an_h200():
    """The encoder, as a batch of one: forward at most 0.15 ms, and backward 1 ms."""
    (cells,) = (row[2:] for row in ROWS if row[:2] == ("DDETR-encoder", "H200"))
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
    (written,) = (row[2:5] for row in ROWS if row[:2] == ("DDETR-decoder", "H200"))
    for cells, us in zip(printed, written, strict=True):
        assert float(cells[6]) == pytest.approx(float(us), rel=0.03, abs=0.6)
