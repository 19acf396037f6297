"""Times of kernels that were measured on a GPU, beside which the model's are put."""

from __future__ import annotations

import dataclasses

__all__ = ["MEASURED", "Measured"]


@dataclasses.dataclass(frozen=True)
class Measured:
    """The median time of a kernel on a layer.

    Attributes:
      family, kernel, layer, dtype: what `python -m oxijax model` calls them.
      us: microseconds, with the pass of XLA that adds up partial sums where there is one.
      gpu: the GPU, as `ptx.replay.MACHINES` calls it.
      source: the file in `benchmarks/results`.
    """

    family: str
    kernel: str
    layer: str
    dtype: str
    us: float
    gpu: str = "H200"
    source: str = "2026-11-27-h200-jax-0.11.2-torch-2.11.0.json"


# Kernels that take several times as long as a launch; not those after whose lists XLA sorts, nor
# those that were another kernel then.
MEASURED = (
    Measured("deform_conv", "forward", "R50-c3", "bf16", 256.9),
    Measured("deform_conv", "backward_offset", "R50-c3", "bf16", 238.4),
    Measured("deform_conv", "backward_weight", "R50-c3", "bf16", 231.8),
    Measured("deform_conv", "forward", "R50-c3", "f32", 469.1),
    Measured("deform_conv", "backward_offset", "R50-c3", "f32", 585.8),
    Measured("deform_conv", "backward_weight", "R50-c3", "f32", 506.8),
    Measured("deform_conv", "backward_input", "R50-c3", "f32", 1064.0),
    Measured("deform_conv", "forward", "R50-c4", "bf16", 175.1),
    Measured("deform_conv", "backward_offset", "R50-c4", "bf16", 166.8),
    Measured("deform_conv", "backward_weight", "R50-c4", "bf16", 210.7),
    Measured("deform_conv", "forward", "R50-c4", "f32", 358.8),
    Measured("deform_conv", "backward_offset", "R50-c4", "f32", 530.3),
    Measured("deform_conv", "backward_weight", "R50-c4", "f32", 517.1),
    Measured("deform_conv", "backward_input", "R50-c4", "f32", 710.7),
    Measured("deform_conv", "forward", "R50-c5", "bf16", 165.4),
    Measured("deform_conv", "backward_offset", "R50-c5", "bf16", 166.9),
    Measured("deform_conv", "backward_weight", "R50-c5", "bf16", 234.5),
    Measured("deform_conv", "backward_input", "R50-c5", "bf16", 311.6),
    Measured("deform_conv", "forward", "R50-c5", "f32", 358.5),
    Measured("deform_conv", "backward_offset", "R50-c5", "f32", 412.6),
    Measured("deform_conv", "backward_weight", "R50-c5", "f32", 676.8),
    Measured("deform_conv", "backward_input", "R50-c5", "f32", 423.5),
    Measured("deform_conv", "forward", "BasicVSR++", "bf16", 156.5),
    Measured("deform_conv", "forward", "BasicVSR++", "f32", 254.4),
    Measured("deform_conv", "forward", "BasicVSR++-train", "bf16", 81.4),
    Measured("deform_conv", "backward_offset", "BasicVSR++-train", "bf16", 150.6),
    Measured("deform_conv", "backward_weight", "BasicVSR++-train", "bf16", 117.9),
    Measured("deform_conv", "backward_input", "BasicVSR++-train", "bf16", 284.9),
    Measured("deform_conv", "forward", "BasicVSR++-train", "f32", 128.3),
    Measured("deform_conv", "backward_offset", "BasicVSR++-train", "f32", 270.6),
    Measured("deform_conv", "backward_weight", "BasicVSR++-train", "f32", 170.6),
    Measured("deform_conv", "backward_input", "BasicVSR++-train", "f32", 328.4),
    Measured("sampling", "forward", "DDETR-encoder", "bf16", 75.4),
    Measured("sampling", "backward_points", "DDETR-encoder", "bf16", 93.0),
    Measured("sampling", "forward", "DDETR-encoder", "f32", 121.2),
    Measured("sampling", "backward_value", "DDETR-encoder", "f32", 384.6),
    Measured("sampling", "backward_points", "DDETR-encoder", "f32", 149.8),
    Measured("sampling", "forward", "InternImage-T-1", "bf16", 18.7),
    Measured("sampling", "backward_points", "InternImage-T-1", "bf16", 23.9),
    Measured("sampling", "forward", "InternImage-T-1", "f32", 29.7),
    Measured("sampling", "backward_value", "InternImage-T-1", "f32", 77.5),
    Measured("sampling", "backward_points", "InternImage-T-1", "f32", 34.0),
)
