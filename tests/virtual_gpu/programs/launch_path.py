"""A program that uses each part of the launch path, and compares all values with the CPU's.

It runs with two devices. With an argument, a target of the emulator, it does on the CPU what
`oxijax.testing.emulate_gpu` can do of it.
"""

import contextlib
import ctypes
import pathlib
import sys
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from jax.errors import JaxRuntimeError
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import oxijax
from oxijax._core.gpu.driver import Driver, driver
from oxijax.testing import emulate_gpu
from ptx import TARGETS
from ptx.launch import Launch

RNG = np.random.default_rng(0)
GRAPH = {
    "xla_gpu_graph_min_graph_size": 1,
    "xla_gpu_enable_command_buffer": "FUSION,CUSTOM_CALL",
}
ON_CPU = len(sys.argv) > 1
CPU = jax.devices("cpu")[0]
DEVICES = jax.devices("cpu" if ON_CPU else "cuda")[:2]


def rand(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def on_cpu(function, *operands):
    """What a function of JAX's own gives there."""
    with jax.default_device(CPU):
        return jax.jit(function)(*operands)


def assert_same(got, expected) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        error = np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(b)
        assert error < 1e-5, f"wrong values: {error}"


def product(transpose_b, a, b, c):
    options = {"strategy": "shallow_k", "precision": "highest", "transpose_b": transpose_b}
    return oxijax.gemm(a, b, c, alpha=0.5, beta=2.0, **options)


def large_product(a, b):
    return oxijax.gemm(a, b, strategy="cache_persistent", precision="highest")


def products_of_two_sizes_and_two_kinds():
    """The second kind has operands of the same sizes."""
    b = rand(24, 24)
    for rows in (40, 70, 40):
        a, c = rand(rows, 24), rand(rows, 24)
        assert_same(jax.jit(product, static_argnums=0)(False, a, b, c), 0.5 * a @ b + 2 * c)
        assert_same(jax.jit(product, static_argnums=0)(True, a, b, c), 0.5 * a @ b.T + 2 * c)


def much_shared_memory_on_each_device():
    """More than a block has without being asked for; of one library, which both have loaded."""
    a, b = rand(64, 256), rand(256, 32)
    times = jax.jit(large_product)
    with noted_loads() as loads:
        for device in DEVICES:
            assert_same(times(jax.device_put(a, device), jax.device_put(b, device)), a @ b)
    if ON_CPU:
        return
    (first, kernel), (second, same) = loads
    assert (first, kernel) == (second, same), "two libraries of one text"
    carve_outs = [carve_out(kernel, device) for device in (0, 1)]
    assert carve_outs == [carve_out_of(first)] * 2, f"the carve-outs are {carve_outs}"


@contextlib.contextmanager
def noted_loads():
    """The launches that kernels are loaded for meanwhile, and the CUkernels; each is captured."""
    noted, load = [], Driver.load

    def note(self, launch, device):
        kernel = load(self, launch, device)
        noted.append((launch, kernel))
        capture(launch, kernel)
        return kernel

    with mock.patch.object(Driver, "load", note):
        yield noted


def capture(launch: Launch, kernel: int) -> None:
    """Captures a launch in the current context, and never does it: nothing is left to load."""
    values = (ctypes.c_uint64 * len(launch.arguments))()
    size = ctypes.sizeof(ctypes.c_uint64)
    addresses = [ctypes.addressof(values) + i * size for i in range(len(values))]
    parameters = (ctypes.c_void_p * len(values))(*addresses)
    stream = of_the_driver("cuStreamCreate", 1)  # CU_STREAM_NON_BLOCKING
    mode = driver()._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    of_the_driver("cuStreamBeginCapture", stream, mode)
    function = driver()._api.CUfunction(kernel)
    shape = *launch.grid, *launch.block, launch.dynamic_shared
    of_the_driver("cuLaunchKernel", function, *shape, stream, ctypes.addressof(parameters), 0)
    of_the_driver("cuGraphDestroy", of_the_driver("cuStreamEndCapture", stream))
    of_the_driver("cuStreamDestroy", stream)


def of_the_driver(function: str, *arguments) -> Any:
    """The result of a function of the driver, which has to succeed."""
    return next(iter(driver()._call(function, *arguments)), None)


def carve_out(kernel: int, device: int) -> int:
    """The percentage of an SM's shared memory that a kernel prefers, as the driver has it."""
    api = driver()._api
    attribute = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    return of_the_driver("cuKernelGetAttribute", attribute, api.CUkernel(kernel), device)


def carve_out_of(launch: Launch) -> int:
    """What a launch can use, if nothing but shared memory bounds the blocks of an SM."""
    h100 = TARGETS["sm_90"]
    block = launch.dynamic_shared + 1024
    return -(-100 * (h100.shared_per_sm // block * block) // h100.shared_per_sm)


def loss(x, offset, weight):
    return (oxijax.deform_conv(x, offset, weight, precision="highest") ** 2).mean()


def reference_loss(x, offset, weight):
    return (oxijax.reference.deform_conv(x, offset, weight, precision="highest") ** 2).mean()


def gradients_divided_over_two_devices():
    """Once as XLA asks for, and once as it does by itself, which copies what kernels add to."""
    operands = rand(4, 5, 6, 8), rand(4, 5, 6, 18), rand(3, 3, 8, 8) / 9
    expected = on_cpu(jax.value_and_grad(reference_loss, (0, 1, 2)), *operands)
    mesh = Mesh(np.array(DEVICES), "b")
    shardings = tuple(NamedSharding(mesh, place) for place in (P("b"), P("b"), P()))
    gradients = jax.value_and_grad(loss, (0, 1, 2))
    assert_same(jax.jit(gradients)(*jax.device_put(operands, shardings)), expected)
    assert_same(jax.jit(gradients, in_shardings=shardings)(*operands), expected)


def a_cuda_graph():
    """Calls that XLA captures, of kernels that no call before has loaded; then on the other GPU."""
    x, offset, weight = rand(1, 5, 6, 12), rand(1, 5, 6, 18), rand(3, 3, 12, 12) / 9

    def steps(loss):
        def step(x, offset, weight):
            for _ in range(2):
                x = x - jax.grad(loss)(x, offset, weight)
            return x

        return step

    expected = on_cpu(steps(reference_loss), x, offset, weight)
    for device in DEVICES:
        operands = jax.device_put((x, offset, weight), device)
        compiled = jax.jit(steps(loss)).lower(*operands).compile({} if ON_CPU else GRAPH)
        for _ in range(4):
            assert_same(compiled(*operands), expected)


def a_launch_that_fails():
    """The driver refuses shared memory that it was not asked for, and the caller is told."""
    a, b = rand(64, 256), rand(256, 40)
    times = jax.jit(large_product)
    with mock.patch.object(Driver, "_allow_shared"), pytest.raises(JaxRuntimeError) as raised:
        times(a, b).block_until_ready()
    assert "gemm could not be launched" in str(raised.value), raised.value


PARTS = (
    products_of_two_sizes_and_two_kinds,
    much_shared_memory_on_each_device,
    gradients_divided_over_two_devices,
    a_cuda_graph,
    *([] if ON_CPU else [a_launch_that_fails]),
)

if __name__ == "__main__":
    print("oxijax of", pathlib.Path(oxijax.__file__).parents[1])
    with emulate_gpu(sys.argv[1]) if ON_CPU else contextlib.nullcontext():
        for part in PARTS:
            part()
            print(part.__name__, flush=True)
    print("done")
