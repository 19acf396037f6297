"""What the model says of the sampling operators' kernels, and the page has."""

import dataclasses
import re

import pytest
from support.paths import DOCS

from oxijax._cli.model import row
from ptx.isa.dtypes import bf16
from ptx.kernels.sampling.model import MODEL
from ptx.replay import MACHINES

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
def test_modelled_times(layer, gpu, cells):
    *times, floor = cells
    for kernel, us in zip(MODEL.kernels, times, strict=True):
        found = row("sampling", kernel, layer, "bf16", gpu)
        assert float(us) == pytest.approx(found["us"], rel=0.03, abs=0.6), "update the page"
        assert float(floor) == pytest.approx(found["floor_us"], abs=0.6)


def test_deformable_detr_on_an_h200():
    """The encoder, as a batch of one: forward at most 0.15 ms, and backward 1 ms."""
    config, batch = MODEL.layers["DDETR-encoder"]
    config = dataclasses.replace(config, float_type=bf16)
    us = {k: MODEL.model(k, config, batch, MACHINES["H200"]).us for k in MODEL.kernels}
    assert us["forward"] <= 150
    assert us["backward_value"] + us["backward_points"] <= 1000
