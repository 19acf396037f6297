"""Arguments of the sampling operators: unknown sizes, values that are not finite, wrong ones."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
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


def operands_of(name: str, n: int = 4) -> list[np.ndarray]:
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
    return [array.astype(np.float32) for array in arrays]


def function_of(name: str):
    return functools.partial(getattr(oxijax, name), **OPTIONS[name])


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
