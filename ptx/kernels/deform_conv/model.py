"""Layers whose kernels are modelled; see `ptx.model`."""

from __future__ import annotations

from ptx.kernels.deform_conv.backward_data import BACKWARD_INPUT, BACKWARD_OFFSET
from ptx.kernels.deform_conv.backward_weight import BACKWARD_WEIGHT, backward_weight_parts
from ptx.kernels.deform_conv.catalog import IMAGES, NETWORKS
from ptx.kernels.deform_conv.forward import FORWARD
from ptx.kernels.layer_model import LayerModel

__all__ = ["MODEL"]

MODEL = LayerModel(
    kernels={
        "forward": FORWARD,
        "backward_offset": BACKWARD_OFFSET,
        "backward_input": BACKWARD_INPUT,
        "backward_weight": BACKWARD_WEIGHT,
    },
    layers={name: (config, IMAGES[name]) for name, config in NETWORKS.items()},
    parts=backward_weight_parts,
    spread={"offset": 0.5},  # pixels
)
