"""Weights from PyTorch's modules, and back: what `test_sampling_layers.py` relies on."""

import json
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from support.sampling_layers import LIBRARIES, apply, layer_of, recorded, split

import oxijax

each_library = pytest.mark.parametrize("library", LIBRARIES)


def abstract(library: str, case: str, **config: Any) -> Any:
    module = recorded[case]
    return layer_of(library, module.kind, abstract=True, **module.config, **config)


@each_library
@pytest.mark.parametrize("case", recorded)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.usefixtures("x64")
def test_round_trip(library, case, dtype):
    """All of a state returns, to the bit, and a layer's parameters do."""
    dtype = jnp.dtype(dtype)
    state = {name: value.astype(dtype) for name, value in recorded[case].state.items()}
    layer = oxijax.convert.from_torch(abstract(library, case, param_dtype=dtype), state)
    found = oxijax.convert.to_torch(layer)
    assert found.keys() == state.keys()
    for name, value in state.items():
        assert found[name].dtype == dtype, name
        assert found[name].flags.c_contiguous, name
        np.testing.assert_array_equal(found[name], value, name)
    again = oxijax.convert.from_torch(layer, found)
    jax.tree.map(np.testing.assert_array_equal, split(library, layer)[0], split(library, again)[0])


@each_library
def test_part_of_a_larger_state(library):
    """Others' names are left alone, the given layer remains, and dtypes are those of the layer."""
    case = "DCNv3/center"
    module = recorded[case]
    first, second = (np.full((12, 12), value, np.float16) for value in (1, 2))
    state = {f"blocks.0.dcn.{name}": value for name, value in module.state.items()}
    state["blocks.0.dcn.input_proj.weight"] = first
    state |= {"head.weight": np.ones(3), "blocks.0.norm.weight": np.ones(12)}
    layer = oxijax.convert.from_torch(abstract(library, case), state, prefix="blocks.0.dcn.")
    changed = oxijax.convert.from_torch(
        layer, {**state, "blocks.0.dcn.input_proj.weight": second}, prefix="blocks.0.dcn."
    )
    name = "x.input_proj.weight"
    np.testing.assert_array_equal(oxijax.convert.to_torch(layer, prefix="x.")[name], first)
    np.testing.assert_array_equal(oxijax.convert.to_torch(changed, prefix="x.")[name], second)
    parameters = jax.tree.leaves(split(library, layer)[0])
    assert {parameter.dtype.name for parameter in parameters} == {"float32"}


@each_library
def test_loaded_layer_is_whole(library):
    """It is of its class, runs, and in Linen is bound."""
    case = "DCNv4/ring"
    layer = abstract(library, case)
    loaded = oxijax.convert.from_torch(layer, recorded[case].state)
    assert type(loaded) is type(layer)
    x = jnp.asarray(recorded[case].inputs["input"], jnp.float32)
    y = apply(loaded, {"input": x})
    assert y.shape == x.shape
    if library == "linen":
        module, variables = loaded.unbind()
        np.testing.assert_array_equal(module.apply(variables, x), y)


STATE = recorded["DCNv3/center"].state
WITHOUT = {name: value for name, value in STATE.items() if "bias" not in name}
WRONG: list[tuple[Any, type[Exception], str]] = [
    (WITHOUT, ValueError, "state_dict lacks 'center_feature_scale_proj_bias', 'dw_conv.0.bias', "),
    ({f"{i}.{k}": v for i in range(2) for k, v in STATE.items()}, ValueError, "lacks .*, 'dw_conv"),
    (
        {**STATE, **{f"more.{i}": np.ones(1) for i in range(11)}},
        ValueError,
        "state_dict has what the layer lacks: 'more.0', 'more.1', .* and 3 more",
    ),
    (
        {**STATE, "mask.weight": STATE["mask.weight"].T},
        ValueError,
        r"state_dict\['mask.weight'\] must have shape \(27, 12\), got \(12, 27\)",
    ),
    (
        {**STATE, "dw_conv.0.weight": np.ones((12, 12, 5, 5))},
        ValueError,
        r"'dw_conv.0.weight'\] must have shape \(12, 1, 5, 5\), got \(12, 12, 5, 5\)",
    ),
    (
        {**STATE, "mask.bias": np.ones(27, int)},
        TypeError,
        r"'mask.bias'\] must be an array of real numbers, got dtype int64",
    ),
    ([*STATE], TypeError, "state_dict must be a mapping or the path of a safetensors file or its"),
    (
        {**WITHOUT, "more": np.ones(1)},
        ValueError,
        "state_dict lacks 'center_feature.*; and has what the layer lacks: 'more', with prefix ''",
    ),
]


def test_a_prefix_that_no_key_has():
    layer = nnx.eval_shape(lambda: oxijax.nnx.DCNv3(12, groups=3, rngs=nnx.Rngs(0)))
    state = {f"model.dcn.{name}": value for name, value in STATE.items()}
    for prefix, there in (("dcn.", r"'model\.dcn\.'$"), ("block.", r"'model\.dcn\.center_feature")):
        begins = f"no key of state_dict begins with prefix '{prefix}': there are "
        with pytest.raises(ValueError, match=begins + there):
            oxijax.convert.from_torch(layer, state, prefix=prefix)


@each_library
def test_ignored_keys(library):
    """What the layer has nothing for, by patterns; what it needs is read all the same."""
    case = "DCNv3/center"
    state = {f"dcn.{name}": value for name, value in recorded[case].state.items()}
    state |= {"backbone.conv.weight": np.ones(1), "dcn.anchors": np.ones(2)}
    layer = abstract(library, case)
    for ignore in (["backbone.*", "*.anchors"], "*"):
        found = oxijax.convert.from_torch(layer, state, prefix="dcn.", ignore=ignore)
        for name, value in oxijax.convert.to_torch(found, prefix="dcn.").items():
            np.testing.assert_array_equal(value, state[name].astype(np.float32), name)
    with pytest.raises(ValueError, match=r"what the layer lacks: 'dcn.anchors', with"):
        oxijax.convert.from_torch(layer, state, prefix="dcn.", ignore=["anchors", "backbone.*"])
    for wrong in (3, [None]):
        with pytest.raises(TypeError, match="ignore must be a string or a list of strings, got"):
            oxijax.convert.from_torch(layer, state, ignore=wrong)  # pyright: ignore


@each_library
@pytest.mark.parametrize("buffer", ["n_points_scale", "num_points_scale"])
def test_points_of_a_state(library, buffer):
    """States of RT-DETRv2 and D-FINE tell how many there are, which have to be the layer's."""
    config = {"features": 12, "num_heads": 3, "num_levels": 2, "abstract": True}
    layer = layer_of(library, "MSDeformAttn", num_points=(3, 6), **config)
    sizes = {"sampling_offsets": 54, "attention_weights": 27, "value_proj": 12, "output_proj": 12}
    state: dict[str, Any] = {f"{name}.bias": np.zeros(size) for name, size in sizes.items()}
    state |= {f"{name}.weight": np.zeros((size, 12)) for name, size in sizes.items()}
    state[buffer] = np.array([1 / 3] * 3 + [1 / 6] * 6, np.float32)
    found = oxijax.convert.from_torch(layer, state)
    assert oxijax.convert.to_torch(found).keys() == state.keys() - {buffer}
    message = (
        r"layer must have the points of the state at 'the top': num_points is \(4, 5\), and "
        rf"state_dict\['{buffer}'\] is that of \(3, 6\)"
    )
    with pytest.raises(ValueError, match=message):
        oxijax.convert.from_torch(
            layer_of(library, "MSDeformAttn", num_points=(4, 5), **config), state
        )
    state[buffer][0] = 0
    with pytest.raises(ValueError, match=r"is that of no points: "):
        oxijax.convert.from_torch(layer, state)


class Stacked(nnx.Module):
    """Three layers in one, as `nnx.scan` has them."""

    def __init__(self, make: Any):
        self.blocks = nnx.vmap(make)(jax.random.split(jax.random.key(0), 3))


STACKED = {
    "linear": (lambda key: nnx.Linear(2, 3, rngs=nnx.Rngs(key)), "2 dim.*got shape .3, 2, 3."),
    "conv": (lambda key: nnx.Conv(2, 3, (3,), rngs=nnx.Rngs(key)), "3 dim.*got shape .3, 3, 2, 3."),
    "embed": (lambda key: nnx.Embed(5, 2, rngs=nnx.Rngs(key)), "2 dim.*got shape .3, 5, 2."),
    "attention": (
        lambda key: oxijax.nnx.MSDeformAttn(8, 2, rngs=nnx.Rngs(key)), "2 dim.*got shape .3, 8, 32."
    ),
    "deform_conv": (
        lambda key: oxijax.nnx.DeformConv(2, 4, 3, rngs=nnx.Rngs(key)), "4 dim.*got shape .3, 3, 3,"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STACKED)
def test_stacked_layers(name):
    make, message = STACKED[name]
    model = nnx.eval_shape(lambda: Stacked(make))
    for convert in (oxijax.convert.to_torch, lambda model: oxijax.convert.from_torch(model, {})):
        with pytest.raises(ValueError, match=f"must not be stacked, .*: 'blocks.*has {message}"):
            convert(model)


def test_stacked_layers_of_linen():
    layer = abstract("linen", "DCNv3/center")
    module, variables = layer.unbind()
    stacked = jax.tree.map(lambda v: jax.ShapeDtypeStruct((3, *v.shape), v.dtype), variables)
    with pytest.raises(ValueError, match="layer must not be stacked"):
        oxijax.convert.from_torch(module.bind(stacked), {})


@each_library
@pytest.mark.parametrize(("state", "error", "message"), WRONG, ids=lambda value: str(value)[:20])
def test_wrong_states(library, state, error, message):
    with pytest.raises(error, match=message):
        oxijax.convert.from_torch(abstract(library, "DCNv3/center"), state)


def test_wrong_layers():
    layers = [
        (
            oxijax.nnx.DeformConv,
            "layer must be a module of Flax NNX or .* Keras, or one of .*, got",
        ),
        (nn.Dense(3), "layer must be a module of Flax NNX or .* Keras, or one of .*linen, got"),
        (oxijax.linen.DCNv3(12), r"layer must be bound to its variables: layer.bind\(variables\)"),
    ]
    for layer, message in layers:
        with pytest.raises(TypeError, match=message):
            oxijax.convert.to_torch(layer)
        with pytest.raises(TypeError, match=message):
            oxijax.convert.from_torch(layer, {})
    with pytest.raises(TypeError, match=re.escape("prefix must be a string, got 1")):
        oxijax.convert.to_torch(abstract("nnx", "DCNv3/plain"), prefix=1)  # pyright: ignore


class Tied(nnx.Module):
    """One linear layer at two paths, as an embedding's head often is."""

    def __init__(self):
        self.blocks = nnx.List(
            [nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.Linear(2, 3, rngs=nnx.Rngs(0))]
        )
        self.head = self.blocks[1]


def tied_state() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"blocks.0": (2, 2), "blocks.1": (3, 2)}
    state = {f"{name}.weight": random.standard_normal(shape) for name, shape in shapes.items()}
    state |= {f"{name}.bias": random.standard_normal(shape[0]) for name, shape in shapes.items()}
    copies = {key.replace("blocks.1", "head"): v for key, v in state.items() if "blocks.1" in key}
    return {name: value.astype(np.float32) for name, value in (state | copies).items()}


def test_tied_weights():
    """PyTorch's states have them under each name, and so has what is made for PyTorch."""
    state = tied_state()
    model = oxijax.convert.from_torch(Tied(), state)
    assert model.head is model.blocks[1]
    found = oxijax.convert.to_torch(model)
    assert found.keys() == state.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(found[name], value)


def test_tied_weights_that_differ():
    state = tied_state()
    state["head.bias"] = state["head.bias"] + 1
    with pytest.raises(ValueError, match=r"'head.bias'\] must be equal to .*blocks.1.bias"):
        oxijax.convert.from_torch(Tied(), state)


def test_paths_that_are_written_alike():
    class Model(eqx.Module):
        parts: dict[str, Any]

    model = Model({"a.b": jnp.zeros(2), "a": {"b": jnp.ones(2)}})
    for call in (oxijax.convert.to_torch, lambda model: oxijax.convert.from_torch(model, {})):
        with pytest.raises(ValueError, match=r"one parameter at a path, got two at 'parts\.a\.b'"):
            call(model)


class Parameter:
    """What PyTorch's parameters do that require a gradient."""

    def __init__(self, value: np.ndarray):
        self.value, self.shape = value, value.shape

    def detach(self) -> np.ndarray:
        return self.value

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


def test_parameters_that_require_a_gradient():
    state = {name: Parameter(value) for name, value in tied_state().items()}
    found = oxijax.convert.to_torch(oxijax.convert.from_torch(Tied(), state))
    np.testing.assert_array_equal(found["head.weight"], state["head.weight"].value)


class Broken:
    """What nothing reads."""

    __array__ = Parameter.__array__


def test_arrays_that_cannot_be_read():
    state: dict[str, Any] = {**tied_state(), "head.bias": Broken()}
    with pytest.raises(TypeError, match=r"state_dict\['head.bias'\] must be an array: Can't call"):
        oxijax.convert.from_torch(Tied(), state)


def write_safetensors(path: Path, arrays: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """A file of arrays with the types and shapes that it shall say."""
    head, data = {}, b""
    for name, (dtype, shape, content) in arrays.items():
        place = [len(data), len(data) + len(content)]
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": place}
        data += content
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("F8_E4M3", ml_dtypes.float8_e4m3fn), ("F8_E5M2", ml_dtypes.float8_e5m2),
        ("BF16", ml_dtypes.bfloat16), ("F16", np.float16), ("F64", np.float64),
    ],
)  # fmt: skip
def test_files_of_every_floating_type(tmp_path, name, dtype):
    state = {key: value.astype(dtype) for key, value in tied_state().items()}
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {k: (name, v.shape, v.tobytes()) for k, v in state.items()})
    found = oxijax.convert.to_torch(oxijax.convert.from_torch(Tied(), path))
    for key, value in state.items():
        np.testing.assert_array_equal(found[key], value.astype(np.float32))


@pytest.mark.parametrize(("name", "size"), [("F6_E2M3", 3), ("F4", 2), ("I64", 32), ("C64", 32)])
def test_files_of_other_types(tmp_path, name, size):
    """The error names the array; only that one is of the type."""
    arrays = {key: ("F32", v.shape, v.tobytes()) for key, v in tied_state().items()}
    arrays["blocks.0.weight"] = (name, (2, 2), bytes(size))
    path = tmp_path / "model.safetensors"
    write_safetensors(path, arrays)
    with pytest.raises((TypeError, ValueError), match=r"blocks\.0\.weight"):
        oxijax.convert.from_torch(Tied(), path)
