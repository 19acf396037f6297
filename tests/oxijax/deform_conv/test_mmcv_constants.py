"""The values that mmcv's tests expect of its DCNv1 and DCNv2, on the CPU and by the kernels.

The numbers are those of tests/test_ops/test_deform_conv.py and test_modulated_deform_conv.py in
mmcv, and so is the tolerance. In the second, samples lie exactly one pixel outside of the image,
where mmcv has no gradient with respect to offsets and torchvision, which is followed here, has one.
"""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oxijax
from oxijax.testing import emulate_gpu

PLACES = {"cpu": contextlib.nullcontext, "emulated": lambda: emulate_gpu("sm_80")}
EXACT: dict[str, Any] = {"data_format": "NCHW", "precision": "highest"}

X = [[[[1.0, 2, 3], [0, 1, 2], [3, 5, 2]]]]
OFFSET_WEIGHT = [
    [0.1, 0.4, 0.6, 0.1], [0.3, 0.2, 0.1, 0.3], [0.5, 0.5, 0.2, 0.8], [0.8, 0.3, 0.9, 0.1],
    [0.3, 0.1, 0.2, 0.5], [0.3, 0.7, 0.5, 0.3], [0.6, 0.2, 0.5, 0.3], [0.4, 0.1, 0.8, 0.4],
]  # fmt: skip
OFFSET_BIAS = [0.7, 0.1, 0.8, 0.5, 0.6, 0.5, 0.4, 0.7]
WEIGHT = [0.4, 0.2, 0.1, 0.9]
V1_OUTPUT = [[[[1.65, 0], [0, 0]]]]
V1_GRADIENTS = (
    [-0.666, 0.204, 0, 0.030, -0.416, 0.012, 0, 0.252, 0.129],  # of x
    [
        *(1.44, 2.88, 0, 1.44, -0.72, -1.44, 0, -0.72, 0, 0, 0, 0, 0, 0, 0, 0),
        *(-0.10, -0.20, 0, -0.10, -0.08, -0.16, 0, -0.08),
        *(-0.54, -1.08, 0, -0.54, -0.54, -1.08, 0, -0.54),
    ],  # of the predictor's weight
    [1.44, -0.72, 0, 0, -0.10, -0.08, -0.54, -0.54],  # of its bias
    [3.62, 0, 0.40, 0.18],  # of the weight
)

V2_X = [[[[1.0, 2, 3]] * 3]]
V2_OUTPUT = [[[[0.5, 1.5, 2.5, 1.5], [1, 3, 5, 3], [1, 3, 5, 3], [0.5, 1.5, 2.5, 1.5]]]]
V2_PREDICTOR_WEIGHT = [
    [-7.0, -4, 0, 0], [-9, 7.5, -6, 5], [-4, -7, 0, 0], [-7.5, -9, -5, -6], [-7, -4, -7, -4],
    [-6, 5, -9, 7.5], [-4, -7, -4, -7], [-5, -6, -7.5, -9],
    [10.5, 6, 7, 4], [6, 10.5, 4, 7], [7, 4, 10.5, 6], [4, 7, 6, 10.5],
]  # fmt: skip
V2_PREDICTOR_BIAS = [-3, -1.5, -3, -1.5, -3, -1.5, -3, -1.5, 4.5, 4.5, 4.5, 4.5]


def assert_as_in_mmcv(value, expected) -> None:
    value = np.asarray(value)
    np.testing.assert_allclose(value, np.reshape(expected, value.shape), rtol=1e-3, atol=1e-8)


@pytest.mark.spread(1, rest="proof")
@pytest.mark.parametrize("place", PLACES)
def test_dcnv1(place):
    def layer(x, offset_weight, offset_bias, weight):
        offset = oxijax.conv(x, offset_weight, offset_bias, padding=0, **EXACT)
        return oxijax.deform_conv(x, offset, weight, padding=0, **EXACT)

    operands = (
        np.array(X), np.reshape(OFFSET_WEIGHT, (8, 1, 2, 2)), np.array(OFFSET_BIAS),
        np.reshape(WEIGHT, (1, 1, 2, 2)),
    )  # fmt: skip
    with PLACES[place]():
        y, pull_back = jax.vjp(layer, *operands)
        gradients = pull_back(jnp.ones_like(y))
    assert_as_in_mmcv(y, V1_OUTPUT)
    for gradient, expected in zip(gradients, V1_GRADIENTS, strict=True):
        assert_as_in_mmcv(gradient, expected)


@pytest.mark.spread(1, rest="proof")
@pytest.mark.parametrize("place", PLACES)
def test_dcnv2(place):
    """A new layer: its predictor has zeros, so that samples lie on pixels, with masks of 0.5."""
    x, weight = np.array(V2_X), np.ones((1, 1, 2, 2))
    predictor, bias = np.zeros((12, 1, 2, 2)), np.zeros(12)

    def predict(x, predictor, bias):
        out = oxijax.conv(x, predictor, bias, padding=1, **EXACT)
        return out[:, :8], jax.nn.sigmoid(out[:, 8:])

    def read(x, offset, mask, weight):
        return oxijax.deform_conv(x, offset, weight, mask, padding=1, **EXACT)

    with PLACES[place]():
        (offset, mask), back_to_predictor = jax.vjp(predict, x, predictor, bias)
        y, back_to_samples = jax.vjp(read, x, offset, mask, weight)
        grad_x, grad_offset, grad_mask, grad_weight = back_to_samples(jnp.ones_like(y))
        samples = oxijax.sampling_locations(oxijax.deform_conv, x, offset, weight, mask, padding=1,
                                            data_format="NCHW")  # fmt: skip
        # [N, Ho, Wo, taps], then as the offsets are, [N, taps * 2, Ho, Wo]
        outside = jnp.any(samples.locations[:, :, :, 0] == -1, axis=-1)
        outside = jnp.repeat(jnp.moveaxis(outside, -1, 1), 2, axis=1)
        assert jnp.all(outside.sum((0, 2, 3)) == jnp.array([7, 7, 4, 4, 4, 4, 0, 0]))
        inside = jnp.where(outside, 0, grad_offset)
        more_x, grad_predictor, grad_bias = back_to_predictor((inside, grad_mask))
    assert_as_in_mmcv(y, V2_OUTPUT)
    assert_as_in_mmcv(grad_x + more_x, np.full((1, 1, 3, 3), 2))
    assert_as_in_mmcv(grad_weight, np.full((1, 1, 2, 2), 9))
    assert_as_in_mmcv(grad_predictor, V2_PREDICTOR_WEIGHT)
    assert_as_in_mmcv(grad_bias, V2_PREDICTOR_BIAS)
