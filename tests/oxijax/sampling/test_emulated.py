"""The sampling operators' GPU kernels, in the emulator: values and gradients."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import assert_close, program_of, values_and_gradients
from support.places import assert_has_kernels, emulated
from support.sampling_checks import (
    INTERNIMAGE_CHANNELS,
    TOLERANCES,
    check,
    compare,
    float64_results,
    in_dtype,
    internimage,
    results,
)
from support.sampling_data import RECORDED, Recorded, recorded, recorded_names

import oxijax
from oxijax.testing import emulate_gpu

TARGETS = ("sm_75", "sm_80", "sm_90")
COMBINATIONS = list(itertools.product(TOLERANCES, TARGETS))
NAMES = [name for family in RECORDED for name in recorded_names(family)]
ROTATING = [(name, *pair) for name, pair in zip(NAMES, itertools.cycle(COMBINATIONS), strict=False)]


@pytest.mark.spread(2, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "dtype", "target"), ROTATING)
def test_recorded(name, dtype, target):
    check(recorded(name), dtype, emulated(target, schedule=len(name)))


@pytest.mark.quick
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["msda-3", "dcnv3-21", "grid_sample-14"])
def test_what_pytorch_recorded(name):
    call = recorded(name)
    with emulate_gpu():
        found = results(call, jnp.float64)
    compare(call, found, call.results, 1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("dtype", "target"), COMBINATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_recorded_everywhere(name, dtype, target):
    check(recorded(name), dtype, emulated(target))


def drawn(shapes, points, heads, channels, queries=3, images=1, **options) -> Recorded:
    """A call of ms_deform_attn, with points inside and around the images."""
    generator, count = np.random.default_rng(channels), sum(points)
    pixels = sum(height * width for height, width in shapes)
    arrays = {
        "value": generator.standard_normal((images, pixels, heads, channels)),
        "sampling_locations": generator.uniform(-0.2, 1.2, (images, queries, heads, count, 2)),
        "attention_weights": generator.standard_normal((images, queries, heads, count)),
    }
    grad_y = generator.standard_normal((images, queries, heads, channels))
    options = {"spatial_shapes": shapes, "points": points, **options}
    return Recorded(oxijax.ms_deform_attn, arrays, options, grad_y, {})


@pytest.mark.spread(2, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("channels", [1, 4, 30, 32, 64, 71, 1025])
def test_channels_of_a_head(channels, dtype):
    check(drawn(((6, 4), (1, 1)), (3, 2), 2, channels), dtype, emulated("sm_90"))


OF_INTERNIMAGE = list(itertools.product(INTERNIMAGE_CHANNELS, ("float32", "bfloat16")))


@pytest.mark.spread(1, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("channels", "dtype", "target"),
    [(*c, target) for c, target in zip(OF_INTERNIMAGE, itertools.cycle(TARGETS), strict=False)],
)
def test_channels_of_a_group(channels, dtype, target):
    check(internimage(channels), dtype, emulated(target))


@pytest.mark.spread(2, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("dtype", "target"), COMBINATIONS)
@pytest.mark.parametrize("channels", [3, 24])
def test_softmax_over_points_of_levels_that_differ(channels, dtype, target):
    call = drawn(((5, 7), (3, 4), (1, 1)), (3, 1, 9), 3, channels, normalize=True)
    check(call, dtype, emulated(target))


@pytest.mark.usefixtures("x64")
def test_softmax_over_more_points_than_a_block_of_full_size_keeps():
    check(drawn(((6, 6),), (400,), 1, 1, normalize=True), "float32", emulated("sm_90"))


@pytest.mark.usefixtures("x64")
def test_softmax_of_large_weights():
    call = drawn(((5, 7),), (4,), 2, 8, normalize=True)
    drawn_weights = call.arrays["attention_weights"]
    weights = np.broadcast_to([-1e30, 0.0, -800.0, -709.0], drawn_weights.shape) + drawn_weights
    call = dataclasses.replace(call, arrays={**call.arrays, "attention_weights": weights})
    check(call, "float64", emulated("sm_80"))


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_strange_locations(value, method):
    """As without a GPU, and the emulator sees no bad address."""
    call = drawn(((5, 7), (3, 4)), (2, 3), 2, 8, method=method)
    arrays = [array.astype(np.float32) for array in call.arrays.values()]
    arrays[1][0, 0, 0, 1, 0] = value
    arrays[1][0, 2, 1, 3, 1] = value
    check_like_cpu(call, arrays)


@pytest.mark.spread(2, rest="proof")
@pytest.mark.parametrize("mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(5, 7), (1, 1)])
def test_strange_grids(mode, align_corners, method, size):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((1, *size, 3)).astype(np.float32)
    places = np.array([np.nan, np.inf, -np.inf, 1e30, -7.3, -1, 0, 1, 2.9], np.float32)
    grid = np.stack(np.meshgrid(places, places), axis=-1)[None]
    grad_y = generator.standard_normal((1, 9, 9, 3)).astype(np.float32)
    options = {"method": method, "padding_mode": mode, "align_corners": align_corners}
    call = Recorded(oxijax.grid_sample, {"x": x, "grid": grid}, options, grad_y, {})
    check_like_cpu(call, [x, grid])


def check_like_cpu(call: Recorded, arrays) -> None:
    """The kernels' results and those of the CPU are alike, also in what is not finite."""
    names, grad_y = list(call.arrays), np.float32(call.grad_y)
    function = functools.partial(call.function, **call.options)
    expected = values_and_gradients(function, arrays, grad_y, names)
    with emulate_gpu("sm_80"):
        found = values_and_gradients(function, arrays, grad_y, names)
    for name, value in expected.items():
        finite = np.isfinite(value)
        np.testing.assert_array_equal(np.asarray(found[name])[~finite], value[~finite], name)
        actual, wanted = (np.where(finite, v, 0) for v in (found[name], value))
        assert_close(actual, wanted, TOLERANCES["float32"], name)


@pytest.mark.spread(4)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("location_dtype", ["float64", "float16"])
@pytest.mark.parametrize("weight_dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("normalize", [False, True])
def test_dtypes_of_locations_and_weights(location_dtype, weight_dtype, normalize):
    call = drawn(((5, 7), (3, 4)), (2, 3), 2, 8, normalize=normalize)
    dtypes = ("float32", location_dtype, weight_dtype)
    arrays = [a.astype(d) for a, d in zip(call.arrays.values(), dtypes, strict=True)]
    function = functools.partial(oxijax.ms_deform_attn, **call.options)
    twin = functools.partial(oxijax.reference.ms_deform_attn, **call.options)
    exact = [a.astype(np.float64) for a in arrays]
    expected = values_and_gradients(twin, exact, call.grad_y, list(call.arrays))
    with emulate_gpu():
        found = values_and_gradients(function, arrays, np.float32(call.grad_y), list(call.arrays))
    for (name, value), dtype in zip(expected.items(), ("float32", *dtypes), strict=True):
        assert found[name].dtype == dtype
        tolerance = max(TOLERANCES["float32"], TOLERANCES[dtype])  # of sums, and of the result
        assert_close(found[name], value, tolerance, name)


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3)])
def test_empty(shape):
    n, queries, heads = shape
    call = drawn(((2, 3),), (2,), heads, 4, queries, n)
    function = functools.partial(oxijax.ms_deform_attn, **call.options)
    arrays = [array.astype(np.float32) for array in call.arrays.values()]
    with emulate_gpu():
        found = values_and_gradients(function, arrays, np.float32(call.grad_y), list(call.arrays))
    assert found["y"].shape == call.grad_y.shape
    assert found["dvalue"].shape == arrays[0].shape
    assert not np.asarray(found["dvalue"]).any()


@pytest.mark.parametrize("images", [33, 37])
def test_many_images(images):
    call = drawn(((4, 5),), (2,), 2, 3, queries=1, images=images)
    check(call, "float32", emulated("sm_80"))


@pytest.mark.quick
@pytest.mark.parametrize("deterministic", [False, True])
def test_programs_for_a_gpu(deterministic):
    """What is lowered for CUDA itself, which nothing emulates here."""
    call = drawn(((4, 5),), (2,), 2, 3)
    operands = [jnp.asarray(array, jnp.float32) for array in call.arrays.values()]
    grad_y = jnp.asarray(call.grad_y, jnp.float32)
    program = program_of(functools.partial(call.function, **call.options))
    with oxijax.config.deterministic_mode(deterministic):
        text = program.trace(operands, grad_y).lower(lowering_platforms=("cuda",)).as_text()
    value = "sampling_backward_value" + "_gather" * deterministic
    for kernel in ("sampling_forward", value, "sampling_backward_points"):
        assert text.count(f"\\22{kernel}\\22") == 1, kernel


def test_more_points_of_a_softmax_than_there_is_room_for():
    """They raise when the program is lowered, not when it runs."""
    call = drawn(((4, 5),), (1537,), 1, 1, queries=1, normalize=True)
    operands = [jnp.asarray(array, jnp.float32) for array in call.arrays.values()]
    program = program_of(functools.partial(call.function, **call.options))
    traced = program.trace(operands, jnp.asarray(call.grad_y, jnp.float32))
    with pytest.raises(ValueError, match=r"normalize with \(1537,\) points takes 49280 bytes"):
        traced.lower(lowering_platforms=("cuda",))


DETERMINISTIC = [name for family in RECORDED for name in recorded_names(family)[::4]]


def gathered(call: Recorded, dtype: str, target: str, schedule: int | None = None) -> np.ndarray:
    """The gradient to the images by the kernel without atomics, and by nothing else."""
    value, *others = (jnp.asarray(array, dtype) for array in call.arrays.values())

    def gradient(value, others, grad_y):
        function = functools.partial(call.function, **call.options)
        return jax.vjp(lambda value: function(value, *others), value)[1](grad_y)[0]

    operands = value, others, jnp.asarray(call.grad_y, dtype)
    with emulate_gpu(target, schedule=schedule), oxijax.config.deterministic_mode():
        compiled = jax.jit(gradient).lower(*operands).compile()
        assert assert_has_kernels(compiled.as_text(), ["sampling_backward_value_gather"]) == 1
        return np.asarray(compiled(*operands))


@pytest.mark.spread(2, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "dtype", "target"),
    [(n, *c) for n, c in zip(DETERMINISTIC, itertools.cycle(COMBINATIONS), strict=False)],
)
def test_deterministic(name, dtype, target):
    call = in_dtype(recorded(name), dtype)
    found = gathered(call, dtype, target)
    coordinates = jnp.float64 if dtype == "float64" else jnp.float32
    expected = float64_results(call, coordinates)
    assert_close(found, expected[f"d{next(iter(call.arrays))}"], TOLERANCES[dtype])
    assert found.dtype == dtype


def test_deterministic_is_the_same_in_any_order_of_warps():
    call = drawn(((3, 2), (1, 1)), (5, 2), 2, 3, queries=40, normalize=True)
    first, *others = (gathered(call, "float32", "sm_80", seed) for seed in (None, 1, 2))
    for other in others:
        np.testing.assert_array_equal(first, other)
