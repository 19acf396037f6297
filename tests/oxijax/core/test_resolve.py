"""`oxijax.resolve`: which implementation calls take, with which plans, and why."""

import jax
import jax.numpy as jnp
import pytest

import oxijax
from oxijax._core.calls.kernel_call import noted_calls
from oxijax._core.primitive import kernel_primitive
from oxijax.testing import emulate_gpu
from ptx.isa.targets import TARGETS

X, OFFSET = jnp.ones((1, 5, 6, 4)), jnp.zeros((1, 5, 6, 18))
WEIGHT = jnp.ones((3, 3, 4, 2))


def loss(x, offset, weight):
    return jnp.sum(oxijax.deform_conv(x, offset, weight) ** 2)


def test_on_a_cpu():
    found = oxijax.resolve(loss, X, OFFSET, jax.ShapeDtypeStruct(WEIGHT.shape, WEIGHT.dtype))
    (call,) = found
    assert (call.operation, call.implementation) == ("deform_conv_forward", "xla")
    assert (call.kernels, len(found)) == ((), 1)
    assert repr(found) == (
        "deform_conv_forward: XLA's program, since kernels need an NVIDIA GPU, and the program is "
        "lowered for cpu"
    )


def test_reasons():
    def calls(a, x):
        y = oxijax.deform_conv(x, OFFSET, WEIGHT, implementation="xla")
        return oxijax.gemm(a, a), y, jnp.sin(x)

    with emulate_gpu("sm_90"):
        conv, gemm = oxijax.resolve(calls, jax.ShapeDtypeStruct((4096, 4096), jnp.float32), X)
    assert gemm.implementation == conv.implementation == "xla"
    assert str(gemm) == (
        "gemm: XLA's program, since arithmetic bounds a product of these sizes, or there is "
        "nothing to multiply"
    )
    assert conv.reason == "implementation='xla' was asked for"
    assert repr(oxijax.resolve(jnp.sin, X)) == "no operators of oxijax"


def test_the_reason_is_that_of_the_error():
    def function(x):
        return oxijax.deform_conv(x, OFFSET, WEIGHT, implementation="ptx")

    (call,) = oxijax.resolve(lambda x: oxijax.deform_conv(x, OFFSET, WEIGHT), X)
    with pytest.raises(ValueError, match="cannot run here: kernels need an NVIDIA GPU") as error:
        oxijax.resolve(function, X)
    assert call.reason is not None
    assert call.reason in str(error.value)


def test_without_a_handler(monkeypatch):
    monkeypatch.setattr(kernel_primitive, "has_handler", lambda: False)

    def function(x):
        return oxijax.deform_conv(x, OFFSET, WEIGHT, implementation=("ptx", "xla"))

    with emulate_gpu():
        (call,) = oxijax.resolve(function, X)
    assert call.reason == "oxijax has no launch handler that works"


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_kernels_are_those_that_run(target):
    """Launches, shapes and plans are those of the program, and nothing is run to know them."""
    gradients = jax.jit(jax.grad(loss, (0, 1, 2)))
    with emulate_gpu(target):
        with noted_calls() as calls:
            found = oxijax.resolve(gradients, X, OFFSET, WEIGHT)
            assert not calls
            oxijax.clear_caches()
            jax.block_until_ready(gradients(X, OFFSET, WEIGHT))
        again = oxijax.resolve(gradients, X, OFFSET, WEIGHT)
    kernels = [kernel for call in found for kernel in call.kernels]
    assert {(k.kernel, k.config, tuple(k.shapes.values()), k.plan) for k in kernels} == {
        (call.kernel.name, call.config, call.shapes, call.instance.plan) for call in calls
    }
    assert {kernel.gpu for kernel in kernels} == {f"emulated {target}"}
    assert not any(kernel.tuned for kernel in kernels)
    assert target in TARGETS
    assert {call.implementation for call in found} == {"ptx"}
    assert repr(again) == repr(found)
    assert "deform_conv_forward: 1 launch of kernels\n" in repr(found)
    assert "plan, the kernel's own choice: " in repr(found)


def test_tuned_plans():
    with emulate_gpu("sm_90"):
        with noted_calls() as calls:
            oxijax.clear_caches()
            jax.block_until_ready(oxijax.deform_conv(X, OFFSET, WEIGHT))
        (call,) = calls
        other = call.kernel.instance(call.config, TARGETS["sm_75"], call.shapes).plan
        before = oxijax.config.tuning.find(call)
        assert before is None
        oxijax.config.tuning._plans[call] = other
        try:
            (found,) = oxijax.resolve(oxijax.deform_conv, X, OFFSET, WEIGHT)
        finally:
            del oxijax.config.tuning._plans[call]
    (kernel,) = found.kernels
    assert kernel.tuned
    assert kernel.plan == other
    assert "plan, tuned: " in str(kernel)
