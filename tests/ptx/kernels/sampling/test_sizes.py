"""Sizes of images are parameters of the kernels, whose texts do not depend on them."""

import dataclasses

import pytest

from ptx.isa.dtypes import bf16
from ptx.kernels.sampling import (
    BACKWARD_POINTS,
    BACKWARD_VALUE,
    BACKWARD_VALUE_GATHER,
    FORWARD,
    WINDOWS_BACKWARD_VALUE,
    WINDOWS_FORWARD,
)
from ptx.kernels.sampling.catalog import CONFIGS, NETWORKS
from ptx.kernels.sampling.windows import WindowsConfig

KERNELS = (FORWARD, BACKWARD_VALUE, BACKWARD_POINTS, BACKWARD_VALUE_GATHER)


def texts(configs):
    return {kernel.write(config, "sm_90").text for config in configs for kernel in KERNELS[:3]}


def test_a_layer_has_one_text_of_each_kernel_for_40_sizes():
    """As in training of Deformable DETR, on images whose shorter side has 480 to 800 pixels."""
    layer = dataclasses.replace(NETWORKS["DDETR-encoder"].config, float_type=bf16)
    configs = []
    for side in range(480, 800, 8):
        levels = tuple((-(-side // step), -(-side * 5 // (3 * step))) for step in (8, 16, 32, 64))
        configs.append(dataclasses.replace(layer, levels=levels))
    assert len(set(configs)) == 40
    assert len(texts(configs)) == 3


def test_a_window_has_one_text_of_each_kernel():
    layer = CONFIGS["v4/f32"]
    larger = dataclasses.replace(
        layer, levels=((20, 31),), geometry=dataclasses.replace(layer.geometry, out_size=(10, 31))
    )
    assert len(texts([layer, larger])) == 3


@pytest.mark.parametrize("name", ["grid", "grid-corners", "grid-reflection-corners"])
def test_a_grid_of_one_row_has_a_text_of_its_own(name):
    """Its positions are calculated otherwise."""
    layer = CONFIGS[f"{name}/f32"]
    levels = [((5, 6),), ((9, 2),), ((1, 6),), ((1, 7),)]
    assert len(texts(dataclasses.replace(layer, levels=level) for level in levels)) == 2 * 3


def test_windows_have_one_text_of_each_kernel():
    configs = [WindowsConfig(1, size, (4, 4)) for size in ((46, 62), (1, 1), (55, 128))]
    kernels = WINDOWS_FORWARD, WINDOWS_BACKWARD_VALUE
    assert len({kernel.write(c, "sm_90").text for c in configs for kernel in kernels}) == 2
