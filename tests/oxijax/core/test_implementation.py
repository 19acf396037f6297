"""The program that an operation runs: the one that `implementation` asks for, on any platform."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import oxijax
import oxijax.equinox
import oxijax.linen
import oxijax.nnx
from oxijax._core.launch import TARGET_NAME
from oxijax._core.primitive import kernel_primitive
from oxijax.testing import emulate_gpu

X = jnp.ones((1, 4, 5, 4))
WEIGHT = jnp.ones((3, 3, 4, 2))
LEVELS = ((4, 5),)
# Each operator, and what it is called with: arrays with gradients, and what is static.
OPERATORS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "deform_conv": (oxijax.deform_conv, (X, jnp.zeros((1, 4, 5, 18)), WEIGHT), {}),
    "conv": (oxijax.conv, (X, WEIGHT), {}),
    "conv_general_dilated": (
        oxijax.conv_general_dilated,
        (X, WEIGHT),
        {
            "window_strides": (1, 1), "padding": "SAME",
            "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
        },
    ),
    # None leaves such a product to XLA, which arithmetic bounds.
    "gemm": (oxijax.gemm, (jnp.ones((512, 512)), jnp.ones((512, 512))), {}),
    "ms_deform_attn": (
        oxijax.ms_deform_attn,
        (jnp.ones((1, 20, 1, 4)), jnp.ones((1, 3, 1, 1, 2, 2)), jnp.ones((1, 3, 1, 1, 2))),
        {"spatial_shapes": LEVELS},
    ),
    "dcnv3": (
        oxijax.dcnv3,
        (X, jnp.zeros((1, 4, 5, 18)), jnp.ones((1, 4, 5, 9))),
        {"kernel_size": 3, "groups": 1},
    ),
    "dcnv4": (
        oxijax.dcnv4,
        (X, jnp.zeros((1, 4, 5, 32))),
        {"kernel_size": 3, "groups": 1},
    ),
    "grid_sample": (oxijax.grid_sample, (X, jnp.zeros((1, 3, 2))), {}),
    "map_coordinates": (oxijax.map_coordinates, (X[0, :, :, 0], jnp.zeros((2, 3))), {"order": 1}),
    "roi_align": (
        *(oxijax.roi_align, (X, jnp.ones((1, 2, 4)))),
        {"output_size": 2, "sampling_ratio": 1},
    ),
    "sample_windows": (oxijax.sample_windows, (X, jnp.ones((1, 3, 2))), {"radius": 1}),
    "splat": (oxijax.splat, (jnp.ones((1, 3, 2)), jnp.zeros((1, 3, 2))), {"size": (4, 5)}),
}  # fmt: skip
KERNEL_PLATFORMS, XLA_PLATFORMS = ("cuda",), ("cpu", "tpu", "rocm", "METAL")
CANNOT = (
    r"implementation 'ptx' of \w+ cannot run here: kernels need an NVIDIA GPU, .*lowered for {}"
)


def traced(name: str, implementation: Any):
    """An operator's value and gradients, traced for any platform."""
    operator, operands, options = OPERATORS[name]

    def loss(*operands: jax.Array) -> jax.Array:
        return jnp.sum(operator(*operands, **options, implementation=implementation))

    gradients = jax.value_and_grad(loss, tuple(range(len(operands))))
    return jax.jit(gradients).trace(*operands)


def calls(traced, platform: str) -> int:
    """How many kernels the program for a platform calls."""
    return traced.lower(lowering_platforms=(platform,)).as_text().count(f"@{TARGET_NAME}(")


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", OPERATORS)
def test_each_operator(name):
    kernels = traced(name, "ptx")
    assert calls(kernels, "cuda") >= 2
    for platform in ("cpu", "tpu"):
        with pytest.raises(ValueError, match=CANNOT.format(platform)):
            calls(kernels, platform)
    preferred = traced(name, ("ptx", "xla"))
    assert calls(preferred, "cuda") == calls(kernels, "cuda")
    assert calls(preferred, "tpu") == 0
    for implementation in ("xla", ("xla", "ptx")):
        assert calls(traced(name, implementation), "cuda") == 0
    left_open = traced(name, None)
    assert calls(left_open, "cuda") == (0 if name == "gemm" else calls(kernels, "cuda"))
    assert calls(left_open, "cpu") == 0


@pytest.mark.quick
@pytest.mark.parametrize("platform", ["cpu", "tpu", "rocm", "METAL"])
@pytest.mark.parametrize("name", ["deform_conv", "ms_deform_attn"])
def test_platforms_without_kernels(name, platform):
    """There the program is XLA's, and nothing of it is a call that the platform lacks."""
    text = traced(name, None).lower(lowering_platforms=(platform,)).as_text()
    assert "custom_call" not in text
    with pytest.raises(ValueError, match=CANNOT.format(platform)):
        calls(traced(name, "ptx"), platform)


@pytest.mark.parametrize("implementation", [None, "ptx", "xla", ("xla", "ptx"), ("ptx", "xla")])
def test_emulated_gpu(implementation):
    x, weight = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 8)), jnp.float32)
    run = jax.jit(functools.partial(oxijax.gemm, implementation=implementation))
    with emulate_gpu("sm_80"):
        launches = run.lower(x, weight).as_text().count(f"@{TARGET_NAME}(")
        y = run(x, weight)
    assert launches == (implementation in ("ptx", ("ptx", "xla"), None))
    np.testing.assert_allclose(y, x @ weight, rtol=1e-2, atol=1e-2)


def test_other_derivatives_keep_it():
    """Those of second order, of batches and in forward mode, where they are kernels."""
    _, (x, weight), _ = OPERATORS["conv"]

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(oxijax.conv(x, weight, implementation="xla") ** 2)

    def tangent(x: jax.Array) -> jax.Array:
        return jax.jvp(jax.grad(loss), [x], [x])[1]

    text = jax.jit(jax.vmap(tangent)).trace(x[None]).lower(lowering_platforms=("cuda",)).as_text()
    assert f"@{TARGET_NAME}(" not in text


def test_missing_handler(monkeypatch):
    """An alternative is taken where it was asked for, and only there."""
    monkeypatch.setattr(kernel_primitive, "has_handler", lambda: False)
    assert calls(traced("conv", ("ptx", "xla")), "cuda") == 0
    # Both ask the handler itself, which says what is wrong with it: here nothing is.
    assert calls(traced("conv", "ptx"), "cuda") == calls(traced("conv", None), "cuda") == 3


def test_gemm_of_unknown_sizes():
    (m, n) = jax.export.symbolic_shape("m, n")
    a, b = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((m, 8), (8, n)))
    export = jax.export.export(
        jax.jit(functools.partial(oxijax.gemm, implementation="ptx")), platforms=("cuda",)
    )
    with pytest.raises(ValueError, match="implementation must not be 'ptx' where K, or both M"):
        export(a, b)


@pytest.mark.parametrize("name", ["deform_conv", "conv", "gemm", "grid_sample", "splat"])
def test_reference_has_no_kernel(name):
    _, operands, options = OPERATORS[name]
    reference = functools.partial(getattr(oxijax.reference, name), *operands, **options)
    with pytest.raises(ValueError, match=f"of oxijax.reference.{name} must be None or 'xla'"):
        reference(implementation="ptx")
    jax.eval_shape(lambda: reference(implementation=("ptx", "xla")))


def nnx_layers(implementation: Any) -> dict[str, tuple[Callable, tuple[jax.Array, ...]]]:
    rngs, more = nnx.Rngs(0), {"implementation": implementation}
    conv = oxijax.nnx.DeformConv(4, 2, 3, rngs=rngs, **more)
    attention = oxijax.nnx.MSDeformAttn(8, 1, 1, 2, rngs=rngs, **more)
    return {
        "DeformConv": (conv, (X,)),
        "MSDeformAttn": (functools.partial(attention, spatial_shapes=LEVELS), ATTENTION),
        "DCNv3": (oxijax.nnx.DCNv3(4, groups=1, rngs=rngs, **more), (X,)),
        "DCNv4": (oxijax.nnx.DCNv4(4, groups=1, rngs=rngs, **more), (X,)),
    }


def linen_layers(implementation: Any) -> dict[str, tuple[Callable, tuple[jax.Array, ...]]]:
    def whole(module: Any, **options: Any) -> Callable:
        def initialize_and_apply(*inputs: jax.Array) -> jax.Array:
            return module.init_with_output(jax.random.key(0), *inputs, **options)[0]

        return initialize_and_apply

    more, linen = {"implementation": implementation}, oxijax.linen
    attention = linen.MSDeformAttn(8, 1, 1, 2, **more)
    return {
        "DeformConv": (whole(linen.DeformConv(2, 3, **more)), (X,)),
        "MSDeformAttn": (whole(attention, spatial_shapes=LEVELS), ATTENTION),
        "DCNv3": (whole(linen.DCNv3(4, groups=1, **more)), (X,)),
        "DCNv4": (whole(linen.DCNv4(4, groups=1, **more)), (X,)),
    }


def equinox_layers(implementation: Any) -> dict[str, tuple[Callable, tuple[jax.Array, ...]]]:
    options = {"implementation": implementation, "key": jax.random.key(0)}
    image = jnp.moveaxis(X[0], -1, 0)
    attention = oxijax.equinox.MSDeformAttn(8, 1, 1, 2, **options)
    return {
        "DeformConv": (oxijax.equinox.DeformConv(4, 2, 3, padding=1, **options), (image,)),
        "MSDeformAttn": (
            functools.partial(attention, spatial_shapes=LEVELS),
            tuple(array[0] for array in ATTENTION),
        ),
        "DCNv3": (oxijax.equinox.DCNv3(4, groups=1, **options), (image,)),
        "DCNv4": (oxijax.equinox.DCNv4(4, groups=1, **options), (image,)),
    }


ATTENTION = (jnp.ones((1, 3, 8)), jnp.ones((1, 3, 1, 2)), jnp.ones((1, 20, 8)))
LIBRARIES = {"nnx": nnx_layers, "linen": linen_layers, "equinox": equinox_layers}


@pytest.mark.spread(1)
@pytest.mark.parametrize("library", LIBRARIES)
def test_layers(library):
    counts = {
        implementation: {
            # A function of its own for each: Equinox's layers cannot be hashed.
            name: calls(jax.jit(lambda *inputs, layer=layer: layer(*inputs)).trace(*inputs), "cuda")
            for name, (layer, inputs) in LIBRARIES[library](implementation).items()
        }
        for implementation in (None, "ptx", "xla")
    }
    assert set(counts[None].values()) == {1}
    assert counts["ptx"] == counts[None]
    assert set(counts["xla"].values()) == {0}
