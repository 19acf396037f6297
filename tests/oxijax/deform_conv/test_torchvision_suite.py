"""The configuration that torchvision tests its operator with, against the formula.

TestDeformConv in torchvision's test/test_ops.py has float64, batches of 0 and 33 images, a loop
over all samples, and numerical gradients of the operator. Here both are of the formula; and what
the operator gave for 33 images, with all gradients, is recorded.
"""

import functools

import numpy as np
import pytest
from support.deform_conv_checks import check, float64_reference
from support.deform_conv_modules import recorded
from support.deform_conv_reference import to_nhwc
from support.formulas import convolution
from support.helpers import NAMES, TOLERANCES, assert_close, values_and_gradients
from support.places import emulated

import oxijax

STRIDES, PADS, DILATION = (2, 1), ((1, 1), (0, 0)), (2, 1)
OPTIONS = {"strides": STRIDES, "padding": PADS, "dilation": DILATION}
SHAPES = {
    "x": (6, 5, 4),
    "offset": (36, 2, 3),
    "weight": (2, 3, 3, 2),
    "mask": (18, 2, 3),
    "bias": (2,),
    "grad_y": (2, 2, 3),
}


def drawn(batch: int, mask: bool) -> dict[str, np.ndarray]:
    """Operands and the gradient of the output, NCHW: 6 channels, 2 groups, 3 offset groups."""
    rng = np.random.default_rng(batch + mask)
    return {
        name: rng.standard_normal(shape if name in ("weight", "bias") else (batch, *shape))
        for name, shape in SHAPES.items()
        if mask or name != "mask"
    }


def formula(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The output, NCHW."""
    nhwc = {name: value for name, value in to_nhwc(arrays).items() if name in NAMES}
    y = convolution(nhwc, strides=STRIDES, pads=PADS, dilation=DILATION)["y"]
    return y.transpose(0, 3, 1, 2)


@functools.cache
def case(batch: int, mask: bool) -> dict[str, np.ndarray]:
    """Operands, the formula's output, and the gradients that `test_gradients` compares with it."""
    arrays = drawn(batch, mask)
    operands = [arrays.get(name) for name in NAMES]
    if batch:
        results = float64_reference(operands, arrays["grad_y"], data_format="NCHW", **OPTIONS)
    else:  # sums over no images
        results = {f"d{name}": np.zeros_like(arrays[name]) for name in NAMES if name in arrays}
    return {**arrays, **results, "y": formula(arrays)}


def recorded_case(mask: bool) -> dict[str, np.ndarray]:
    """Operands and results of torchvision's operator, in float64."""
    module = recorded["DeformConv2d/suite-modulated" if mask else "DeformConv2d/suite"]
    results = {name.replace("dinput", "dx"): value for name, value in module.results.items()}
    inputs = {name.replace("input", "x"): value for name, value in module.inputs.items()}
    arrays = {**inputs, **module.state, "grad_y": module.grad_y, **results}
    return {name: value.astype(np.float64) for name, value in arrays.items()}


def directional_derivative(arrays: dict[str, np.ndarray], name: str, along: np.ndarray) -> float:
    """Of the sum of grad_y * y, by the formula's differences.

    y is linear in all operands but offsets, and of second degree in these until one of them passes
    an integer: there the difference across both sides has no error but that of rounding.
    """
    step = 2.0**-14 if name == "offset" else 1.0
    ahead, behind = (formula({**arrays, name: arrays[name] + s * along}) for s in (step, -step))
    return float(np.sum(arrays["grad_y"] * (ahead - behind)) / (2 * step))


def clear_of_integers(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same operands, with offsets that a small step takes past no integer."""
    floor = np.floor(arrays["offset"])
    return {**arrays, "offset": floor + np.clip(arrays["offset"] - floor, 0.01, 0.99)}


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name):
    """Those of `float64_reference`, which the tests below compare with, are the formula's."""
    arrays = clear_of_integers(drawn(3, mask=True))
    operands = [arrays[name] for name in NAMES]
    found = float64_reference(operands, arrays["grad_y"], data_format="NCHW", **OPTIONS)
    along = np.random.default_rng(1).uniform(-1, 1, arrays[name].shape)
    expected = directional_derivative(arrays, name, along)
    scale = np.linalg.norm(found[f"d{name}"]) * np.linalg.norm(along)
    assert abs(np.sum(found[f"d{name}"] * along) - expected) <= 1e-10 * scale


BATCHES = (0, 33, "recorded")


def arrays_of(batch: int | str, mask: bool) -> dict[str, np.ndarray]:
    return recorded_case(mask) if isinstance(batch, str) else case(batch, mask)


@pytest.mark.spread(3)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("batch", BATCHES)
def test_on_cpu(batch, mask):
    arrays = arrays_of(batch, mask)
    function = functools.partial(oxijax.deform_conv, data_format="NCHW", **OPTIONS)
    operands = [arrays.get(name) for name in NAMES]
    results = values_and_gradients(function, operands, arrays["grad_y"])
    assert set(results) == {"y", *(f"d{name}" for name in NAMES if name in arrays)}
    for name, result in results.items():
        assert result.shape == arrays[name].shape
        assert_close(result, arrays[name], TOLERANCES["float64"], name)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("batch", BATCHES)
def test_emulated(batch, mask):
    place = emulated("sm_80", schedule=batch if isinstance(batch, int) else 1)
    check(arrays_of(batch, mask), {**OPTIONS, "data_format": "NCHW"}, "float64", place)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("precision", ["exact", "tf32"])
def test_emulated_in_float32(precision):
    arrays = drawn(33, mask=True)
    check(arrays, {**OPTIONS, "data_format": "NCHW"}, precision, emulated("sm_90", schedule=33))
