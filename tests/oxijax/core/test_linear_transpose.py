"""`jax.linear_transpose` of every operator, in each operand that its result is linear in."""

import jax
import jax.numpy as jnp
import pytest
from support.helpers import assert_close
from support.public_calls import find_call, operator_calls

import oxijax
from oxijax.testing import emulate_gpu

# Where nothing is added to the products: the operands by their positions.
LINEAR = {
    "conv (groups)": (0, 1),
    "conv (strides)": (0, 1),
    "conv_general_dilated": (0, 1),
    "deform_conv (v1)": (0, 2),
    "deform_conv (groups)": (0, 2, 3),
    "ms_deform_attn": (0, 2),
    "dcnv3": (0, 2),
    "dcnv4": (0,),
    "grid_sample": (0,),
    "grid_sample (volume)": (0,),
    "map_coordinates": (0,),
    "roi_align": (0,),
    "sample_windows": (0,),
    "sample_windows (one channel)": (0,),
    "splat": (0,),
}
CASES = [(name, position) for name, positions in LINEAR.items() for position in positions]


def test_every_operator_is_here():
    operators = {name.partition(" ")[0] for name in operator_calls()}
    operators -= {"offset_statistics", "roi_levels", "sampling_locations"}
    named = {name for name in operators if not name.startswith("reference")}
    assert named == {name.partition(" ")[0] for name in LINEAR} | {"gemm"}


def check(name: str, position: int) -> None:
    operands = [jnp.asarray(array) for array in find_call(name).operands()]

    def function(value: jax.Array) -> jax.Array:
        return find_call(name).function(*operands[:position], value, *operands[position + 1 :])

    def adjoint(cotangent: jax.Array) -> jax.Array:
        return jax.linear_transpose(function, operands[position])(cotangent)[0]

    y, pull_back = jax.vjp(function, operands[position])
    cotangent = jnp.cos(y)
    assert_close(jax.jit(adjoint)(cotangent), pull_back(cotangent)[0], 1e-6)
    twice = jax.linear_transpose(adjoint, cotangent)
    assert_close(jax.jit(twice)(operands[position])[0], y, 1e-6)


@pytest.mark.spread(3)
@pytest.mark.quick
@pytest.mark.parametrize(("name", "position"), CASES)
def test_adjoints(name, position):
    """The adjoint is what `jax.vjp` gives, and its own adjoint is the operator."""
    check(name, position)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "position"), CASES)
def test_adjoints_by_kernels(name, position):
    with emulate_gpu("sm_80"):
        check(name, position)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda grid: oxijax.grid_sample(jnp.ones((1, 4, 4, 2)), grid), (1, 3, 2)),
        (
            lambda x: oxijax.deform_conv(
                x, jnp.zeros((1, 4, 4, 2)), jnp.ones((1, 1, 2, 3)), bias=jnp.ones(3)
            ),
            (1, 4, 4, 2),
        ),
        (
            lambda mask: oxijax.dcnv3(
                jnp.ones((1, 4, 4, 2)), jnp.zeros((1, 4, 4, 2)), mask,
                kernel_size=1, groups=1, softmax=True,
            ),
            (1, 4, 4, 1),
        ),
        (lambda x: oxijax.conv(x, jnp.ones((1, 1, 2, 3)), jnp.ones(3)), (1, 4, 4, 2)),
        (lambda a: oxijax.gemm(a, jnp.ones((2, 3)), jnp.ones((4, 3)), beta=1.0), (4, 2)),
    ],
    ids=["positions", "with-a-bias", "through-a-softmax", "conv-with-a-bias", "gemm-with-c"],
)  # fmt: skip
def test_what_is_not_linear(function, shape):
    y = jax.eval_shape(function, jax.ShapeDtypeStruct(shape, jnp.float32))
    with pytest.raises(TypeError, match="linear in one factor at a time and without a term"):
        jax.linear_transpose(function, jnp.zeros(shape))(jnp.zeros(y.shape))
