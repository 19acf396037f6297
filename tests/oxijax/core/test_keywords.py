"""Keyword arguments that a function doesn't have: the error says ours. No other call changes."""

import inspect
import pickle
import pydoc
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import oxijax
import oxijax.equinox
import oxijax.linen
import oxijax.nnx
from oxijax._core.arguments.keywords import explain_keywords

FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(oxijax, name)
    for name in (
        *("conv", "conv_general_dilated", "dcnv3", "dcnv4", "deform_conv", "draw_samples", "gemm"),
        *("grid_sample", "map_coordinates", "ms_deform_attn", "offset_statistics", "roi_align"),
        *("roi_levels", "roofline", "sample_windows", "splat"),
    )
}
TWINS = {name: getattr(oxijax.reference, name) for name in oxijax.reference.__all__}
LAYERS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": getattr(module, name)
    for module in (oxijax.nnx, oxijax.linen, oxijax.equinox)
    for name in module.__all__
}
ALL = {**FUNCTIONS, **{f"reference.{name}": twin for name, twin in TWINS.items()}, **LAYERS}

CALLS = {
    "nnx": (lambda: oxijax.nnx.MSDeformAttn(8, 2, rngs=nnx.Rngs(0)), "inputs_q", "inputs_v"),
    "linen": (lambda: oxijax.linen.MSDeformAttn(8, 2), "inputs_q", "inputs_v"),
    "equinox": (
        lambda: oxijax.equinox.MSDeformAttn(8, 2, key=jax.random.key(0)), "query", "value"
    ),
}  # fmt: skip


@pytest.mark.parametrize("library", CALLS)
def test_calls_of_attention(library):
    """With the names that transformers and mmcv have."""
    make, query, value = CALLS[library]
    layer: Any = make()
    hints = {
        "hidden_states": f"it is called {query} here",
        "encoder_hidden_states": f"it is called {value} here",
        "position_embeddings": f"it is added to {query} before the call",
        "key_padding_mask": "it is called padding_mask here",
        "attention_mask": "padding_mask is True where values count as zeros: the inverse of "
        "Hugging Face's, but in Mask2Former and OneFormer",
        "level_start_index": "nothing needs it here",
    }
    for word, hint in hints.items():
        message = f"MSDeformAttn.__call__() has no argument {word!r}: {hint}"
        with pytest.raises(TypeError, match=re.escape(message)):
            layer(**{word: jnp.ones(3)})


CASES = {
    "torchvision: input": ("deform_conv", "input", "it is called x here"),
    "torchvision: stride": ("deform_conv", "stride", "it is called strides here"),
    "mmcv: groups": ("deform_conv", "groups", "it is read off the shape of weight"),
    "mmcv: deform_groups": ("deform_conv", "deform_groups", "it is read off the shape of offset"),
    "mmcv: im2col_step": ("deform_conv", "im2col_step", "nothing needs it here"),
    "torchvision: n_offset_grps": (
        *("deform_conv", "n_offset_grps", "it is read off the shape of offset"),
    ),
    "a reference": ("reference.deform_conv", "stride", "it is called strides here"),
    "PyTorch: conv": ("conv", "stride", "it is called strides here"),
    "TensorFlow: conv": ("conv", "kernel", "it is called weight here"),
    "a kernel's size": ("conv", "kernel_size", "it is read off the shape of weight"),
    "PyTorch: general": ("conv_general_dilated", "stride", "it is called window_strides here"),
    "PyTorch: groups": ("conv_general_dilated", "groups", "it is called feature_group_count here"),
    "InternImage: group": ("dcnv3", "group", "it is called groups here"),
    "DCNv4: offset": ("dcnv4", "offset", "it is the first part of offset_mask"),
    "DCNv4: mask": ("dcnv4", "mask", "it is the last part of offset_mask"),
    "ONNX: transA": ("gemm", "transA", "it is called transpose_a here"),
    "PyTorch: mat2": ("gemm", "mat2", "it is called b here"),
    "PyTorch: mode": ("grid_sample", "mode", "it is called method here"),
    "Deformable DETR: shapes": (
        *("ms_deform_attn", "value_spatial_shapes", "it is called spatial_shapes here"),
    ),
    "Deformable DETR: starts": (
        *("ms_deform_attn", "value_level_start_index", "nothing needs it here"),
    ),
    "Deformable DETR: heads": (
        *("ms_deform_attn", "n_heads", "it is read off the shape of attention_weights"),
    ),
    "Flax: stride": ("nnx.DeformConv", "stride", "it is called strides here"),
    "Flax: groups": ("nnx.DeformConv", "groups", "it is called feature_group_count here"),
    "Flax: in_channels": ("nnx.DeformConv", "in_channels", "it is called in_features here"),
    "Flax: bias": ("nnx.DeformConv", "bias", "it is called use_bias here"),
    "Flax: dilation": ("nnx.DeformConv", "dilation", "it is called kernel_dilation here"),
    "Flax: groups of offsets": (
        *("nnx.DeformConv", "deformable_groups", "it is called offset_groups here"),
    ),
    "Flax: d_model": ("nnx.MSDeformAttn", "d_model", "it is called in_features here"),
    "Flax: DCNv3": ("nnx.DCNv3", "channels", "it is called in_features here"),
    "Linen: stride": ("linen.DeformConv", "stride", "it is called strides here"),
    "Linen: out_channels": ("linen.DeformConv", "out_channels", "it is called features here"),
    "Linen: in_features": (
        *("linen.DeformConv", "in_features", "it is read off the shape of the inputs"),
    ),
    "Equinox: strides": ("equinox.DeformConv", "strides", "it is called stride here"),
    "Equinox: features": ("equinox.DeformConv", "out_features", "it is called out_channels here"),
    "Equinox: groups": ("equinox.DeformConv", "feature_group_count", "it is called groups here"),
    "Equinox: embed_dims": ("equinox.MSDeformAttn", "embed_dims", "it is called query_size here"),
    "misspelt": ("deform_conv", "paddings", "the nearest is padding"),
    "misspelt, of a layer": ("linen.DeformConv", "use_masks", "the nearest is use_mask"),
}


@pytest.mark.quick
@pytest.mark.parametrize("case", CASES)
def test_the_error_says_our_word(case):
    name, word, hint = CASES[case]
    own = name.rpartition(".")[2]
    with pytest.raises(TypeError, match=rf"^{own}\(\) has no argument '{word}': {hint}$"):
        ALL[name](**{word: 1})


@pytest.mark.quick
@pytest.mark.parametrize("name", ALL)
def test_of_a_word_without_a_likeness_all_names_are_said(name):
    known = [*inspect.signature(ALL[name]).parameters]
    if name.partition(".")[0] in ("nnx", "linen", "equinox"):
        known = [*inspect.signature(ALL[name].__init__).parameters][1:]
    message = f"has no argument 'zzz'; its arguments are {', '.join(known)}"
    with pytest.raises(TypeError, match=f"{re.escape(message)}$"):
        ALL[name](zzz=1)


def test_all_words_are_explained_at_once():
    message = (
        "deform_conv() has no argument 'input': it is called x here; no argument 'stride': it is "
        "called strides here; no argument 'zzz'; its arguments are x, offset, weight, "
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        oxijax.deform_conv(input=1, weight=2, stride=3, zzz=4)  # pyright: ignore[reportCallIssue]


def test_the_arguments_of_sampling_locations_are_the_operators():
    with pytest.raises(TypeError, match=r"^dcnv3\(\) has no argument 'stride': it is called stri"):
        oxijax.sampling_locations(oxijax.dcnv3, stride=1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_stays_what_it_is(name):
    function = FUNCTIONS[name]
    assert function.__name__ == name
    assert f"{name}(" in pydoc.plain(pydoc.render_doc(function)).splitlines()[2]
    assert "kwargs" not in inspect.signature(function).parameters
    assert pickle.loads(pickle.dumps(function)) is function


def test_other_errors_are_not_explained():
    @explain_keywords
    def function(x: int, *, strides: int = 1) -> int:
        if strides == 2:
            raise TypeError("of its own")
        return x + strides

    assert function(1, strides=4) == 5
    with pytest.raises(TypeError, match=r"^of its own$"):
        function(1, strides=2)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        function()  # pyright: ignore[reportCallIssue]


def test_a_layer_stays_what_it_is():
    class Mine(oxijax.nnx.DeformConv):
        def __init__(self, **options: Any):
            super().__init__(2, 3, 3, rngs=nnx.Rngs(0), **options)

    x = jnp.ones((1, 4, 5, 2))
    assert Mine(use_mask=False)(x).shape == (1, 4, 5, 3)
    with pytest.raises(TypeError, match=r"^DeformConv\(\) has no argument 'stride': it is called"):
        Mine(stride=2)
    linen = oxijax.linen.DeformConv(3, 3)
    assert linen.clone() == linen
    y, _ = linen.init_with_output(jax.random.key(0), x)
    assert y.shape == (1, 4, 5, 3)
    equinox = oxijax.equinox.DeformConv(2, 3, 3, padding=1, key=jax.random.key(0))
    assert equinox(x[0].transpose(2, 0, 1)).shape == (3, 4, 5)
