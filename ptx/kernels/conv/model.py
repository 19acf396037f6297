"""The layers whose kernels are modelled; see `ptx.model`."""

from __future__ import annotations

from ptx.kernels.conv.catalog import RESNET50
from ptx.kernels.conv.definitions import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    backward_weight_parts,
)
from ptx.kernels.layer_model import ConvLayerModel

__all__ = ["MODEL"]

MODEL = ConvLayerModel(
    kernels={
        "forward": FORWARD,
        "backward_input": BACKWARD_INPUT,
        "backward_weight": BACKWARD_WEIGHT,
    },
    layers=RESNET50,
    parts=backward_weight_parts,
)
