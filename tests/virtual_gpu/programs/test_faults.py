"""Faults that reach the user; each case is a process, since errors stick to the device."""

import os
import textwrap

import pytest
from support.processes import python

pytestmark = pytest.mark.gpu

# Calls gemm with a kernel whose launch has been changed by a function of it.
CHANGED = """
import dataclasses, sys
import numpy as np, jax, oxijax
from oxijax._core.launch import _resolve

def change(launch):
    {change}
    return launch

class Changed:
    def __init__(self, kernel):
        self.kernel = kernel
    def __getattr__(self, name):
        return getattr(self.kernel, name)
    def launch(self, *arguments, plan):
        return change(self.kernel.launch(*arguments, plan=plan))

registered = _resolve.registered
_resolve.registered = lambda name: Changed(registered(name))
a, b = np.ones((40, 24), np.float32), np.ones((24, 16), np.float32)
result = np.asarray(oxijax.gemm(a, b, strategy="shallow_k", precision="highest"))
assert (result == 24).all(), "wrong values"
print("done")
"""


def child(script: str, **settings: str) -> tuple[int, str]:
    """Runs a script in a process of its own: its status, and all that it says."""
    return python("-c", textwrap.dedent(script), **settings)


def changed(change: str, **settings: str) -> tuple[int, str]:
    return child(CHANGED.format(change=change), **settings)


def assert_fails(result: tuple[int, str], *words: str) -> None:
    status, said = result
    assert status, said
    for word in words:
        assert word in said, said


def assert_works(result: tuple[int, str]) -> None:
    status, said = result
    assert status == 0, said
    assert "done" in said


# The kernel returns before it does anything.
RETURNS = 'i = launch.text.index("{", launch.text.index(".entry")) + 1\n    ' + (
    'launch = dataclasses.replace(launch, text=launch.text[:i] + "ret;" + launch.text[i:])'
)


@pytest.mark.parametrize("seed", ["0", "1"])
def test_nothing_is_changed(seed):
    assert_works(changed("pass", VIRTUAL_GPU_STRICT="1", VIRTUAL_GPU_ASYNC=seed))


def test_a_result_that_is_not_written():
    assert_fails(
        changed(RETURNS, VIRTUAL_GPU_STRICT="1"),
        "CUDA_ERROR_LAUNCH_FAILED",
        "UnwrittenError",
        "cuLaunchKernel",
    )
    assert_fails(changed(RETURNS, VIRTUAL_GPU_STRICT=""), "wrong values")


def test_an_operand_that_is_written():
    swap = (
        "f, *m = [i for i, a in enumerate(launch.arguments) if hasattr(a, 'buffer')]\n    "
        "args = list(launch.arguments)\n    args[m[-1]] = args[f]\n    "
        "launch = dataclasses.replace(launch, arguments=tuple(args))"
    )
    assert_fails(changed(swap, VIRTUAL_GPU_STRICT="1"), "result 0 is not an argument of the kernel")


def test_shared_memory_that_was_not_asked_for():
    """The launch asks for more than the driver was told of when the kernel was loaded."""
    more = "launch = dataclasses.replace(launch, dynamic_shared=100 * 1024)"
    assert_works(changed(more))
    untold = (
        "from oxijax._core.gpu import driver\n    "
        "driver.Driver._allow_shared = lambda *unused: None\n    "
    )
    assert_fails(
        changed(untold + more),
        "102400 bytes of dynamic shared memory, and it may have",
        "cuLaunchKernel",
    )


def test_ptx_for_a_newer_device():
    newer = 'launch = dataclasses.replace(launch, text=launch.text.replace("sm_80", "sm_90"))'
    assert_fails(
        changed(newer, VIRTUAL_GPU_MODEL="a100"),
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "PTX for sm_90 does not run on a device of sm_80",
    )
    assert_works(changed("pass", VIRTUAL_GPU_MODEL="a100"))


def test_one_of_two_devices_that_cannot_load_says_why():
    """XLA ends the process because the other device waits for it, without the error."""
    limit = "--xla_gpu_executable_terminate_timeout=2"
    assert_fails(
        child(
            """
            import numpy as np, jax, oxijax
            from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
            from oxijax._core.gpu import driver
            load = driver.Driver.load
            def load_on_the_first(self, launch, device):
                if device == 1:
                    raise driver.DriverError("no room on the second")
                return load(self, launch, device)
            driver.Driver.load = load_on_the_first
            mesh = Mesh(np.array(jax.devices("cuda")), "b")
            x = jax.device_put(np.ones((2, 8, 8, 8), np.float32), NamedSharding(mesh, P("b")))
            weight = np.ones((3, 3, 8, 8), np.float32)
            jax.jit(oxijax.conv)(x, weight).block_until_ready()
            """,
            VIRTUAL_GPU_DEVICES="2",
            XLA_FLAGS=f"{os.environ['XLA_FLAGS']} {limit}",
        ),
        "cannot be loaded",
        "no room on the second",
    )


def test_a_gpu_without_data_sheet_gets_kernels():
    """The choice for the product and its gradients is made by the driver's figures."""
    assert_works(
        child(
            """
            import numpy as np, jax, jax.numpy as jnp, oxijax
            a, b = np.ones((64, 256), np.float16), np.ones((256, 16), np.float16)
            def loss(a, b):
                return oxijax.gemm(a, b).astype(jnp.float32).sum()
            program = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(a, b).compile()
            assert program.as_text().count('custom_call_target="oxijax_launch"') == 3
            value, (grad_a, grad_b) = program(a, b)
            assert value == 64 * 256 * 16, value
            assert (grad_a == 16).all() and (grad_b == 64).all()
            result = oxijax.roofline(64, 16, 256, dtype="float16")
            assert (result.device, round(result.peak_bandwidth_tbps, 3)) == ("NVIDIA L4", 0.3)
            print("done")
            """,
            VIRTUAL_GPU_MODEL="l4",
        )
    )


def test_nothing_is_collected_in_a_callback():
    """XLA holds a lock there that a program takes when it is freed."""
    assert_works(
        child(
            """
            import gc, numpy as np, jax
            from virtual_driver import loading, running
            noted = []
            def noting(function):
                def note(*arguments):
                    noted.append((function.__name__, gc.isenabled()))
                    return function(*arguments)
                return note
            loading.load, running.run = noting(loading.load), noting(running.run)
            assert jax.jit(lambda x: x.sum() * 3)(np.ones(5, np.float32)) == 15
            assert set(noted) == {("load", False), ("run", False)}, noted
            assert gc.isenabled()
            print("done")
            """
        )
    )
