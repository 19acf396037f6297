"""The mechanism that makes primitives, on a kernel small enough to see through."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oxijax._primitive import Fold, KernelPrimitive, Result


@dataclasses.dataclass(frozen=True)
class Config:
    groups: int
    out: int


def scale_and_sum(config, x, scale):
    """[n, c] -> sums over each group's channels, repeated `out` times, and x's own scale."""
    sums = jnp.sum(x.reshape(x.shape[0], config.groups, -1), axis=2)
    y = jnp.repeat(sums, config.out, axis=1)
    if scale is None:
        return y, None
    return y * jnp.repeat(scale, config.out), jnp.square(scale)


def make(**changes):
    description = {
        "operands": {"x": "n c", "scale": "g"},
        "results": {"y": Result("n o", like="x"), "squares": Result("g", like="scale")},
        "sizes": lambda config, sizes: {**sizes, "o": config.groups * config.out},
        "folds": (
            Fold("n"),
            Fold(
                "c g o",
                update=lambda config, size: dataclasses.replace(
                    config, groups=config.groups * size
                ),
            ),
        ),
        "reference": scale_and_sum,
    }
    return KernelPrimitive("scale_and_sum", **{**description, **changes})


KERNEL = make()
CONFIG = Config(groups=2, out=3)
X = jnp.arange(8.0).reshape(2, 4)
SCALE = jnp.array([2.0, -1.0], jnp.bfloat16)


def test_results_follow_their_operands():
    y, squares = map(jnp.asarray, KERNEL(CONFIG, X, SCALE))
    assert (y.shape, y.dtype, squares.shape, squares.dtype) == ((2, 6), X.dtype, (2,), SCALE.dtype)
    np.testing.assert_array_equal(y, scale_and_sum(CONFIG, X, SCALE)[0])
    y, squares = KERNEL(CONFIG, X, None)
    assert squares is None
    np.testing.assert_array_equal(y, scale_and_sum(CONFIG, X, None)[0])


def test_sizes_that_disagree_raise():
    kernel = make(operands={"x": "n c", "scale": "c"}, folds=())
    with pytest.raises(ValueError, match=r"scale_and_sum: scale has c = 2, other operands 4"):
        kernel(CONFIG, X, SCALE)


@pytest.mark.parametrize("axes", [(0, None), (1, None), (0, 0), (None, 1), (2, 1)])
def test_vmap(axes):
    xs = jnp.moveaxis(jnp.stack([X, X + 1, X * 2]), 0, axes[0]) if axes[0] is not None else X
    scales = jnp.stack([SCALE, SCALE + 1, SCALE * 2])
    scales = jnp.moveaxis(scales, 0, axes[1]) if axes[1] is not None else SCALE
    results = jax.vmap(lambda x, s: KERNEL(CONFIG, x, s), axes)(xs, scales)
    expected = jax.vmap(lambda x, s: scale_and_sum(CONFIG, x, s), axes)(xs, scales)
    jax.tree.map(np.testing.assert_array_equal, results, expected)


def test_a_fold_is_taken_only_where_it_fits():
    kernel = make(folds=(Fold("n", fits=lambda config: False), *KERNEL.folds[1:]))
    jaxpr = jax.make_jaxpr(jax.vmap(lambda x: kernel(CONFIG, x, None)[0]))(jnp.stack([X] * 5))
    assert "groups=10" in str(jaxpr)
    assert "groups=10" not in str(
        jax.make_jaxpr(jax.vmap(lambda x: KERNEL(CONFIG, x, None)[0]))(jnp.stack([X] * 5))
    )


@pytest.mark.parametrize("argument", [0, 1])
def test_differentiates_through_the_reference(argument):
    operands = [X, SCALE.astype(jnp.float32)]

    def loss(function, value):
        y, squares = function(CONFIG, *operands[:argument], value, *operands[argument + 1 :])
        return jnp.sum(y**2) + jnp.sum(squares**3)

    actual = jax.grad(lambda v: loss(KERNEL, v))(operands[argument])
    expected = jax.grad(lambda v: loss(scale_and_sum, v))(operands[argument])
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
