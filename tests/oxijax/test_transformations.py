"""The operators under JAX's transformations, against their pure-JAX twins."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from support.helpers import TOLERANCES, assert_close
from support.layers import PATHS, equations_of
from support.places import assert_has_kernels
from support.public_calls import PublicCall, find_call, operator_calls, values_and_gradients

import oxijax

TOLERANCE = 1e-5  # float32, sums in another order
CALLS = operator_calls()
DIFFERENTIABLE = [name for name, call in CALLS.items() if call.differentiable]
OPERATORS = [name for name in DIFFERENTIABLE if f"reference.{name}" in CALLS]
# The kernels of an operator that a value and all gradients take, by the start of its name.
KERNELS = {
    "conv": ("conv_forward", "conv_backward_input", "conv_backward_weight"),
    "deform_conv": (
        *("deform_conv_forward", "deform_conv_backward_input", "deform_conv_backward_offset"),
        "deform_conv_backward_weight",
    ),
    "deform_conv (volume)": (
        *("sampling_forward", "sampling_backward_value", "sampling_backward_points"),
        *("conv_forward", "conv_backward_input", "conv_backward_weight"),
    ),
    "gemm": ("gemm",) * 4,  # the gradient to alpha is a product too
    "sampling": ("sampling_forward", "sampling_backward_value", "sampling_backward_points"),
    "sample_windows (one channel)": (
        *("sampling_windows_forward", "sampling_windows_backward_value"),
        "sampling_backward_points",
    ),
}


def kernels_of(name: str) -> tuple[str, ...]:
    return KERNELS.get(name) or KERNELS.get(name.partition(" ")[0], KERNELS["sampling"])


def assert_count(name: str, calls: int) -> None:
    """A program calls each of these kernels once, and those of volumes for one tap and in a loop.

    Samples are found again for gradients, if XLA does not see that they are the same.
    """
    count = len(kernels_of(name))
    more = name == "deform_conv (volume)"
    assert count * (1 + more) <= calls <= count * (1 + more) + 2 * more


def twins(name: str) -> tuple[PublicCall, PublicCall]:
    """The calls of an operator and of its reference."""
    return find_call(name), find_call(f"reference.{name}")


def assert_trees_close(actual, expected):
    jax.tree.map(lambda a, e: assert_close(a, e, TOLERANCE), actual, expected)


def every(call: PublicCall) -> tuple[int, ...]:
    """The positions of all operands."""
    return tuple(range(len(call.dims)))


def loss_of(call: PublicCall):
    """A loss whose derivatives of any order differ."""
    return lambda *operands: jnp.sum(jnp.sin(call.function(*operands)))


def variants(operand, count=3):
    """Operands that differ, along a new leading axis."""
    return np.stack([operand * (1 - 0.03 * i) for i in range(count)])


# Derivatives of any order and in either mode.


@pytest.mark.spread(3)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mode", ["fwd", "rev"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_check_grads(name, mode):
    call = find_call(name)
    options = {"order": 2, "modes": [mode], "atol": 1e-6, "rtol": 1e-6, "eps": 1e-7}
    check_grads(jax.jit(call.function), call.operands(np.float64), **options)


def _forward(function, primals, tangents):
    return jax.jvp(function, primals, tangents)[1]


def _reverse(function, primals, tangents):
    gradients = jax.grad(function, tuple(range(len(primals))))(*primals)
    return sum(jnp.sum(g * t) for g, t in zip(gradients, tangents, strict=True))


# What makes the products of an operator besides its own primitives.
PRODUCTS_OF_XLA = {"conv": "conv_general_dilated", "gemm": "dot_general"}
OF_PRODUCTS = {*PRODUCTS_OF_XLA, *(f"reference.{name}" for name in PRODUCTS_OF_XLA)}


@pytest.mark.spread(2)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("outer", "inner"), itertools.product([_forward, _reverse], repeat=2))
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("path", PATHS)
def test_second_derivatives(path, name, outer, inner):
    """All combinations of modes, in all operands at once; convolutions and products by kernels."""
    operands = find_call(name).operands(np.float64)
    first, second = (tuple(f(array) for array in operands) for f in (jnp.cos, jnp.sin))

    def derivative(call):
        def slope(*primals):
            return inner(loss_of(call), primals, first)

        return lambda *primals: outer(slope, primals, second)

    call, twin = twins(name)
    with PATHS[path]():
        compiled = jax.jit(derivative(call)).lower(*operands).compile()
        actual = compiled(*operands)
    assert_close(actual, jax.jit(derivative(twin))(*operands), 1e-12)
    calls = assert_has_kernels(compiled.as_text(), kernels_of(name)[:1]) if path == "kernels" else 0
    if path == "xla" and (outer, inner) == (_forward, _reverse):
        assert_close(derivative(call)(*operands), actual, 1e-12)  # eagerly
    if base := PRODUCTS_OF_XLA.get(name.partition(" ")[0]):
        assert base not in str(jax.make_jaxpr(derivative(call))(*operands))
        assert path == "xla" or calls > len(kernels_of(name))


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if n.split()[0] not in OF_PRODUCTS])
def test_second_derivatives_in_bfloat16(name):
    """Those of the twins too, which differentiate what gathers bfloat16 by bits, in loops."""
    call = find_call(name)
    operands = [jnp.asarray(each, jnp.bfloat16) for each in call.operands(np.float64)]

    def loss(*operands):
        return jnp.sum(jnp.sin(call.function(*operands).astype(jnp.float32)))

    @jax.jit
    def derivative(*operands):
        tangents = tuple(jnp.cos(each) for each in operands)
        return _forward(jax.grad(loss, every(call)), operands, tangents)

    exact = derivative(*(each.astype(jnp.float32) for each in operands))
    for actual, expected in zip(derivative(*operands), exact, strict=True):
        error = jnp.linalg.norm(actual.astype(jnp.float32) - expected)
        assert error <= 4 * TOLERANCES["bfloat16"] * jnp.linalg.norm(expected)


def _linearized(function, primals, tangents):
    y, linear = jax.linearize(function, *primals)
    return y, linear(*tangents)


def _one_by_one(function, primals, tangents):
    """Values and tangents in each operand alone."""

    def along(i):
        def of_one(value):
            return function(*primals[:i], value, *primals[i + 1 :])

        return jax.jvp(of_one, primals[i : i + 1], tangents[i : i + 1])

    return [along(i) for i in range(len(primals))]


def _of_vmap(function, primals, tangents):
    primals, tangents = ([jnp.stack([v, v / 2]) for v in vs] for vs in (primals, tangents))
    return jax.jvp(jax.vmap(function), primals, tangents)


@pytest.mark.spread(3)
@pytest.mark.quick
@pytest.mark.parametrize("way", [jax.jvp, _one_by_one, _linearized, _of_vmap])
@pytest.mark.parametrize("under_jit", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_forward_mode(name, under_jit, way):
    operands = find_call(name).operands()
    tangents = [np.cos(array) for array in operands]
    actual, expected = (functools.partial(way, call.function) for call in twins(name))
    actual = (jax.jit(actual) if under_jit else actual)(operands, tangents)
    assert_trees_close(actual, expected(operands, tangents))


@pytest.mark.spread(3)
@pytest.mark.quick
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint])
@pytest.mark.parametrize("name", OPERATORS)
def test_eager_jit_and_remat(name, transform):
    call, twin = twins(name)
    y, pull_back = jax.vjp(transform(call.function), *call.operands())
    expected = jax.jit(values_and_gradients(twin))(*call.operands())
    assert_trees_close((y, pull_back(jnp.cos(y))), expected)


# Besides forward, the primitive that the gradient to each operand takes.
NEEDED = {
    "conv": ("conv_backward_input", "conv_backward_weight", None),
    "deform_conv": (
        *("deform_conv_backward_input", "deform_conv_backward_offset"),
        *("deform_conv_backward_weight", "deform_conv_backward_offset", None),
    ),
    "ms_deform_attn": ("sampling_backward_value", *("sampling_backward_points",) * 2),
    "dcnv4": ("sampling_backward_value", "sampling_backward_points"),
}
WANTED = [(name, i) for name, needed in NEEDED.items() for i in range(len(needed))]


def primitives_in(text: str) -> set[str]:
    return {*re.findall(r"\b(?:(?:deform_)?conv|sampling)_(?:for|back)ward(?:_[a-z]+)?\b", text)}


@pytest.mark.quick
@pytest.mark.parametrize(("name", "wanted"), WANTED)
def test_unwanted_gradients_leave_no_trace(name, wanted):
    """A gradient that was not asked for is in neither jaxpr nor HLO."""
    call = find_call(name)
    traced = jax.jit(jax.grad(loss_of(call), wanted)).trace(*call.operands())
    expected = {kernels_of(name)[0], NEEDED[name][wanted]} - {None}
    assert primitives_in(str(traced.jaxpr)) == expected
    assert primitives_in(traced.lower().as_text(debug_info=True)) == expected


@pytest.mark.quick
@pytest.mark.parametrize(("name", "used"), WANTED)
def test_unused_gradients_leave_no_trace(name, used):
    """Nor is one that was asked for and then dropped in the HLO."""
    call = find_call(name)
    gradients = jax.grad(loss_of(call), every(call))
    lowered = jax.jit(lambda *operands: gradients(*operands)[used]).lower(*call.operands())
    expected = {kernels_of(name)[0], NEEDED[name][used]} - {None}
    assert primitives_in(lowered.as_text(debug_info=True)) == expected


@pytest.mark.quick
@pytest.mark.parametrize("name", NEEDED)
def test_forward_mode_needs_no_gradients(name):
    """A program of forward mode has none of the kernels of reverse mode."""
    operands = find_call(name).operands()
    tangent = jax.jit(functools.partial(jax.jvp, find_call(name).function))
    text = tangent.trace(operands, operands).lower().as_text(debug_info=True)
    assert primitives_in(text) == {kernels_of(name)[0]}


# vmap. That of gemm is in `gemm/test_vmap.py`.

CONVOLVING = [name for name in OPERATORS if name.startswith(("conv", "deform_conv"))]
SAMPLING = ["ms_deform_attn", "dcnv3", "dcnv4", "grid_sample"]
MAPPED = [
    (name, axes)
    for name in [*CONVOLVING, *SAMPLING]
    for axes in itertools.product([0, None], repeat=len(find_call(name).dims))
    if 0 in axes
]


@functools.cache
def _value_and_gradients(name: str):
    return jax.jit(values_and_gradients(find_call(f"reference.{name}")))


@pytest.mark.spread(5)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("name", "axes"), MAPPED)
def test_vmap_over_every_subset(name, axes, path):
    """Values, and gradients of all operands, of vmap over each subset of the operands."""
    call = find_call(name)
    batched = [
        variants(v) if axis == 0 else v for v, axis in zip(call.operands(), axes, strict=True)
    ]
    with PATHS[path]():
        mapped = jax.jit(jax.vmap(values_and_gradients(call), axes))
        compiled = mapped.lower(*batched).compile()
        actual = compiled(*batched)
    if path == "kernels":
        kernels = kernels_of(name)
        assert_count(name, assert_has_kernels(compiled.as_text(), kernels))
    expected = [
        _value_and_gradients(name)(
            *(v[i] if axis == 0 else v for v, axis in zip(batched, axes, strict=True))
        )
        for i in range(3)
    ]
    assert_trees_close(actual, jax.tree.map(lambda *v: np.stack(v), *expected))


@pytest.mark.spread(2)
@pytest.mark.quick
@pytest.mark.parametrize("name", [*CONVOLVING, *SAMPLING])
def test_grad_of_vmap(name):
    call, twin = twins(name)
    operands = [variants(v) for v in call.operands()]

    def mapped(*operands):
        return jnp.sum(jnp.sin(jax.vmap(call.function)(*operands)))

    def loop(*operands):
        return sum(loss_of(twin)(*(v[i] for v in operands)) for i in range(3))

    actual, expected = (jax.jit(jax.grad(f, every(call)))(*operands) for f in (mapped, loop))
    assert_trees_close(actual, expected)


@pytest.mark.spread(4)
@pytest.mark.parametrize("name", [*CONVOLVING, *SAMPLING])
def test_nested_vmap(name):
    """Two operands mapped over different axes, one inside the other."""
    call, twin = twins(name)
    x, second, *rest = call.operands()
    xs, seconds = variants(x, 2), np.moveaxis(variants(second), 0, -1)

    @jax.jit
    def run(xs, seconds):
        def of_image(x):
            return jax.vmap(lambda value: call.function(x, value, *rest), -1, 1)(seconds)

        return jax.vmap(of_image, out_axes=2)(xs)

    actual, reference = run(xs, seconds), jax.jit(twin.function)
    for i, k in itertools.product(range(2), range(3)):
        assert_close(actual[:, k, i], reference(xs[i], seconds[..., k], *rest), TOLERANCE)


@pytest.mark.spread(10)
@pytest.mark.parametrize("name", OPERATORS)
def test_vmap_over_nothing(name):
    call = find_call(name)
    ys = jax.vmap(call.function)(*(variants(v)[:0] for v in call.operands()))
    assert ys.shape == (0, *jax.eval_shape(call.function, *call.operands()).shape)
    assert ys.dtype == jnp.float32


# Which operands are mapped, and the shapes of those that the one primitive has then.
SHARED = [
    ("conv", (0, None, None), [(12, 4, 6, 4), (3, 3, 4, 4), (4,)]),  # a larger batch
    ("conv", (None, 0, None), [(4, 4, 6, 4), (3, 3, 4, 12), (12,)]),  # more output channels
    ("conv", (0, 0, None), [(4, 4, 6, 12), (3, 3, 4, 12), (12,)]),  # groups
    (
        *("deform_conv", (None, None, 0, None, None)),
        [(4, 4, 6, 4), (4, 4, 6, 18), (3, 3, 4, 12), (4, 4, 6, 9), (12,)],
    ),
    # More queries, and more channels.
    ("ms_deform_attn", (None, 0, 0), [(4, 16, 2, 4), (4, 12, 2, 4, 2), (4, 12, 2, 4)]),
    ("ms_deform_attn", (0, None, None), [(4, 16, 2, 12), (4, 4, 2, 4, 2), (4, 4, 2, 4)]),
]


@pytest.mark.quick
@pytest.mark.parametrize(("name", "axes", "shapes"), SHARED)
def test_vmap_shares_what_is_not_mapped(name, axes, shapes):
    call = find_call(name)
    operands = [
        variants(v) if axis == 0 else v for v, axis in zip(call.operands(), axes, strict=True)
    ]
    jaxpr = jax.make_jaxpr(jax.vmap(call.function, axes))(*operands).jaxpr
    (bind,) = (e for e in equations_of(jaxpr) if e.primitive.name == kernels_of(name)[0])
    assert [v.aval.shape for v in bind.invars] == shapes
    groups = getattr(bind.params["config"].op, "groups", 1)
    assert groups == (3 if axes[:2] == (0, 0) else 1)


# Export.


@pytest.mark.spread(3)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", OPERATORS)
def test_export_round_trip(name, path):
    """An exported program has the kernels' configurations in it, and no state of the process."""
    call = find_call(name)
    program = jax.jit(values_and_gradients(call))
    with PATHS[path]():
        exported = jax.export.export(program, disabled_checks=oxijax.EXPORT_CHECKS)(
            *call.operands()
        )
        actual = jax.export.deserialize(exported.serialize()).call(*call.operands())
        expected = program(*call.operands())
    calls = exported.mlir_module().count("@oxijax_launch")
    if path == "kernels":
        assert_count(name, calls)
    else:
        assert calls == 0
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
