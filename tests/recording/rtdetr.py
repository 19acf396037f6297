"""Records `tests/data/rtdetr_v2.npz`: RT-DETRv2 of transformers behind its hybrid encoder.

A small one with random weights, for both ways of sampling.
"""

# pyright: reportMissingImports=false
from typing import Any

import numpy as np
import torch
from support.paths import DATA
from transformers import RTDetrResNetConfig, RTDetrV2Config, RTDetrV2ForObjectDetection

from recording.files import record, run

FEATURES, CLASSES = 16, 3
SHAPES = ((6, 7), (3, 4), (2, 2))


class Features(torch.nn.Module):
    """In the place of the backbone: what the encoder would find is there already."""

    def forward(self, pixel_values: torch.Tensor, mask: Any) -> list[tuple[torch.Tensor, Any]]:
        return [(pixel_values, None)] * len(SHAPES)


class FromMaps(RTDetrV2ForObjectDetection):
    """From feature maps to boxes and logits, side by side."""

    def forward(self, **maps: torch.Tensor) -> Any:
        first, *_ = maps.values()
        pixels = first.new_zeros((len(first), 3, 8, 8))
        found = super().forward(pixels, encoder_outputs=([*maps.values()],))
        return torch.cat([found.pred_boxes, found.logits], -1)


def module(method: str) -> torch.nn.Module:
    backbone = RTDetrResNetConfig(
        embedding_size=4, hidden_sizes=[4, 4, 4, 4], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = RTDetrV2Config(
        backbone_config=backbone, encoder_in_channels=[4, 4, 4], encoder_hidden_dim=FEATURES,
        encoder_ffn_dim=8, encoder_attention_heads=2, d_model=FEATURES, num_queries=7,
        decoder_in_channels=[FEATURES] * 3, decoder_ffn_dim=20, decoder_layers=2,
        decoder_attention_heads=2, decoder_n_points=2, decoder_method=method, num_labels=CLASSES,
        num_denoising=0,
    )  # fmt: skip
    found = FromMaps(config)
    found.model.backbone = Features()
    found.model.encoder_input_proj = torch.nn.ModuleList([torch.nn.Identity()] * 3)
    found.model.encoder = torch.nn.Identity()
    return found


def make() -> dict[str, np.ndarray]:
    random, arrays = np.random.default_rng(5), {}
    maps = [random.standard_normal((2, FEATURES, *shape)).astype(np.float32) for shape in SHAPES]
    for method in ("default", "discrete"):
        heads: dict[str, np.ndarray] = {}

        def state(key: str, array: np.ndarray, heads: dict[str, np.ndarray] = heads) -> np.ndarray:
            if key.endswith("n_points_scale"):
                return np.full(array.shape, 0.5)
            # The heads are in a state twice.
            return heads.setdefault(key.removeprefix("model.decoder."), array)

        inputs = {f"map{level}": each for level, each in enumerate(maps)}
        config = {"method": {"default": "bilinear", "discrete": "nearest"}[method]}
        case = f"RTDETRv2/{method}"
        arrays |= record(case, lambda made=method, **_: module(made), config, inputs, state=state)
    return arrays


if __name__ == "__main__":
    run("rtdetr_v2.npz", make, DATA)
