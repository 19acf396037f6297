"""Small detectors of zeromodels and keras-hub, with random weights, and inputs for them."""

import importlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

__all__ = ["MODELS", "images", "outputs"]


def _class(module: str, name: str) -> type[keras.Model]:
    return getattr(importlib.import_module(module), name)


def _zeromodels(family: str, name: str) -> type[keras.Model]:
    return _class(f"zeromodels.models.{family}.{family}_model", name)


def images(size: int, count: int = 2) -> np.ndarray:
    return np.random.default_rng(0).random((count, size, size, 3), np.float32)


def _drawn_weights(model: keras.Model) -> keras.Model:
    """The model with other weights where they start with zeros: offsets would all be the same."""
    random = np.random.default_rng(1)
    for weight in model.trainable_weights:
        if weight.path.rpartition("/")[2] in ("kernel", "bias") and not np.any(weight.numpy()):
            weight.assign(0.02 * random.standard_normal(weight.shape))
    return model


def d_fine() -> tuple[keras.Model, Any]:
    sizes = {"hidden_dim": 64, "encoder_hidden_dim": 64, "decoder_ffn_dim": 64}
    model = _zeromodels("dfine", "DFineDetect")(
        image_size=96, num_queries=12, num_classes=5, decoder_num_layers=2, encoder_ffn_dim=64,
        decoder_n_points=[3, 6, 3], **sizes,
    )  # fmt: skip
    return model, images(96)


def _rt_detr(cls: type[keras.Model]) -> tuple[keras.Model, Any]:
    sizes = {"hidden_dim": 64, "encoder_hidden_dim": 64, "decoder_ffn_dim": 64}
    model = cls(
        backbone_hidden_sizes=(16, 32, 64, 128), backbone_block_repeats=(1, 1, 1, 1),
        backbone_embedding_size=16, backbone_layer_type="basic", encoder_in_channels=(32, 64, 128),
        encoder_ffn_dim=64, num_queries=12, num_classes=5, decoder_num_layers=2, image_size=96,
        **sizes,
    )  # fmt: skip
    return model, images(96)


def rt_detr() -> tuple[keras.Model, Any]:
    return _rt_detr(_zeromodels("rt_detr", "RTDETRDetect"))


def rt_detr_v2() -> tuple[keras.Model, Any]:
    return _rt_detr(_zeromodels("rt_detr_v2", "RTDETRV2Detect"))


def rf_detr() -> tuple[keras.Model, Any]:
    model = _zeromodels("rf_detr", "RFDETRDetect")(
        hidden_dim=64, backbone_hidden_size=48, backbone_num_heads=2, backbone_num_layers=12,
        dec_layers=2, num_queries=12, num_classes=5, dim_feedforward=64, resolution=112,
        num_windows=2, patch_size=14, positional_encoding_size=8, group_detr=1,
    )  # fmt: skip
    return model, images(112)


_SWIN = {
    "backbone_embed_dim": 16,
    "backbone_depths": (1, 1, 1, 1),
    "backbone_num_heads": (1, 2, 2, 2),
    "backbone_window_size": 4,
}


def grounding_dino() -> tuple[keras.Model, Any]:
    model = _zeromodels("grounding_dino", "GroundingDinoDetect")(
        d_model=64, encoder_layers=1, encoder_ffn_dim=64, decoder_layers=2, decoder_ffn_dim=64,
        num_queries=12, text_vocab_size=200, text_hidden_size=32, text_num_layers=1,
        text_num_heads=2, text_intermediate_size=32, max_text_len=16, **_SWIN,
    )  # fmt: skip
    words = np.array([[101, 7, 102, 9, 102, 0], [101, 5, 6, 102, 8, 102]], np.int32)
    return model, {
        "pixel_values": images(128),  # whole windows in all stages
        "input_ids": words % 200,
        "attention_mask": (words > 0).astype(np.int32),
    }


_SEGMENTS = {
    **_SWIN, "hidden_dim": 64, "mask_feature_size": 32, "encoder_num_layers": 1,
    "encoder_ffn_dim": 64, "decoder_num_layers": 1, "decoder_ffn_dim": 64, "num_queries": 8,
    "num_classes": 5, "image_size": 96,
}  # fmt: skip


def mask2former() -> tuple[keras.Model, Any]:
    return _zeromodels("mask2former", "Mask2FormerUniversalSegment")(**_SEGMENTS), images(96)


def oneformer() -> tuple[keras.Model, Any]:
    words = np.random.default_rng(2).integers(1, 100, (2, 77)).astype(np.float32)
    inputs = {"pixel_values": images(96), "task_inputs": words}
    return _zeromodels("oneformer", "OneFormerUniversalSegment")(**_SEGMENTS), inputs


def keras_hub_d_fine() -> tuple[keras.Model, Any]:
    backbone, trunk = (
        _class("keras_hub.models", f"{name}Backbone") for name in ("DFine", "HGNetV2")
    )
    stages = {
        "image_shape": (64, 64, 3),
        "out_features": ["stage3", "stage4"],
    }
    hgnet = trunk(
        stem_channels=[3, 8, 8],
        stackwise_stage_filters=[
            [8, 8, 16, 1, 1, 3], [16, 8, 32, 1, 1, 3], [32, 16, 64, 1, 1, 5], [64, 16, 64, 1, 1, 5],
        ],
        apply_downsample=[False, True, True, True],
        use_lightweight_conv_block=[False, False, True, True],
        depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 64], embedding_size=8,
        use_learnable_affine_block=True, hidden_act="relu", **stages,
    )  # fmt: skip
    model = backbone(
        backbone=hgnet, decoder_in_channels=[64, 64], encoder_hidden_dim=64, num_denoising=0,
        num_labels=5, hidden_dim=64, learn_initial_query=False, num_queries=12,
        anchor_image_size=(64, 64), feat_strides=[16, 32], num_feature_levels=2,
        encoder_in_channels=[64, 64], encode_proj_layers=[1], num_attention_heads=4,
        encoder_ffn_dim=64, num_encoder_layers=1, hidden_expansion=0.34, depth_multiplier=0.5,
        eval_idx=-1, num_decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=64,
        decoder_n_points=[6, 3], lqe_hidden_dim=16, num_lqe_layers=1, **stages,
    )  # fmt: skip
    return model, images(64)


_BUILDERS: dict[str, Callable[[], tuple[keras.Model, Any]]] = {
    "zeromodels: D-FINE": d_fine,
    "zeromodels: RT-DETR": rt_detr,
    "zeromodels: RT-DETRv2": rt_detr_v2,
    "zeromodels: RF-DETR": rf_detr,
    "zeromodels: Grounding DINO": grounding_dino,
    "zeromodels: Mask2Former": mask2former,
    "zeromodels: OneFormer": oneformer,
    "keras_hub: D-FINE": keras_hub_d_fine,
}


def _drawn(builder: Callable[[], tuple[keras.Model, Any]]) -> tuple[keras.Model, Any]:
    keras.utils.set_random_seed(0)
    model, inputs = builder()
    return _drawn_weights(model), inputs


MODELS = {name: lambda each=each: _drawn(each) for name, each in _BUILDERS.items()}


def outputs(model: keras.Model, inputs: Any) -> list[np.ndarray]:
    """All results of a model, as `predict` finds them, or a call where a model has no other way."""
    calls = isinstance(inputs, dict) and "input_ids" in inputs  # Grounding DINO needs known sizes
    found = keras.tree.flatten(model(inputs) if calls else model.predict(inputs, verbose=0))
    return [np.asarray(each) for each in found if each is not None]
