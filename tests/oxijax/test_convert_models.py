"""Weights of whole models, in files, and by other names."""

import json
import re
import subprocess
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

import oxijax
import oxijax.equinox
import oxijax.nnx

KEY = jax.random.key(0, impl="unsafe_rbg")


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.attention = oxijax.nnx.DCNv3(8, groups=2, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.gamma = nnx.Param(jnp.full(8, 0.5))


class Detector(nnx.Module):
    """Every kind of part that there is a rule for."""

    def __init__(self, rngs: nnx.Rngs):
        self.stem = nnx.Sequential(
            nnx.Conv(3, 8, (3, 2), use_bias=False, rngs=rngs), nnx.BatchNorm(8, rngs=rngs), nnx.relu
        )
        self.blocks = nnx.List([Block(rngs), Block(rngs)])
        self.align = oxijax.nnx.DeformConv(8, 6, 3, mask_scale=1, rngs=rngs)
        self.heads = nnx.Dict(
            boxes=nnx.Linear(6, 4, rngs=rngs), group=nnx.GroupNorm(6, 2, rngs=rngs)
        )
        self.queries = nnx.Embed(5, 6, rngs=rngs)
        self.levels = nnx.Param(jnp.ones((2, 6)))


class EquinoxDetector(eqx.Module):
    stem: eqx.nn.Sequential
    blocks: list[Any]
    align: oxijax.equinox.DeformConv
    heads: dict[str, Any]
    queries: eqx.nn.Embedding
    levels: jax.Array

    def __init__(self, key: jax.Array):
        def block() -> dict[str, Any]:
            return {
                "attention": oxijax.equinox.DCNv3(8, groups=2, key=key),
                "norm": eqx.nn.LayerNorm(8),
                "gamma": jnp.full(8, 0.5),
            }

        conv = eqx.nn.Conv2d(3, 8, (3, 2), use_bias=False, key=key)
        self.stem = eqx.nn.Sequential([conv, eqx.nn.Lambda(jax.nn.relu)])
        self.blocks = [block(), block()]
        self.align = oxijax.equinox.DeformConv(8, 6, 3, mask_scale=1, key=key)
        self.heads = {"boxes": eqx.nn.Linear(6, 4, key=key), "group": eqx.nn.GroupNorm(2, 6)}
        self.queries = eqx.nn.Embedding(5, 6, key=key)
        self.levels = jnp.ones((2, 6))


def state_of(batch_norm: bool) -> dict[str, np.ndarray]:
    """The state that PyTorch has for the model."""
    shapes: dict[str, tuple[int, ...]] = {"stem.0.weight": (8, 3, 3, 2), "levels": (2, 6)}
    if batch_norm:
        names = ("weight", "bias", "running_mean", "running_var")
        shapes |= {f"stem.1.{name}": (8,) for name in names}
    for i in range(2):
        block = oxijax.nnx.DCNv3(8, groups=2, rngs=nnx.Rngs(0))
        parts = oxijax.convert.to_torch(block, prefix=f"blocks.{i}.attention.")
        shapes |= {name: value.shape for name, value in parts.items()}
        shapes |= {f"blocks.{i}.{name}": (8,) for name in ("norm.weight", "norm.bias", "gamma")}
    shapes |= {"align.weight": (6, 8, 3, 3), "align.bias": (6,)}
    shapes |= {"align.conv_offset.weight": (27, 8, 3, 3), "align.conv_offset.bias": (27,)}
    shapes |= {"heads.boxes.weight": (4, 6), "heads.boxes.bias": (4,)}
    shapes |= {"heads.group.weight": (6,), "heads.group.bias": (6,), "queries.weight": (5, 6)}
    random = np.random.default_rng(0)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


MODELS = {
    "nnx": (lambda: nnx.eval_shape(lambda: Detector(nnx.Rngs(KEY))), state_of(True)),
    "equinox": (lambda: eqx.filter_eval_shape(EquinoxDetector, KEY), state_of(False)),
}
each_model = pytest.mark.parametrize("library", MODELS)


@pytest.mark.quick
@each_model
def test_round_trip(library):
    make, state = MODELS[library]
    counted = {**state, "stem.1.num_batches_tracked": np.int64(3)} if library == "nnx" else state
    model = oxijax.convert.from_torch(make(), counted)
    found = oxijax.convert.to_torch(model)
    assert found.keys() == state.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(found[name], value, name)


def test_every_parameter_is_where_it_belongs():
    make, state = MODELS["nnx"]
    model = oxijax.convert.from_torch(make(), state)
    conv, norm = model.stem.layers[:2]
    kernel = np.transpose(state["stem.0.weight"], (2, 3, 1, 0))
    np.testing.assert_array_equal(conv.kernel[...], kernel)
    np.testing.assert_array_equal(norm.var[...], state["stem.1.running_var"])
    np.testing.assert_array_equal(model.heads.boxes.kernel[...], state["heads.boxes.weight"].T)
    np.testing.assert_array_equal(model.queries.embedding[...], state["queries.weight"])
    np.testing.assert_array_equal(model.blocks[1].gamma[...], state["blocks.1.gamma"])
    bias = state["blocks.1.attention.dw_conv.1.1.bias"]
    np.testing.assert_array_equal(model.blocks[1].attention.dw_norm.bias[...], bias)


RENAMED = {
    "stem": "backbone.stem",
    "stem.layers.0": "conv1",
    "blocks": "",
    "blocks.1.attention": "second",
    "align.offset_conv": "conv2_offset",
    "levels": "level_embeds",
}


@each_model
def test_names(library):
    """The longest path that has a name goes first; an empty one leaves its part out."""
    make, state = MODELS[library]
    other = {}
    for name, value in state.items():
        for ours, theirs in (
            ("stem.0.", "conv1."), ("stem.", "backbone.stem."), ("blocks.1.attention.", "second."),
            ("blocks.", ""), ("align.conv_offset.", "conv2_offset."),
        ):  # fmt: skip
            if name.startswith(ours):
                name = theirs + name.removeprefix(ours)
                break
        other["module." + ("level_embeds" if name == "levels" else name)] = value
    model = oxijax.convert.from_torch(make(), other, prefix="module.", names=RENAMED)
    found = oxijax.convert.to_torch(model, prefix="module.", names=RENAMED)
    assert found.keys() == other.keys()
    for name, value in other.items():
        np.testing.assert_array_equal(found[name], value, name)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_file(tmp_path, dtype):
    """A file's arrays in any dtype; what belongs to others isn't read."""
    make, state = MODELS["nnx"]
    path = tmp_path / "model.safetensors"
    state = {name: value.astype(jnp.dtype(dtype)) for name, value in state.items()}
    save_file({"other.ids": np.arange(3), **{f"m.{k}": v for k, v in state.items()}}, path)
    for given in (path, str(path)):
        model = oxijax.convert.from_torch(make(), given, prefix="m.")
        for name, value in oxijax.convert.to_torch(model).items():
            np.testing.assert_array_equal(value, state[name].astype(np.float32), name)


def test_files_with_an_index(tmp_path):
    """A checkpoint in several files, of which only those are opened that have what is asked for."""
    make, state = MODELS["nnx"]
    first, second = dict([*state.items()][::2]), dict([*state.items()][1::2])
    files = {"a.safetensors": first, "b.safetensors": second, "absent.safetensors": {"x.y": 0}}
    index = {f"m.{key}": file for file, part in files.items() for key in part}
    for file in ("a.safetensors", "b.safetensors"):
        save_file({f"m.{key}": value for key, value in files[file].items()}, tmp_path / file)
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": index}))
    model = oxijax.convert.from_torch(make(), path, prefix="m.", ignore="m.x.*")
    for name, value in oxijax.convert.to_torch(model).items():
        np.testing.assert_array_equal(value, state[name].astype(np.float32), name)
    wrong = {
        json.dumps({"weight_map": {**index, "m.z": "../c.safetensors"}}): "must have files beside",
        json.dumps({"weight_map": dict.fromkeys(index, "a.safetensors")}): "'a.safetensors' must",
        json.dumps({"weight_map": {**index, "m.z": 3}}): "must have names of files",
        json.dumps({"weight_map": dict.fromkeys(index, "c.safetensors")}): "there is no file '.*c",
        json.dumps([1]): "must be a JSON file with a weight_map",
        "{": "must be a JSON file with a weight_map",
    }
    for text, message in wrong.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            oxijax.convert.from_torch(make(), path, prefix="m.", ignore=["m.x.*", "m.z"])


def test_wrong_files(tmp_path):
    make, _ = MODELS["nnx"]
    path = tmp_path / "weights.pth"
    with pytest.raises(ValueError, match=r"state_dict must be .* there is no file '.*pth'"):
        oxijax.convert.from_torch(make(), path)
    path.write_bytes(b"PK" * 20)
    with pytest.raises(ValueError, match=r"state_dict must be a safetensors file, '.*' is none"):
        oxijax.convert.from_torch(make(), path)
    program = f"""
import sys
sys.modules["safetensors"] = None
import oxijax.nnx
from flax import nnx
layer = nnx.eval_shape(lambda: oxijax.nnx.DCNv4(16, groups=1, rngs=nnx.Rngs(0)))
oxijax.convert.from_torch(layer, {str(path)!r})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ImportError: state_dict as a file needs safetensors: pip install" in done.stderr


WRONG_NAMES: list[tuple[Any, type[Exception], str]] = [
    ({"stern": "a"}, ValueError, "names must have parts of the layer, got 'stern'"),
    ({"stem.layer": "a"}, ValueError, "names must have parts of the layer, got 'stem.layer'"),
    ({"stem": 1}, TypeError, "names must be of strings, got 'stem': 1"),
    (
        {"blocks.0": "b", "blocks.1": "b"},
        ValueError,
        "names must keep parameters apart, got 'b.attention.",
    ),
    (["stem"], TypeError, "names must be a mapping, got ['stem']"),
]


@each_model
@pytest.mark.parametrize(("names", "error", "message"), WRONG_NAMES)
def test_wrong_names(library, names, error, message):
    make, state = MODELS[library]
    with pytest.raises(error, match=re.escape(message)):
        oxijax.convert.from_torch(make(), state, names=names)


@each_model
def test_wrong_states_of_models(library):
    make, state = MODELS[library]
    lacking = {name: v for name, v in state.items() if name != "blocks.1.norm.bias"}
    with pytest.raises(ValueError, match=r"state_dict lacks 'blocks.1.norm.bias'"):
        oxijax.convert.from_torch(make(), lacking)
    with pytest.raises(ValueError, match=r"has what the layer lacks: 'align.mask.weight'"):
        oxijax.convert.from_torch(make(), state | {"align.mask.weight": np.ones(3)})
    swapped = state | {"heads.boxes.weight": state["heads.boxes.weight"].T}
    message = r"state_dict\['heads.boxes.weight'\] must have shape \(4, 6\), got \(6, 4\)"
    with pytest.raises(ValueError, match=message):
        oxijax.convert.from_torch(make(), swapped)


class WithTransposed(nnx.Module):
    def __init__(self):
        self.up = nnx.List([nnx.ConvTranspose(2, 3, (2, 2), rngs=nnx.Rngs(0))])


def test_parts_without_a_rule():
    """Nothing is converted by a rule that isn't meant for it."""
    cases = [
        (WithTransposed(), "ConvTranspose at 'up.0'"),
        (eqx.nn.ConvTranspose2d(2, 3, 2, key=KEY), "ConvTranspose2d at the top"),
        (nnx.MultiHeadAttention(2, 4, rngs=nnx.Rngs(0)), "LinearGeneral at 'key'"),
    ]
    for model, message in cases:
        with pytest.raises(TypeError, match=rf"layer must have parts of .*, got a {message}"):
            oxijax.convert.to_torch(model)
