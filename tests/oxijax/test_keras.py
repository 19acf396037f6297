"""Keras layers: PyTorch's results with PyTorch's weights, and what Keras's users expect."""

import math
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from flax import nnx
from support import deform_conv_modules, sampling_layers
from support.helpers import assert_close
from support.sampling_layers import SHAPES, SHAPES_OF, of_transformers, recorded

import oxijax
import oxijax.keras

# Keras's variables, in its own `set_weights` and `fit`.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

MODULES = recorded | of_transformers
# What Linen's layers call an argument, which the tables have.
_NAMES = {"kernel_dilation": "dilation_rate"}
FEATURES, QUERIES, PIXELS = 16, 6, sum(height * width for height, width in SHAPES)


def attention(**options: Any) -> oxijax.keras.MSDeformAttn:
    return oxijax.keras.MSDeformAttn(FEATURES, 2, len(SHAPES), (3, 2), **options)


def attention_inputs() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    shapes = (1, QUERIES, FEATURES), (1, QUERIES, len(SHAPES), 2), (1, PIXELS, FEATURES)
    return [generator.random(shape, np.float32) for shape in shapes]


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape or (2, 9, 8, 8)).astype(np.float32)


LAYERS = {
    "DeformConv2D": lambda **options: oxijax.keras.DeformConv2D(4, 3, **options),
    "DCNv3": lambda **options: oxijax.keras.DCNv3(8, groups=2, **options),
    "DCNv4": lambda **options: oxijax.keras.DCNv4(8, groups=2, **options),
}
each_of_images = pytest.mark.parametrize("name", LAYERS)


@pytest.mark.spread(3)
@pytest.mark.parametrize("case", MODULES)
@pytest.mark.usefixtures("x64")
def test_is_pytorch_s_module(case):
    """With its state: results and gradients to the inputs; and the state comes back."""
    module = MODULES[case]
    config = {_NAMES.get(name, name): value for name, value in module.config.items()}
    layer = getattr(oxijax.keras, module.kind)(**config, dtype="float64")
    assert oxijax.convert.from_torch(layer, module.state) is layer
    inputs = {
        name: jnp.asarray(value, None if value.dtype == bool else jnp.float64)
        for name, value in module.inputs.items()
    }

    @jax.jit
    def run(inputs, grad_y):
        real = {name: x for name, x in inputs.items() if x.dtype == jnp.float64}
        y, vjp = jax.vjp(lambda real: sampling_layers.apply(layer, {**inputs, **real}), real)
        return y, vjp(grad_y)[0]

    y, gradients = run(inputs, jnp.asarray(module.grad_y, jnp.float64))
    found = {"y": y, **{f"d{name}": value for name, value in gradients.items()}}
    for name, expected in module.results.items():
        assert_close(found[name], expected, 1e-12, name)
    state = oxijax.convert.to_torch(layer)
    assert state.keys() == {name for name in module.state if not name.endswith("points_scale")}
    for name, value in state.items():
        np.testing.assert_array_equal(value, module.state[name], name)


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "case", [c for c in deform_conv_modules.recorded if "Alignment" not in c and "ASPP" not in c]
)
@pytest.mark.usefixtures("x64")
def test_is_pytorch_s_deform_conv(case):
    module, dtype = deform_conv_modules.recorded[case], jnp.float64
    linen = deform_conv_modules.layer_of("linen", module, dtype)
    layer = oxijax.keras.DeformConv2D(
        linen.features,
        linen.kernel_size,
        linen.strides,
        linen.padding,
        dilation_rate=linen.kernel_dilation,
        groups=linen.feature_group_count,
        use_bias=linen.use_bias,
        offset_groups=linen.offset_groups,
        use_mask=linen.use_mask,
        predictor=linen.predictor,
        mask_scale=linen.mask_scale,
        data_format="channels_first",
        dtype="float64",
    )
    given = {name: jnp.asarray(value, dtype) for name, value in module.inputs.items()}
    x = given["input"] if "input" in given else given["x"]
    layer.build(x.shape)
    oxijax.convert.from_torch(layer, module.state)
    y = layer(x, offset=given.get("offset"), modulation=given.get("mask"))
    assert_close(y, module.results["y"], 1e-12)
    assert y.shape == layer.compute_output_shape(x.shape)


@pytest.mark.spread(3)
@each_of_images
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16"])
def test_dtype_policies(name, policy):
    """Results in the compute dtype; offsets and weights are predicted in float32."""
    layer = LAYERS[name](dtype=policy)
    y = layer(images())
    assert y.dtype == keras.DTypePolicy(policy).compute_dtype
    for weight in layer.weights:
        predicts = any(part in weight.path for part in ("offset", "mask", "dw_"))
        assert weight.dtype == ("float32" if predicts else layer.variable_dtype), weight.path
    twin = LAYERS[name]()
    twin.build(images().shape)
    twin.set_weights(layer.get_weights())
    assert_close(np.asarray(y, np.float32), twin(images()), 0.02)


def test_attention_in_half_precision():
    """References are not rounded: locations are those of float32."""
    half, single = attention(dtype="mixed_bfloat16"), attention()
    inputs = attention_inputs()
    y, _ = (each(*inputs, spatial_shapes=SHAPES) for each in (half, single))
    assert y.dtype == jnp.bfloat16
    single.set_weights(half.get_weights())
    expected = single(*inputs, spatial_shapes=SHAPES)
    assert_close(np.asarray(y, np.float32), expected, 0.02)
    points = [each.sampling_points(*inputs[:2], SHAPES) for each in (half, single)]
    jax.tree.map(np.testing.assert_array_equal, *points)


@pytest.mark.spread(2)
@each_of_images
def test_is_nnx_s_layer(name):
    """With the same weights, to rounding."""
    layer, x = LAYERS[name](), images()
    layer.build(x.shape)
    generator = np.random.default_rng(2)
    layer.set_weights([generator.standard_normal(w.shape) * 0.3 for w in layer.get_weights()])
    rngs = nnx.Rngs(0)
    twin = {
        "DeformConv2D": lambda: oxijax.nnx.DeformConv(8, 4, 3, padding="VALID", rngs=rngs),
        "DCNv3": lambda: oxijax.nnx.DCNv3(8, groups=2, rngs=rngs),
        "DCNv4": lambda: oxijax.nnx.DCNv4(8, groups=2, rngs=rngs),
    }[name]()
    twin = oxijax.convert.from_torch(twin, oxijax.convert.to_torch(layer))
    assert_close(layer(x), twin(x), 1e-6)
    first = LAYERS[name](data_format="channels_first")
    first.build(x.transpose(0, 3, 1, 2).shape)
    first.set_weights(layer.get_weights())
    assert_close(jnp.moveaxis(first(x.transpose(0, 3, 1, 2)), 1, -1), layer(x), 1e-6)


@pytest.mark.spread(2)
@each_of_images
def test_models_are_saved(name, tmp_path):
    """A model is trained, saved and loaded, and its configuration makes the same layer."""
    inputs = keras.Input((None, None, 8))
    model = keras.Model(inputs, LAYERS[name](activity_regularizer="l2")(inputs))
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    x = images()
    target = np.ones(model.compute_output_shape(x.shape))
    losses = model.fit(x, target, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    expected, found = (each.predict(x, verbose=0) for each in (model, loaded))
    np.testing.assert_array_equal(found, expected)
    layer = model.layers[-1]
    assert type(layer).from_config(layer.get_config()).get_config() == layer.get_config()


def test_attention_in_a_functional_model(tmp_path):
    inputs = attention_inputs()
    symbols = [keras.Input(x.shape[1:]) for x in inputs]
    model = keras.Model(symbols, attention()(*symbols, spatial_shapes=SHAPES))
    assert model.output_shape == (None, QUERIES, FEATURES)
    model.compile("adam", "mse")
    model.fit(inputs, np.zeros((1, QUERIES, FEATURES)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    expected, found = (each.predict(inputs, verbose=0) for each in (model, loaded))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dims", [1, 3])
def test_attention_over_lines_and_volumes(dims, tmp_path):
    """The values of NNX's layer, before and after saving."""
    shapes = SHAPES_OF[dims]
    random = np.random.default_rng(0)
    pixels = sum(map(math.prod, shapes))
    arrays = [
        random.random((1, *shape), np.float32)
        for shape in ((QUERIES, FEATURES), (QUERIES, 2, dims), (pixels, FEATURES))
    ]
    symbols = [keras.Input(x.shape[1:]) for x in arrays]
    layer = attention(dims=dims)
    model = keras.Model(symbols, layer(*symbols, spatial_shapes=shapes))
    state = {w.path.split("/", 1)[1]: np.asarray(w.value) for w in layer.weights}
    other = oxijax.nnx.MSDeformAttn(FEATURES, 2, 2, (3, 2), dims=dims, rngs=nnx.Rngs(0))
    for name in ("sampling_offsets", "attention_weights", "value_proj", "output_proj"):
        sublayer = getattr(other, name)
        sublayer.kernel[...], sublayer.bias[...] = (
            state[f"{name}/{part}"] for part in ("kernel", "bias")
        )
    expected = other(*map(jnp.asarray, arrays), spatial_shapes=shapes)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        np.testing.assert_allclose(each.predict(arrays, verbose=0), expected, rtol=1e-5, atol=1e-6)


def test_regularizers_constraints_and_activation():
    layer = oxijax.keras.DeformConv2D(
        4, 3, kernel_regularizer="l2", bias_constraint="non_neg", activation="relu"
    )
    y = layer(images())
    assert np.min(y) == 0
    assert len(layer.losses) == 1
    assert layer.bias.constraint is not None


@pytest.mark.parametrize("padding", ["same", "valid", "same_lower", 1, ((1, 2), (0, 1))])
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_starts_as_a_convolution(padding, data_format):
    """A new layer is the plain convolution, whatever its padding; it knows its result's shape."""
    x = images(2, 9, 8, 8) if data_format == "channels_last" else images(2, 8, 9, 8)
    layer = oxijax.keras.DeformConv2D(
        4, (3, 2), 2, padding, data_format, offset_groups=2, kernel_initializer="he_normal"
    )
    y = layer(x)
    nhwc = x if data_format == "channels_last" else x.transpose(0, 2, 3, 1)
    pads = padding.upper() if isinstance(padding, str) else padding
    pads = ((1, 1), (1, 1)) if padding == 1 else pads
    dimensions = ("NHWC", "HWIO", "NHWC")
    plain = jax.lax.conv_general_dilated(
        jnp.asarray(nhwc), layer.kernel.value, (2, 2), pads, dimension_numbers=dimensions
    )
    assert_close(y if data_format == "channels_last" else jnp.moveaxis(y, 1, -1), plain, 1e-6)
    assert layer.compute_output_shape(x.shape) == y.shape
    assert layer.compute_output_shape((None, *x.shape[1:])) == (None, *y.shape[1:])


@pytest.mark.quick  # of which Keras's own Dense is no part: it promotes ranks
def test_what_a_layer_is_given():
    """Flow, offsets and modulation, and other inputs of the predictor."""
    layer, x = oxijax.keras.DeformConv2D(4, 3, padding="same", max_residue=2.0), images()
    flow = images(2, 9, 8, 2)
    layer.build(x.shape)
    layer.offset_conv.kernel.assign(np.full(layer.offset_conv.kernel.shape, 0.1))
    offset, mask = layer.offsets(x, 2 * x, flow)
    expected = oxijax.deform_conv(
        x, offset, layer.kernel.value, mask, layer.bias.value, padding="SAME"
    )
    assert_close(layer(x, 2 * x, flow), expected, 1e-6)
    assert_close(layer(x, offset=offset, modulation=mask), expected, 1e-6)
    assert not np.allclose(layer(x), expected)


def test_models_convert():
    """A model of Keras's own layers and ours, by attributes, and a Sequential by numbers."""

    class Block(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = keras.layers.Conv2D(8, 3, use_bias=False)
            self.bn1 = keras.layers.BatchNormalization()
            self.conv2 = oxijax.keras.DeformConv2D(4, 3, mask_scale=1)
            self.parts = [keras.layers.Dense(5), oxijax.keras.DCNv4(5, groups=1)]

        def call(self, x: Any) -> Any:
            x = self.conv2(self.bn1(self.conv1(x)))
            return self.parts[1](self.parts[0](x))

    model, other = Block(), Block()
    y = model(images())
    other(images())
    state = oxijax.convert.to_torch(model)
    names = {"conv1.weight", "bn1.running_var", "conv2.conv_offset.bias", "parts.0.weight"}
    assert names < state.keys()
    assert state["conv1.weight"].shape == (8, 8, 3, 3)
    np.testing.assert_array_equal(oxijax.convert.from_torch(other, state)(images()), y)
    sequential = keras.Sequential([keras.layers.Dense(3), keras.layers.ReLU()])
    with pytest.raises(ValueError, match="layer must be built"):
        oxijax.convert.to_torch(sequential)
    sequential(images())
    assert oxijax.convert.to_torch(sequential).keys() == {"0.weight", "0.bias"}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: oxijax.keras.MSDeformAttn(16, 3), ValueError, "num_heads must divide features"),
        (lambda: oxijax.keras.MSDeformAttn(16, n_heads=4), TypeError, "called num_heads here"),
        (lambda: oxijax.keras.DeformConv2D(4, 3, deform_groups=2), TypeError, "offset_groups"),
        (lambda: oxijax.keras.DeformConv2D(4, 3, padding="full"), ValueError, "padding"),
        (lambda: oxijax.keras.DeformConv2D(4, 3, predictor=abs), ValueError, "predictor must be"),
        (lambda: oxijax.keras.DeformConv2D(4, 3, mask_scale=3), ValueError, "mask_scale"),
        (lambda: oxijax.keras.DCNv3(8, data_format="NHWC"), ValueError, "data_format"),
        (lambda: oxijax.keras.DCNv4(8, groups=3), ValueError, "groups must divide features"),
        (
            lambda: attention()(*attention_inputs(), attention_mask=np.ones((1, PIXELS))),
            *(TypeError, "the inverse of Hugging Face's"),
        ),
        (
            lambda: attention()(*attention_inputs(), spatial_shapes=((1, 1), (2, 2))),
            *(ValueError, "value must have shape"),
        ),
        (
            lambda: oxijax.keras.DeformConv2D(6, 3, groups=3)(images()),
            *(ValueError, "must divide inputs' channels, 8"),
        ),
        (lambda: oxijax.keras.accelerate("keras_cv"), ValueError, "zeromodels"),
    ],
)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.slow
def test_other_backends_are_named():
    """The variable that makes Keras's backend JAX is in the error."""
    for backend in ("numpy", "torch"):  # one that is there, and one that is not installed
        done = subprocess.run(
            [sys.executable, "-c", "import oxijax.keras"],
            env={**os.environ, "KERAS_BACKEND": backend}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert "KERAS_BACKEND=jax" in done.stderr.splitlines()[-1], done.stderr
