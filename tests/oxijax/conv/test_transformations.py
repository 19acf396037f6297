"""The linear maps of conv under vmap; other transformations are in `test_transformations.py`."""

import functools

import jax
import numpy as np
import pytest
from support.conv_checks import operands_of
from support.helpers import assert_close
from support.layers import equations_of

import oxijax
from oxijax.testing import CONV_CASES

TOLERANCE = 1e-5  # float32, sums in another order


def variants(operand, count=3):
    """Operands that differ, along a new leading axis."""
    return np.stack([operand * (1 - 0.03 * i) for i in range(count)])


def gradient_to_x(function, x):
    """The linear map of the weights and the gradient of the output."""
    return lambda weight, grad_y: jax.vjp(lambda x: function(x, weight), x)[1](grad_y)[0]


def gradient_to_weight(function, weight):
    return lambda x, grad_y: jax.vjp(lambda w: function(x, w), weight)[1](grad_y)[0]


@pytest.mark.parametrize("name", ["strides-2x3", "groups-2"])
@pytest.mark.parametrize("axes", [(0, None), (None, 1), (2, 0)])
def test_vmap_of_linear_maps(axes, name):
    """Each backward primitive with either operand mapped, along any axis."""
    (x, weight, _), grad_y = operands_of(name), CONV_CASES[name].grad_y()
    for make, shape, operand in ((gradient_to_x, x, weight), (gradient_to_weight, weight, x)):
        batched = [
            a if axis is None else np.moveaxis(variants(a), 0, axis)
            for a, axis in zip((operand, grad_y), axes, strict=True)
        ]
        actual, expected = (
            jax.jit(jax.vmap(make(functools.partial(f, **CONV_CASES[name].options), shape), axes))(
                *batched
            )
            for f in (oxijax.conv, oxijax.reference.conv)
        )
        assert_close(actual, expected, TOLERANCE)


@pytest.mark.quick
def test_vmap_of_linear_maps_shares_what_is_not_mapped():
    (x, weight, _), grad_y = operands_of("plain"), CONV_CASES["plain"].grad_y()
    (n, h, w, c), (i, j, e, o) = x.shape, weight.shape

    def one_bind(primitive, function, *operands):
        """The groups, and the shapes of the operands, of the one bind of a primitive."""
        jaxpr = jax.make_jaxpr(function)(*operands).jaxpr
        (eqn,) = (eqn for eqn in equations_of(jaxpr) if eqn.primitive.name == primitive)
        return eqn.params["config"].op.groups, [v.aval.shape for v in eqn.invars]

    # Weights for one gradient of the output: more input channels, as many outputs.
    to_x = jax.vmap(gradient_to_x(oxijax.conv, x), (0, None))
    groups, shapes = one_bind("conv_backward_input", to_x, variants(weight, 7), grad_y)
    assert (groups, shapes) == (1, [(i, j, 7 * e, o), grad_y.shape])

    # Gradients of one image for each example: groups, as both differ.
    to_weight = jax.vmap(gradient_to_weight(oxijax.conv, weight))
    both = variants(x, 7), variants(grad_y, 7)
    groups, shapes = one_bind("conv_backward_weight", to_weight, *both)
    assert (groups, shapes) == (7, [(n, h, w, 7 * c), (*grad_y.shape[:3], 7 * o)])
