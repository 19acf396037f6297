"""Sectors of global memory that accesses of deformable convolution touch."""

import functools

import pytest
from support.deform_conv_kernels import DeformConvCall
from support.sectors import TARGETS, Access, check_waste, sectors_of_arrays, times

from ptx.emulator.report import Sectors
from ptx.kernels.deform_conv.catalog import CONFIGS, NETWORKS
from ptx.kernels.deform_conv.model import MODEL
from ptx.kernels.network_layer import distinct_configs

pytestmark = pytest.mark.slow


@functools.cache
def touched(kernel: str, layer: str, target: str) -> dict[Access, Sectors]:
    """What accesses to each array touch, for one image of 16 x 16."""
    call = DeformConvCall(kernel, CONFIGS[f"{layer}/bf16"], 1, 16, 16, target=target)
    report = call.outcome(statistics=True).report
    assert report is not None
    return dict(sectors_of_arrays(call.text, report))


# docs/performance.md has the reasons.
ALLOWED = {
    "forward": {"load offset": 8, "load mask": 10.6, "load x": 1.75, "store y": 2},
    "backward_offset": {
        "load offset": 8, "load mask": 10.7, "load x": 1.75,
        "store grad_mask": 10.7, "store grad_offset": 8,
    },
    "backward_input": {"load offset": 8, "load mask": 9, "add grad_x": 1.77},
    "backward_input_gather": {
        "load starts": 1.32, "load corner_weights": 2.4, "load order": 1.29, "store grad_x": 2,
    },
    "backward_weight": {"load offset": 8, "load mask": 9.78, "load x": 1.83},
}  # fmt: skip


@pytest.mark.parametrize("kernel", MODEL.kernels)
def test_few_sectors_are_wasted(kernel):
    layers = distinct_configs(NETWORKS)
    launches = (touched(kernel, layer, target) for layer in layers for target in TARGETS)
    check_waste(launches, ALLOWED[kernel])


# Four lanes have a pixel: before sm_90, where an instruction adds one number of a lane, they have
# 16 bytes to add to together, and half of a sector. Offset groups of 4 channels have no more at a
# corner on any GPU.
@pytest.mark.parametrize(
    ("layer", "target", "most"),
    [
        ("R50-c3", "sm_90", 1.25),
        ("R50-c4", "sm_90", 1.25),
        ("BasicVSR++", "sm_90", 2.0),
        ("R50-c3", "sm_80", 2.0),
        ("R50-c4", "sm_80", 2.0),
        ("BasicVSR++", "sm_80", 2.0),
    ],
)
def test_additions_fill_sectors(layer, target, most):
    additions = touched("backward_input", layer, target)["add", "grad_x"]
    assert additions.requests > 1000
    assert times(additions) <= most
