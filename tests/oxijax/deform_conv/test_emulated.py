"""deform_conv's GPU kernels, in the emulator: values, gradients, and what must not happen."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from support.deform_conv_checks import (
    STRANGE_OFFSETS,
    check,
    check_far_offsets,
    check_strange_offset,
    float64_reference,
    of_case,
    of_golden,
)
from support.golden import GOLDEN
from support.helpers import NAMES, assert_close, astype, values_and_gradients
from support.places import PRECISIONS, emulated

import oxijax
from oxijax.testing import CASES, emulate_gpu
from ptx.kernels.deform_conv import plan

TARGETS = ("sm_75", "sm_80", "sm_90")
COMBINATIONS = list(itertools.product(PRECISIONS, TARGETS))


def rotating(items):
    """Each item with one combination of precision and target, so that all come up."""
    combinations = itertools.cycle(COMBINATIONS)
    return [(*item, *next(combinations)) for item in items]


@pytest.mark.spread(2, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "precision", "target"), rotating((name,) for name in CASES))
def test_case(name, precision, target):
    check(*of_case(name), precision, emulated(target, schedule=len(name)))


@pytest.mark.spread(1, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["wide", "wide-160", "wide-groups"])
@pytest.mark.parametrize("precision", ["tf32", "bfloat16", "float16"])
def test_large_tiles(name, precision, monkeypatch):
    """Layers as small as these get small tiles, unless they are told otherwise."""
    asked = []

    def is_small_grid(config, pixels):
        asked.append(pixels)
        return False

    monkeypatch.setattr(plan, "is_small_grid", is_small_grid)
    check(*of_case(name), precision, emulated("sm_80", schedule=1))
    assert asked


@pytest.mark.spread(2, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("file", "index", "precision", "target"), rotating(GOLDEN))
def test_golden(file, index, precision, target):
    check(*of_golden(file, index), precision, emulated(target))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("precision", "target"), COMBINATIONS)
@pytest.mark.parametrize(("file", "index"), GOLDEN)
def test_golden_everywhere(file, index, precision, target):
    check(*of_golden(file, index), precision, emulated(target, schedule=index))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("precision", "target"), COMBINATIONS)
@pytest.mark.parametrize("name", CASES)
def test_case_everywhere(name, precision, target):
    check(*of_case(name), precision, emulated(target))


@pytest.mark.spread(1, rest="proof")
@pytest.mark.parametrize("value", STRANGE_OFFSETS)
def test_strange_offset(value):
    """As the reference, and the emulator sees no bad address."""
    check_strange_offset(value, emulated())


def test_far_offsets():
    check_far_offsets(emulated())


@pytest.mark.spread(1, rest="proof")
@pytest.mark.parametrize("offset_dtype", ["float32", "float16"])
@pytest.mark.parametrize("mask_dtype", ["float32", "bfloat16"])
def test_dtypes_of_offset_and_mask(offset_dtype, mask_dtype):
    case, options = of_case("v2")
    operands = list(astype([case[name] for name in NAMES], jnp.bfloat16, offset_dtype))
    operands[3] = case["mask"].astype(mask_dtype)
    grad_y = case["grad_y"].astype(jnp.bfloat16)
    expected = float64_reference(operands, grad_y, **options)
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
    operands = [case[name] for name in NAMES]
    empty = [v[:0] if i in (0, 1, 3) else v for i, v in enumerate(operands)]
    with emulate_gpu():
        results = values_and_gradients(
            functools.partial(oxijax.deform_conv, **options), empty, case["grad_y"][:0]
        )
    assert results["y"].shape[0] == 0
    assert not np.any(results["dweight"])
    assert results["dweight"].shape == operands[2].shape
