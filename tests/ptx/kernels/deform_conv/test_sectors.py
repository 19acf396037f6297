"""Additions of the gradient to the input fill the sectors that they touch."""

import pytest
from support.deform_conv_problem import Problem

from ptx.emulator.report import Sectors
from ptx.kernels.deform_conv.catalog import CONFIGS

pytestmark = pytest.mark.kept


# How many times the least possible. Four lanes have a pixel: before sm_90, where an instruction
# adds one number of a lane, they have 16 bytes to add to together, and half of a sector. Offset
# groups of 4 channels have no more at a corner on any GPU.
@pytest.mark.parametrize(
    ("config", "target", "most"),
    [
        ("R50-c3/bf16", "sm_90", 1.25),
        ("R50-c4/bf16", "sm_90", 1.25),
        ("BasicVSR++/bf16", "sm_90", 2.0),
        ("R50-c3/bf16", "sm_80", 2.0),
        ("R50-c4/bf16", "sm_80", 2.0),
        ("BasicVSR++/bf16", "sm_80", 2.0),
    ],
)
def test_sectors_of_additions(config, target, most):
    problem = Problem("backward_input", CONFIGS[config], 1, 16, 16, target=target)
    report = problem.outcome(statistics=True).report
    assert report is not None
    lines = problem.text.splitlines()
    additions = Sectors(0, 0, 0)
    for line, sectors in report.sectors.items():
        if "red.global" in lines[line - 1]:
            additions += sectors
    assert additions.requests > 1000
    assert additions.sectors <= most * additions.ideal, additions.per_request
