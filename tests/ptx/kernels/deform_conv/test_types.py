"""Images, offsets and masks of any types together have kernels, on every GPU."""

import dataclasses
import itertools

import pytest

from ptx.isa.assembler import assemble
from ptx.isa.dtypes import bf16, f16, f32, f64
from ptx.isa.targets import TARGETS
from ptx.kernels import deform_conv
from ptx.kernels.deform_conv import DeformConvConfig

pytestmark = pytest.mark.slow

KERNELS = (
    deform_conv.FORWARD,
    deform_conv.BACKWARD_INPUT,
    deform_conv.BACKWARD_INPUT_GATHER,
    deform_conv.BACKWARD_OFFSET,
    deform_conv.BACKWARD_WEIGHT,
)
TYPES = (f16, bf16, f32, f64)
CONFIGS = (
    DeformConvConfig(32, 16, use_bias=True),  # tiles
    DeformConvConfig(4, 4, groups=4, use_bias=True),  # direct
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("float_type", TYPES, ids=str)
def test_types(float_type, target):
    for config, offset_type, mask_type in itertools.product(CONFIGS, TYPES, (*TYPES, None)):
        config = dataclasses.replace(
            config,
            float_type=float_type,
            offset_type=offset_type,
            mask_type=mask_type,
            use_modulation=mask_type is not None,
        )
        for kernel in KERNELS:
            (assembled,) = assemble(kernel.write(config, target).text, target).values()
            assert assembled.spill_stores == 0, (kernel.name, config)
