"""`oxijax.keras.accelerate`: what it replaces in a library, what it leaves and why, and undoing."""

import contextlib
import importlib
import sys
import textwrap

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from support.helpers import assert_close

import oxijax
import oxijax.keras
from oxijax.keras import _probes as probes

# Libraries with the names of two of zeromodels' functions. What they find is right, and they count
# how often they are called.
CORE = """
import oxijax.reference
from keras import ops

CALLS = []

def ms_deform_attn_core({arguments}):
    CALLS.append(1)
    value = ops.transpose(value, (0, 3, 1, 2))
    locations = ops.convert_to_tensor(sampling_locations)
    weights = ops.reshape(attention_weights, locations.shape[:-1])
    y = oxijax.reference.ms_deform_attn(
        value, locations, weights, spatial_shapes=tuple(value_spatial_shapes)
    )
    return {result}

def attend(*arguments):
    return ms_deform_attn_core(*arguments)
"""
KNOWN = "value, value_spatial_shapes, sampling_locations, attention_weights"
FLAT = "ops.reshape(y, (*y.shape[:2], -1))"
FAMILIES = {
    "rt_detr": (KNOWN, FLAT),
    "rt_detr_v2": (f"{KNOWN}, method='default'", FLAT),
    "rf_detr": (KNOWN, f"{FLAT} * 1.001"),
    "grounding_dino": (KNOWN, "y"),
    "dfine": (KNOWN, FLAT),  # whose function has another name
    "mask2former": (KNOWN, FLAT),  # which has a layer
    "oneformer": None,  # which isn't there
}
CORE_OF = {
    family: f"zeromodels.models.{family}.{family}_layers.ms_deform_attn_core" for family in FAMILIES
}


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library that is called zeromodels."""
    for family, contents in FAMILIES.items():
        if contents:
            arguments, result = contents
            folder = tmp_path / "zeromodels" / "models" / family
            folder.mkdir(parents=True)
            source = CORE.format(arguments=arguments, result=result)
            (folder / f"{family}_layers.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield lambda family: importlib.import_module(CORE_OF[family].rpartition(".")[0])
    for name in [name for name in sys.modules if name.partition(".")[0] == "zeromodels"]:
        del sys.modules[name]


def arguments(seed: int) -> tuple:
    sizes = probes.Sizes(seed=seed, queries=5, heads=3)
    ((value, *others),) = probes.channels_before_pixels(None, sizes)
    return value, *others


def test_what_is_replaced_and_what_is_left(library):
    core = library("rt_detr").ms_deform_attn_core
    accelerated = oxijax.keras.accelerate("zeromodels")
    try:
        assert accelerated.replaced == (CORE_OF["rt_detr"],)
        left = {name.split(".")[2]: why for name, why in accelerated.left.items()}
        assert left.keys() == FAMILIES.keys() - {"rt_detr"}
        known = "(value, value_spatial_shapes, sampling_locations, attention_weights"
        expected = f"oxijax knows it with the arguments {known}), this version has {known}, method="
        assert left["rt_detr_v2"].startswith(expected)
        assert left["rf_detr"].startswith("its results differ from oxijax's by ")
        assert left["grounding_dino"] == "it returns float32(2, 3, 2, 8), oxijax float32(2, 3, 16)"
        for family in ("dfine", "mask2former", "oneformer"):
            assert left[family].startswith("this version has no such function: "), left[family]
        assert f"{CORE_OF['rt_detr']}: replaced" in str(accelerated)
        assert f"{CORE_OF['rf_detr']}: left, its results differ" in str(accelerated)
        replaced = library("rt_detr").ms_deform_attn_core
        assert replaced.__wrapped__ is core
        assert replaced.__name__ == "ms_deform_attn_core"
        again = oxijax.keras.accelerate("zeromodels")
        assert again.replaced == ()
        assert again.left[CORE_OF["rt_detr"]] == "it is replaced already"
        again.undo()
        assert library("rt_detr").ms_deform_attn_core is replaced
    finally:
        accelerated.undo()
    assert library("rt_detr").ms_deform_attn_core is core
    accelerated.undo()
    assert library("rt_detr").ms_deform_attn_core is core


@pytest.mark.quick
def test_results_and_gradients(library):
    """Those of the library, which isn't called."""
    layers = library("rt_detr")
    value, levels, *others = arguments(1)

    def of(value, *others):
        return jnp.sum(layers.attend(value, levels, *others) ** 2)

    run = jax.jit(jax.value_and_grad(of, (0, 1, 2)))
    expected, calls = run(value, *others), len(layers.CALLS)
    with oxijax.keras.accelerate("zeromodels"):
        calls = len(layers.CALLS)
        found = run(value, *others)  # which is traced again
        assert len(layers.CALLS) == calls
    jax.tree.map(lambda a, b: assert_close(a, b, 1e-6), found, expected)
    jax.tree.map(np.testing.assert_array_equal, run(value, *others), expected)
    assert len(layers.CALLS) == calls  # what was compiled before is there again
    layers.attend(value, levels, *others)
    assert len(layers.CALLS) == calls + 1


def test_models_predict_as_before(library):
    """A model that has been compiled, and the same after an error within."""
    layers = library("rt_detr")

    class Attention(keras.layers.Layer):
        def call(self, value):
            _, levels, *others = arguments(2)
            return layers.attend(value, levels, *others)

    value, *_ = arguments(3)
    inputs = keras.Input(value.shape[1:], batch_size=len(value))
    model = keras.Model(inputs, Attention()(inputs))
    value, within = np.asarray(value), None
    before = model.predict(value, verbose=0)
    with contextlib.suppress(KeyError), oxijax.keras.accelerate("zeromodels"):
        calls = len(layers.CALLS)
        within = model.predict(value, verbose=0)
        assert len(layers.CALLS) == calls
        raise KeyError
    assert_close(within, before, 1e-6)
    np.testing.assert_array_equal(model.predict(value, verbose=0), before)


def test_libraries_that_are_not_installed():
    accelerated = oxijax.keras.accelerate("keras_hub")
    assert accelerated.replaced == ()
    assert dict(accelerated.left) == {"keras_hub": "it is not installed"}
    accelerated.undo()
