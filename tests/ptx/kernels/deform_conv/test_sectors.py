"""Sectors of global memory that accesses touch, which docs/modelled.md has in a table."""

import functools

import pytest
from support.deform_conv_kernels import DeformConvCall
from support.paths import DOCS
from support.sectors import Access, SectorTable, sectors_of_arrays, times

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


TABLE = SectorTable((DOCS / "modelled.md").read_text(), [*distinct_configs(NETWORKS)], touched)


@pytest.mark.parametrize("kernel", MODEL.kernels)
def test_the_page_says_what_is_touched(kernel):
    assert TABLE.written(kernel) == TABLE.counted(kernel)


def test_what_is_wasted_has_a_reason():
    TABLE.check_reasons()


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
