"""Deformable convolution of lines and of volumes, against a formula of its own for any number."""

import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.ndimage import map_coordinates
from support.deform_conv_checks import KERNELS, named
from support.helpers import assert_close, program_of, values_and_gradients
from support.places import PRECISIONS, Place, assert_has_kernels, emulated

import oxijax

KERNELS_OF_VOLUMES = (
    *("sampling_forward", "sampling_backward_value", "sampling_backward_points"),
    *("conv_forward", "conv_backward_input", "conv_backward_weight"),
)
SIZES, KERNEL = (4, 5, 6), (2, 3, 2)  # of volumes; lines and images have the last of them


class Case(NamedTuple):
    dims: int
    offset_groups: int = 1
    groups: int = 1
    strides: int = 1
    padding: int = 1
    dilation: int = 1
    mask: bool = True
    bias: bool = True

    @property
    def data_format(self) -> str:
        return "N" + "DHW"[-self.dims :] + "C"

    def operands(self, dtype: Any = np.float64) -> list[Any]:
        random = np.random.default_rng(self.dims)
        size, kernel = SIZES[-self.dims :], KERNEL[-self.dims :]
        out = [
            (extent + 2 * self.padding - self.dilation * (taps - 1) - 1) // self.strides + 1
            for extent, taps in zip(size, kernel, strict=True)
        ]
        taps = self.offset_groups * math.prod(kernel)
        shapes = {
            "x": (2, *size, 4),
            "offset": (2, *out, taps * self.dims),
            "weight": (*kernel, 4 // self.groups, 6),
            "mask": (2, *out, taps) if self.mask else None,
            "bias": (6,) if self.bias else None,
        }
        return [
            None if shape is None else (1.3 * random.standard_normal(shape)).astype(dtype)
            for shape in shapes.values()
        ]

    def grad_y(self, dtype: Any = np.float64) -> np.ndarray:
        operands = self.operands()
        shape = (*operands[1].shape[:-1], 6)
        return np.random.default_rng(7).standard_normal(shape).astype(dtype)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "strides": self.strides, "padding": self.padding, "dilation": self.dilation,
            "data_format": self.data_format, "precision": "highest",
        }  # fmt: skip


CASES = {
    "line": Case(1, offset_groups=2),
    "line-strided": Case(1, strides=2, padding=0, mask=False),
    "line-groups": Case(1, offset_groups=4, groups=2, dilation=2, bias=False),
    "volume": Case(3, offset_groups=2),
    "volume-v1": Case(3, mask=False, bias=False),
    "volume-strided": Case(3, strides=2, padding=2, offset_groups=4),
    "volume-groups": Case(3, groups=2, dilation=2),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def formula(case: Case, x: Any, offset: Any, weight: Any, mask: Any, bias: Any) -> jax.Array:
    """The sum over samples, each of them by `jax.scipy.ndimage.map_coordinates`."""
    n, *out, _ = offset.shape
    taps = math.prod(weight.shape[:-2])
    offset = offset.reshape(n, *out, case.offset_groups, taps, case.dims)
    corner = np.stack(np.meshgrid(*(np.arange(extent) for extent in out), indexing="ij"), -1)
    corner = corner * case.strides - case.padding
    tap = np.indices(weight.shape[:-2]).reshape(case.dims, taps).T * case.dilation
    positions = offset + corner[..., None, None, :] + tap

    def sample(image: Any, positions: Any) -> jax.Array:
        return map_coordinates(image, list(jnp.moveaxis(positions, -1, 0)), order=1)

    def group(image: Any, positions: Any) -> jax.Array:
        of_channels = jax.vmap(sample, (-1, None), -1)
        return jax.vmap(of_channels)(image, positions)  # [n, *out, taps, channels]

    images = jnp.split(jnp.asarray(x), case.offset_groups, -1)
    samples = [group(image, positions[..., g, :, :]) for g, image in enumerate(images)]
    if mask is not None:
        mask = mask.reshape(*offset.shape[:-1])
        samples = [s * mask[..., g, :, None] for g, s in enumerate(samples)]
    together = jnp.concatenate(samples, -1)
    together = together.reshape(*together.shape[:-1], case.groups, -1)
    weight = weight.reshape(taps, weight.shape[-2], case.groups, -1)
    y = jnp.einsum("...kgc,kcgo->...go", together, weight, precision="highest")
    return y.reshape(n, *out, -1) + (0 if bias is None else bias)


@pytest.mark.spread(2)
@each_case
@pytest.mark.usefixtures("x64")
def test_values_and_gradients(case):
    operands, grad_y = case.operands(), case.grad_y()
    expected = values_and_gradients(functools.partial(formula, case), operands, grad_y)
    for module in (oxijax, oxijax.reference):
        function = functools.partial(module.deform_conv, **case.options)
        for name, value in values_and_gradients(function, operands, grad_y).items():
            assert_close(value, expected[name], 1e-12, name)


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["line", "volume", "volume-groups"])
@pytest.mark.usefixtures("x64")
def test_channels_first(name):
    case = CASES[name]
    x, offset, weight, mask, bias = case.operands()
    images: list[Any] = [None if a is None else np.moveaxis(a, -1, 1) for a in (x, offset, mask)]
    y = oxijax.deform_conv(
        images[0], images[1], weight.transpose(-1, -2, *range(case.dims)), images[2], bias,
        **{**case.options, "data_format": "NC" + "DHW"[-case.dims :]},
    )  # fmt: skip
    expected = oxijax.deform_conv(x, offset, weight, mask, bias, **case.options)
    assert_close(jnp.moveaxis(y, 1, -1), expected, 1e-14)


each_kernel = pytest.mark.parametrize(
    ("name", "precision"), [*itertools.product(["line", "volume"], ["exact", "bfloat16"])]
)


@pytest.mark.spread(2)
@each_kernel
@pytest.mark.usefixtures("x64")
def test_kernels(name, precision):
    check_kernels(CASES[name], precision, emulated("sm_80"))


@pytest.mark.gpu
@each_kernel
@pytest.mark.usefixtures("x64")
def test_kernels_on_a_gpu(gpu, name, precision):
    check_kernels(CASES[name], precision, gpu)


def check_kernels(case: Case, precision: str, place: Place) -> None:
    """Values and gradients of kernels, beside the formula in float64."""
    dtype, _, tolerance = PRECISIONS[precision]
    operands, grad_y = case.operands(dtype), case.grad_y(dtype)
    wide = jax.tree.map(lambda a: a.astype(np.float64), (operands, grad_y))
    expected = values_and_gradients(functools.partial(formula, case), *wide)
    function = functools.partial(oxijax.deform_conv, implementation="ptx", **case.options)
    kernels = [f"deform_conv_{name}" for name in KERNELS] if case.dims < 3 else KERNELS_OF_VOLUMES
    with place.context():
        arrays = jax.device_put((tuple(operands), grad_y), place.device)
        compiled = program_of(function).lower(*arrays).compile(place.compiler_options)
        assert_has_kernels(compiled.as_text(), kernels)
        found = named(compiled(*arrays), operands)
    for key, value in found.items():
        assert value.dtype == dtype
        assert_close(np.asarray(value, np.float64), expected[key], tolerance, key)


@pytest.mark.parametrize("name", ["line", "volume"])
def test_offsets_that_are_not_finite(name):
    """NaN makes its output NaN and adds nothing to the image's gradient; infinity reads zeros."""
    case = CASES[name]
    operands, grad_y = case.operands(np.float32), case.grad_y(np.float32)
    where = (0, *(1,) * case.dims, 0)
    function = functools.partial(oxijax.deform_conv, **case.options)
    for value in (np.nan, np.inf):
        operands[1][where] = value
        found = values_and_gradients(function, operands, grad_y)
        bad = np.asarray(jnp.isnan(found["y"]).any(-1))
        assert bad.sum() == bad[where[:-1]] == np.isnan(value)
        assert np.isfinite(found["dx"]).all()
        # All coordinates of one point.
        assert np.isnan(found["doffset"]).sum() == case.dims * np.isnan(value)


@pytest.mark.parametrize("name", ["line", "volume"])
def test_sampling_locations(name):
    case = CASES[name]
    operands = case.operands(np.float32)
    found = oxijax.sampling_locations(oxijax.deform_conv, *operands, **case.options)
    taps = math.prod(KERNEL[-case.dims :])
    out = operands[1].shape[1:-1]
    assert found.locations.shape == (2, *out, case.offset_groups, taps, case.dims)
    first = operands[1][(1, *(0,) * case.dims)].reshape(case.offset_groups, taps, case.dims)[1, -1]
    last_tap = np.array(KERNEL[-case.dims :]) - 1 - case.padding
    np.testing.assert_allclose(
        found.locations[(1, *(0,) * case.dims, 1, -1)], first + last_tap, rtol=1e-6
    )
    np.testing.assert_array_equal(found.weights.reshape(operands[3].shape), operands[3])


def test_temporaries_are_of_one_tap():
    """Samples of all taps are never held, forward nor backward."""
    x, weight = jnp.ones((1, 8, 16, 16, 32)), jnp.ones((3, 3, 3, 32, 32))
    offset = jnp.full((1, 8, 16, 16, 81), 0.3)

    def loss(*operands: jax.Array) -> jax.Array:
        return oxijax.deform_conv(*operands, data_format="NDHWC").sum()

    program = jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, offset, weight).compile()
    analysis = program.memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes < 10 * x.nbytes + 4 * offset.nbytes


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"offset": (2, 6, 3)}, r"offset must have OG\*K = OG\*2 channels .* got 3 in shape"),
        ({"offset": (2, 5, 4)}, r"offset must have shape \(N, Wo, OG\*K\) = \(2, 6, OG\*2\)"),
        ({"mask": (2, 6, 3)}, r"mask must have shape \(N, Wo, OG\*K\) = \(2, 6, 4\)"),
    ],
)
def test_wrong_shapes_of_lines(changed, message):
    shapes = {"x": (2, 6, 4), "offset": (2, 6, 4), "weight": (2, 4, 6), "mask": (2, 6, 4)}
    with pytest.raises(ValueError, match=message):
        oxijax.deform_conv(*map(jnp.ones, {**shapes, **changed}.values()), data_format="NWC")


def test_wrong_shapes_of_volumes():
    x, weight = jnp.ones((1, 3, 4, 5, 4)), jnp.ones((1, 1, 2, 4, 6))
    with pytest.raises(ValueError, match=r"offset must have OG\*Kd\*Kh\*Kw\*3 = OG\*6 channels"):
        oxijax.deform_conv(x, jnp.ones((1, 3, 4, 5, 4)), weight, data_format="NDHWC")
    with pytest.raises(TypeError, match="strides must be an int or 3 ints, got"):
        oxijax.deform_conv(
            x, jnp.ones((1, 3, 4, 5, 6)), weight, strides=(1, 2), data_format="NDHWC"
        )
    with pytest.raises(TypeError, match=r"padding must be .* for depth, height and width an int"):
        oxijax.deform_conv(
            x, jnp.ones((1, 3, 4, 5, 6)), weight, padding=(1, 2), data_format="NDHWC"
        )
