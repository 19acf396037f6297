"""Images and offsets that are not finite, through the GPU kernels in the emulator."""

import functools

import numpy as np
import pytest
from support.deform_conv_checks import named
from support.helpers import astype, program_of

import oxijax
from oxijax.testing import CASES, emulate_gpu

# Layers for which forward kernels of each kind are chosen: (dtype, precision, tolerance).
LAYERS = {
    "offset-groups": ("float32", "highest", 1e-5),
    "groups-and-offset-groups": ("float32", None, 1e-5),  # groups are tiny
    "depthwise-3-offset-groups": ("bfloat16", None, 5e-2),
    "wide-groups": ("bfloat16", None, 5e-2),
    "wide-narrow-offset-groups": ("float32", None, 2e-2),
}


@functools.cache
def programs(name):
    """The layer and its gradients by kernels, and by the reference: each is compiled once."""
    options, precision = CASES[name].options, LAYERS[name][1]
    return (
        program_of(functools.partial(oxijax.deform_conv, precision=precision, **options)),
        program_of(functools.partial(oxijax.reference.deform_conv, precision="highest", **options)),
    )


def results(name, change):
    """(kernels', reference's) output and gradients, of operands that `change` has changed."""
    case, dtype = CASES[name], LAYERS[name][0]
    operands = [None if v is None else np.array(v) for v in case.operands()]
    change(*operands)
    # Offsets stay in float32, which knows how far they are.
    arrays, grad_y = astype(operands, dtype, "float32"), case.grad_y().astype(dtype)
    kernels, reference = programs(name)
    with emulate_gpu("sm_90"):
        ours = named(kernels(arrays, grad_y), arrays)
    return ours, named(reference(arrays, grad_y), arrays)


def assert_same(name, ours, expected):
    """The same kinds of numbers in the same places, and the finite ones close."""
    tolerance = LAYERS[name][2]
    for key, value in expected.items():
        result, value = (np.asarray(v, np.float64) for v in (ours[key], value))
        for kind in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(kind(result), kind(value), err_msg=f"{key} {kind}")
        finite = np.isfinite(value)
        error = np.linalg.norm(result[finite] - value[finite])
        assert error <= tolerance * np.linalg.norm(value[finite]), key


@pytest.mark.spread(2)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -(2.0**31)])
@pytest.mark.parametrize("name", LAYERS)
def test_offsets(name, value):
    def change(x, offset, *_):
        offset[0, 2, 3, 5] = offset[-1, 3, 1, -2] = value  # one of a pair, and one of another

    assert_same(name, *results(name, change))


@pytest.mark.spread(1)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", LAYERS)
def test_pixels(name, value):
    """What a pixel holds reaches the samples that read it, and no others: not those outside."""

    def change(x, offset, *_):
        x[0, 0, 0, 1] = x[0, -1, -1, 0] = value
        offset[0, 0, 0] = -100  # wholly outside of the image
        offset[0, 0, 1] = 100
        offset[0, 1, 0] = -1.5  # taps of the first row and column: just outside, beside a corner

    ours, expected = results(name, change)
    assert np.isnan(np.asarray(expected["y"], np.float32)).sum() > 0 or value == np.inf
    assert not np.all(np.isfinite(np.asarray(expected["y"], np.float32)))
    np.testing.assert_array_equal(
        np.asarray(ours["y"], np.float32)[0, 0, :2],
        np.asarray(expected["y"], np.float32)[0, 0, :2],
    )
    assert_same(name, ours, expected)
