"""Every wrong argument of conv and conv_general_dilated raises, and says what is wrong."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.conv_arguments import WRONG_OF_ALL, spec, trace

import oxijax

F32 = jnp.float32


NHWC = {"x": spec(2, 8, 7, 6), "weight": spec(3, 3, 3, 4), "bias": spec(4)}
NCHW = {
    "x": spec(2, 6, 8, 7),
    "weight": spec(4, 3, 3, 3),
    "bias": spec(4),
    "data_format": "NCHW",
}
NWC = {"x": spec(2, 7, 6), "weight": spec(3, 3, 4), "bias": spec(4), "data_format": "NWC"}
NCW = {"x": spec(2, 6, 7), "weight": spec(4, 3, 3), "bias": spec(4), "data_format": "NCW"}

WRONG = [
    (
        {"data_format": "NWHC"},
        ValueError,
        r"data_format must be one of 'NHWC', 'NCHW', 'NWC', 'NCW', got 'NWHC'",
    ),
    (
        {"weight": spec(5, 5, 3, 4), "dilation": 2**30},
        ValueError,
        r"padding 'SAME' must be at most 1073741824, got .* with kernel size \(5, 5\)",
    ),
    ({"data_format": "NWC"}, ValueError, r"x must have 3 dim.*'NWC', got shape \(2, 8, 7, 6\)"),
]
WRONG_NCHW = [
    ({"weight": spec(3, 3, 3, 4)}, ValueError, r"weight .*output channels.*got 3 in shape"),
    ({"weight": spec(4, 4, 3, 3)}, ValueError, r"weight .*input channels.*x, 6, got 4 in shape"),
]
WRONG_LINE = [
    ({"x": spec(2, 8, 7, 6)}, ValueError, r"x must have 3 dimensions with data_format 'NWC'"),
    ({"x": spec(2, 0, 6)}, ValueError, r"x must have channels and width, got shape \(2, 0, 6\)"),
    ({"strides": (1, 1)}, TypeError, r"strides must be an int or a sequence of one int.*\(1, 1\)"),
    ({"dilation": 0}, ValueError, r"dilation must be positive, got 0"),
    ({"padding": (1, 2)}, TypeError, r"padding must be .*one int or one pair.*got \(1, 2\)"),
    ({"padding": -1}, ValueError, r"padding must not be negative, got -1"),
    (
        {"padding": "VALID", "dilation": 4},
        ValueError,
        r"no extent: x with width 7, padding \(0, 0\), weight .*size 3 and dilation 4\n",
    ),
]
TABLE = [
    *((NHWC, *row) for row in [*WRONG_OF_ALL, *WRONG]),
    *((NCHW, *row) for row in WRONG_NCHW),
    *((NWC, *row) for row in WRONG_LINE),
]


@pytest.mark.quick
@pytest.mark.parametrize("function", [oxijax.conv, oxijax.reference.conv])
@pytest.mark.parametrize(
    ("right", "shape"),
    [(NHWC, (2, 8, 7, 4)), (NCHW, (2, 4, 8, 7)), (NWC, (2, 7, 4)), (NCW, (2, 4, 7))],
)
def test_right_arguments(right, shape, function):
    assert trace(function, right) == spec(*shape)


@pytest.mark.quick
@pytest.mark.parametrize("function", [oxijax.conv, oxijax.reference.conv])
@pytest.mark.parametrize(("right", "wrong", "error", "message"), TABLE)
def test_wrong_argument(right, wrong, error, message, function):
    with pytest.raises(error, match=message):
        trace(function, {**right, **wrong})


@pytest.mark.parametrize(
    ("data_format", "padding", "same_as"),
    [
        ("NHWC", "same", ((1, 1), (1, 1))),
        ("NHWC", (2, 1), ((2, 2), (1, 1))),
        ("NHWC", [2, (0, 1)], ((2, 2), (0, 1))),
        ("NHWC", np.int64(1), ((1, 1), (1, 1))),
        ("NHWC", np.array([[1, 2], [0, 1]]), ((1, 2), (0, 1))),
        ("NWC", 2, ((2, 2),)),
        ("NWC", (2,), ((2, 2),)),
        ("NWC", "SAME_LOWER", ((1, 1),)),
    ],
)
def test_forms_of_padding(data_format, padding, same_as):
    right = NHWC if data_format == "NHWC" else NWC
    arrays: dict[str, Any] = {
        k: np.ones(v.shape, F32) for k, v in right.items() if k != "data_format"
    }
    np.testing.assert_array_equal(
        oxijax.conv(**arrays, data_format=data_format, padding=padding),
        oxijax.conv(**arrays, data_format=data_format, padding=same_as),
    )


@pytest.mark.parametrize(
    ("precision", "expected"),
    [(None, "DEFAULT"), ("highest", "HIGHEST"), (("high", "high"), "HIGH")],
)
def test_precision(precision, expected):
    arrays = {name: jnp.zeros(a.shape, a.dtype) for name, a in NHWC.items()}
    jaxpr = jax.make_jaxpr(lambda a: oxijax.conv(**a, precision=precision))(arrays)
    assert f"precision=Precision.{expected}" in str(jaxpr)


def test_precision_follows_the_default():
    arrays = {name: jnp.zeros(a.shape, a.dtype) for name, a in NHWC.items()}
    with jax.default_matmul_precision("float32"):
        jaxpr = jax.make_jaxpr(lambda a: oxijax.conv(**a))(arrays)
    assert "precision=Precision.HIGHEST" in str(jaxpr)


# conv_general_dilated

LAX = {
    "lhs": spec(2, 6, 8, 7),
    "rhs": spec(4, 3, 3, 3),
    "window_strides": (1, 1),
    "padding": "SAME",
    "feature_group_count": 2,
}
NOT_COVERED = [
    ({"lhs_dilation": (1, 2)}, r"lhs_dilation=\(1, 2\)"),
    ({"batch_group_count": 2, "feature_group_count": 1}, r"batch_group_count=2"),
    ({"preferred_element_type": jnp.float16}, r"preferred_element_type=float16 .*float32"),
    ({"out_sharding": jax.sharding.PartitionSpec("x")}, r"out_sharding=P"),
    ({"precision": ("highest", "default")}, r"precision=\('highest', 'default'\)"),
    ({"lhs": spec(2, 6, 8, 7, 5), "rhs": spec(4, 3, 3, 3, 3)}, r"lhs with 3 spatial dim.*7, 5\)"),
    ({"lhs": spec(2, 6), "rhs": spec(4, 3)}, r"lhs with 0 spatial dimensions, shape \(2, 6\)"),
    ({"lhs": spec(2, 6, 8, 7, dtype=jnp.int8)}, r"lhs of dtype int8"),
    ({"rhs": spec(4, 3, 3, 3, dtype=jnp.complex64)}, r"rhs of dtype complex64"),
    ({"lhs": spec(2, 0, 8, 7), "rhs": spec(4, 0, 3, 3)}, r"lhs of shape \(2, 0, 8, 7\)"),
    ({"padding": "VALID", "rhs_dilation": (4, 1)}, r"lhs of shape .* smaller .*rhs_dilation=\(4"),
]
WRONG_LAX = [
    ({"lhs": 1.0}, TypeError, r"lhs must be an array, got float"),
    ({"rhs": spec(4, 3, 3)}, ValueError, r"rhs must have as many dim.*\(2, 6, 8, 7\), got .*3\)"),
    (
        {"rhs": spec(4, 3, 3, 3, dtype=jnp.bfloat16)},
        TypeError,
        r"rhs must have the dtype of lhs, float32, got bfloat16",
    ),
    ({"window_strides": (1,)}, TypeError, r"window_strides must be .*got \(1,\)"),
    ({"window_strides": (1, 0)}, ValueError, r"window_strides must be positive, got \(1, 0\)"),
    ({"rhs_dilation": (0, 1)}, ValueError, r"rhs_dilation must be positive, got \(0, 1\)"),
    ({"lhs_dilation": (0, 1)}, ValueError, r"lhs_dilation must be positive, got \(0, 1\)"),
    ({"padding": "FULL"}, ValueError, r"padding must be one of 'SAME'.*got 'FULL'"),
    ({"padding": [(1, 1)]}, TypeError, r"padding must be 'SAME'.*got \[\(1, 1\)\]"),
    ({"feature_group_count": 3}, ValueError, r"feature_group_count must be .*6 / 3, got 3"),
    ({"feature_group_count": 0}, ValueError, r"feature_group_count must be positive, got 0"),
    ({"feature_group_count": 2.0}, TypeError, r"feature_group_count must be an int, got 2\.0"),
    ({"rhs": spec(5, 3, 3, 3)}, ValueError, r"feature_group_count must divide .*, 5, got 2"),
    ({"dimension_numbers": ("NCHW", "OIHW")}, TypeError, r"dimension_numbers.* length 3"),
    ({"dimension_numbers": ("NCHW", "OIHW", "NCHX")}, TypeError, r"dimension_numbers"),
    (
        {
            "dimension_numbers": jax.lax.ConvDimensionNumbers(
                (0, 1, 2, 3), (0, 1, 2, 2), (0, 1, 2, 3)
            )
        },
        ValueError,
        r"dimension_numbers must number 4 dimensions",
    ),
    ({"precision": "exact"}, ValueError, r"precision must be None.*'highest', got 'exact'"),
]


@pytest.mark.quick
@pytest.mark.parametrize(("wrong", "message"), NOT_COVERED)
def test_not_covered(wrong, message):
    """What only jax.lax covers raises, names the argument, and jax.lax takes it."""
    pattern = rf"does not cover {message}.*: use jax\.lax\.conv_general_dilated"
    with pytest.raises(NotImplementedError, match=pattern):
        trace(oxijax.conv_general_dilated, {**LAX, **wrong})


@pytest.mark.quick
@pytest.mark.parametrize(("wrong", "error", "message"), WRONG_LAX)
def test_wrong_lax_argument(wrong, error, message):
    with pytest.raises(error, match=message):
        trace(oxijax.conv_general_dilated, {**LAX, **wrong})


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_the_largest_that_is_covered(padding):
    """Whatever is exactly at a limit is covered, and has the shape that jax.lax gives it."""
    arguments = {
        **LAX,
        "padding": padding,
        "rhs_dilation": (3, 3),
        "lhs_dilation": (1, 1),
        "batch_group_count": 1,
        "preferred_element_type": jnp.float32,
        "precision": ("highest", "highest"),
        "out_sharding": None,
    }
    assert trace(oxijax.conv_general_dilated, arguments) == trace(
        jax.lax.conv_general_dilated, arguments
    )


@pytest.mark.quick
def test_signature_is_that_of_lax():
    def parameters(function: Any):
        return [
            (p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()
        ]

    *same, own = parameters(oxijax.conv_general_dilated)
    assert same == parameters(jax.lax.conv_general_dilated)
    assert own == ("implementation", inspect.Parameter.KEYWORD_ONLY, None)


def test_arrays_of_other_kinds():
    """NumPy arrays are taken, and what knows how to become a JAX array, like nnx.Param."""

    class Parameter:
        def __init__(self, value):
            self.value = value

        def __jax_array__(self):
            return self.value

    arrays: dict[str, Any] = {n: np.ones(a.shape, np.float32) for n, a in NHWC.items()}
    expected = oxijax.conv(**arrays)
    parameters = {**arrays, "weight": Parameter(jnp.asarray(arrays["weight"]))}
    np.testing.assert_array_equal(oxijax.conv(**parameters), expected)
    y = oxijax.conv_general_dilated(
        arrays["x"], parameters["weight"], (1, 1), "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2,
    )  # fmt: skip
    np.testing.assert_array_equal(y + 1, expected)
