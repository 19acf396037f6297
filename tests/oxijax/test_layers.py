"""The layers of Flax NNX, Flax Linen and Equinox."""

import functools
import importlib
import inspect
import operator
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax import lax
from support.helpers import TOLERANCES, assert_close
from support.layers import equations_of

import oxijax
import oxijax.equinox
import oxijax.linen
import oxijax.nnx

LIBRARIES = ("nnx", "linen", "equinox")
LAYERS: dict[str, Any] = {library: getattr(oxijax, library).DeformConv for library in LIBRARIES}
PLAIN: dict[str, Any] = {"nnx": nnx.Conv, "linen": nn.Conv, "equinox": eqx.nn.Conv2d}
IN, OUT = 4, 6
KEY = jax.random.key(0, impl="unsafe_rbg")  # the default generator takes long to compile

each_library = pytest.mark.parametrize("library", LIBRARIES)
each_version = pytest.mark.parametrize("use_mask", [False, True], ids=["v1", "v2"])


class Layer(NamedTuple):
    """A layer as a jitted function of its parameters and of images, whatever its library."""

    params: Any
    apply: Callable[[Any, jax.Array], jax.Array]


def normal(key, shape, dtype=np.float32) -> jax.Array:
    """Random values that, unlike those of JAX, need no compilation."""
    return jax.device_put(np.random.default_rng(0).normal(size=shape).astype(dtype))


def build(library: str, plain: bool = False, **arguments) -> Layer:
    """A layer from `linen.Conv`'s arguments, with a bias that is not zero."""
    cls = (PLAIN if plain else LAYERS)[library]
    arguments = {"kernel_size": (3, 3), "padding": "SAME", **arguments}
    if library == "equinox":
        names = {
            "strides": "stride",
            "kernel_dilation": "dilation",
            "feature_group_count": "groups",
        }
        arguments = {names.get(name, name): value for name, value in arguments.items()}
        layer = cls(IN, OUT, **{"dtype": jnp.float32, **arguments}, key=KEY)
        params, static = eqx.partition(layer, eqx.is_array)

        def apply(params, x):
            y = jax.vmap(eqx.combine(params, static))(x.transpose(0, 3, 1, 2))
            return y.transpose(0, 2, 3, 1)

        return Layer(params, jax.jit(apply))
    arguments = {"kernel_init": normal, "bias_init": normal, **arguments}
    if library == "linen":
        layer = cls(OUT, **arguments)
        params = jax.jit(layer.init)(KEY, images())  # jitted, it runs no layer
        return Layer(params, jax.jit(layer.apply))
    graph, params = nnx.split(cls(IN, OUT, **arguments, rngs=nnx.Rngs(KEY)))
    return Layer(params, jax.jit(lambda params, x: nnx.merge(graph, params)(x)))


def names(params) -> dict[str, jax.Array]:
    """The parameters by their paths, as the user of the library sees them."""

    def name(path):
        path = jax.tree_util.keystr(path, simple=True, separator=".")
        return path.removeprefix("params.").removesuffix(".value")

    return {name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def with_random_predictor(params):
    """The parameters with a predictor that moves samples by about a pixel."""

    def replace(path, leaf):
        if "offset_conv" not in jax.tree_util.keystr(path):
            return leaf
        return normal(None, leaf.shape, leaf.dtype) * np.asarray(0.4, leaf.dtype)

    return jax.tree_util.tree_map_with_path(replace, params)


def images(*shape, dtype=np.float32) -> jax.Array:
    return normal(None, shape or (2, 7, 8, IN), dtype)


def equations(function, *arguments) -> dict[str, Any]:
    """The equations of a program that has no two of the same primitive that matters."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return {eqn.primitive.name: eqn for eqn in equations_of(jaxpr)}


def dtypes_of_operands(function, *arguments) -> list[str]:
    """The dtypes of x, offset, weight, mask and bias where a program calls the kernel."""
    kernel = equations(function, *arguments)["deform_conv_forward"]
    return [operand.aval.dtype.name for operand in kernel.invars]


GEOMETRIES = {
    "v2": {},
    "v1": {
        "use_mask": False,
        "offset_groups": 4,
        "feature_group_count": 2,
        "padding": "VALID",
        "strides": (1, 2),
    },
    "odd padding": {
        "kernel_size": (2, 3),
        "strides": (2, 1),
        "padding": ((1, 0), (2, 1)),
        "kernel_dilation": (1, 2),
        "feature_group_count": 2,
        "use_bias": False,
    },
    "even kernel": {
        "kernel_size": (4, 2),
        "strides": 2,
        "padding": "SAME_LOWER",
        "kernel_dilation": 2,
        "offset_groups": 2,
    },
}


@pytest.mark.spread(3)
@each_library
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_starts_as_a_plain_convolution(library, geometry):
    arguments = GEOMETRIES[geometry]
    new = ("use_mask", "offset_groups")
    plain = build(library, plain=True, **{k: v for k, v in arguments.items() if k not in new})
    layer = build(library, **arguments)

    assert {n: v.shape for n, v in names(plain.params).items()} == {
        n: v.shape for n, v in names(layer.params).items() if "offset_conv" not in n
    }
    for name, value in names(plain.params).items():
        np.testing.assert_array_equal(names(layer.params)[name], value, name)
    expected = plain.apply(plain.params, images())
    assert_close(layer.apply(layer.params, images()), expected, TOLERANCES["float32"])


@pytest.mark.spread(2)
@each_library
@each_version
def test_samples_where_the_predictor_says(library, use_mask):
    layer = build(
        library,
        kernel_size=(3, 2),
        strides=(1, 2),
        kernel_dilation=(2, 1),
        feature_group_count=2,
        offset_groups=2,
        use_mask=use_mask,
    )
    params = with_random_predictor(layer.params)
    values = {name.replace("weight", "kernel"): value for name, value in names(params).items()}
    if library == "equinox":
        values = {n: v.transpose(2, 3, 1, 0) if "kernel" in n else v for n, v in values.items()}
    geometry: dict[str, Any] = {"padding": "SAME"}
    prediction = lax.conv_general_dilated(
        images(),
        values["offset_conv.kernel"],
        (1, 2),
        rhs_dilation=(2, 1),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        **geometry,
    ) + values["offset_conv.bias"].reshape(1, 1, 1, -1)
    taps = 2 * 3 * 2
    assert prediction.shape[-1] == taps * (3 if use_mask else 2)
    expected = oxijax.reference.deform_conv(
        images(),
        prediction[..., : 2 * taps],
        values["kernel"],
        2 / (1 + jnp.exp(-prediction[..., 2 * taps :])) if use_mask else None,
        values["bias"].reshape(-1),
        strides=(1, 2),
        dilation=(2, 1),
        **geometry,
    )
    assert_close(layer.apply(params, images()), expected, 1e-5)


@pytest.mark.spread(2)
@each_library
def test_offsets_of_half_precision_layers_are_float32(library):
    layer = build(library, dtype=jnp.bfloat16)
    params = with_random_predictor(layer.params)
    x = images(dtype=jnp.bfloat16)
    dtypes = dtypes_of_operands(layer.apply, params, x)
    assert dtypes == ["bfloat16", "float32", "bfloat16", "float32", "bfloat16"]

    y = layer.apply(params, x)
    assert y.dtype == jnp.bfloat16
    exact = build(library)
    full = jax.tree.map(lambda p: p.astype(jnp.float32), params)
    assert_close(y, exact.apply(full, x.astype(jnp.float32)), TOLERANCES["bfloat16"])


@each_library
@pytest.mark.usefixtures("x64")
def test_offset_dtype(library):
    kind = "dtype" if library == "equinox" else "param_dtype"
    layer = build(library, offset_dtype="float64", **{kind: jnp.float32})
    assert {p.dtype.name for p in names(layer.params).values()} == {"float32"}
    dtypes = dtypes_of_operands(layer.apply, layer.params, images())
    assert dtypes == ["float32", "float64", "float32", "float64", "float32"]


@pytest.mark.parametrize("library", ["nnx", "linen"])
def test_precision(library):
    layer = build(library, precision="highest")
    found = equations(layer.apply, layer.params, images())
    assert found["deform_conv_forward"].params["config"].precision == lax.Precision.HIGHEST
    assert set(found["conv_general_dilated"].params["precision"]) == {lax.Precision.HIGHEST}


@pytest.mark.spread(2)
@each_library
def test_training_moves_the_samples(library):
    layer, plain = build(library), build(library, plain=True)
    x, target = images(), images(2, 7, 8, OUT)

    def loss(params):
        return jnp.mean((layer.apply(params, x) - target) ** 2)

    before, gradients = jax.jit(jax.value_and_grad(loss))(layer.params)
    gradient = {name.replace("weight", "kernel"): g for name, g in names(gradients).items()}
    assert np.all(np.asarray(gradient["offset_conv.bias"]) != 0)
    assert np.linalg.norm(gradient["offset_conv.kernel"]) > 1e-3

    params = jax.tree.map(lambda p, g: p - np.float32(0.05) * g, layer.params, gradients)
    assert loss(params) < before
    as_plain = jax.tree.unflatten(
        jax.tree.structure(plain.params), [names(params)[name] for name in names(plain.params)]
    )
    y, y_plain = layer.apply(params, x), plain.apply(as_plain, x)
    assert np.max(np.abs(np.asarray(y) - np.asarray(y_plain))) > 1e-3


@each_library
@each_version
def test_parameters(library, use_mask):
    use_bias = use_mask
    layer = build(
        library, use_mask=use_mask, use_bias=use_bias, feature_group_count=2, offset_groups=2
    )
    channels = 2 * 9 * (3 if use_mask else 2)
    if library == "equinox":
        expected = {
            "weight": (OUT, IN // 2, 3, 3),
            "bias": (OUT, 1, 1),
            "offset_conv.weight": (channels, IN, 3, 3),
            "offset_conv.bias": (channels, 1, 1),
        }
    else:
        expected = {
            "kernel": (3, 3, IN // 2, OUT),
            "bias": (OUT,),
            "offset_conv.kernel": (3, 3, IN, channels),
            "offset_conv.bias": (channels,),
        }
    if not use_bias:
        del expected["bias"]
    assert {name: value.shape for name, value in names(layer.params).items()} == expected


@pytest.mark.parametrize("library", ["nnx", "linen"])
def test_any_number_of_batch_dimensions(library):
    layer = build(library)
    params = with_random_predictor(layer.params)
    x = images(2, 1, 5, 6, IN)
    one = layer.apply(params, x[:, 0])
    assert_close(layer.apply(params, x), one[:, None], TOLERANCES["float32"])
    assert_close(layer.apply(params, x[1, 0]), one[1], TOLERANCES["float32"])
    assert layer.apply(params, x[:0]).shape == (0, 1, 5, 6, OUT)


@pytest.mark.parametrize("library", ["nnx", "linen"])
def test_an_int_is_a_square_kernel_and_none_a_stride_of_1(library):
    layer = build(library, kernel_size=2, strides=None, kernel_dilation=None)
    square = build(library, kernel_size=(2, 2))
    x = images()
    np.testing.assert_array_equal(layer.apply(layer.params, x), square.apply(square.params, x))


@pytest.mark.parametrize("library", ["nnx", "linen"])
def test_default_parameters_are_those_of_a_plain_convolution(library):
    """Equal to the last bit, and under the same names: a checkpoint of one fits the other."""
    if library == "nnx":
        layer = oxijax.nnx.DeformConv(IN, OUT, 3, rngs=nnx.Rngs(KEY))
        plain = nnx.Conv(IN, OUT, (3, 3), rngs=nnx.Rngs(KEY))
        layer, plain = nnx.to_pure_dict(nnx.state(layer)), nnx.to_pure_dict(nnx.state(plain))
    else:
        layer = jax.jit(oxijax.linen.DeformConv(OUT, 3).init)(KEY, images())["params"]
        plain = jax.jit(nn.Conv(OUT, (3, 3)).init)(KEY, images())["params"]
    predictor = layer.pop("offset_conv")
    assert jax.tree.structure(layer) == jax.tree.structure(plain)
    jax.tree.map(np.testing.assert_array_equal, layer, plain)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(predictor))


def test_state_of_a_plain_convolution_updates_a_layer():
    conv = nnx.Conv(IN, OUT, (3, 3), kernel_init=normal, bias_init=normal, rngs=nnx.Rngs(KEY))
    layer = oxijax.nnx.DeformConv(IN, OUT, (3, 3), rngs=nnx.Rngs(KEY))
    nnx.update(layer, nnx.state(conv))
    assert_close(layer(images()), conv(images()), TOLERANCES["float32"])


def test_nnx_transformations():
    rngs, plain_rngs = nnx.Rngs(KEY), nnx.Rngs(KEY)
    layer = oxijax.nnx.DeformConv(
        IN, OUT, 3, rngs=rngs, kernel_metadata={"tag": "k"}, bias_metadata={"tag": "b"}
    )
    nnx.Conv(IN, OUT, (3, 3), rngs=plain_rngs)
    assert rngs.params() == plain_rngs.params()  # later layers start as they would
    assert layer.bias is not None
    assert (layer.kernel.tag, layer.bias.tag) == ("k", "b")  # pyright: ignore

    x = images()
    y = layer(x)
    assert_close(nnx.jit(lambda layer, x: layer(x))(layer, x), y, TOLERANCES["float32"])
    gradients = nnx.grad(lambda layer: jnp.sum(layer(x) ** 2))(layer)
    assert jax.tree.map(jnp.shape, gradients) == jax.tree.map(jnp.shape, nnx.state(layer))
    abstract = nnx.eval_shape(lambda: oxijax.nnx.DeformConv(IN, OUT, 3, rngs=nnx.Rngs(KEY)))
    assert abstract.offset_conv.kernel.shape == (3, 3, IN, 27)


def test_equinox_transformations():
    arguments = {"padding": 1, "dtype": jnp.float32}
    make = functools.partial(oxijax.equinox.DeformConv, IN, OUT, 3, **arguments)
    keys = jax.random.split(KEY)
    x = images(IN, 7, 8)
    ensemble = with_random_predictor(eqx.filter_vmap(lambda key: make(key=key))(keys))
    members = [jax.tree.map(operator.itemgetter(i), ensemble) for i in range(2)]
    expected = jnp.stack([eqx.filter_jit(member)(x) for member in members])
    run = eqx.filter_jit(
        eqx.filter_vmap(lambda layer, x: layer(x), in_axes=(eqx.if_array(0), None))
    )
    assert_close(run(ensemble, x), expected, TOLERANCES["float32"])

    model = eqx.nn.Sequential([make(key=keys[0]), eqx.nn.Lambda(jax.nn.relu)])
    gradients = eqx.filter_grad(lambda model: jnp.sum(model(x, key=keys[1])))(model)
    assert np.all(np.isfinite(gradients[0].weight))


NEW = {
    "offset_groups": 1,
    "use_mask": True,
    "offset_dtype": jnp.float32,
    "predictor": "conv",
    "mask_scale": 2,
    "max_residue": None,
    "max_offset": None,
    "implementation": None,
}


@each_library
def test_arguments_are_those_of_the_plain_convolution(library):
    ours = inspect.signature(LAYERS[library].__init__).parameters
    theirs = inspect.signature(PLAIN[library].__init__).parameters
    assert {name: ours[name].default for name in NEW} == NEW
    old = [name for name in ours if name not in NEW]
    assert old == [name for name in theirs if name in old]
    for name in old:
        assert ours[name].kind == theirs[name].kind, name
        default = ours[name].default
        assert default == theirs[name].default or callable(default), name


WRONG_IN_ALL: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"kernel_size": (3,)}, TypeError, r"kernel_size must be an int or a pair.*\(3,\)"),
    ({"kernel_size": (3, 3, 3)}, TypeError, r"kernel_size must be .*\(3, 3, 3\)"),
    ({"kernel_size": 0}, ValueError, "kernel_size must be positive, got 0"),
    ({"padding": "CIRCULAR"}, ValueError, "padding must be one of .*'SAME'.* got 'CIRCULAR'"),
    ({"padding": (1, 2, 3)}, TypeError, r"padding must be .*\(1, 2, 3\)"),
    ({"padding": -1}, ValueError, "padding must not be negative, got -1"),
    ({"offset_groups": 3}, ValueError, "offset_groups must divide in_.*, 4, got 3"),
    ({"offset_groups": 0}, ValueError, "offset_groups must be positive, got 0"),
    ({"offset_groups": 1.0}, TypeError, "offset_groups must be an int, got 1.0"),
    ({"offset_dtype": None}, TypeError, "offset_dtype must be one of .*float32.* got None"),
    ({"offset_dtype": jnp.int32}, TypeError, "offset_dtype must be one of .*int32"),
    ({"offset_dtype": "half a float"}, TypeError, "offset_dtype must be .*half a float"),
    ({"input_dilation": 2}, TypeError, "input_dilation"),
]
WRONG_IN_FLAX: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"strides": (1, 1, 1)}, TypeError, r"strides must be .*\(1, 1, 1\)"),
    ({"kernel_dilation": 0}, ValueError, "kernel_dilation must be positive, got 0"),
    (
        {"feature_group_count": 4},
        ValueError,
        "feature_group_count must divide .*features, 6, got 4",
    ),
    ({"feature_group_count": 3}, ValueError, "feature_group_count must divide in_features, 4"),
    ({"padding": "REFLECT"}, ValueError, "padding must be .* got 'REFLECT'"),
    ({"mask": 1}, TypeError, "mask"),
]
WRONG_IN_EQUINOX: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"stride": 0}, ValueError, "stride must be positive, got 0"),
    ({"dilation": "2"}, TypeError, "dilation must be an int or a pair of ints, got '2'"),
    ({"groups": 4}, ValueError, "groups must divide out_channels, 6, got 4"),
    ({"padding_mode": "REFLECT"}, ValueError, "padding_mode must be .*'ZEROS', got 'REFLECT'"),
    ({"padding_mode": None}, ValueError, "padding_mode must be .*'ZEROS', got None"),
    ({"in_channels": -4}, ValueError, "in_channels must be positive, got -4"),
]
WRONG = [
    *((library, *wrong) for library in LIBRARIES for wrong in WRONG_IN_ALL),
    *((library, *wrong) for library in ("nnx", "linen") for wrong in WRONG_IN_FLAX),
    *(("equinox", *wrong) for wrong in WRONG_IN_EQUINOX),
]


@pytest.mark.parametrize(
    ("library", "arguments", "error", "message"),
    WRONG,
    ids=lambda value: str(value) if isinstance(value, dict | str) else "",
)
def test_wrong_arguments(library, arguments, error, message):
    right: dict[str, Any] = {"kernel_size": 3}
    if library == "linen":
        right["features"] = OUT
    elif library == "nnx":
        right |= {"in_features": IN, "out_features": OUT, "rngs": nnx.Rngs(KEY)}
    else:
        right |= {"in_channels": IN, "out_channels": OUT, "key": KEY}

    def use():
        layer = LAYERS[library](**{**right, **arguments})
        if library == "linen":
            jax.eval_shape(layer.init, KEY, images())

    with pytest.raises(error, match=message):
        use()


@each_library
def test_wrong_inputs(library):
    if library == "equinox":
        layer = oxijax.equinox.DeformConv(IN, OUT, 3, dtype=jnp.float32, key=KEY)
        right, fields = (IN, 8, 8), "x must have shape .*in_channels"
        wrong = [(8, 8), (1, *right), (5, 8, 8)]
        with pytest.raises(TypeError, match=r"x must have the dtype of weight, .*got float16"):
            layer(jnp.zeros(right, jnp.float16))
    elif library == "nnx":
        layer = oxijax.nnx.DeformConv(IN, OUT, 3, padding="VALID", rngs=nnx.Rngs(KEY))
        right, fields = (8, 8, IN), "inputs must have shape .*in_features"
        wrong = [(8, IN), (8, 8, 2 * IN)]
    else:
        layer = oxijax.linen.DeformConv(OUT, 3, padding="VALID")
        right, fields = (8, 8, IN), "inputs must have shape .*in_features"
        wrong = [(8, IN)]
        layer = layer.bind(layer.init(KEY, jnp.zeros(right, jnp.float32)))
    for shape in wrong:
        with pytest.raises(ValueError, match=fields):
            layer(jnp.zeros(shape, jnp.float32))
    with pytest.raises(ValueError, match="output would have no extent"):
        layer(jnp.zeros([min(size, IN) // 2 if size == 8 else size for size in right], jnp.float32))


def test_layers_are_imported_when_asked_for():
    program = """
import sys, oxijax
assert not {"flax", "equinox"} & set(sys.modules)
assert {"nnx", "linen", "equinox", "deform_conv"} <= set(dir(oxijax))
assert not hasattr(oxijax, "haiku")
from oxijax import equinox
assert oxijax.equinox is equinox and "flax" not in sys.modules
print(oxijax.equinox.DeformConv.__name__)
"""
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "DeformConv", done.stderr


@each_library
def test_missing_library(library, monkeypatch):
    needed = "equinox" if library == "equinox" else "flax"
    monkeypatch.setitem(sys.modules, needed, None)
    monkeypatch.delitem(sys.modules, f"oxijax.{library}")
    with pytest.raises(ImportError, match=f"oxijax.{library} needs .*pip install"):
        importlib.import_module(f"oxijax.{library}")
