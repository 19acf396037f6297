"""Every public function and layer under JAX's own switches: what they do outside they do there."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.helpers import assert_close
from support.public_calls import CALLS, find_call, operator_calls, values_and_gradients

import oxijax
from oxijax._core.arguments.precision import parse_precision
from oxijax.testing import emulate_gpu

PATHS = {"xla": contextlib.nullcontext, "kernels": lambda: emulate_gpu("sm_80")}
PRESETS = [preset.name for preset in lax.DotAlgorithmPreset if preset.name != "DEFAULT"]
each_path = pytest.mark.parametrize("path", PATHS)
each_call = pytest.mark.parametrize("name", CALLS)


@contextlib.contextmanager
def no_promotion():
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


SWITCHES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "rank promotion": lambda: jax.numpy_rank_promotion("raise"),
    "dtype promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "x64": lambda: jax.enable_x64(True),
    "debug nans": lambda: jax.debug_nans(True),
    "debug infs": lambda: jax.debug_infs(True),
    "checks": lambda: jax.enable_checks(True),
    "leaks": jax.checking_leaks,
    "transfer guard": lambda: jax.transfer_guard("disallow"),
    "disabled jit": jax.disable_jit,
    **{
        name: lambda name=name: jax.default_matmul_precision(name)
        for name in (*PRESETS, "bfloat16", "tensorfloat32", "float32", "high", "highest")
    },
}


# A seed of operands for which no location is so close to a pixel's middle that products in float16
# move it across, where gradients with respect to locations jump.
CLEAR_OF_PIXELS = 1


def operands(name: str, dtype: Any, seed: int = 0) -> list[jax.Array]:
    """Of a call; positions from 0 to 1 are in float32."""
    call = find_call(name)
    wide = [jnp.asarray(array) for array in call.operands(seed=seed)]
    return [v if i in call.uniform else v.astype(dtype) for i, v in enumerate(wide)]


@pytest.mark.spread(5)
@pytest.mark.quick
@each_path
@each_call
def test_promotion_is_not_needed(name, path):
    """In bfloat16 beside float32, where most would be promoted; Linen's own layers promote both."""
    function = jax.jit(values_and_gradients(find_call(name)))
    dtype = jnp.float32 if name.startswith("linen") else jnp.bfloat16
    with PATHS[path](), no_promotion():
        function.lower(*operands(name, dtype))


# Equinox's LayerNorm calls jnp.var, which has a double in it.
JAXS_OWN = {"equinox.DCNv3": lambda x: jnp.var(x, -1)}


@pytest.mark.spread(8)
@each_path
@each_call
def test_float32_programs_have_no_doubles(name, path):
    """Where 64 bits are enabled."""
    function, arrays = values_and_gradients(find_call(name)), operands(name, jnp.float32)
    with PATHS[path](), jax.enable_x64(True):
        has_doubles = "f64" in jax.jit(function).lower(*arrays).as_text()
        if name in JAXS_OWN:
            assert "f64" in jax.jit(JAXS_OWN[name]).lower(arrays[0]).as_text()
        else:
            assert not has_doubles


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("switch", SWITCHES)
@each_path
@each_call
def test_values(name, path, switch, dtype):
    seed = CLEAR_OF_PIXELS if switch == "F16_F16_F16" else 0
    function, arrays = values_and_gradients(find_call(name)), operands(name, dtype, seed)
    if switch in PRESETS and ("MSDeformAttn" in name or "DCN" in name.partition(".")[2]):
        try:  # whether the platform has such products at all
            with jax.default_matmul_precision(switch):
                jax.jit(jnp.matmul).lower(jnp.ones((2, 2)), jnp.ones((2, 2))).compile()
        except ValueError:
            return
    with PATHS[path]():
        expected = jax.jit(function)(*arrays)
        with SWITCHES[switch]():
            found = jax.jit(function)(*arrays)
    exact = dtype == jnp.float32 and switch not in PRESETS and "float" not in switch
    tolerance = 1e-5 if exact else 2e-2
    for result, value in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_close(np.asarray(result, np.float32), np.asarray(value, np.float32), tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("switch", [s for s in SWITCHES if s != "transfer guard"])
@pytest.mark.parametrize("name", operator_calls())
def test_eager_values(name, switch):
    """Outside of `jax.jit`, where a number of Python is a transfer."""
    call, arrays = find_call(name), operands(name, jnp.float32)
    expected = call.function(*arrays)
    with SWITCHES[switch]():
        found = call.function(*arrays)
    tolerance = 2e-2 if switch in PRESETS or "float" in switch else 1e-5
    for result, value in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_close(np.asarray(result), np.asarray(value), tolerance)


@pytest.mark.spread(4)
@pytest.mark.quick
@pytest.mark.parametrize("preset", PRESETS)
def test_precision_presets(preset):
    """As JAX's default, by name and as an argument: a precision that is as precise at least."""
    exact = {"F32_F32_F32", "F64_F64_F64"} | {name for name in PRESETS if "_X" in name}
    narrow = {name for name in PRESETS if "BF16" in name or "F8" in name} - exact
    highest, high, default = (
        getattr(lax.Precision, name) for name in ("HIGHEST", "HIGH", "DEFAULT")
    )
    expected = highest if preset in exact else default if preset in narrow else high
    assert parse_precision(preset) == expected
    assert parse_precision(lax.DotAlgorithmPreset[preset]) == expected
    with jax.default_matmul_precision(preset):
        assert parse_precision(None) == expected
        a = jnp.ones((3, 4))
        assert oxijax.gemm(a, a.T, precision=preset).shape == (3, 3)
        assert oxijax.conv(jnp.ones((1, 2, 2, 1)), jnp.ones((1, 1, 1, 1))).shape == (1, 2, 2, 1)
