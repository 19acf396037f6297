"""deform_conv where its kernels run, in the emulator or on a GPU, against the reference."""

import functools
from typing import Any

import jax
import numpy as np

import oxijax
from oxijax._convolution import parse_padding
from oxijax.testing import CASES, DeformConvCase
from support import places
from support.deform_conv_reference import config_of, float64_results, to_nchw, to_nhwc
from support.golden import golden
from support.helpers import NAMES, assert_close, astype, relative_error
from support.places import PRECISIONS, Place

KERNELS = ("forward", "backward_input", "backward_offset", "backward_weight")
RESULTS = ("y", "dx", "doffset", "dweight", "dmask", "dbias")
STRANGE_OFFSETS = (np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, 1e9)


def assert_has_kernels(text: str | None, kernels=KERNELS) -> None:
    """A compiled program holds calls of these kernels of deform_conv's."""
    places.assert_has_kernels(text, [f"deform_conv_{kernel}" for kernel in kernels])


def values_and_gradients(place: Place, operands, grad_y, **options) -> dict[str, jax.Array]:
    """deform_conv's output and gradients, by its four kernels and by nothing else."""
    function = functools.partial(oxijax.deform_conv, **options)
    kernels = [f"deform_conv_{kernel}" for kernel in KERNELS]
    return named(place.values_and_gradients(function, operands, grad_y, kernels), operands)


def named(outs, operands) -> dict[str, jax.Array]:
    """The results of `program_of`: the output "y", and the gradient of each operand there is."""
    y, gradients = outs
    pairs = zip(NAMES, operands, gradients, strict=True)
    return {"y": y, **{f"d{name}": dx for name, x, dx in pairs if x is not None}}


def check(case, options, precision: str, place: Place) -> dict[str, float]:
    """Compares output and gradients with float64's, on the same operands.

    Those are the recorded ones where the case has them and the operands need no rounding, else
    numpy's.

    Returns:
      The relative error of each.
    """
    dtype, precision_, tolerance = PRECISIONS[precision]
    operands = astype([case.get(name) for name in NAMES], dtype)
    grad_y = np.asarray(case["grad_y"]).astype(dtype)
    results = values_and_gradients(place, operands, grad_y, precision=precision_, **options)
    if "y" in case and np.dtype(dtype).itemsize >= case["x"].itemsize:
        expected = {name: value for name, value in case.items() if name in RESULTS}
    else:
        expected = float64_reference(operands, grad_y, **options)
    assert set(results) == set(expected)
    for name, result in results.items():
        assert result.dtype == dtype
        assert_close(result, expected[name], tolerance, name)
    return {name: relative_error(result, expected[name]) for name, result in results.items()}


def float64_reference(
    operands, grad_y, *, strides, padding, dilation, data_format="NHWC"
) -> dict[str, np.ndarray]:
    """The output and the gradients in float64, by numpy, of arrays of any dtype."""
    named = zip((*NAMES, "grad_y"), (*operands, grad_y), strict=True)
    arrays = {name: np.asarray(value, np.float64) for name, value in named if value is not None}
    nchw = data_format == "NCHW"
    arrays = to_nhwc(arrays) if nchw else arrays
    image, kernel = arrays["x"].shape[1:3], arrays["weight"].shape[:2]
    pads = parse_padding(padding, image, kernel, strides, dilation)
    results = float64_results(config_of(arrays, strides, pads, dilation), arrays)
    return to_nchw(results) if nchw else results


def check_strange_offset(value: float, place: Place) -> None:
    """One offset of a pair, and one of another, are NaN, infinite or far: as specified."""
    operands, grad_y, options = _offset_groups()
    offset = np.array(operands[1])
    offset[0, 2, 3, 5] = offset[1, 4, 1, 30] = value
    operands = [operands[0], offset, *operands[2:]]
    expected = float64_reference(operands, grad_y, **options)
    results = values_and_gradients(place, operands, grad_y, precision="highest", **options)
    for name, result in results.items():
        other = expected[name]
        assert np.array_equal(np.isnan(result), np.isnan(other)), name
        np.testing.assert_allclose(
            np.nan_to_num(result), np.nan_to_num(other), rtol=1e-5, atol=1e-5, err_msg=name
        )
        assert not np.isinf(result).any()


def check_far_offsets(place: Place) -> None:
    """With all offsets far outside the output is the bias, and most gradients are 0."""
    operands, grad_y, options = _offset_groups()
    offset = np.full(operands[1].shape, 1e6, np.float32)
    operands = [operands[0], offset, *operands[2:]]
    results = values_and_gradients(place, operands, grad_y, precision="highest", **options)
    expected = np.broadcast_to(operands[4], results["y"].shape)
    np.testing.assert_array_equal(results["y"], expected)
    for name in ("dx", "doffset", "dweight", "dmask"):
        assert not np.any(results[name]), name


def of_case(case: str | DeformConvCase) -> tuple[dict[str, Any], dict[str, Any]]:
    case = CASES[case] if isinstance(case, str) else case
    operands = dict(zip(NAMES, case.operands(), strict=True))
    present = {key: value for key, value in operands.items() if value is not None}
    return {**present, "grad_y": case.grad_y()}, case.options


def of_golden(file: str, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
    case, options = golden(file, index)
    return case, {**options, "data_format": "NCHW"}


def _offset_groups():
    case = CASES["offset-groups"]
    return case.operands(), case.grad_y(), case.options
