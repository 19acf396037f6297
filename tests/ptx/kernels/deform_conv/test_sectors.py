"""What accesses touch of global memory: docs/performance.md has it in a table."""

import functools
import re

import pytest
from support.deform_conv_kernels import Call
from support.paths import DOCS
from support.sectors import Access, sectors_of_arrays

from ptx.emulator.report import Sectors
from ptx.kernels.deform_conv.catalog import CONFIGS, NETWORKS
from ptx.kernels.deform_conv.model import MODEL

pytestmark = pytest.mark.kept("docs/performance.md")

PAGE = (DOCS / "performance.md").read_text()
TARGETS = ("sm_80", "sm_90")
MOST = 1.25  # times the least possible, without a reason
# Kernel, access, targets, a cell for each layer, and the letter of a reason or nothing.
ROWS = re.findall(r"^\| (\w+) \| (\w+ \w+) \| (sm_\d\d|both) \| (.*) \| (\w?) \|$", PAGE, re.M)


@functools.cache
def touched(kernel: str, layer: str, target: str) -> dict[Access, Sectors]:
    """What accesses to each array touch, for one image of 16 x 16."""
    call = Call(kernel, CONFIGS[f"{layer}/bf16"], 1, 16, 16, target=target)
    report = call.outcome(statistics=True).report
    assert report is not None
    return dict(sectors_of_arrays(call.text, report))


def cell(sectors: Sectors | None) -> str:
    """Sectors of a request, and how many times the least possible that is."""
    return f"{sectors.per_request:.1f} ({times(sectors):.2f})" if sectors else "none"


def times(sectors: Sectors) -> float:
    return sectors.sectors / sectors.ideal


def rows(kernel: str) -> list[tuple[str, str, str, str]]:
    """The rows of a kernel, but for the reasons."""
    found = {t: {layer: touched(kernel, layer, t) for layer in NETWORKS} for t in TARGETS}
    accesses = dict.fromkeys(a for t in TARGETS for layer in NETWORKS for a in found[t][layer])
    result = []
    for access in accesses:
        cells = [
            " | ".join(cell(of_layer.get(access)) for of_layer in found[target].values())
            for target in TARGETS
        ]
        same = cells[0] == cells[1]
        for target, of_target in zip(["both"] if same else TARGETS, cells, strict=False):
            result.append((kernel, " ".join(access), target, of_target))
    return result


@pytest.mark.parametrize("kernel", MODEL.kernels)
def test_the_page_says_what_is_touched(kernel):
    on_the_page = [row[:4] for row in ROWS if row[0] == kernel]
    assert on_the_page == rows(kernel)


def test_what_is_wasted_has_a_reason():
    reasons = set(re.findall(r"^- \*\*(\w)\*\*: ", PAGE, re.M))
    assert {row[4] for row in ROWS} == {"", *reasons}
    for *row, cells, reason in ROWS:
        worst = max(float(value) for value in re.findall(r"\(([\d.]+)\)", cells))
        assert (worst > MOST) == bool(reason), row


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
