"""The sampling operators under JAX's transformations, and what is not finite."""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads
from support.helpers import assert_close

import oxijax
from oxijax.testing import emulate_gpu

LEVELS = ((5, 7), (3, 4))
OPTIONS = {
    "ms_deform_attn": {"spatial_shapes": LEVELS},
    "dcnv3": {"kernel_size": (3, 2), "strides": (2, 1), "groups": 2, "offset_scale": 1.3},
    "dcnv4": {"kernel_size": 3, "groups": 2, "softmax": True},
    "grid_sample": {"padding_mode": "border"},
}


def operands_of(name: str, n: int = 4, dtype: Any = np.float32) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    if name == "ms_deform_attn":
        locations = random.uniform(-0.2, 1.2, (n, 6, 2, 2, 3, 2))
        shapes = random.standard_normal((n, 47, 2, 4)), random.standard_normal((n, 6, 2, 2, 3))
        arrays = [shapes[0], locations, shapes[1]]
    elif name == "grid_sample":
        arrays = [random.standard_normal((n, 5, 7, 3)), random.uniform(-1.3, 1.3, (n, 4, 3, 2))]
    else:
        more = [(n, 3, 7, 24), (n, 3, 7, 12)] if name == "dcnv3" else [(n, 5, 7, 56)]
        arrays = [random.standard_normal(shape) for shape in [(n, 5, 7, 6), *more]]
    return [array.astype(dtype) for array in arrays]


def function_of(name: str, module=oxijax):
    return functools.partial(getattr(module, name), **OPTIONS[name])


@pytest.mark.spread(1)
@pytest.mark.quick
@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_are_those_of_the_reference(name):
    operands = operands_of(name)

    def gradients(module):
        @jax.jit
        def run(*arrays):
            y, vjp = jax.vjp(function_of(name, module), *arrays)
            return y, vjp(jnp.cos(y))

        return run(*operands)

    jax.tree.map(
        lambda ours, theirs: assert_close(ours, theirs, 1e-5),
        gradients(oxijax),
        gradients(oxijax.reference),
    )


@pytest.mark.spread(1)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", OPTIONS)
def test_any_mode_and_order(name):
    operands = operands_of(name, n=1, dtype=np.float64)
    check_grads(
        jax.jit(function_of(name)), operands, order=2, modes=["fwd", "rev"], atol=1e-6, rtol=1e-6,
        eps=1e-7,
    )  # fmt: skip


@pytest.mark.spread(2)
@pytest.mark.quick
@pytest.mark.parametrize("mapped", [(0, 0, 0), (0, None, None), (None, 0, 0), (None, 0, None)])
@pytest.mark.parametrize("name", ["ms_deform_attn", "dcnv3"])
def test_vmap(name, mapped):
    operands = operands_of(name)
    several = [
        array if axis is None else np.stack([array * (1 - 0.03 * i) for i in range(3)])
        for array, axis in zip(operands, mapped, strict=True)
    ]

    def both(*arrays):
        y, vjp = jax.vjp(function_of(name), *arrays)
        return y, vjp(jnp.ones_like(y))

    ours = jax.jit(jax.vmap(both, mapped))(*several)
    run = jax.jit(both)
    for i in range(3):
        one = [a if axis is None else a[i] for a, axis in zip(several, mapped, strict=True)]
        jax.tree.map(lambda a, e, i=i: assert_close(a[i], e, 1e-5), ours, run(*one))


@pytest.mark.parametrize("shared", ["images", "points"])
def test_vmap_repeats_nothing(shared):
    value, locations, weights = operands_of("ms_deform_attn")
    axes = (None, 0, 0) if shared == "images" else (0, None, None)
    several = [
        a if axis is None else np.stack([a, a])
        for a, axis in zip((value, locations, weights), axes, strict=True)
    ]
    jaxpr = jax.make_jaxpr(jax.vmap(function_of("ms_deform_attn"), axes))(*several)
    (eqn,) = [e for e in jaxpr.eqns if e.primitive.name == "sampling_forward"]
    shapes = [v.aval.shape for v in eqn.invars]
    kept = {"images": [value.shape], "points": [(4, 6, 2, 6, 2), (4, 6, 2, 6)]}[shared]
    assert [shape for shape in shapes if shape in kept] == kept


@pytest.mark.spread(1)
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("split", ["images", "queries"])
def test_sharded(axis_type, split):
    mesh = jax.make_mesh((4,), ("i",), axis_types=(axis_type,))
    value, locations, weights = operands_of("ms_deform_attn")
    locations, weights = (np.concatenate([a, a[:, :2]], axis=1) for a in (locations, weights))
    spec = PartitionSpec("i") if split == "images" else PartitionSpec(None, "i")
    specs = (PartitionSpec("i") if split == "images" else PartitionSpec(), spec, spec)

    def loss(*arrays):
        return jnp.sum(function_of("ms_deform_attn")(*arrays) ** 2)

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
    expected = run(value, locations, weights)
    arrays = [
        jax.device_put(a, NamedSharding(mesh, s))
        for a, s in zip((value, locations, weights), specs, strict=True)
    ]
    with jax.set_mesh(mesh):
        found = run(*arrays)
    jax.tree.map(lambda a, e: assert_close(a, e, 1e-5), found, expected)


@pytest.mark.spread(1)
@pytest.mark.quick
def test_shard_map():
    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
    operands = operands_of("ms_deform_attn")

    def loss(*arrays):
        return jnp.sum(function_of("ms_deform_attn")(*arrays) ** 2)

    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(PartitionSpec(), *[PartitionSpec(None, "i")] * 2),
        out_specs=(PartitionSpec(), PartitionSpec(None, "i")),
    )
    def gradients(value, locations, weights):
        # Each device has two of eight queries, and images that all have.
        value_grad, locations_grad, _ = jax.grad(loss, argnums=(0, 1, 2))(value, locations, weights)
        return value_grad, locations_grad

    value, locations, weights = operands
    locations, weights = (np.concatenate([a, a[:, :2]], axis=1) for a in (locations, weights))
    expected = jax.grad(loss, argnums=(0, 1))(value, locations, weights)
    found = gradients(value, locations, weights)
    jax.tree.map(lambda a, e: assert_close(a, e, 1e-5), found, expected)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_exported_for_any_batch_and_number_of_queries(on_gpu):
    n, q = export.symbolic_shape("n, q")
    shapes = [(n, 47, 2, 4), (n, q, 2, 2, 3, 2), (n, q, 2, 2, 3)]

    def gradients(*arrays):
        y, vjp = jax.vjp(function_of("ms_deform_attn"), *arrays)
        return y, vjp(y)

    expected = {count: gradients(*operands_of("ms_deform_attn", n=count)) for count in (1, 3)}
    with emulate_gpu() if on_gpu else contextlib.nullcontext():
        exported = export.export(jax.jit(gradients), disabled_checks=oxijax.EXPORT_CHECKS)(
            *(jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)
        )
        assert ("oxijax_launch" in exported.mlir_module()) == on_gpu
        for count, wanted in expected.items():
            found = exported.call(*operands_of("ms_deform_attn", n=count))
            jax.tree.map(lambda a, e: assert_close(a, e, 1e-6), found, wanted)


def test_nothing_is_made_that_nobody_asks_for():
    value, locations, weights = operands_of("ms_deform_attn")

    def loss(value):
        return jnp.sum(function_of("ms_deform_attn")(value, locations, weights))

    text = str(jax.make_jaxpr(jax.grad(loss))(value))
    assert "sampling_backward_value" in text
    assert "sampling_backward_points" not in text


def test_nan_and_infinite_locations():
    value, locations, weights = operands_of("ms_deform_attn")
    at = {"nan": (0, 1, 0, 1, 2, 0), "infinite": (1, 2, 1, 0, 0, 1), "far": (2, 0, 0, 0, 1, 0)}
    changed = locations.copy()
    for key, number in {"nan": np.nan, "infinite": -np.inf, "far": 1e30}.items():
        changed[at[key]] = number

    @jax.jit
    def run(value, locations, weights):
        y, vjp = jax.vjp(function_of("ms_deform_attn"), value, locations, weights)
        return y, vjp(jnp.ones_like(y))

    y, (grad_value, grad_locations, grad_weights) = jax.tree.map(
        np.asarray, run(value, changed, weights)
    )
    # One query and head is NaN, and the gradients of the point; nothing else.
    assert np.isnan(y[0, 1, 0]).all()
    assert np.isnan(y).sum() == 4
    assert np.isfinite(grad_value).all()
    assert np.isnan(grad_locations[at["nan"][:-1]]).all()
    assert np.isnan(grad_locations).sum() == 2
    assert np.isnan(grad_weights[at["nan"][:-1]])
    assert np.isnan(grad_weights).sum() == 1
    for key in ("infinite", "far"):
        assert not grad_locations[at[key][:-1]].any()
        assert grad_weights[at[key][:-1]] == 0
    # What is far away is as if it had no weight.
    without = weights.copy()
    for where in at.values():
        without[where[:-1]] = 0
    expected, (expected_value, *_) = run(value, locations, without)
    kept = ~np.isnan(y)
    assert_close(y[kept], np.asarray(expected)[kept], 1e-6)
    assert_close(grad_value, expected_value, 1e-6)


def test_pixels_that_are_not_finite_stay_where_they_are():
    value, locations, weights = operands_of("ms_deform_attn")
    value[0, 0, 0, 0] = np.inf
    y = np.asarray(function_of("ms_deform_attn")(value, locations, weights))
    assert np.isfinite(y[1:]).all()
    assert np.isfinite(y[:, :, 1]).all()
    assert np.isfinite(y[..., 1:]).all()


@pytest.mark.parametrize("name", OPTIONS)
def test_wrong_shapes_are_named(name):
    images, *operands = operands_of(name)
    for i, argument in enumerate(operands):
        wrong = [*operands]
        wrong[i] = argument[..., :-1]
        with pytest.raises(ValueError, match=r"must have shape .*, got"):
            function_of(name)(images, *wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spatial_shapes": ((5, 7),)}, "value must have the 35 pixels"),
        ({"spatial_shapes": ((5, 7), (3, 0))}, r"spatial_shapes\[1\] must be positive"),
        ({"spatial_shapes": 3}, "spatial_shapes must be a sequence"),
        ({"spatial_shapes": ()}, "spatial_shapes must not be empty"),
        ({"spatial_shapes": (5, 7)}, r"spatial_shapes\[0\] must be a pair of ints"),
        ({"points": (3,)}, "points must have a number for each of the 2 levels"),
        ({"points": (3, 3)}, "sampling_locations must have 5 dimensions"),
        ({"method": "cubic"}, "method must be one of"),
        ({"normalize": 1}, "normalize must be a bool"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    operands = operands_of("ms_deform_attn")
    with pytest.raises((TypeError, ValueError), match=message):
        oxijax.ms_deform_attn(*operands, **{"spatial_shapes": LEVELS, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": 4}, "groups must divide the channels of x, 6, got 4"),
        ({"remove_center": True}, "kernel_size must be odd"),
        ({"offset_scale": float("nan")}, "offset_scale must be a finite number"),
        ({"offset_scale": "1"}, "offset_scale must be a number"),
        ({"kernel_size": 9, "padding": "VALID"}, "the output would have no extent"),
    ],
)
def test_wrong_windows_are_named(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        oxijax.dcnv3(*operands_of("dcnv3"), **{**OPTIONS["dcnv3"], **change})
