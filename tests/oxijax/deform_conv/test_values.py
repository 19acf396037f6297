"""Values and gradients of deform_conv, against torchvision's and against the formula."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.deform_conv_checks import float64_reference
from support.deform_conv_reference import to_nhwc
from support.formulas import convolution
from support.golden import GOLDEN, golden
from support.helpers import NAMES, TOLERANCES, assert_close, astype, values_and_gradients
from support.paths import DATA

import oxijax
from oxijax._convolution import parse_padding
from oxijax.testing import CASES


def test_every_golden_case_is_listed():
    for file, count in (("small", 60), ("wide", 8)):
        with np.load(DATA / f"deform_conv_{file}.npz") as data:
            assert {key.split("/")[0] for key in data.files} == {f"case{i}" for i in range(count)}


@functools.lru_cache(maxsize=4)
def in_both_formats(file, index):
    """A case's output and gradients by `deform_conv`, for each data format, in that format.

    Both are of one program: XLA finds what they have in common, and compiles it once.
    """
    case, options = golden(file, index)

    @jax.jit
    def run(case):
        results = {}
        for data_format in ("NCHW", "NHWC"):
            function = functools.partial(oxijax.deform_conv, data_format=data_format, **options)
            arrays = case if data_format == "NCHW" else to_nhwc(case)
            y, vjp = jax.vjp(function, *(arrays.get(name) for name in NAMES))
            gradients = zip(NAMES, vjp(arrays["grad_y"]), strict=True)
            present = {f"d{name}": g for name, g in gradients if name in arrays}
            results[data_format] = {"y": y, **present}
        return results

    arguments = {name: case[name].astype(np.float64) for name in (*NAMES, "grad_y") if name in case}
    return run(arguments)


@pytest.mark.spread(2, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("file", "index"), GOLDEN)
def test_golden(file, index, data_format):
    case, _ = golden(file, index)
    if data_format == "NHWC":
        case = to_nhwc(case)
    results = in_both_formats(file, index)[data_format]
    assert set(results) == set(case) - {*NAMES, "grad_y"}
    for name, result in results.items():
        assert result.dtype == jnp.float64
        assert_close(result, case[name], TOLERANCES["float64"], name)


@pytest.mark.spread(2, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("file", "index"), GOLDEN[::9])
def test_reference_golden(file, index):
    case, options = golden(file, index)
    operands = astype([case.get(name) for name in NAMES], jnp.float64)
    function = functools.partial(oxijax.reference.deform_conv, data_format="NCHW", **options)
    grad_y = case["grad_y"].astype(np.float64)
    for name, result in values_and_gradients(function, operands, grad_y).items():
        assert_close(result, case[name], TOLERANCES["float64"], name)


@pytest.mark.spread(2, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("offset_dtype", ["same", "float32"])
@pytest.mark.parametrize(("file", "index"), [*GOLDEN[1:60:10], *GOLDEN[60::2]])
def test_precision(file, index, dtype, offset_dtype):
    """Every dtype against numpy in float64 on the same, already rounded, operands."""
    if dtype == offset_dtype:
        offset_dtype = "float64"
    offset_dtype = dtype if offset_dtype == "same" else offset_dtype
    case, options = golden(file, index)
    function = functools.partial(oxijax.deform_conv, data_format="NCHW", **options)
    operands = astype([case.get(name) for name in NAMES], dtype, offset_dtype)
    grad_y = case["grad_y"].astype(dtype)
    results = values_and_gradients(function, operands, grad_y)
    exact = float64_reference(operands, grad_y, data_format="NCHW", **options)
    assert set(results) == set(exact)
    for name, result in results.items():
        assert result.dtype == (offset_dtype if name in ("doffset", "dmask") else dtype)
        assert_close(result, exact[name], TOLERANCES[dtype], name)


@pytest.mark.spread(2)
@pytest.mark.quick
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CASES)
def test_reference_against_the_formula(name):
    """The pure-JAX reference against the formula, and deform_conv against the reference."""
    case = CASES[name]
    operands = astype(case.operands(), jnp.float64)
    pads = parse_padding(case.padding, case.x[1:3], case.kernel_size, case.strides, case.dilation)
    arrays = {name: a for name, a in zip(NAMES, operands, strict=True) if a is not None}
    formula = convolution(arrays, strides=case.strides, pads=pads, dilation=case.dilation)["y"]
    grad_y = case.grad_y().astype(np.float64)
    reference = functools.partial(oxijax.reference.deform_conv, **case.options)
    expected = values_and_gradients(reference, operands, grad_y)
    assert expected["y"].shape == case.y
    assert_close(expected["y"], formula, TOLERANCES["float64"], "reference")
    function = functools.partial(oxijax.deform_conv, **case.options)
    for key, result in values_and_gradients(function, operands, grad_y).items():
        assert_close(result, expected[key], TOLERANCES["float64"], key)


@pytest.mark.quick
def test_zero_offsets_are_a_convolution():
    case = CASES["groups"]
    x, offset, weight, _, bias = case.operands()
    offset = np.zeros_like(offset)
    y = jax.jit(oxijax.deform_conv)(x, offset, weight, None, bias)
    expected = jax.lax.conv_general_dilated(
        x, weight, (1, 1), "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=case.groups,
    )  # fmt: skip
    expected = expected + bias[None, None, None]
    assert_close(y, expected, TOLERANCES["float32"])


@pytest.mark.parametrize("enabled", [False, True])
def test_dtypes_do_not_depend_on_x64(enabled):
    case = CASES["v2"]
    with jax.enable_x64(enabled):
        operands = astype(case.operands(), jnp.float32)
        results = values_and_gradients(oxijax.deform_conv, operands, case.grad_y())
        assert {result.dtype.name for result in results.values()} == {"float32"}


@pytest.mark.parametrize("mask", [False, True])
def test_empty_batch(mask):
    x, offset, weight, mask_, bias = CASES["v2"].operands()
    operands = [x[:0], offset[:0], weight, mask_[:0] if mask else None, bias]
    grad_y = CASES["v2"].grad_y()[:0]
    results = values_and_gradients(oxijax.deform_conv, operands, grad_y)
    assert results["y"].shape == grad_y.shape
    assert results["dx"].shape == (0, *x.shape[1:])
    assert results["doffset"].shape == (0, *offset.shape[1:])
    np.testing.assert_array_equal(results["dweight"], np.zeros_like(weight))
    np.testing.assert_array_equal(results["dbias"], np.zeros_like(bias))


def test_large_image_keeps_fractions():
    """Coordinates near 4,000 are as exact as near 0, also for half-precision images."""
    width = 4096
    x = jnp.arange(width, dtype=jnp.float32).reshape(1, 1, width, 1) % 7
    offset = jnp.zeros((1, 1, width, 2)).at[..., 1].set(2.0**-14)
    y = oxijax.deform_conv(x, offset, jnp.ones((1, 1, 1, 1)))
    following = jnp.pad(x[..., 1:, :], ((0, 0), (0, 0), (0, 1), (0, 0)))
    np.testing.assert_array_equal(y, x + (following - x) * 2.0**-14)


# What becomes of samples at no finite place. The sample: batch 1, pixel (2, 3), offset
# group 1, tap (1, 2) of 3x3.
CASE = CASES["offset-groups"]
PIXEL = (1, 2, 3)
SAMPLE = 1 * 9 + 1 * 3 + 2
CHANNELS = slice(2, 4)  # of offset group 1, of 3 groups of 2 channels


def run_with(offset_y=None, offset_x=None, mask=None, dtype=jnp.float32):
    operands = list(CASE.operands())
    for index, value, array in (
        (2 * SAMPLE, offset_y, operands[1]),
        (2 * SAMPLE + 1, offset_x, operands[1]),
        (SAMPLE, mask, operands[3]),
    ):
        if value is not None:
            array[*PIXEL, index] = value
    operands = astype(operands, dtype, jnp.float32)
    grad_y = CASE.grad_y().astype(dtype)
    results = values_and_gradients(oxijax.deform_conv, operands, grad_y)
    return {name: np.array(result, np.float32) for name, result in results.items()}


@pytest.mark.spread(2)
@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("coordinate", ["offset_y", "offset_x"])
def test_nan_offset(coordinate, dtype):
    """Its pixel, and its tap's gradients, are NaN; nothing else is."""
    results = run_with(**{coordinate: np.nan}, dtype=dtype)
    without = run_with(mask=0, dtype=dtype)
    places = {
        "y": (*PIXEL, slice(None)),
        "doffset": (*PIXEL, slice(2 * SAMPLE, 2 * SAMPLE + 2)),
        "dmask": (*PIXEL, SAMPLE),
        "dweight": (1, 2, CHANNELS, slice(None)),
    }
    for name, place in places.items():
        assert np.isnan(results[name][place]).all(), name
        results[name][place] = without[name][place] = 0
    for name, result in results.items():
        np.testing.assert_array_equal(result, without[name], err_msg=name)


@pytest.mark.quick
@pytest.mark.parametrize("coordinate", ["offset_y", "offset_x"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e30, -1e30, 2.0**31, -(2.0**31), 1e4])
def test_far_offset(coordinate, value):
    """Infinite and huge offsets read zeros, and every gradient is finite."""
    results = run_with(**{coordinate: value})
    without = run_with(mask=0)
    place = (*PIXEL, SAMPLE)
    assert results["dmask"][place] == 0
    results["dmask"][place] = without["dmask"][place] = 0
    place = (*PIXEL, slice(2 * SAMPLE, 2 * SAMPLE + 2))
    np.testing.assert_array_equal(results["doffset"][place], 0)
    for name, result in results.items():
        assert np.isfinite(result).all(), name
        np.testing.assert_array_equal(result, without[name], err_msg=name)


FAR = 2**30  # the most that padding, strides and dilation may be


@pytest.mark.spread(3, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("pads", "dilation", "offset", "expected"),
    [
        ((FAR, 0), 1, FAR, [7, 0]),  # back in the image
        ((FAR, 0), 1, 1.5 * FAR, [0, 0]),
        ((FAR, 0), 1, 3.0 * FAR, [0, 0]),
        ((FAR, 0), 1, -FAR, [0, 0]),
        ((FAR, 0), 1, -3.0 * FAR, [0, 0]),
        ((0, FAR), 1, -FAR, [0, 7]),
        ((0, FAR), 1, -1.5 * FAR, [0, 0]),
        ((0, FAR), 1, 1.5 * FAR, [0, 0]),
        ((FAR, FAR), FAR, -3e9 + 0.5, [0, 0]),
        ((FAR, FAR), FAR, FAR, [7, 0]),
        ((FAR, FAR), FAR, -FAR, [0, 7]),
    ],
)
def test_offset_and_place_that_are_both_far(pads, dilation, offset, expected, axis, dtype):
    """What is read is at their sum; outside it is 0, with finite gradients."""
    size = [1, 1]
    size[axis] = 3
    x = jnp.full((1, *size, 1), 7, jnp.float32)
    taps, options = [1, 1], {"strides": [1, 1], "padding": [(0, 0), (0, 0)], "dilation": [1, 1]}
    taps[axis] = 1 if dilation == 1 else 2
    options["strides"][axis] = FAR
    options["padding"][axis] = pads
    options["dilation"][axis] = dilation
    out = [1, 1]
    out[axis] = 2
    places = jnp.zeros((1, *out, 2 * math.prod(taps)), dtype).at[..., axis::2].set(offset)
    operands = x, places, jnp.ones((*taps, 1, 1), jnp.float32), None, None
    results = values_and_gradients(
        lambda *a: oxijax.deform_conv(*a, **options), operands, jnp.ones((1, *out, 1), jnp.float32)
    )
    np.testing.assert_array_equal(np.ravel(results.pop("y")), expected)
    for name, gradient in results.items():
        assert np.isfinite(gradient).all(), name


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_reference_at_no_finite_place(value):
    """The reference's own derivatives agree with the primitives' there."""
    operands = list(CASE.operands())
    operands[1][*PIXEL, 2 * SAMPLE] = value
    reference = values_and_gradients(oxijax.reference.deform_conv, operands, CASE.grad_y())
    results = values_and_gradients(oxijax.deform_conv, operands, CASE.grad_y())
    for name, result in results.items():
        np.testing.assert_allclose(result, reference[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_offset_gradient_at_the_border():
    """At exactly y = -1 the value is 0 and its derivative is that of moving inwards."""
    x = jnp.full((1, 2, 2, 1), 3.0)
    offset = jnp.zeros((1, 2, 2, 2)).at[0, 0, 0, 0].set(-1.0)

    def first(offset):
        return oxijax.deform_conv(x, offset, jnp.ones((1, 1, 1, 1)))[0, 0, 0, 0]

    value, gradient = jax.value_and_grad(first)(offset)
    assert value == 0
    np.testing.assert_array_equal(gradient[0, 0, 0], [3.0, 0.0])


def test_too_many_rows_raises():
    x = jax.ShapeDtypeStruct((2**12, 2**9, 2**9, 4), jnp.float32)
    offset = jax.ShapeDtypeStruct((2**12, 1, 1, 2 * 4), jnp.float32)
    weight = jax.ShapeDtypeStruct((1, 1, 4, 1), jnp.float32)
    with pytest.raises(ValueError, match=r"x with batch 4096.*split the batch"):
        jax.eval_shape(lambda *a: oxijax.reference.deform_conv(*a, strides=2**9), x, offset, weight)
