"""Every wrong argument raises at trace time, and says what is wrong."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.conv_arguments import WRONG_OF_ALL, spec, trace

import oxijax

F32 = jnp.float32


NHWC = {
    "x": spec(2, 8, 7, 6),
    "offset": spec(2, 8, 7, 36),
    "weight": spec(3, 3, 3, 4),
    "mask": spec(2, 8, 7, 18),
    "bias": spec(4),
}
NCHW = {
    "x": spec(2, 6, 8, 7),
    "offset": spec(2, 36, 8, 7),
    "weight": spec(4, 3, 3, 3),
    "mask": spec(2, 18, 8, 7),
    "bias": spec(4),
    "data_format": "NCHW",
}

WRONG = [
    ({"offset": spec(2, 8, 7)}, ValueError, r"offset must have 4 dim.*\(2, 8, 7\)"),
    ({"mask": spec(2, 8, 7, 18, 1)}, ValueError, r"mask must have 4 dim.*\(2, 8, 7, 18, 1\)"),
    ({"offset": [1.0]}, TypeError, r"offset must be an array, got list"),
    ({"mask": spec(2, 8, 7, 18, dtype=bool)}, TypeError, r"mask must have one.*got bool"),
    ({"offset": spec(2, 8, 7, 36, dtype=jnp.complex64)}, TypeError, r"offset .*got complex64"),
    (
        {"offset": spec(3, 8, 7, 36)},
        ValueError,
        r"offset must have shape \(N, Ho, Wo, OG\*Kh\*Kw\*2\) = \(2, 8, 7, OG\*9\*2\), "
        r"got \(3, 8, 7, 36\)",
    ),
    ({"offset": spec(2, 7, 7, 36)}, ValueError, r"offset must .*\(2, 8, 7, .*got \(2, 7, 7, 36\)"),
    ({"offset": spec(2, 8, 8, 36)}, ValueError, r"offset must .*\(2, 8, 7, .*got \(2, 8, 8, 36\)"),
    ({"offset": spec(2, 8, 7, 35)}, ValueError, r"offset must .*OG\*18 .*got 35 in shape"),
    ({"offset": spec(2, 8, 7, 0)}, ValueError, r"offset must .*OG\*18 .*got 0 in shape"),
    ({"offset": spec(2, 8, 7, 72)}, ValueError, r"offset must .*divides.* of x, 6; got 72"),
    (
        {"mask": spec(2, 8, 7, 9)},
        ValueError,
        r"mask must have shape \(N, Ho, Wo, OG\*Kh\*Kw\) = \(2, 8, 7, 18\), got \(2, 8, 7, 9\)",
    ),
    ({"mask": spec(2, 1, 1, 18)}, ValueError, r"mask must .*\(2, 8, 7, 18\), got \(2, 1, 1, 18\)"),
    (
        {"data_format": "NWHC"},
        ValueError,
        r"data_format must be one of 'NHWC', 'NCHW', 'NWC', .* got 'NWHC'",
    ),
]

WRONG_NCHW = [
    (
        {"offset": spec(2, 8, 7, 36)},
        ValueError,
        r"offset must have shape \(N, OG\*Kh\*Kw\*2, Ho, Wo\) = \(2, OG\*9\*2, 8, 7\), "
        r"got \(2, 8, 7, 36\)",
    ),
    (
        {"mask": spec(2, 8, 7, 18)},
        ValueError,
        r"mask must have shape \(N, OG\*Kh\*Kw, Ho, Wo\) = \(2, 18, 8, 7\), got \(2, 8, 7, 18\)",
    ),
    ({"weight": spec(3, 3, 3, 4)}, ValueError, r"weight .*output channels.*got 3 in shape"),
    ({"offset": spec(2, 35, 8, 7)}, ValueError, r"offset must .*OG\*18 .*got 35 in shape"),
]

TABLE = [(NHWC, *row) for row in [*WRONG_OF_ALL, *WRONG]] + [(NCHW, *row) for row in WRONG_NCHW]


@pytest.mark.quick
@pytest.mark.parametrize("function", [oxijax.deform_conv, oxijax.reference.deform_conv])
@pytest.mark.parametrize("right", [NHWC, NCHW])
def test_right_arguments(right, function):
    shape = (2, 4, 8, 7) if right is NCHW else (2, 8, 7, 4)
    assert trace(function, right) == spec(*shape)


@pytest.mark.quick
@pytest.mark.parametrize("function", [oxijax.deform_conv, oxijax.reference.deform_conv])
@pytest.mark.parametrize(("right", "wrong", "error", "message"), TABLE)
def test_wrong_argument(right, wrong, error, message, function):
    with pytest.raises(error, match=message):
        trace(function, {**right, **wrong})


@pytest.mark.parametrize(
    ("padding", "same_as"),
    [
        ("VALID", ((0, 0), (0, 0))),
        ("same", ((1, 1), (1, 1))),
        (2, ((2, 2), (2, 2))),
        ((2, 1), ((2, 2), (1, 1))),
        ([2, (0, 1)], ((2, 2), (0, 1))),
        (np.int64(1), ((1, 1), (1, 1))),
        ("SAME_LOWER", ((1, 1), (1, 1))),
    ],
)
def test_forms_of_padding(padding, same_as):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 6, 5, 2), np.float32)
    weight = rng.standard_normal((3, 3, 2, 3), np.float32)
    (top, bottom), (left, right) = same_as
    offset = np.full((1, 6 + top + bottom - 2, 5 + left + right - 2, 18), 0.25, np.float32)
    np.testing.assert_array_equal(
        oxijax.deform_conv(x, offset, weight, padding=padding),
        oxijax.deform_conv(x, offset, weight, padding=((top, bottom), (left, right))),
    )


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (None, "DEFAULT"),
        ("highest", "HIGHEST"),
        (jax.lax.Precision.HIGH, "HIGH"),
        (("highest", "highest"), "HIGHEST"),
    ],
)
def test_precision(precision, expected):
    arrays = {name: jnp.zeros(a.shape, a.dtype) for name, a in NHWC.items()}
    jaxpr = jax.make_jaxpr(lambda a: oxijax.deform_conv(**a, precision=precision))(arrays)
    assert f"precision=Precision.{expected}" in str(jaxpr)


def test_precision_follows_the_default():
    arrays = {name: jnp.zeros(a.shape, a.dtype) for name, a in NHWC.items()}
    with jax.default_matmul_precision("float32"):
        jaxpr = jax.make_jaxpr(lambda a: oxijax.deform_conv(**a))(arrays)
    assert "precision=Precision.HIGHEST" in str(jaxpr)


def test_arrays_of_other_kinds():
    """NumPy arrays are taken, and what knows how to become a JAX array, like nnx.Param."""

    class Parameter:
        def __init__(self, value):
            self.value = value

        def __jax_array__(self):
            return self.value

    arrays: dict[str, Any] = {n: np.ones(a.shape, np.float32) for n, a in NHWC.items()}
    expected = oxijax.deform_conv(**arrays)
    parameters = {**arrays, "weight": Parameter(jnp.asarray(arrays["weight"]))}
    np.testing.assert_array_equal(oxijax.deform_conv(**parameters), expected)
