"""The mechanism that makes primitives, on a kernel small enough to see through."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from support.helpers import dtypes_of_sums

from oxijax._core.primitive.kernel_primitive import Fold, KernelPrimitive, Product, Result


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


def test_evaluation_without_jit():
    with jax.disable_jit():
        y, _ = jax.jit(functools.partial(KERNEL, CONFIG))(X, SCALE)
    np.testing.assert_array_equal(jnp.asarray(y), scale_and_sum(CONFIG, X, SCALE)[0])


def test_debug_nans_names_the_primitive():
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="scale_and_sum"):
        KERNEL(CONFIG, jnp.array([[jnp.inf, -jnp.inf, 1, 1]]), None)


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


def test_a_vmap_that_no_fold_absorbs_raises():
    kernel = make(folds=(Fold("n"), Fold("c g o", fits=lambda config: False)))
    message = (
        r"scale_and_sum: no fold absorbs a vmap over scale: expected one with a dimension of each "
        r"of them and of every result, got the folds \['n'\]"
    )
    with pytest.raises(NotImplementedError, match=message):
        jax.vmap(lambda scale: kernel(CONFIG, X, scale))(jnp.stack([SCALE, SCALE]))


@pytest.mark.parametrize("argument", [0, 1])
def test_differentiates_through_the_reference(argument):
    operands = [X, SCALE.astype(jnp.float32)]

    def loss(function, value):
        y, squares = function(CONFIG, *operands[:argument], value, *operands[argument + 1 :])
        return jnp.sum(y**2) + jnp.sum(squares**3)

    actual = jax.grad(lambda v: loss(KERNEL, v))(operands[argument])
    expected = jax.grad(lambda v: loss(scale_and_sum, v))(operands[argument])
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


# An operand that is shared along a dimension, and a product with a term that has a factor.


def multiply_add(config, x, weight, term, scale):
    """[g, n] rows times weights, of which all may share one, plus a term times its scale."""
    y = x * weight
    if term is not None:
        y = y + (term if scale is None else scale[:, None] * term)
    return (y,)


ROWS = KernelPrimitive(
    "multiply_add",
    operands={"x": "g? n", "weight": "g? n", "term": "g n", "scale": "g?"},
    results={"y": Result("g n", like="x")},
    sizes=lambda config, sizes: sizes,
    folds=(Fold("n"), Fold("g")),
    reference=multiply_add,
    product=Product(
        {
            "x": lambda config, x, w, term, scale, grad_y: ROWS(config, w, grad_y, None, None),
            "weight": lambda config, x, w, term, scale, grad_y: ROWS(config, x, grad_y, None, None),
        },
        term="term",
        scale="scale",
    ),
)
MANY, ONE = jnp.arange(6.0).reshape(2, 3), jnp.array([[0.5, -1.0, 2.0]])
TERM, SCALE_OF_TERM = jnp.cos(MANY), jnp.array([1.5])


def rows(x, weight, term, scale):
    (y,) = ROWS(None, x, weight, term, scale)
    assert y is not None
    return y


def bind_shapes(function, *operands):
    """Shapes of the operands of the one bind in a function."""
    (eqn,) = (
        eqn
        for eqn in jax.make_jaxpr(function)(*operands).jaxpr.eqns
        if eqn.primitive.name == "multiply_add"
    )
    return [v.aval.shape for v in eqn.invars]


@pytest.mark.parametrize("weight", [ONE, MANY])
def test_operand_that_is_shared(weight):
    np.testing.assert_array_equal(rows(MANY, weight, None, None), MANY * weight)
    np.testing.assert_array_equal(rows(weight, MANY, None, None), MANY * weight)
    assert rows(ONE, ONE, None, None).shape == (1, 3)
    assert rows(ONE, ONE, TERM, SCALE_OF_TERM).shape == (2, 3)


def test_what_is_shared_is_all_or_one():
    with pytest.raises(ValueError, match=r"multiply_add: weight has g = 3, other operands 2"):
        rows(MANY, jnp.ones((3, 3)), None, None)
    with pytest.raises(ValueError, match=r"multiply_add: term has g = 1, other operands 2"):
        rows(MANY, ONE, ONE, None)


@pytest.mark.parametrize("axes", [a for a in itertools.product([0, None], repeat=4) if any(
    axis == 0 for axis in a)])  # fmt: skip
@pytest.mark.parametrize("weight", [ONE, MANY])
def test_vmap_over_what_is_shared(weight, axes):
    operands = [
        jnp.stack([value, value + 1, value * 2]) if axis == 0 else value
        for value, axis in zip((MANY, weight, TERM, SCALE_OF_TERM), axes, strict=True)
    ]
    expected = jax.vmap(lambda *v: multiply_add(None, *v)[0], axes)(*operands)
    np.testing.assert_allclose(jax.vmap(rows, axes)(*operands), expected, rtol=1e-6)


def test_fold_that_repeats_the_least_is_taken():
    def run(x, weight):
        return rows(x, weight, None, None)

    many, one = jnp.stack([MANY] * 5), jnp.stack([ONE] * 5)
    # Of two that repeat nothing the first; else the one that need not repeat.
    assert bind_shapes(jax.vmap(run), many, many) == [(2, 15), (2, 15)]
    assert bind_shapes(jax.vmap(run, (0, None)), one, ONE) == [(5, 3), (1, 3)]
    # Where all repeat, an operand that all share is repeated for each.
    assert bind_shapes(jax.vmap(run, (0, None)), one, MANY) == [(1, 15), (2, 15)]
    assert bind_shapes(jax.vmap(run), one, many) == [(1, 15), (2, 15)]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("modes", ["fwd", "rev"])
@pytest.mark.parametrize("shared", [(ONE, MANY), (MANY, ONE), (ONE, ONE)])
def test_derivatives_of_a_scaled_term(shared, modes):
    operands = [np.asarray(v, np.float64) for v in (*shared, TERM, SCALE_OF_TERM)]
    check_grads(rows, operands, order=2, modes=[modes], atol=1e-5, rtol=1e-5)
    expected = jax.grad(lambda *v: jnp.sum(multiply_add(None, *v)[0] ** 2), (0, 1, 2, 3))
    actual = jax.grad(lambda *v: jnp.sum(rows(*v) ** 2), (0, 1, 2, 3))
    for result, value in zip(actual(*operands), expected(*operands), strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_what_is_repeated_are_summed_in_float32(dtype):
    """XLA may sum halves in float32 too, or not."""
    many, some = jnp.ones((4096, 2, 1), dtype), jnp.ones((2, 1), dtype)

    def loss(weight):
        mapped = jax.vmap(lambda x: rows(x, weight, None, None))(many)
        return jnp.sum(mapped.astype(jnp.float32))

    np.testing.assert_array_equal(jax.grad(loss)(some), jnp.full_like(some, 4096))
    assert dtypes_of_sums(jax.grad(loss), some) == {"float32"}
