"""Every layer of known networks has enough warps on an SM, on every target."""

import dataclasses
import math

import pytest

from ptx.definition import KernelDefinition
from ptx.isa.assembler import assemble
from ptx.isa.dtypes import bf16, f16, f32
from ptx.isa.targets import TARGETS
from ptx.kernels.conv.model import MODEL as CONV
from ptx.kernels.deform_conv.model import MODEL as DEFORM_CONV
from ptx.kernels.sampling.model import MODEL as SAMPLING
from ptx.launch import Launch

pytestmark = pytest.mark.slow

FAMILIES = {"deform_conv": DEFORM_CONV, "conv": CONV, "sampling": SAMPLING}
NAMED = [
    # The others, of which there are many alike, are checked with -m slow.
    pytest.param(
        family, layer,
        marks=() if family != "conv" or layer in ("conv1", "conv2-3x3", "conv5-3x3")
        else pytest.mark.slow,
    )
    for family in FAMILIES
    for layer in FAMILIES[family].layers
]  # fmt: skip


def launches(family: str, layer: str, target: str) -> list[tuple[KernelDefinition, Launch, int]]:
    """Each kernel of a layer, its launch, and the blocks that its plan promises."""
    model, found = FAMILIES[family], []
    config, extent = model.layers[layer].config, model.layers[layer].extent
    if family == "sampling":  # locations of the same type
        config = dataclasses.replace(config, location_type=None)
    for dtype in (bf16, f16, f32):
        of_type = dataclasses.replace(config, float_type=dtype)
        for kernel in model.kernels.values():
            shapes = list(model.shapes(kernel, of_type, extent).values())
            promised = kernel.instance(of_type, target, shapes).plan.min_blocks or 1
            found.append((kernel, kernel.launch(of_type, TARGETS[target], shapes), promised))
    return found


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize(("family", "layer"), NAMED)
def test_two_blocks_or_eight_warps(family, layer, target):
    for kernel, how, promised in launches(family, layer, target):
        (assembled,) = assemble(how.text, target).values()
        blocks = assembled.blocks_per_sm(None, how.dynamic_shared)
        warps = blocks * math.prod(how.block) // 32
        assert blocks >= 2 or warps >= 8, (kernel.name, blocks, warps)
        assert blocks >= promised, kernel.name  # .minnctapersm can be met
        assert assembled.spills == 0
