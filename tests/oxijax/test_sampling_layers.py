"""The layers of sampling operators against PyTorch's modules, and in their libraries."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.helpers import TOLERANCES, assert_close
from support.layers import equations_of
from support.sampling_layers import (
    KINDS,
    LIBRARIES,
    SHAPES,
    SHAPES_OF,
    apply,
    filled,
    layer_of,
    of_transformers,
    recorded,
    split,
)  # fmt: skip

import oxijax

FLOAT64 = {"param_dtype": jnp.float64, "offset_dtype": jnp.float64}
each_library = pytest.mark.parametrize("library", LIBRARIES)
each_kind = pytest.mark.parametrize("kind", KINDS)


def loaded(library: str, case: str, **config: Any) -> Any:
    """A layer with a recorded module's weights."""
    module = recorded[case]
    layer = layer_of(library, module.kind, abstract=True, **module.config, **config)
    return oxijax.convert.from_torch(layer, module.state)


def in_dtype(inputs: Mapping[str, np.ndarray], dtype: Any) -> dict[str, jax.Array]:
    """Inputs in a dtype, but for padding masks."""
    return {
        name: jnp.asarray(value, None if value.dtype == bool else dtype)
        for name, value in inputs.items()
    }


def result_and_gradients(layer: Any, inputs: Any, grad_y: Any) -> dict[str, jax.Array]:
    moving = {k: jnp.asarray(v) for k, v in inputs.items() if v.dtype != bool}

    def run(moving: Any, grad_y: Any) -> Any:
        y, vjp = jax.vjp(lambda moving: apply(layer, {**inputs, **moving}), moving)
        return y, vjp(grad_y)[0]

    y, gradients = jax.jit(run)(moving, grad_y)
    return {"y": y, **{f"d{name}": value for name, value in gradients.items()}}


@pytest.mark.spread(3)
@each_library
@pytest.mark.parametrize("case", recorded)
@pytest.mark.usefixtures("x64")
def test_is_pytorch_s_module(library, case):
    """With the module's weights: results, and gradients to the inputs."""
    module = recorded[case]
    layer = loaded(library, case, **FLOAT64)
    found = result_and_gradients(layer, module.inputs, module.grad_y)
    assert found.keys() == module.results.keys()
    for name, expected in module.results.items():
        assert_close(found[name], expected, 1e-12, name)


@pytest.mark.spread(2)
@each_library
@pytest.mark.parametrize("case", of_transformers)
@pytest.mark.usefixtures("x64")
def test_is_transformers_module(library, case):
    """With its state as it is: results, and gradients to the inputs."""
    module = of_transformers[case]
    layer = layer_of(library, module.kind, abstract=True, **module.config, **FLOAT64)
    layer = oxijax.convert.from_torch(layer, module.state)
    inputs = in_dtype(module.inputs, jnp.float64)
    found = result_and_gradients(layer, inputs, module.grad_y.astype(np.float64))
    assert found.keys() == module.results.keys()
    for name, expected in module.results.items():
        assert_close(found[name], expected, 1e-12, name)


@pytest.mark.spread(2)
@each_library
@pytest.mark.parametrize("case", ["MSDeformAttn/points", "DCNv3/center", "DCNv4/center"])
def test_starts_as_the_module_does(library, case):
    """Predictors by rule; projections by Xavier's, with biases of zero."""
    module = recorded[case]
    state = oxijax.convert.to_torch(layer_of(library, module.kind, **module.config))
    assert state.keys() == module.state.keys()
    for name, value in module.initial.items():
        np.testing.assert_allclose(state.pop(name), value, atol=1e-6)
    norm = state.pop("dw_conv.1.1.weight", None)
    assert norm is None or np.all(norm == 1)
    for name, value in state.items():
        assert value.shape == module.state[name].shape
        if name.endswith("proj.weight"):
            bound = np.sqrt(6 / sum(value.shape))
            assert 0.9 * bound < np.max(np.abs(value)) <= bound, name
            assert abs(np.mean(value**2) - bound**2 / 3) < 0.2 * bound**2, name
        elif name in ("dw_conv.0.weight", "offset_mask_dw.weight"):
            assert np.all(value != 0), name
        elif "dw" not in name and "dw_conv.0" not in name:
            np.testing.assert_array_equal(value, 0, name)


def dtypes_of_operands(layer: Any, inputs: Any) -> list[str]:
    """The dtypes of images, points and weights where a program calls the kernel."""
    found = [
        eqn
        for eqn in equations_of(jax.make_jaxpr(lambda inputs: apply(layer, inputs))(inputs).jaxpr)
        if eqn.primitive.name == "sampling_forward"
    ]
    assert len(found) == 1
    return [operand.aval.dtype.name for operand in found[0].invars]


# Operands of points: locations and weights, or one in which these are packed.
POINTS = {"MSDeformAttn": 2, "DCNv3": 2, "DCNv4": 1}


@pytest.mark.spread(1)
@each_library
@each_kind
def test_points_of_half_precision_layers_are_float32(library, kind):
    case = f"{kind}/{'points-mask' if kind == 'MSDeformAttn' else 'center'}"
    module = recorded[case]
    half = {"param_dtype": jnp.bfloat16} if library == "equinox" else {"dtype": jnp.bfloat16}
    layer = loaded(library, case, **half)
    inputs = in_dtype(module.inputs, jnp.bfloat16)
    assert dtypes_of_operands(layer, inputs) == ["bfloat16", *["float32"] * POINTS[kind]]
    y = apply(layer, inputs)
    assert y.dtype == jnp.bfloat16
    assert_close(y, module.results["y"], 0.05)


@each_library
@each_kind
@pytest.mark.usefixtures("x64")
def test_offset_dtype(library, kind):
    case = f"{kind}/{'boxes' if kind == 'MSDeformAttn' else 'plain'}"
    layer = loaded(library, case, param_dtype=jnp.float32, offset_dtype="float64")
    inputs = in_dtype(recorded[case].inputs, jnp.float32)
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        dtypes = dtypes_of_operands(layer, inputs)
    assert dtypes == ["float32", *["float64"] * POINTS[kind]]


@pytest.mark.spread(1)
@each_library
@pytest.mark.parametrize("case", ["MSDeformAttn/points-mask", "DCNv3/center", "DCNv4/center"])
def test_trains(library, case):
    """In float32, jitted: the results, and a gradient to each parameter, which lowers a loss."""
    module = recorded[case]
    parameters, rebuild = split(library, loaded(library, case))
    inputs = in_dtype(module.inputs, jnp.float32)

    @jax.jit
    def step(parameters: Any) -> Any:
        def loss(parameters: Any) -> Any:
            y = apply(rebuild(parameters), inputs)
            return jnp.mean((y - module.grad_y) ** 2), y

        (loss_value, y), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
        updated = jax.tree.map(lambda p, g: p - np.float32(1e-4) * g, parameters, gradients)
        return loss_value, y, gradients, updated

    before, y, gradients, updated = step(parameters)
    assert_close(y, module.results["y"], TOLERANCES["float32"])
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.all(np.isfinite(gradient)), path
        assert np.any(gradient != 0), path
    assert step(updated)[0] < before


@pytest.mark.spread(1)
@pytest.mark.parametrize("library", ["nnx", "linen"])
@each_kind
def test_any_number_of_batch_dimensions(library, kind):
    case = f"{kind}/{'boxes' if kind == 'MSDeformAttn' else 'plain'}"
    layer = loaded(library, case)
    inputs = in_dtype(recorded[case].inputs, jnp.float32)
    y = apply(layer, inputs)
    more = apply(layer, {name: value[:, None] for name, value in inputs.items()})
    assert_close(more[:, 0], y, TOLERANCES["float32"])
    one = apply(layer, {name: value[1] for name, value in inputs.items()})
    assert_close(one, y[1], TOLERANCES["float32"])
    assert apply(layer, {name: value[:0] for name, value in inputs.items()}).shape[0] == 0


@pytest.mark.spread(2)
@each_library
def test_sampling_points(library):
    """What is drawn is what a call reads: the sums of a linear image tell the mean location."""
    case = "MSDeformAttn/points"
    module = recorded[case]
    parameters, rebuild = split(library, loaded(library, case))
    state = {
        **module.state,
        "sampling_offsets.weight": 0.02 * module.state["sampling_offsets.weight"],
    }
    state["sampling_offsets.bias"] = np.zeros_like(state["sampling_offsets.bias"])
    state["value_proj.weight"] = np.eye(12)
    state["output_proj.weight"] = np.eye(12)
    for name in ("value_proj.bias", "output_proj.bias"):
        state[name] = np.zeros(12)
    layer = oxijax.convert.from_torch(rebuild(parameters), state)
    value = np.concatenate(
        [
            np.stack(
                np.meshgrid(*[(np.arange(n) + 0.5) / n for n in shape], indexing="ij"), -1
            ).reshape(-1, 2)[:, ::-1]
            for shape in SHAPES
        ]
    )
    value = np.tile(value, (1, 6)).astype(np.float32)  # x and y, in each channel of a head
    query = module.inputs["query"].astype(np.float32)
    references = (0.3 + 0.4 * module.inputs["reference_points"]).astype(np.float32)

    def both(query: Any, references: Any) -> Any:
        points = layer.sampling_points(query, references, spatial_shapes=SHAPES)
        return *points, layer(query, references, value, spatial_shapes=SHAPES)

    locations, weights, y = jax.vmap(both)(query, references)
    assert locations.shape == (2, 5, 3, 8, 2)
    np.testing.assert_allclose(jnp.sum(weights, -1), 1, rtol=1e-6)
    assert jnp.min(locations) > 0.2  # between centres of pixels
    assert jnp.max(locations) < 0.8
    expected = np.einsum("nqmpc,nqmp->nqmc", locations, weights)
    np.testing.assert_allclose(y.reshape(2, 5, 3, 2, 2)[..., 0, :], expected, rtol=1e-5)


def test_tensor_parallelism():
    """Heads and features over an Explicit axis: what is sharded says how the result is."""
    module = recorded["MSDeformAttn/points"]
    layer = layer_of("nnx", "MSDeformAttn", **{**module.config, "num_heads": 2})
    inputs = in_dtype(module.inputs, jnp.float32)
    arguments = inputs["query"], inputs["reference_points"], inputs["value"]
    expected = layer(*arguments, spatial_shapes=SHAPES)
    graph, state = nnx.split(layer)
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)

    def place(path: Any, parameter: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path)
        spec = P("model") if parameter.ndim == 1 else P(None, "model")
        if "output_proj" in name:
            spec = P() if parameter.ndim == 1 else P("model", None)
        return jax.device_put(parameter, NamedSharding(mesh, spec))

    with jax.set_mesh(mesh):
        placed = jax.tree_util.tree_map_with_path(place, state)
        images = [jax.device_put(array, P("data")) for array in arguments]

        @jax.jit
        def run(state: Any, *arguments: jax.Array) -> jax.Array:
            layer = nnx.merge(graph, state)
            return layer(*arguments, spatial_shapes=SHAPES, out_sharding=P("data", None, "model"))

        y = run(placed, *images)
    assert y.sharding.spec == P("data", None, "model")
    assert_close(np.asarray(y), expected, TOLERANCES["float32"])


@pytest.mark.parametrize("library", ["nnx", "linen"])
def test_sharding_of_no_projection(library):
    config = {**recorded["MSDeformAttn/points"].config, "project": library == "linen"}
    layer: Any = layer_of(library, "MSDeformAttn", **config)
    inputs = in_dtype(recorded["MSDeformAttn/points"].inputs, jnp.float32)
    arguments = inputs["query"], inputs["reference_points"], inputs["value"]
    with pytest.raises(ValueError, match=r"out_sharding must be None where output_proj is no nnx"):
        layer(*arguments, spatial_shapes=SHAPES, out_sharding=P("data"))


@pytest.mark.parametrize("library", LIBRARIES)
def test_points_of_each_level(library):
    layer = layer_of(
        library, "MSDeformAttn", abstract=True, features=12, num_heads=3, num_levels=2,
        num_points=(3, 1), method="nearest",
    )  # fmt: skip
    layer = filled(library, layer, lambda parameter: np.ones(parameter.shape, np.float32))
    inputs = in_dtype(recorded["MSDeformAttn/boxes"].inputs, jnp.float32)
    inputs = {name: value for name, value in inputs.items() if name != "padding_mask"}
    assert dtypes_of_operands(layer, inputs)[:3] == ["float32"] * 3
    y = apply(layer, inputs)
    assert y.shape == (2, 5, 12)
    assert np.all(np.isfinite(y))


@pytest.mark.spread(2)
@each_library
@pytest.mark.parametrize("dims", SHAPES_OF)
@pytest.mark.parametrize("size", [1, 2], ids=["points", "boxes"])
def test_attention_over_lines_and_volumes(library, dims, size):
    shapes, points = SHAPES_OF[dims], (2, 3)
    layer = layer_of(
        library, "MSDeformAttn", features=12, num_heads=3, num_levels=2, num_points=points,
        project=False, dims=dims,
    )  # fmt: skip
    random = np.random.default_rng(dims)
    pixels = sum(map(math.prod, shapes))
    arrays = {"query": (5, 12), "reference_points": (5, 2, size * dims), "value": (pixels, 12)}
    inputs = {name: random.random((1, *shape), np.float32) for name, shape in arrays.items()}
    flat = {name: value[0] for name, value in inputs.items()}
    query, references = (flat[name] for name in ("query", "reference_points"))
    locations, weights = layer.sampling_points(query, references, spatial_shapes=shapes)
    # A new layer has directions for offsets, whatever the query, and weighs all points alike.
    np.testing.assert_allclose(weights, np.full((5, 3, 5), 0.2), rtol=1e-6)
    level = np.repeat([0, 1], points)
    offsets = locations - references[:, None, level, :dims]
    if size == 1:
        offsets = offsets * np.array([sizes[::-1] for sizes in shapes])[level]
    else:
        offsets = offsets / (0.5 * references[:, None, level, dims:])
        offsets = offsets * np.array(points)[level][:, None]
    steps = np.concatenate([np.arange(1, count + 1) for count in points])
    np.testing.assert_allclose(np.abs(offsets).max(-1), np.tile(steps, (5, 3, 1)), rtol=1e-4)
    expected = oxijax.reference.ms_deform_attn(
        inputs["value"].reshape(1, pixels, 3, 4), locations[None], weights[None],
        spatial_shapes=shapes, points=points,
    )  # fmt: skip
    found = apply(layer, inputs, shapes)
    assert_close(found, np.asarray(expected).reshape(1, 5, 12), 1e-6)


def test_directions_of_heads():
    """No two heads of a volume look the same way, and none looks where many do."""
    layer = layer_of("nnx", "MSDeformAttn", features=16, num_heads=8, num_points=1, dims=3)
    directions = np.asarray(layer.sampling_offsets.bias[...]).reshape(8, 4, 3)[:, 0]
    directions = directions / np.linalg.norm(directions, axis=-1, keepdims=True)
    cosines = directions @ directions.T - 2 * np.eye(8)
    assert cosines.max() < 0.7
    np.testing.assert_allclose(directions.mean(0), np.zeros(3), atol=0.1)
