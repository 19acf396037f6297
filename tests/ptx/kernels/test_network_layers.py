"""The layers that are modelled and timed are those that networks have."""

import dataclasses

import pytest
from support import networks

from ptx.kernels.conv.catalog import RESNET50
from ptx.kernels.deform_conv.catalog import NETWORKS as DEFORM_CONV
from ptx.kernels.sampling.catalog import NETWORKS as SAMPLING

# A layer's name -> the network, and the shape of its inputs.
_DETECTOR = (networks.dcn_resnet50, (8, 800, 1344, 3))
_DETR = (networks.deformable_detr, (1, 800, 1333, 3))
_INTERNIMAGE = (networks.internimage_t, (8, 224, 224, 3))
ORIGINS = {
    "R50-c3": _DETECTOR,
    "R50-c4": _DETECTOR,
    "R50-c5": _DETECTOR,
    "BasicVSR++": (networks.basicvsr, (1, 3, 180, 320, 3)),
    "BasicVSR++-train": (networks.basicvsr, (8, 3, 64, 64, 3)),
    "DDETR-encoder": _DETR,
    "DDETR-decoder": _DETR,
    "RT-DETR-decoder": (networks.rt_detr, (1, 640, 640, 3)),
    "InternImage-T-1": _INTERNIMAGE,
    "InternImage-T-3": _INTERNIMAGE,
}


def test_every_layer_has_an_origin():
    assert list(ORIGINS) == [*DEFORM_CONV, *SAMPLING]
    for layer in (*DEFORM_CONV.values(), *SAMPLING.values(), *RESNET50.values()):
        assert layer.network
        assert layer.source


@pytest.mark.parametrize("name", DEFORM_CONV)
def test_deform_conv(name):
    layer = DEFORM_CONV[name]
    of_images = {"offset_type": None, "mask_type": None, "pad_below": None, "pad_right": None}
    found = networks.layers_of(*ORIGINS[name], "deform_conv_forward")
    assert (layer.config, layer.extent) in [
        (dataclasses.replace(config, **of_images), shapes[0][:3]) for config, shapes in found
    ]


@pytest.mark.parametrize("name", SAMPLING)
def test_sampling(name):
    layer = SAMPLING[name]
    of_images = {"location_type": None, "weight_type": None}
    found = networks.layers_of(*ORIGINS[name], "sampling_forward")
    assert (layer.config, layer.extent) in [
        (dataclasses.replace(config, **of_images), (shapes[0][0], shapes[1][1]))
        for config, shapes in found
    ]
