"""Offsets of the layers of deformable convolution: their source, and what is done to them."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from support.deform_conv_modules import KEY, LIBRARIES
from support.helpers import assert_close
from support.sampling_layers import split

import oxijax
import oxijax.equinox
import oxijax.linen
import oxijax.nnx

each_library = pytest.mark.parametrize("library", LIBRARIES)
IN, OUT, GROUPS, SIZE = 4, 6, 2, (7, 8)
CHANNELS = {"offset": GROUPS * 9 * 2, "mask": GROUPS * 9, "flow": 2, "inputs": IN, "features": 3}


def array(name: str, *, channels: int | None = None, scale: float = 1.0) -> jax.Array:
    random = np.random.default_rng(sum(map(ord, name)))
    shape = (2, *SIZE, CHANNELS.get(name, IN) if channels is None else channels)
    return jnp.asarray(scale * random.normal(size=shape), jnp.float32)


class Layer:
    """A layer of any library whose parameters are random, for batches with their channels last."""

    def __init__(self, library: str, inputs: Any = None, **options: Any):
        options = {"offset_groups": GROUPS, **options}
        if library == "nnx":
            layer = oxijax.nnx.DeformConv(IN, OUT, 3, rngs=nnx.Rngs(KEY), **options)
        elif library == "linen":
            layer: Any = oxijax.linen.DeformConv(OUT, 3, **options)
            given: dict[str, Any] = (
                {} if options.get("predictor", 1) else {"offset": array("offset")}
            )
            # By themselves these compile nothing.
            variables = jax.eval_shape(lambda: layer.init(KEY, array("inputs"), inputs, **given))
            layer = layer.bind(variables)
        else:
            layer = oxijax.equinox.DeformConv(IN, OUT, 3, padding=1, key=KEY, **options)
        parameters, rebuild = split(library, layer)
        random = np.random.default_rng(0)
        self.layer: Any = rebuild(
            jax.tree.map(lambda p: jnp.asarray(random.normal(size=p.shape), p.dtype), parameters)
        )
        self.channels_first = library == "equinox"

    def __call__(self, *arrays: Any, **more: Any) -> jax.Array:
        return self._run(self.layer, arrays, more)

    def offsets(self, *arrays: Any, **more: Any) -> Any:
        return self._run(self.layer.offsets, arrays, more)

    def _run(self, function: Callable[..., Any], arrays: Any, more: Any) -> Any:
        if not self.channels_first:
            return function(*arrays, **more)
        move = functools.partial(jax.tree.map, lambda a: jnp.moveaxis(a, -1, 1))
        y = jax.vmap(lambda arrays, more: function(*arrays, **more))(move(arrays), move(more))
        return jax.tree.map(lambda a: jnp.moveaxis(a, 1, -1), y)


@pytest.mark.spread(3)
@each_library
@pytest.mark.parametrize("use_mask", [False, True])
def test_offsets_that_are_told_are_used(library, use_mask):
    layer, x = Layer(library, use_mask=use_mask), array("inputs")
    offset, mask = layer.offsets(x)
    assert offset.shape == (2, *SIZE, CHANNELS["offset"])
    assert (mask is not None) == use_mask
    given = {"offset": offset} | ({"mask": mask} if use_mask else {})
    assert_close(layer(x, **given), layer(x), 2e-6)
    without = layer(x, offset=offset)
    assert (np.abs(np.asarray(without - layer(x))).max() > 1e-3) == use_mask


@each_library
def test_order_of_channels(library):
    """What the bias of the predictor's channel says is the offset or the mask of that name."""
    layer = Layer(library)
    taps, channels = 9, 3 * GROUPS * 9
    marked = np.arange(channels, dtype=np.float32)
    parameters, rebuild = split(library, layer.layer)

    def mark(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path)
        if "offset_conv" not in name:
            return leaf
        return jnp.asarray(marked.reshape(leaf.shape)) if "bias" in name else 0 * leaf

    layer.layer = rebuild(jax.tree_util.tree_map_with_path(mark, parameters))
    offset, mask = (np.asarray(a)[0, 3, 3] for a in layer.offsets(array("inputs")))
    for g in range(GROUPS):
        for i in range(3):
            for j in range(3):
                tap = g * taps + i * 3 + j
                np.testing.assert_array_equal(offset[2 * tap : 2 * tap + 2], [2 * tap, 2 * tap + 1])
                logit = GROUPS * taps * 2 + tap
                np.testing.assert_allclose(mask[tap], 2 / (1 + np.exp(-float(logit))), rtol=1e-6)


@each_library
def test_what_is_done_to_a_prediction(library):
    """tanh, then flows, of each half of the groups its own, then the clamp."""
    x, flow = array("inputs"), array("flow", channels=4, scale=3)
    plain, plain_mask = Layer(library).offsets(x)
    options = {"max_residue": 1.5, "max_offset": 2.0, "mask_scale": 1}
    layer = Layer(library, **options)
    offset, mask = layer.offsets(x, flow=flow)
    pairs = np.asarray(plain).reshape(2, *SIZE, GROUPS, 9, 2)
    yx = np.asarray(flow).reshape(2, *SIZE, 2, 1, 2)[..., ::-1]
    expected = np.clip(1.5 * np.tanh(pairs) + yx, -2, 2).reshape(offset.shape)
    assert np.mean(np.abs(expected) == 2) > 0.05
    assert_close(offset, expected, 1e-6)
    assert_close(mask, np.asarray(plain_mask) / 2, 1e-6)
    assert_close(layer(x, flow=flow), layer(x, offset=offset, mask=mask), 2e-6)
    one = flow[..., :2]
    assert_close(
        layer.offsets(x, flow=one)[0],
        layer.offsets(x, flow=jnp.concatenate([one, one], axis=-1))[0],
        1e-6,
    )


def own_predictor(library: str) -> Any:
    channels = 3 * GROUPS * 9
    if library == "nnx":
        return nnx.Conv(3, channels, (3, 3), rngs=nnx.Rngs(KEY))
    if library == "linen":
        return nn.Conv(channels, (3, 3))
    return eqx.nn.Conv2d(3, channels, 3, padding=1, key=KEY)


@each_library
def test_predictor_reads_another_tensor(library):
    x, features = array("inputs"), array("features")
    other = array("other")
    same = Layer(library)
    assert_close(same(x, x), same(x), 1e-6)
    offset, mask = same.offsets(x, other)
    assert_close(same(x, other), same(x, offset=offset, mask=mask), 2e-6)
    assert np.abs(np.asarray(offset - same.offsets(x)[0])).max() > 0.1
    own = Layer(library, features, predictor=own_predictor(library))
    offset, mask = own.offsets(x, features)
    assert offset.shape == (2, *SIZE, CHANNELS["offset"])
    assert_close(own(x, features), own(x, offset=offset, mask=mask), 2e-6)


@each_library
def test_without_a_predictor(library):
    layer, x, offset = Layer(library, predictor=None), array("inputs"), array("offset")
    mask = array("mask")
    y = oxijax.deform_conv(x, offset, *self_weights(library, layer), precision="highest")
    assert_close(layer(x, offset=offset), y, 2e-6)
    assert layer(x, offset=offset, mask=mask).shape == y.shape
    with pytest.raises(ValueError, match="offset must be given with predictor=None, got None"):
        layer(x)


def self_weights(library: str, layer: Layer) -> tuple[jax.Array, None, jax.Array]:
    """kernel, no mask, bias."""
    if library == "equinox":
        weight = jnp.transpose(layer.layer.weight, (2, 3, 1, 0))
        return weight, None, layer.layer.bias.reshape(-1)
    if library == "nnx":
        return layer.layer.kernel[...], None, layer.layer.bias[...]
    parameters = layer.layer.variables["params"]
    return parameters["kernel"], None, parameters["bias"]


X, OFFSET, MASK, FLOW = (array(name) for name in ("inputs", "offset", "mask", "flow"))
WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"mask": MASK}, "mask must be None where offset is not given"),
    ({}, {"offset": OFFSET, "flow": FLOW}, "flow must be None where offset is given"),
    ({}, {"offset": OFFSET, "offset_inputs": X}, "offset_inputs must be None where offset is"),
    ({"use_mask": False}, {"offset": OFFSET, "mask": MASK}, "mask must be None with use_mask=F"),
    ({}, {"flow": FLOW[..., :1]}, "flow must have 2.F channels.* 2, at each .*; got 1 channels"),
    ({}, {"flow": array("flow", channels=6)}, "flow must have 2.F channels.*; got 6 channels"),
    ({}, {"flow": FLOW[:, :3]}, r"flow must have .* at each output pixel, .*7, 8.*got 2 .*3, 8"),
    ({}, {"offset": OFFSET[..., :9]}, "offset must have OG.Kh.Kw.2"),
    ({}, {"offset_inputs": array("more", channels=5)}, "offset_inputs must have shape"),
    ({"predictor": lambda x: x}, {}, "predictor must have 54 channels of offsets and logits, got"),
    ({"predictor": lambda x: None}, {}, "predictor must have 54 channels .*, got None"),
    ({"predictor": "mlp"}, {}, "predictor must be one of 'conv', got 'mlp'"),
    ({"mask_scale": 3}, {}, "mask_scale must be 1 or 2, got 3"),
    ({"max_residue": 0}, {}, "max_residue must be positive, got 0"),
    ({"max_offset": -1.0}, {}, "max_offset must be positive, got -1.0"),
]


@each_library
@pytest.mark.parametrize(("options", "arguments", "message"), WRONG)
def test_wrong_arguments(library, options, arguments, message):
    with pytest.raises(ValueError, match=message):
        Layer(library, **options)(X, **arguments)
