"""Windows of samples, against `grid_sample` at all of their positions."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import assert_close, program_of
from support.helpers import values_and_gradients as _values_and_gradients
from support.places import PRECISIONS, Place, assert_has_kernels, emulated

import oxijax

SIZES = {1: (9,), 2: (5, 6), 3: (3, 5, 4)}
RADII = {1: (2,), 2: (1, 2), 3: (1, 0, 1)}
NAMES = "x", "centers"
values_and_gradients = functools.partial(_values_and_gradients, names=NAMES)
# Of images of one channel, and of others.
KERNELS = {
    1: ("sampling_windows_forward", "sampling_windows_backward_value", "sampling_backward_points"),
    3: ("sampling_forward", "sampling_backward_value", "sampling_backward_points"),
}


def operands(dims: int, channels: int) -> list[np.ndarray]:
    """Images, centres, some of them outside, and the gradient of the result."""
    random = np.random.default_rng(dims)
    windows = [2 * radius + 1 for radius in RADII[dims]]
    x = random.standard_normal((2, *SIZES[dims], channels))
    centers = random.uniform(-3, 8, (2, 4, 3, dims))
    return [x, centers, random.standard_normal((2, 4, 3, *windows, channels))]


def formula(x: Any, centers: Any, radius: tuple[int, ...], padding_mode: str) -> jax.Array:
    steps = np.meshgrid(*(np.arange(-r, r + 1) for r in radius), indexing="ij")
    dims = len(radius)
    centers = centers.reshape(*centers.shape[:-1], *[1] * dims, dims)
    grid = centers + np.stack(steps[::-1], -1).astype(centers.dtype)
    return oxijax.grid_sample(x, grid, padding_mode=padding_mode, coordinates="pixel")


@pytest.mark.spread(2)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dims", SIZES)
def test_values_and_gradients(dims, channels, padding_mode):
    options = {"radius": RADII[dims], "padding_mode": padding_mode}
    *arrays, grad_y = operands(dims, channels)
    expected = values_and_gradients(functools.partial(formula, **options), arrays, grad_y)
    for module in (oxijax, oxijax.reference):
        function = functools.partial(module.sample_windows, **options)
        for name, value in values_and_gradients(function, arrays, grad_y).items():
            assert_close(value, expected[name], 1e-12, name)


@pytest.mark.usefixtures("x64")
def test_many_windows():
    """More than one block of them, which their number does not fill."""
    random = np.random.default_rng(0)
    x, centers = random.standard_normal((3, 7, 8, 1)), random.uniform(-2, 9, (3, 1777, 2))
    y = random.standard_normal((3, 1777, 9, 9, 1))
    ours = functools.partial(oxijax.sample_windows, radius=4)
    theirs = functools.partial(formula, radius=(4, 4), padding_mode="zeros")
    expected = values_and_gradients(theirs, [x, centers], y)
    for name, value in values_and_gradients(ours, [x, centers], y).items():
        assert_close(value, expected[name], 1e-12, name)


def check_kernels(
    dims: int, precision: str, place: Place, channels: int = 1, *, deterministic: bool = False
) -> None:
    """Values and gradients of kernels, beside the formula in float64."""
    dtype, _, tolerance = PRECISIONS[precision]
    *arrays, grad_y = operands(dims, channels)
    # Centres in half a precision lie where they are rounded to.
    arrays[1] = arrays[1].astype(dtype).astype("float64" if dtype == "float64" else "float32")
    arrays[0], grad_y = (array.astype(dtype) for array in (arrays[0], grad_y))
    wide = [array.astype(np.float64) for array in (*arrays, grad_y)]
    options = {"radius": RADII[dims], "padding_mode": "zeros"}
    expected = values_and_gradients(functools.partial(formula, **options), wide[:2], wide[2])
    function = functools.partial(oxijax.sample_windows, implementation="ptx", **options)
    kernels = KERNELS[channels]
    if deterministic:
        kernels = (kernels[0], "sampling_backward_value_gather", kernels[2])
    with place.context(), oxijax.config.deterministic_mode(deterministic):
        given = jax.device_put((tuple(arrays), grad_y), place.device)
        compiled = program_of(function).lower(*given).compile(place.compiler_options)
        assert assert_has_kernels(compiled.as_text(), kernels) == len(kernels)
        y, gradients = compiled(*given)
    for name, value in {"y": y, "dx": gradients[0], "dcenters": gradients[1]}.items():
        assert_close(np.asarray(value, np.float64), expected[name], tolerance, name)


each_kernel = pytest.mark.parametrize(
    ("dims", "precision"), [(1, "float16"), (2, "exact"), (2, "bfloat16"), (3, "float64")]
)


@each_kernel
@pytest.mark.usefixtures("x64")
def test_kernels(dims, precision):
    check_kernels(dims, precision, emulated("sm_75"))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("channels", "deterministic"), [(3, False), (1, True)])
def test_other_kernels(channels, deterministic):
    """Windows of more channels, and a fixed order of additions, are samples at all positions."""
    check_kernels(2, "exact", emulated("sm_80"), channels, deterministic=deterministic)


@pytest.mark.gpu
@each_kernel
@pytest.mark.usefixtures("x64")
def test_kernels_on_a_gpu(gpu, dims, precision):
    check_kernels(dims, precision, gpu)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("padding_mode", ["zeros", "border"])
def test_centers_that_are_not_finite(padding_mode, channels):
    """As `grid_sample` has them: NaN makes a window NaN, and adds nothing to the image."""
    x, centers, grad_y = operands(2, channels)
    options = {"radius": RADII[2], "padding_mode": padding_mode}
    for value in (np.nan, np.inf, -np.inf, 1e30):
        centers[0, 1, 2, 0] = value
        of = (
            functools.partial(oxijax.sample_windows, **options),
            functools.partial(formula, **options),
        )
        ours, theirs = (values_and_gradients(function, [x, centers], grad_y) for function in of)
        for name, found in ours.items():
            np.testing.assert_allclose(found, theirs[name], rtol=1e-11, atol=1e-12, err_msg=name)
            assert np.isnan(found).any() == (np.isnan(value) and name != "dx")


def test_one_image_or_one_set_of_centers_is_shared():
    x, centers, _ = operands(2, channels=1)
    for shared in (x[:1], centers), (x, centers[:1]):
        each = [np.broadcast_to(array, (2, *array.shape[1:])) for array in shared]
        y, expected = (oxijax.sample_windows(x, c, 1) for x, c in (shared, each))
        np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(("n", "windows"), [(0, 3), (2, 0)])
def test_no_windows(n, windows, channels):
    arrays = np.ones((n, 4, 5, channels)), np.ones((n, windows, 2))
    grad_y = np.ones((n, windows, 3, 3, channels))
    function = functools.partial(oxijax.sample_windows, radius=1)
    for name, value in values_and_gradients(function, arrays, grad_y).items():
        shapes = {"y": grad_y.shape, "dx": arrays[0].shape, "dcenters": arrays[1].shape}
        assert value.shape == shapes[name]
        assert not value.any() or name == "y"


def test_channels_first():
    x, centers, _ = operands(2, channels=3)
    y = oxijax.sample_windows(np.moveaxis(x, -1, 1), centers, 1, data_format="NCHW")
    expected = oxijax.sample_windows(x, centers, 1)
    np.testing.assert_array_equal(jnp.moveaxis(y, 1, -1), expected)


def test_images_of_one_channel_are_not_copied():
    images, centers = jnp.ones((500, 40, 50, 1)), jnp.ones((500, 2))
    program = jax.jit(functools.partial(oxijax.sample_windows, radius=2))
    analysis = program.lower(images, centers).compile().memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes < images.nbytes // 10


@pytest.mark.parametrize(
    ("radius", "error", "message"),
    [
        (-1, ValueError, "radius must not be negative, got -1"),
        ((1,), TypeError, "radius must be an int, or an int for each of 2 dimensions of x, got"),
    ],
)
def test_wrong_radius(radius, error, message):
    with pytest.raises(error, match=message):
        oxijax.sample_windows(jnp.ones((1, 4, 5, 1)), jnp.ones((1, 2)), radius)
