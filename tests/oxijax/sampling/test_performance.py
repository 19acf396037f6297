"""What the model says of the sampling operators' kernels, and the page has."""

import re

import pytest
from support.modelled import modelled_rows
from support.paths import DOCS

from ptx.kernels.sampling.model import MODEL

pytestmark = pytest.mark.kept("oxijax/_cli/model.py", "docs/sampling.md")

ROWS = re.findall(
    r"^\| (\S+) \| (H200|A100 40GB) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$",
    (DOCS / "sampling.md").read_text(),
    re.M,
)


def test_the_page_has_every_layer():
    expected = {(layer, gpu) for gpu in ("H200", "A100 40GB") for layer in MODEL.layers}
    assert {tuple(cells[:2]) for cells in ROWS} == expected


@pytest.mark.parametrize(
    ("layer", "gpu", "cells"),
    [
        pytest.param(layer, gpu, cells, marks=() if gpu == "H200" else pytest.mark.full)
        for layer, gpu, *cells in ROWS
    ],
)
def test_modelled_times(layer, gpu, cells, tmp_path):
    *times, floor = cells
    options = ["--family", "sampling", "--layer", layer, "--gpu", gpu]
    rows = {row["kernel"]: row for row in modelled_rows(tmp_path, *options)}
    assert list(rows) == list(MODEL.kernels)
    for row, us in zip(rows.values(), times, strict=True):
        assert float(us) == pytest.approx(row["us"], rel=0.03, abs=0.6), "update the page"
        assert float(floor) == pytest.approx(row["floor_us"], abs=0.6)


def test_deformable_detr_on_an_h200():
    """The encoder, as a batch of one: forward at most 0.15 ms, and backward 1 ms."""
    (cells,) = (row[2:] for row in ROWS if row[:2] == ("DDETR-encoder", "H200"))
    forward, *backward, _ = map(int, cells)
    assert forward <= 150
    assert sum(backward) <= 1000
