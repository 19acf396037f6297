"""deform_conv's GPU kernels, in the emulator: values, gradients, and what must not happen."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import NAMES, assert_close, astype, values_and_gradients
from test_deform_conv_values import GOLDEN, golden

import oxijax
from oxijax.testing import CASES, emulate_gpu

# Relative Frobenius norms against float64: (dtype, precision) -> tolerance.
PRECISIONS = {
    "float64": ("float64", None, 1e-13),
    "exact": ("float32", "highest", 2e-6),
    "tf32": ("float32", None, 1e-3),
    "bfloat16": ("bfloat16", None, 8e-3),
    "float16": ("float16", None, 1e-3),
}
TARGETS = ("sm_75", "sm_80", "sm_90")
COMBINATIONS = list(itertools.product(PRECISIONS, TARGETS))


def check(case, options, precision, target, schedule=None):
    """Compares output and gradients with the reference's in float64, on the same operands."""
    dtype, precision, tolerance = PRECISIONS[precision]
    operands = astype([case.get(name) for name in NAMES], dtype)
    grad_y = jnp.asarray(case["grad_y"], dtype)
    wide = astype(operands, jnp.float64)
    reference = functools.partial(oxijax.reference.deform_conv, **options)
    expected = values_and_gradients(reference, wide, grad_y.astype(jnp.float64))
    function = functools.partial(oxijax.deform_conv, precision=precision, **options)
    with emulate_gpu(target, schedule=schedule):
        results = values_and_gradients(function, operands, grad_y)
    assert set(results) == set(expected)
    for name, result in results.items():
        assert result.dtype == dtype
        assert_close(result, expected[name], tolerance, name)


def of_case(name):
    case = CASES[name]
    operands = dict(zip(NAMES, case.operands(), strict=True))
    present = {key: value for key, value in operands.items() if value is not None}
    return {**present, "grad_y": case.grad_y()}, case.options


def of_golden(file, index):
    case, options = golden(file, index)
    return case, {**options, "data_format": "NCHW"}


def rotating(items):
    """Each item with one combination of precision and target, so that all come up."""
    combinations = itertools.cycle(COMBINATIONS)
    return [(*item, *next(combinations)) for item in items]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "precision", "target"), rotating((name,) for name in CASES))
def test_case(name, precision, target):
    check(*of_case(name), precision, target, schedule=len(name))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("file", "index", "precision", "target"), rotating(GOLDEN))
def test_golden(file, index, precision, target):
    check(*of_golden(file, index), precision, target)


@pytest.mark.full
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("precision", "target"), COMBINATIONS)
@pytest.mark.parametrize(("file", "index"), GOLDEN)
def test_golden_everywhere(file, index, precision, target):
    check(*of_golden(file, index), precision, target, schedule=index)


@pytest.mark.full
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("precision", "target"), COMBINATIONS)
@pytest.mark.parametrize("name", CASES)
def test_case_everywhere(name, precision, target):
    check(*of_case(name), precision, target)


class TestStrangeOffsets:
    """NaN, infinite and far offsets: as specified, and the emulator sees no bad address."""

    @pytest.fixture
    def layer(self):
        case, options = of_case("offset-groups")
        return astype([case.get(name) for name in NAMES], jnp.float32), case["grad_y"], options

    def results(self, layer, offset):
        operands, grad_y, options = layer
        function = functools.partial(oxijax.deform_conv, precision="highest", **options)
        operands = [operands[0], jnp.asarray(offset), *operands[2:]]
        with emulate_gpu():
            return values_and_gradients(function, operands, jnp.asarray(grad_y))

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, 1e9])
    def test_as_the_reference(self, layer, value):
        operands, grad_y, options = layer
        offset = np.array(operands[1])
        offset[0, 2, 3, 5] = offset[1, 4, 1, 30] = value  # one of a pair, and one of another
        reference = functools.partial(oxijax.reference.deform_conv, precision="highest", **options)
        wanted = [operands[0], jnp.asarray(offset), *operands[2:]]
        expected = values_and_gradients(reference, wanted, jnp.asarray(grad_y))
        results = self.results(layer, offset)
        for name, result in results.items():
            other = expected[name]
            assert np.array_equal(np.isnan(result), np.isnan(other)), name
            np.testing.assert_allclose(
                np.nan_to_num(result), np.nan_to_num(other), rtol=1e-5, atol=1e-5, err_msg=name
            )
            assert not np.isinf(result).any()

    def test_all_of_them_far_outside(self, layer):
        results = self.results(layer, np.full(layer[0][1].shape, 1e6, np.float32))
        bias = layer[0][4]
        np.testing.assert_array_equal(results["y"], np.broadcast_to(bias, results["y"].shape))
        for name in ("dx", "doffset", "dweight", "dmask"):
            assert not np.any(results[name]), name


@pytest.mark.parametrize("offset_dtype", ["float32", "float16"])
@pytest.mark.parametrize("mask_dtype", ["float32", "bfloat16"])
def test_dtypes_of_offset_and_mask(offset_dtype, mask_dtype):
    case, options = of_case("v2")
    x, offset, weight, mask, bias = (case[name] for name in NAMES)
    operands = [
        *(jnp.asarray(x, jnp.bfloat16), jnp.asarray(offset, offset_dtype)),
        *(jnp.asarray(weight, jnp.bfloat16), jnp.asarray(mask, mask_dtype)),
        jnp.asarray(bias, jnp.bfloat16),
    ]
    grad_y = jnp.asarray(case["grad_y"], jnp.bfloat16)
    reference = functools.partial(oxijax.reference.deform_conv, **options)
    with jax.enable_x64(True):
        wide = astype(operands, jnp.float64)
        expected = values_and_gradients(reference, wide, grad_y.astype(jnp.float64))
        expected = {name: np.asarray(value) for name, value in expected.items()}
    with emulate_gpu():
        results = values_and_gradients(
            functools.partial(oxijax.deform_conv, **options), operands, grad_y
        )
    assert results["doffset"].dtype == offset_dtype
    assert results["dmask"].dtype == mask_dtype
    for name, result in results.items():
        assert_close(result, expected[name], 8e-3, name)


def test_empty_batch():
    case, options = of_case("v2")
    operands = [jnp.asarray(case[name]) for name in NAMES]
    empty = [v[:0] if i in (0, 1, 3) else v for i, v in enumerate(operands)]
    with emulate_gpu():
        results = values_and_gradients(
            functools.partial(oxijax.deform_conv, **options), empty, jnp.asarray(case["grad_y"])[:0]
        )
    assert results["y"].shape[0] == 0
    assert not np.any(results["dweight"])
    assert results["dweight"].shape == operands[2].shape
