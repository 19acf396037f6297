"""Whole models of each library that are exported by jax2onnx and run by ONNX Runtime."""

from typing import Any

import equinox
import jax
import jax.numpy as jnp
import keras
import numpy as np
import onnx
import pytest
from flax import linen, nnx
from support.helpers import assert_close
from support.onnx_models import exported, operators, run

import oxijax
import oxijax.keras

TOLERANCE = 1e-5
# What jax2onnx has in the place of Flax's own layers reads variables as older versions of Flax do.
FLAX = pytest.mark.filterwarnings("ignore:'.value' access is now deprecated:DeprecationWarning")


class Model(nnx.Module):
    """Images [N, 6, 7, 3] to five numbers each: all kinds of operators, one after the other."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(
            *(3, 8, (3, 3)), conv_general_dilated=oxijax.conv_general_dilated, rngs=rngs
        )
        self.deform_conv = oxijax.nnx.DeformConv(8, 16, 3, offset_groups=2, rngs=rngs)
        self.attention = oxijax.nnx.MSDeformAttn(16, 4, 2, 3, rngs=rngs)
        self.weight = nnx.Param(jax.random.normal(rngs.params(), (5, 16)))

    def __call__(self, x: jax.Array) -> jax.Array:
        fine = nnx.relu(self.deform_conv(nnx.relu(self.conv(x))))
        coarse = fine[:, ::2, ::2]
        levels = ((6, 7), (3, 4))
        values = [v.reshape(v.shape[0], v.shape[1] * v.shape[2], 16) for v in (fine, coarse)]
        middle = jnp.broadcast_to(jnp.float32(0.4), (*values[1].shape[:2], 2, 2))
        y = self.attention(
            values[1], middle, jnp.concatenate(values, axis=1), spatial_shapes=levels
        )
        return oxijax.gemm(y.mean(axis=1), self.weight[...], alpha=0.5, transpose_b=True)


def trained(module: nnx.Module) -> None:
    """Gives all parameters values as training does: those of predictors start at zero."""
    for number, (_, parameter) in enumerate(nnx.iter_graph(module)):
        if isinstance(parameter, nnx.Param):
            noise = jax.random.normal(jax.random.key(number), parameter.shape)
            parameter[...] = parameter[...] + 0.2 * noise


def images(n: int, *shape: int) -> Any:
    return np.random.default_rng(n).standard_normal((n, *shape), np.float32)


@pytest.mark.spread(1)
@FLAX
@pytest.mark.parametrize("opset", [19, 22])
def test_model(opset):
    model = Model(nnx.Rngs(0))
    trained(model)
    exported_model = exported(model, [("B", 6, 7, 3)], opset=opset)
    found = operators(exported_model)
    assert (found["DeformConv"], found["GridSample"], found["Softmax"]) == (1, 2, 1)
    assert found["Conv"] == 2  # its own, and that of offsets
    assert found["Gemm"] >= 1
    for n in (1, 3):
        x = images(n, 6, 7, 3)
        assert_close(run(exported_model, x), model(x), TOLERANCE)


@pytest.mark.spread(1)
@FLAX
@pytest.mark.parametrize("cls", [oxijax.nnx.DCNv3, oxijax.nnx.DCNv4])
def test_windows(cls):
    layer = cls(8, groups=2, rngs=nnx.Rngs(0))
    trained(layer)
    model = exported(layer, [("B", 5, 6, 8)])
    assert operators(model)["GridSample"] == 1
    for n in (1, 3):
        x = images(n, 5, 6, 8)
        assert_close(run(model, x), layer(x), TOLERANCE)


@FLAX
def test_linen():
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return oxijax.linen.DeformConv(6, (3, 3))(x)

    net = Net()
    x = images(2, 5, 6, 4)
    noise = iter(range(100))
    variables = jax.tree.map(
        lambda v: v + 0.2 * jax.random.normal(jax.random.key(next(noise)), v.shape),
        net.init(jax.random.key(0), x),
    )
    model = exported(lambda x: net.apply(variables, x), [("B", 5, 6, 4)])
    assert operators(model)["DeformConv"] == 1
    assert_close(run(model, x), net.apply(variables, x), TOLERANCE)


def test_equinox():
    layer = oxijax.equinox.DeformConv(4, 6, 3, key=jax.random.key(0))
    noise = iter(range(100))
    layer = jax.tree.map(
        lambda v: (
            v + 0.2 * jax.random.normal(jax.random.key(next(noise)), v.shape)
            if equinox.is_inexact_array(v)
            else v
        ),
        layer,
    )
    model = exported(jax.vmap(layer), [("B", 4, 5, 6)])
    assert operators(model)["DeformConv"] == 1
    x = images(2, 4, 5, 6)
    assert_close(run(model, x), jax.vmap(layer)(x), TOLERANCE)


@pytest.mark.spread(1)
@pytest.mark.filterwarnings("ignore::UserWarning:jax")  # Keras asks for a batch of int64
def test_keras_exports_its_own_models(tmp_path):
    inputs = keras.Input((6, 7, 3))
    x = oxijax.keras.DeformConv2D(8, 3, padding="same")(inputs)
    model = keras.Model(inputs, oxijax.keras.DCNv4(8, groups=2)(x))
    for weight in model.weights:
        noise = keras.random.normal(weight.shape, seed=1)
        weight.assign_add(0.2 * noise)
    x = images(2, 6, 7, 3)
    expected = model(x)
    oxijax.onnx.register()
    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    exported_model = onnx.load(tmp_path / "model.onnx")
    found = operators(exported_model)
    assert (found["DeformConv"], found["GridSample"]) == (1, 1)
    assert_close(run(exported_model, x), expected, TOLERANCE)
