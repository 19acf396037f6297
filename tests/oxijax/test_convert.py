"""Weights from PyTorch's modules, and back: what `test_sampling_layers.py` relies on."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
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
    ([*STATE], TypeError, "state_dict must be a mapping or the path of a safetensors file, got"),
]


@each_library
@pytest.mark.parametrize(("state", "error", "message"), WRONG, ids=lambda value: str(value)[:20])
def test_wrong_states(library, state, error, message):
    with pytest.raises(error, match=message):
        oxijax.convert.from_torch(abstract(library, "DCNv3/center"), state)


def test_wrong_layers():
    layers = [
        (oxijax.nnx.DeformConv, "layer must be a module of Flax NNX or Equinox, or one of .*, got"),
        (nn.Dense(3), "layer must be a module of Flax NNX or Equinox, or one of .*linen, got"),
        (oxijax.linen.DCNv3(12), r"layer must be bound to its variables: layer.bind\(variables\)"),
    ]
    for layer, message in layers:
        with pytest.raises(TypeError, match=message):
            oxijax.convert.to_torch(layer)
        with pytest.raises(TypeError, match=message):
            oxijax.convert.from_torch(layer, {})
    with pytest.raises(TypeError, match=re.escape("prefix must be a string, got 1")):
        oxijax.convert.to_torch(abstract("nnx", "DCNv3/plain"), prefix=1)  # pyright: ignore
