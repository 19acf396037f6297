"""Values and gradients of conv and conv_general_dilated, against jax.lax and the formula."""

import collections
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.conv_checks import DTYPES, NAMES, lax_conv, operands_of
from support.formulas import convolution
from support.helpers import TOLERANCES, assert_close, values_and_gradients

import oxijax
from oxijax.testing import CONV_CASES, ConvCase


def check_against_lax(function, case, dtype):
    """Output and gradients, against jax.lax in float64 on the same, already rounded, operands."""
    operands, grad_y = operands_of(case, dtype), case.grad_y().astype(dtype)
    assert grad_y.shape == case.y
    results = values_and_gradients(
        functools.partial(function, **case.options), operands, grad_y, NAMES
    )
    wide = [None if a is None else np.asarray(a, np.float64) for a in operands]
    expected = values_and_gradients(
        functools.partial(lax_conv, case), wide, grad_y.astype(np.float64), NAMES
    )
    assert set(results) == set(expected)
    for name, result in results.items():
        assert result.dtype == dtype, name
        assert_close(result, expected[name], TOLERANCES[dtype], name)


def test_layers_are_small_and_many():
    assert len(CONV_CASES) >= 60
    assert all(case.multiply_adds <= 100_000 for case in CONV_CASES.values())


# Each layer in one dtype, so that all come up with all kinds of layers.
ROTATING = list(zip(CONV_CASES, itertools.cycle(DTYPES), strict=False))
QUICK = [
    pytest.param(*row, marks=pytest.mark.quick) if i % 3 == 0 else row
    for i, row in enumerate(ROTATING)
]


@pytest.mark.spread(17)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "dtype"), QUICK)
def test_case(name, dtype):
    check_against_lax(oxijax.conv, CONV_CASES[name], dtype)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONV_CASES)
def test_case_everywhere(name, dtype):
    check_against_lax(oxijax.conv, CONV_CASES[name], dtype)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "dtype"), ROTATING[::9])
def test_reference(name, dtype):
    check_against_lax(oxijax.reference.conv, CONV_CASES[name], dtype)


@st.composite
def layers(draw):
    rank, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))

    def sizes(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    paddings = [
        st.sampled_from(["SAME", "SAME_LOWER", "VALID"]),
        st.integers(0, 2),
        st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * rank),
    ]
    case = ConvCase(
        f"drawn-{draw(st.integers(0, 1000))}",
        (draw(st.integers(0, 3)), *sizes(1, 7), groups * draw(st.integers(1, 3))),
        groups * draw(st.integers(1, 3)),
        kernel_size=sizes(1, 4),
        strides=sizes(1, 3),
        padding=draw(st.one_of(paddings)),
        dilation=sizes(1, 2),
        groups=groups,
        bias=draw(st.booleans()),
        channels_first=draw(st.booleans()),
    )
    try:
        _ = case.out_size
    except ValueError:
        assume(False)
    return case


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(layers())
def test_drawn_layers(case):
    with jax.enable_x64(True):
        check_against_lax(oxijax.conv, case, "float64")


def conv_loops(case, x, weight, bias):
    """Convolution as its formula says, NHWC, in float64, one product at a time."""
    y = np.zeros(case.y) if bias is None else np.tile(np.float64(bias), (*case.y[:-1], 1))
    in_group, out_group = weight.shape[2], case.out_channels // case.groups
    for n, p, q, o in np.ndindex(y.shape):
        for i, j in np.ndindex(case.kernel_size):
            row = p * case.strides[0] - case.pads[0][0] + i * case.dilation[0]
            column = q * case.strides[1] - case.pads[1][0] + j * case.dilation[1]
            if 0 <= row < x.shape[1] and 0 <= column < x.shape[2]:
                first = o // out_group * in_group
                pixel = x[n, row, column, first : first + in_group]
                y[n, p, q, o] += np.dot(np.float64(pixel), weight[i, j, :, o])
    return y


@pytest.mark.quick
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["plain", "dilated-strided", "padding-uneven-strided", "groups-2"])
def test_formula(name):
    case = CONV_CASES[name]
    y = oxijax.conv(*operands_of(name, "float64"), **case.options)
    assert_close(y, conv_loops(case, *case.operands()), TOLERANCES["float64"])


@pytest.mark.parametrize("turned", [False, True])
def test_two_taps_two_pixels_apart(turned):
    """XLA's compiler ends the process on what `jax.lax` makes of the gradient of these."""
    rng = np.random.default_rng(0)
    sizes = [(4, 6), (3, 2)]  # image and kernel
    image, kernel = ((w, h) for h, w in sizes) if turned else sizes
    x, weight = (rng.standard_normal(s, np.float32) for s in ((2, *image, 5), (*kernel, 5, 4)))
    function = functools.partial(oxijax.conv, strides=2, padding=1)
    grad_y = rng.standard_normal(jax.eval_shape(function, x, weight).shape, np.float32)
    results = values_and_gradients(function, (x, weight), grad_y, NAMES[:2])
    arrays = {"x": x, "weight": weight}
    geometry = {"strides": (2, 2), "pads": ((1, 1), (1, 1)), "dilation": (1, 1)}
    expected = convolution(arrays, grad_y, **geometry)
    for name, result in results.items():
        assert_close(result, expected[name], TOLERANCES["float32"], name)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(dtype):
    """The bias is added to the float32 sum: two halves of the last place make a whole one."""
    half = float(jnp.finfo(dtype).eps) / 2
    x = jnp.asarray([1, half], dtype).reshape(1, 1, 1, 2)
    y = oxijax.conv(x, jnp.ones((1, 1, 2, 1), dtype), jnp.asarray([half], dtype))
    assert y.item() == 1 + 2 * half


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_bias_gradient_is_summed_in_float32(dtype):
    x, weight, bias = operands_of("batch-33", dtype)
    jaxpr = jax.make_jaxpr(jax.grad(lambda b: oxijax.conv(x, weight, b).max()))(bias)
    sums = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "reduce_sum"]
    assert [eqn.invars[0].aval.dtype for eqn in sums][-1:] == [jnp.float32]
    assert jaxpr.out_avals[0].dtype == dtype


@pytest.mark.parametrize("name", ["plain", "groups-2", "line-ncw", "depthwise-strided"])
def test_empty_batch(name):
    case = CONV_CASES[name]
    x, weight, bias = operands_of(name)
    grad_y = case.grad_y()[:0]
    function = functools.partial(oxijax.conv, **case.options)
    results = values_and_gradients(function, (x[:0], weight, bias), grad_y, NAMES)
    assert results["y"].shape == grad_y.shape
    assert results["dx"].shape == (0, *x.shape[1:])
    np.testing.assert_array_equal(results["dweight"], np.zeros_like(weight))
    if bias is not None:
        np.testing.assert_array_equal(results["dbias"], np.zeros_like(bias))


@pytest.mark.parametrize("enabled", [False, True])
def test_dtypes_do_not_depend_on_x64(enabled):
    with jax.enable_x64(enabled):
        results = values_and_gradients(
            oxijax.conv, operands_of("plain"), CONV_CASES["plain"].grad_y(), NAMES
        )
        assert {result.dtype.name for result in results.values()} == {"float32"}


# conv_general_dilated: whatever jax.lax.conv_general_dilated makes of the same arguments.

X, WEIGHT = (2, 3, 9, 8), (4, 3, 3, 2)  # NCHW, OIHW
LAX_CALLS = {
    "default-layout": ((X, WEIGHT), {"padding": "SAME"}),
    "valid": ((X, WEIGHT), {"padding": "VALID"}),
    "lower-case": ((X, WEIGHT), {"padding": "same_lower", "window_strides": (2, 3)}),
    "pairs": ((X, WEIGHT), {"padding": [(1, 0), [2, 3]], "window_strides": [2, 1]}),
    "arrays": (
        (X, WEIGHT),
        {"padding": np.array([[1, 1], [0, 2]]), "window_strides": np.array([2, 2])},
    ),
    "negative-padding": ((X, WEIGHT), {"padding": [(-2, 1), (3, -1)], "window_strides": (1, 2)}),
    "only-padding-left": ((X, WEIGHT), {"padding": [(-10, 6), (0, 0)]}),
    "dilated": ((X, WEIGHT), {"padding": "SAME", "rhs_dilation": (2, 3), "lhs_dilation": (1, 1)}),
    "groups": (((2, 6, 9, 8), (4, 3, 3, 2)), {"padding": "SAME", "feature_group_count": 2}),
    "nhwc": (
        ((2, 9, 8, 3), (3, 2, 3, 4)),
        {"padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")},
    ),
    "mixed-layouts": (
        ((9, 3, 2, 8), (3, 4, 2, 3)),
        {
            "padding": [(1, 2), (0, 1)],
            "window_strides": (2, 1),
            "dimension_numbers": ("HCNW", "IOWH", "CWHN"),
        },
    ),
    "spatial-order-of-rhs": (
        ((2, 9, 8, 3), (2, 3, 3, 4)),
        {
            "padding": [(0, 1), (2, 0)],
            "window_strides": (1, 3),
            "dimension_numbers": ("NHWC", "WHIO", "NHWC"),
        },
    ),
    "numbers": (
        ((2, 9, 8, 3), (3, 2, 3, 4)),
        {
            "padding": "SAME",
            "dimension_numbers": jax.lax.ConvDimensionNumbers(
                (0, 3, 1, 2), (3, 2, 0, 1), (2, 0, 3, 1)
            ),
        },
    ),
    "line": (((2, 3, 9), (4, 3, 3)), {"padding": "SAME", "window_strides": (2,)}),
    "line-negative": (((2, 3, 9), (4, 3, 3)), {"padding": [(2, -3)], "window_strides": (1,)}),
    "line-mixed": (
        ((9, 2, 6), (3, 2, 4)),
        {
            "padding": [(3, 0)],
            "window_strides": (1,),
            "rhs_dilation": (2,),
            "feature_group_count": 3,
            "dimension_numbers": ("WNC", "OIW", "CNW"),
        },
    ),
}


@pytest.mark.quick
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", LAX_CALLS)
def test_conv_general_dilated(name, dtype):
    shapes, options = LAX_CALLS[name]
    options = {"window_strides": (1, 1), **options}
    rng = np.random.default_rng(len(name))
    operands = tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)
    wide = tuple(a.astype(np.float64) for a in operands)
    lax_call = functools.partial(jax.lax.conv_general_dilated, **options)
    y = jax.eval_shape(lax_call, *operands)
    grad_y = rng.standard_normal(y.shape).astype(dtype)
    expected = values_and_gradients(lax_call, wide, grad_y.astype(np.float64), ("lhs", "rhs"))
    call = functools.partial(oxijax.conv_general_dilated, **options)
    results = values_and_gradients(call, operands, grad_y, ("lhs", "rhs"))
    assert results["y"].shape == y.shape
    for key, result in results.items():
        assert result.dtype == dtype
        assert_close(result, expected[key], TOLERANCES[dtype], key)


def squares(function):
    return lambda *operands: jnp.sum(function(*operands) ** 2)


@pytest.mark.parametrize("derive", [lambda f: f, lambda f: jax.grad(squares(f), (0, 1, 2))])
def test_a_cpu_gets_the_program_that_lax_has(derive):
    """Instruction by instruction, so that it is no slower."""
    case = CONV_CASES["strides-2"]
    operands = operands_of(case, "float32")

    def instructions(function) -> collections.Counter[str]:
        text = jax.jit(derive(function)).lower(*operands).compile().as_text()
        return collections.Counter(re.findall(r"= \S+ ([a-z][\w-]*)\(", str(text)))

    ours = instructions(functools.partial(oxijax.conv, **case.options, precision="highest"))
    assert ours["convolution"] >= 1
    assert ours == instructions(functools.partial(lax_conv, case))
