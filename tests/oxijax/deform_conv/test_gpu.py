"""deform_conv on a GPU: all four kernels, in every precision, and JAX's transformations of them.

Run with -m gpu, where each test fails if there is no GPU.
"""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.deform_conv_checks import (
    KERNELS,
    STRANGE_OFFSETS,
    assert_has_kernels,
    check,
    check_far_offsets,
    check_strange_offset,
    float64_reference,
    of_case,
    of_golden,
)
from support.golden import GOLDEN
from support.helpers import NAMES, assert_close, astype
from support.places import PRECISIONS, Place

import oxijax
from oxijax.testing import CASES, DeformConvCase

pytestmark = pytest.mark.gpu

# Layers that take many tiles, every vector width, and each of the fast paths.
LARGER = {
    case.name: case
    for case in (
        DeformConvCase("64-channels", (2, 20, 21, 64), 64),
        DeformConvCase("256-channels", (1, 14, 15, 256), 256),
        DeformConvCase("512-channels-few-pixels", (1, 7, 8, 512), 512),
        DeformConvCase("16-offset-groups", (1, 16, 17, 64), 64, offset_groups=16),
        DeformConvCase("4-groups-of-32", (2, 12, 13, 128), 128, groups=4, offset_groups=2),
        DeformConvCase("odd-channels", (2, 17, 19, 33), 65),
        DeformConvCase("depthwise-96", (2, 15, 14, 96), 96, groups=96),
        DeformConvCase("strided-v1", (2, 33, 35, 48), 80, strides=(2, 2), mask=False, bias=False),
        DeformConvCase("large-image", (1, 128, 200, 32), 32),
        DeformConvCase("dilated-5x5", (1, 24, 22, 40), 24, kernel_size=(5, 5), dilation=(2, 2)),
        DeformConvCase("batch-300", (300, 5, 6, 8), 8),
    )
}


def run(place: Place, function, *arguments, **jit_options):
    """The text of the compiled function, and its results."""
    with place.context():
        arguments = jax.device_put(arguments, place.device)
        compiled = jax.jit(function, **jit_options).lower(*arguments).compile()
        return compiled.as_text(), jax.device_get(compiled(*arguments))


def on_cpu(function, *arguments):
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        return jax.device_get(jax.jit(function)(*jax.device_put(arguments, cpu)))


def assert_all_close(actual, expected, tolerance):
    actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
    assert len(actual) == len(expected) > 0
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_close(a, e, tolerance, f"result {i}")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CASES)
def test_case(gpu, name, precision, record_property):
    errors = check(*of_case(name), precision, gpu)
    record_property("errors", {"deform_conv": {precision: errors}})


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LARGER)
def test_larger_layer(gpu, name, precision, record_property):
    errors = check(*of_case(LARGER[name]), precision, gpu)
    record_property("errors", {"deform_conv": {precision: errors}})


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["v2", "offset-groups", "batch-33", "wide"])
def test_gradient_without_atomics(gpu, name, precision):
    case, (dtype, precision, tolerance) = CASES[name], PRECISIONS[precision]
    operands, grad_y = astype(case.operands(), dtype), case.grad_y().astype(dtype)

    def gradient(operands, grad_y):
        def y(x):
            return oxijax.deform_conv(x, *operands[1:], precision=precision, **case.options)

        return jax.vjp(y, operands[0])[1](grad_y)[0]

    with oxijax.config.deterministic_mode():
        text, result = run(gpu, gradient, operands, grad_y)
    assert_has_kernels(text, ["backward_input_gather"])
    expected = float64_reference(operands, grad_y, **case.options)["dx"]
    assert_close(result, expected, tolerance)


@pytest.mark.parametrize("value", STRANGE_OFFSETS)
def test_strange_offset(gpu, value):
    check_strange_offset(value, gpu)


def test_far_offsets(gpu):
    check_far_offsets(gpu)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
@pytest.mark.parametrize("target", ["sm_75", "sm_80"])
def test_ptx_of_older_targets(gpu, target, precision, monkeypatch):
    """PTX for a target runs on every later GPU."""
    from oxijax._core.gpu.driver import Driver
    from ptx import TARGETS

    monkeypatch.setattr(Driver, "target", lambda self, device: TARGETS[target])
    # Of sizes that no other test has: a call that is known is not loaded again.
    sizes = {"sm_75": (9, 10), "sm_80": (10, 9)}[target]
    check(*of_case(DeformConvCase("old", (3, *sizes, 64), 32)), precision, gpu)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("file", "index"), GOLDEN)
def test_golden(gpu, file, index, record_property):
    """Layers of torchvision, with its strides, paddings and dilations, each in one precision."""
    precision = list(PRECISIONS)[(index + (file == "wide")) % len(PRECISIONS)]
    errors = check(*of_golden(file, index), precision, gpu)
    record_property("errors", {"deform_conv": {precision: errors}})


class TestTransformations:
    """In float64, so that nothing but the order of sums may differ."""

    @pytest.fixture(autouse=True)
    def _in_float64(self, x64):
        pass

    @pytest.fixture
    def layer(self):
        case, options = of_case("v2")
        operands = astype([case[name] for name in NAMES], jnp.float64)
        return [np.asarray(v) for v in operands], options

    @pytest.mark.parametrize("mapped", [(0, 0, None, 0, None), (0, 0, 0, 0, 0), (None, 0, 0, 0, 0)])
    def test_vmap(self, gpu, layer, mapped):
        operands, options = layer
        scales = np.linspace(0.5, 1.5, 3)
        stacked = [
            v if axis is None else np.stack([s * v for s in scales])
            for v, axis in zip(operands, mapped, strict=True)
        ]

        def function(deform_conv):
            return jax.vmap(functools.partial(deform_conv, **options), mapped)

        text, result = run(gpu, function(oxijax.deform_conv), *stacked)
        assert_has_kernels(text, ["forward"])
        assert_all_close(result, on_cpu(function(oxijax.reference.deform_conv), *stacked), 1e-13)

    def test_grad_of_grad(self, gpu, layer):
        operands, options = layer

        def function(deform_conv):
            def inner(*operands):
                return jnp.sin(deform_conv(*operands, **options)).sum()

            def outer(*operands):
                gradients = jax.grad(inner, range(5))(*operands)
                return sum(jnp.cos(g).sum() for g in gradients)

            return jax.grad(outer, range(5))

        text, result = run(gpu, function(oxijax.deform_conv), *operands)
        assert_has_kernels(text, ["forward"])
        assert_all_close(result, on_cpu(function(oxijax.reference.deform_conv), *operands), 1e-12)

    def test_scan(self, gpu, layer):
        """A loop on the GPU: the same call again and again, with gradients through all of them."""
        (x, offset, _, mask, _), options = layer
        weight = np.random.default_rng(0).standard_normal((3, 3, 4, 4)) / 6

        def function(deform_conv):
            def loss(weight, x):
                def step(x, scale):
                    return x + deform_conv(x, scale * offset, weight, mask, **options), x.mean()

                x, means = jax.lax.scan(step, x, jnp.linspace(0.5, 1, 5))
                return (x * x).mean() + means.sum()

            return jax.value_and_grad(loss, (0, 1))

        text, result = run(gpu, function(oxijax.deform_conv), weight, x)
        assert_has_kernels(text, [name for name in KERNELS if name != "backward_offset"])
        expected = on_cpu(function(oxijax.reference.deform_conv), weight, x)
        assert_all_close(result, expected, 1e-12)


class TestStreams:
    """CUDA graphs, streams and threads."""

    @pytest.fixture
    def layer(self):
        def make(name, size, calls):
            """A chain of calls of a layer that no other test has, its operands, and the result."""
            case = DeformConvCase(name, (2, *size, 32), 32)
            operands = case.operands()

            def chain(deform_conv, x, offset, weight, mask, bias):
                for _ in range(calls):
                    y = deform_conv(x, offset, weight, mask, bias, precision="highest")
                    x = x + jnp.tanh(y)
                return x

            expected = on_cpu(functools.partial(chain, oxijax.reference.deform_conv), *operands)
            return functools.partial(chain, oxijax.deform_conv), operands, expected

        return make

    def test_cuda_graph(self, gpu, layer, record_property):
        """A program whose calls XLA captures into a CUDA graph, run several times."""
        from support.gpu_probe import noted_launches

        chain, operands, expected = layer("captured", (11, 13), 4)
        options = {
            "xla_gpu_graph_min_graph_size": 1,
            "xla_gpu_enable_command_buffer": "FUSION,CUSTOM_CALL",
        }
        with noted_launches() as launches, gpu.context():
            operands = jax.device_put(operands, gpu.device)
            compiled = jax.jit(chain, compiler_options=options).lower(*operands).compile()
            for _ in range(6):
                assert_close(compiled(*operands), expected, 1e-5)
        record_property("launches", len(launches))
        record_property("captured", sum(launch.capturing for launch in launches))
        assert {launch.status for launch in launches} == {0}
        assert any(launch.capturing for launch in launches), "XLA captured no launch"

    def test_the_stream_is_xlas(self, gpu, layer):
        """Every launch is on XLA's stream, which is not the default one."""
        from support.gpu_probe import noted_launches

        chain, operands, expected = layer("streamed", (12, 11), 3)
        with noted_launches() as launches:
            _, result = run(gpu, chain, *operands)
        assert_close(result, expected, 1e-5)
        assert len(launches) >= 3
        assert 0 not in {launch.stream for launch in launches}

    def test_threads(self, gpu, layer):
        """Six threads with three programs, all of which compile and load at once."""
        layers = [layer(f"threaded-{i}", (5 + i, 14 - i), 5) for i in range(3)]
        start, results = threading.Barrier(6), {}

        def work(number):
            chain, operands, _ = layers[number % 3]
            start.wait()
            results[number] = [run(gpu, chain, *operands)[1] for _ in range(4)]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == list(range(6))
        for number, found in results.items():
            for result in found:
                assert_close(result, layers[number % 3][2], 1e-5)


class TestErrors:
    """What the driver refuses becomes a Python exception, and the next kernel runs."""

    def call(self, gpu, name, text, grid):
        from support import launch_samples as samples

        from oxijax._core.launch import call
        from ptx import f32
        from ptx.definition import In, KernelDefinition, Out, Plan
        from ptx.registry import register

        config = samples.Elementwise()
        kernel = register(
            KernelDefinition(
                name=name,
                configs={"default": config},
                parameters=(In("x", "n", dtype=f32), Out("y", "n", dtype=f32)),
                plan=lambda config, target, sizes: Plan(32),
                grid=lambda instance: grid,
                body=lambda k, config, plan, p: text,
            )
        )
        x = np.ones(32, np.float32)
        primitive = samples.KernelPrimitive(
            name,
            operands={"x": "n"},
            results={"y": samples.Result("n", like="x")},
            sizes=lambda config, sizes: sizes,
            folds=[samples.Fold("n")],
            reference=lambda config, x: (x,),
            cuda=lambda config, x: call(kernel, config, x=x),
        )
        return run(gpu, lambda x: primitive(config, x), x)[1][0]

    def copy(self, name):
        from oxijax._core.gpu.driver import driver
        from ptx import Kernel, f32

        k = Kernel(name, driver().target(0), block=32)
        x, y = k.pointer("x", f32, readonly=True), k.pointer("y", f32)
        y.store(k.tid(), x.load(k.tid()))
        return k.text()

    def test_load(self, gpu):
        bad = self.copy("gpu_bad_ptx").replace("st.global", "st.globule")
        with pytest.raises(jax.errors.JaxRuntimeError, match="CUDA_ERROR_INVALID_PTX") as raised:
            self.call(gpu, "gpu_bad_ptx", bad, (1, 1, 1))
        assert "kernel gpu_bad_ptx cannot be loaded" in str(raised.value)
        assert "globule" in str(raised.value)
        np.testing.assert_array_equal(
            self.call(gpu, "gpu_good_1", self.copy("good_1"), (1, 1, 1)), 1
        )

    def test_launch(self, gpu, monkeypatch):
        # A grid beyond the limits is refused before the driver sees it, which this is about.
        monkeypatch.setattr("ptx.definition.check_grid", lambda kernel, grid: None)
        text = self.copy("gpu_bad_grid")
        with pytest.raises(jax.errors.JaxRuntimeError, match="CUDA_ERROR_INVALID_VALUE") as raised:
            self.call(gpu, "gpu_bad_grid", text, (1, 65536, 1))
        assert "kernel gpu_bad_grid could not be launched" in str(raised.value)
        np.testing.assert_array_equal(
            self.call(gpu, "gpu_good_2", self.copy("good_2"), (1, 1, 1)), 1
        )


def test_over_2_31_elements(gpu):
    """Images of 2^31.04 elements, zero but for the corners of samples.

    Each output pixel is as that of a layer which has its corners alone. Images and their gradient
    are in programs of their own, so that a GPU needs memory for one of them; the gradient is in
    float32, in which half precision would be summed too.
    """
    batch, size, channels, stride = 3, 1024, 704, 512
    assert batch * size * size * channels > 2**31
    rng = np.random.default_rng(0)
    offset = rng.integers(0, 510, (batch, 2, 2, 2)) + rng.uniform(0.1, 0.9, (batch, 2, 2, 2))
    offset = offset.astype(np.float32)
    weight = (rng.standard_normal((1, 1, channels, 8)) / channels**0.5).astype(np.float16)
    grad_y = rng.standard_normal((batch, 2, 2, 8)).astype(np.float16)
    small = rng.uniform(-1, 1, (batch * 4, 2, 2, channels)).astype(np.float16)

    place = np.arange(2) * stride
    top = (place[:, None] + np.floor(offset[..., 0])).astype(int).reshape(-1, 1, 1)
    left = (place[None, :] + np.floor(offset[..., 1])).astype(int).reshape(-1, 1, 1)
    image = np.arange(batch).repeat(4).reshape(-1, 1, 1)
    indices = np.broadcast_arrays(image, top + np.array([[0], [1]]), left + np.array([[0, 1]]))
    indices = tuple(np.asarray(i) for i in indices)

    layer = functools.partial(oxijax.deform_conv, strides=stride, padding="VALID")
    images = batch, size, size, channels

    def of_images(offset, weight, grad_y, small):
        x = jnp.zeros(images, jnp.float16).at[indices].set(small)
        y, vjp = jax.vjp(lambda *operands: layer(x, *operands), offset, weight)
        return y, *vjp(grad_y)

    def to_images(offset, weight, grad_y):
        weight, grad_y = weight.astype(jnp.float32), grad_y.astype(jnp.float32)
        x = jnp.zeros(images, jnp.float32)
        grad_x = jax.vjp(lambda x: layer(x, offset, weight), x)[1](grad_y)[0]
        # Compared with zeros of that size, which the kernel adds to, it would be there twice.
        return grad_x[indices], (jnp.abs(grad_x).max(axis=3) != 0).sum()

    of, (y, grad_offset, grad_weight) = run(gpu, of_images, offset, weight, grad_y, small)
    to, (corners, written) = run(gpu, to_images, offset, weight, grad_y)
    assert_has_kernels(f"{of}{to}")

    def small_layer(x, offset, weight, grad_y):
        y, vjp = jax.vjp(
            functools.partial(oxijax.reference.deform_conv, strides=2, padding="VALID"),
            *(x, offset, weight),
        )
        return y, *vjp(grad_y)

    with jax.enable_x64(True):
        fraction = (offset - np.floor(offset)).reshape(-1, 1, 1, 2).astype(np.float64)
        wide = grad_y.astype(np.float64).reshape(-1, 1, 1, 8)
        arguments = small.astype(np.float64), fraction, weight.astype(np.float64), wide
        expected = on_cpu(small_layer, *arguments)
    results = y, corners, grad_offset, grad_weight
    expected = [v.reshape(result.shape) for v, result in zip(expected, results, strict=True)]
    assert_all_close(results, expected, 1e-3)
    assert written == 4 * batch * 4
