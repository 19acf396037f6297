"""conv's GPU kernels, in the emulator: values and gradients of every named layer."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.conv_checks import KERNELS, check, operands_of
from support.helpers import program_of
from support.places import PRECISIONS, emulated

import oxijax
from oxijax._core.launch import Emulation, emulation
from oxijax.testing import CONV_CASES, ConvCase, emulate_gpu
from ptx.definition import KernelDefinition

TARGETS = ("sm_75", "sm_80", "sm_90")
COMBINATIONS = list(itertools.product(PRECISIONS, TARGETS))


def rotating(names):
    """Each layer with one combination of precision and target, so that all come up."""
    return [(name, *pair) for name, pair in zip(names, itertools.cycle(COMBINATIONS), strict=False)]


@pytest.mark.spread(3, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "precision", "target"), rotating(CONV_CASES))
def test_layer(name, precision, target):
    check(CONV_CASES[name], precision, emulated(target, schedule=len(name)))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("precision", "target"), COMBINATIONS)
@pytest.mark.parametrize("name", CONV_CASES)
def test_layer_everywhere(name, precision, target):
    check(CONV_CASES[name], precision, emulated(target))


def test_pixels_that_are_not_finite_stay_where_they_are_read():
    x = np.random.default_rng(0).standard_normal((2, 6, 7, 32)).astype(np.float32)
    x[0, 0, 0, 3] = np.inf
    x[1, -1, -1, 0] = np.nan
    weight = np.random.default_rng(1).standard_normal((3, 3, 32, 8)).astype(np.float32)
    with emulate_gpu("sm_80"):
        y = np.asarray(jax.jit(oxijax.conv)(x, weight))
    expected = np.asarray(oxijax.reference.conv(x, weight))
    np.testing.assert_array_equal(np.isfinite(y), np.isfinite(expected))
    assert 0 < np.isfinite(y).sum() < y.size


# Streamed, in tiles of joined taps, and without tiles: (channels, outputs, groups).
KINDS = {"streamed": (32, 32, 1), "tiled": (5, 7, 1), "tiny": (6, 6, 6)}


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_spreads_as_in_the_reference(kind, strides):
    """To where taps inside of the image read it, and nowhere else: padding is no 0 * inf."""
    channels, outputs, groups = KINDS[kind]
    case = ConvCase("not-finite", (2, 6, 7, channels), outputs, strides=(strides, strides),
                    groups=groups)  # fmt: skip
    x, weight, bias = (np.array(v) for v in operands_of(case))
    x[0, 0, 0, 1], x[0, -1, -1, 0], x[1, 3, 0, 2] = np.inf, np.nan, -np.inf
    grad_y = np.array(case.grad_y())
    grad_y[0, 0, -1, 1], grad_y[1, -1, 0, 0] = np.inf, np.nan

    def run(function):
        """The output; the gradient to x, of grad_y; and to the weights, of x."""
        y, vjp = jax.vjp(functools.partial(function, strides=strides), x, weight, bias)
        return y, vjp(grad_y)[0], vjp(case.grad_y())[1]

    precision = None if kind == "streamed" else "highest"
    ours = functools.partial(oxijax.conv, precision=precision)
    reference = functools.partial(oxijax.reference.conv, precision="highest")
    with emulate_gpu("sm_80"):
        results = jax.jit(functools.partial(run, ours))()
    for result, expected in zip(results, jax.jit(functools.partial(run, reference))(), strict=True):
        assert 0 < np.isfinite(expected).sum() < expected.size
        for which in (np.isfinite, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(which(result), which(expected))


def test_a_part_of_a_batch_has_the_plan_of_its_own_size(monkeypatch):
    """Each of 4 devices launches the kernels of its 2 images, and not those of all 8."""
    launched, of_kernel = {}, KernelDefinition.launch

    def launch(kernel, *arguments, **options):
        how = of_kernel(kernel, *arguments, **options)
        launched.setdefault(kernel.name, set()).add((how.text, how.grid, how.block))
        return how

    monkeypatch.setattr(KernelDefinition, "launch", launch)

    def launches_of(images, sharding):
        """What is launched for so many images, forward and backward."""
        launched.clear()
        oxijax.clear_caches()  # a part's kernels are those of a call of its size
        shapes = (images, 64, 64, 64), (3, 3, 64, 64)
        operands = [jax.device_put(jnp.zeros(shape, jnp.bfloat16), s)
                    for shape, s in zip(shapes, sharding, strict=True)]  # fmt: skip
        with emulation(Emulation("sm_90", dry_run=True)):
            jax.block_until_ready(program_of(oxijax.conv)(tuple(operands), operands[0]))
        return dict(launched)

    mesh = jax.make_mesh((4,), ("batch",), axis_types=(AxisType.Auto,))
    part = jax.devices()[0]
    of_part = launches_of(2, [part, part])
    split = launches_of(8, [NamedSharding(mesh, P("batch")), NamedSharding(mesh, P())])
    whole = launches_of(8, [part, part])
    assert split == of_part
    assert split.keys() == set(KERNELS)
    for kernel in KERNELS:
        assert split[kernel].isdisjoint(whole[kernel])
