"""Randomly drawn layers, against the pure-JAX reference and the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.formulas import convolution
from support.helpers import NAMES, assert_close, astype, values_and_gradients

import oxijax
from oxijax._convolution import parse_padding
from oxijax.testing import DeformConvCase


def pairs(low, high):
    return st.tuples(st.integers(low, high), st.integers(low, high))


@st.composite
def layers(draw):
    groups, offset_groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    channels = np.lcm(groups, offset_groups) * draw(st.integers(1, 2))
    padding = draw(
        st.one_of(
            st.sampled_from(["SAME", "SAME_LOWER", "VALID"]),
            st.integers(0, 2),
            st.tuples(pairs(0, 2), pairs(0, 2)),
        )
    )
    case = DeformConvCase(
        f"drawn-{draw(st.integers(0, 1000))}",
        (draw(st.integers(0, 3)), *draw(pairs(1, 6)), int(channels)),
        groups * draw(st.integers(1, 3)),
        kernel_size=draw(pairs(1, 3)),
        strides=draw(pairs(1, 3)),
        padding=padding,
        dilation=draw(pairs(1, 2)),
        groups=groups,
        offset_groups=offset_groups,
        mask=draw(st.booleans()),
        bias=draw(st.booleans()),
    )
    try:
        _ = case.out_size
    except ValueError:
        assume(False)
    return case


@pytest.mark.slow
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(layers())
def test_drawn_layers(case):
    with jax.enable_x64(True):
        operands = astype(case.operands(), jnp.float64)
        grad_y = case.grad_y().astype(jnp.float64)
        results = values_and_gradients(
            lambda *a: oxijax.deform_conv(*a, **case.options), operands, grad_y
        )
        reference = values_and_gradients(
            lambda *a: oxijax.reference.deform_conv(*a, **case.options), operands, grad_y
        )
        for name, result in results.items():
            assert_close(result, reference[name], 1e-12, name)
        pads = parse_padding(
            case.padding, case.x[1:3], case.kernel_size, case.strides, case.dilation
        )
        arrays = {name: a for name, a in zip(NAMES, operands, strict=True) if a is not None}
        formula = convolution(arrays, strides=case.strides, pads=pads, dilation=case.dilation)["y"]
        assert_close(results["y"], formula, 1e-12, "formula")
