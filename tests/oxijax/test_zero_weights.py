"""Gradients to images where samples lie on pixels, so that three of four corners weigh nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.deform_conv_kernels import DeformConvCall
from support.sectors import sectors_of_arrays

import oxijax
from oxijax.testing import emulate_gpu
from ptx.kernels.deform_conv.catalog import CONFIGS


@pytest.mark.parametrize(
    "name", ["R50-c3/bf16", "BasicVSR++/bf16", "odd-channels/f64", "depthwise/f32"]
)
def test_nothing_is_added_where_weights_are_zero(name):
    call = DeformConvCall("backward_input", CONFIGS[name], 1, 6, 6, target="sm_90")
    offset, counts = call.arrays["offset"], []
    for moved in (offset, np.floor(offset.astype(float)).astype(offset.dtype)):
        report = call.outcome({**call.arrays, "offset": moved}, statistics=True).report
        assert report is not None
        counts.append(sectors_of_arrays(call.text, report)["add", "grad_x"].ideal)
    assert counts[1] < 0.5 * counts[0]


def window(x, points, weights):
    offset = points.reshape(*points.shape[:3], -1)
    return oxijax.deform_conv(x, offset, weights)


def attention(x, points, weights):
    value, size = x.reshape(1, -1, 1, x.shape[-1]), jnp.array(x.shape[2:0:-1])
    centers = (points.reshape(1, -1, 1, 1, 9, 2)[..., :4, :] + 2.5) / size
    return oxijax.ms_deform_attn(
        value, centers, jnp.ones(centers.shape[:-1]), spatial_shapes=(x.shape[1:3],)
    )


@pytest.mark.spread(2)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("function", [window, attention])
def test_zero_times_infinity_is_nan(function, target):
    """As in the program for a CPU, which leaves nothing out."""
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 5, 6, 8), np.float32)
    points = random.integers(-2, 3, (1, 5, 6, 9, 2)).astype(np.float32)
    weights = random.standard_normal((3, 3, 8, 8), np.float32)
    y, vjp = jax.vjp(lambda x: function(x, points, weights), x)
    grad_y = np.array(random.standard_normal(y.shape, np.float32))
    grad_y.reshape(-1, 8)[7, 3] = np.inf
    (expected,) = vjp(grad_y)
    assert np.isnan(expected).any()
    assert np.isfinite(expected).any()
    with emulate_gpu(target):
        (result,) = jax.vjp(lambda x: function(x, points, weights), x)[1](grad_y)
    np.testing.assert_allclose(result, expected, rtol=2e-2, atol=2e-2)
