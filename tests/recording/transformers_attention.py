"""Records `tests/data/transformers_attention.npz`: the attention of transformers' detectors.

The modules are transformers' own, with random weights. A case's config is that of our layer.
"""

# pyright: reportMissingImports=false
import importlib
import inspect
import types
import warnings
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from support.paths import DATA

from recording.files import record, run

SHAPES = ((5, 7), (3, 4))
FEATURES, HEADS, LEVELS = 12, 3, 2


class Attention(NamedTuple):
    """An attention module of a family of models.

    Attributes:
      module: the name of the family's module in `transformers.models`.
      name: what its classes begin with.
      config: arguments of the family's configuration, besides sizes.
      layer: arguments of our layer.
      of_config: whether the module is made of the configuration alone.
      boxes: whether references are boxes, one for all levels; else points in each level.
      masked: whether values are masked.
      true_is_padding: whether its mask is true where values count as zeros.
    """

    module: str
    name: str
    config: Mapping[str, Any] = types.MappingProxyType({})
    layer: Mapping[str, Any] = types.MappingProxyType({})
    of_config: bool = False
    boxes: bool = True
    masked: bool = False
    true_is_padding: bool = False


V2 = {"decoder_n_levels": LEVELS, "decoder_n_points": 3}
FAMILIES = {
    "DeformableDetr": Attention("deformable_detr", "DeformableDetr", boxes=False, masked=True),
    "GroundingDino": Attention("grounding_dino", "GroundingDino", masked=True),
    "MMGroundingDino": Attention("mm_grounding_dino", "MMGroundingDino", boxes=False),
    "Mask2Former": Attention(
        "mask2former", "Mask2FormerPixelDecoderEncoder", boxes=False, masked=True,
        true_is_padding=True,
    ),
    "OneFormer": Attention(
        "oneformer", "OneFormerPixelDecoderEncoder", boxes=False, masked=True, true_is_padding=True
    ),
    "OmDetTurbo": Attention("omdet_turbo", "OmDetTurbo"),
    "RTDetr": Attention("rt_detr", "RTDetr"),
    "RTDetrV2": Attention("rt_detr_v2", "RTDetrV2", V2, of_config=True),
    "RTDetrV2/discrete": Attention(
        "rt_detr_v2", "RTDetrV2", {**V2, "decoder_method": "discrete"}, {"method": "nearest"},
        of_config=True,
    ),
    "RTDetrV2/offset_scale": Attention(
        "rt_detr_v2", "RTDetrV2", {**V2, "decoder_offset_scale": 0.2}, {"offset_scale": 0.2},
        of_config=True,
    ),
    "DFine": Attention(
        "d_fine", "DFine", {"decoder_n_points": [3, 6]},
        {"num_points": (3, 6), "project": False}, of_config=True,
    ),
    "Deimv2": Attention(
        "deimv2", "Deimv2", {"decoder_n_points": [3, 6]},
        {"num_points": (3, 6), "project": False}, of_config=True,
    ),
    "LwDetr": Attention("lw_detr", "LwDetr"),
    "RfDetr": Attention("rf_detr", "RfDetr"),
}  # fmt: skip


def make_module(family: Attention) -> Any:
    """The family's module, whose call has the arguments of our layer."""
    package = f"transformers.models.{family.module}"
    module = importlib.import_module(f"{package}.modeling_{family.module}")
    cls = getattr(module, f"{family.name}MultiscaleDeformableAttention")
    known = {"query": "hidden_states", "value": "encoder_hidden_states"}

    def forward(self: Any, padding_mask: Any = None, **operands: Any) -> torch.Tensor:
        mask = padding_mask if family.true_is_padding or padding_mask is None else ~padding_mask
        options = {
            "attention_mask": mask,
            "spatial_shapes": torch.tensor(SHAPES),
            "spatial_shapes_list": list(SHAPES),
            "level_start_index": torch.tensor([0, SHAPES[0][0] * SHAPES[0][1]]),
        }
        takes = inspect.signature(cls.forward).parameters
        options = {name: value for name, value in options.items() if name in takes}
        return cls.forward(self, **{known.get(k, k): v for k, v in operands.items()}, **options)[0]

    adapted = type(cls.__name__, (cls,), {"forward": forward})
    if "config" not in inspect.signature(cls.__init__).parameters:
        return adapted(FEATURES, HEADS, LEVELS, 3)
    name = next(n for n in vars(module) if n.endswith("Config") and family.name.startswith(n[:-6]))
    sizes = {"d_model": FEATURES, "num_feature_levels": LEVELS, "decoder_attention_heads": HEADS}
    theirs = getattr(module, name)().to_dict()
    config = types.SimpleNamespace(**{**theirs, **sizes, **family.config})
    return adapted(config) if family.of_config else adapted(config, HEADS, 3)


def inputs_of(case: str, family: Attention) -> dict[str, np.ndarray]:
    random = np.random.default_rng(zlib.crc32(case.encode()) + 1)
    pixels = sum(height * width for height, width in SHAPES)
    references = random.uniform(0.1, 0.9, (2, 5, 1, 4) if family.boxes else (2, 5, LEVELS, 2))
    inputs = {
        "query": random.standard_normal((2, 5, FEATURES)),
        "reference_points": references,
        "value": random.standard_normal((2, pixels, FEATURES)),
    }
    found: dict[str, np.ndarray] = {k: v.astype(np.float32) for k, v in inputs.items()}
    if family.masked:
        found["padding_mask"] = random.random((2, pixels)) < 0.3
    return found


def make() -> dict[str, np.ndarray]:
    warnings.filterwarnings("ignore", "You'd better set embed_dim")
    arrays = {}
    for name, family in FAMILIES.items():
        case = f"MSDeformAttn/{name}"
        points = {"num_points": 3, "num_heads": HEADS, "num_levels": LEVELS, "features": FEATURES}
        module = make_module(family)
        # Inverses of numbers of points, which the modules have in float32.
        buffers = {k: 1 / np.rint(1 / v.double().numpy()) for k, v in module.named_buffers()}
        arrays |= record(
            case,
            lambda module=module, **_: module,
            {**points, **family.layer},
            inputs_of(case, family),
            state=lambda key, array, buffers=buffers: buffers.get(key, array),
        )
    return arrays


if __name__ == "__main__":
    run("transformers_attention.npz", make, DATA)
